"""Learning rates that change over rounds or differ between clients.

A rate multiplies what the optimiser proposes: y <- y + l u on a client (``client_learning_rate``),
x <- x + eta_g u on the server (``server_learning_rate``). It is a number, a pytree like the parameters, one of the
objects below, or a function of the round (an optax schedule).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real
from fedjax_sim.optim import third_party


class Rate(Described):
    """A learning rate as a function of round and client."""

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        """The rate, a scalar.

        Args:
          round_: int32 scalar, counted from 0.
          client: int32 scalar, the client's index (clients are numbered 0..N-1 in the order of their ids).
        """
        raise TypeError(f"{type(self).__name__} must define at(round_, client)")

    def check(self, what: str, num_clients: int, rounds: int) -> None:
        """Raises ``ValueError`` where the shape cannot serve N clients or this many rounds."""


class OverRounds(Rate):
    """values[t] in round t.

    Args:
      values: array of one value a round.
    """

    values: Any

    def checked(self) -> OverRounds:
        return self.replace(values=_one_axis("over_rounds(values)", self.values, "round"))

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        return jnp.asarray(self.values)[round_]

    def check(self, what: str, num_clients: int, rounds: int) -> None:
        if jnp.shape(self.values)[0] < rounds:
            raise ValueError(f"{what} has {jnp.shape(self.values)[0]} values for {rounds} rounds: give one a round")


class OverClients(Rate):
    """values[i] for client i (numbered in the order of the client ids).

    Args:
      values: array of one value a client.
    """

    values: Any

    def checked(self) -> OverClients:
        return self.replace(values=_one_axis("over_clients(values)", self.values, "client"))

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        return jnp.asarray(self.values)[client]

    def check(self, what: str, num_clients: int, rounds: int) -> None:
        if jnp.shape(self.values)[0] != num_clients:
            raise ValueError(
                f"{what} has {jnp.shape(self.values)[0]} values for {num_clients} clients: give one a client"
            )


class InverseTime(Rate):
    """initial / (1 + decay t): Li et al. 2020 use decay 1.

    Args:
      initial: eta_0.
      decay: per round.
    """

    initial: Any = 1.0
    decay: Any = 1.0

    def checked(self) -> InverseTime:
        check_real("inverse_time(initial=...)", self.initial, low=0.0)
        check_real("inverse_time(decay=...)", self.decay, low=0.0)
        return self

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        initial = _real(self.initial)
        time = round_.astype(initial.dtype)
        return initial / (1 + jnp.asarray(self.decay).astype(initial.dtype) * time)


class Piecewise(Rate):
    """initial * factor^(number of ``boundaries`` at or before the round).

    Args:
      initial: value before the first boundary.
      boundaries: rounds from which on one more factor applies, ``(600, 900)``.
      factor: what each boundary multiplies by.
    """

    initial: Any
    boundaries: tuple[int, ...] = static()
    factor: Any = 0.1

    def checked(self) -> Piecewise:
        check_real("piecewise(initial=...)", self.initial, low=0.0)
        check_real("piecewise(factor=...)", self.factor, low=0.0)
        if not isinstance(self.boundaries, (tuple, list, np.ndarray)):
            raise TypeError(f"piecewise(boundaries={self.boundaries!r}): give a tuple of rounds, (600, 900)")
        for boundary in self.boundaries:
            check_count("piecewise(boundaries=...)", boundary, low=0, high=INT32_MAX)
        return self.replace(boundaries=tuple(int(b) for b in self.boundaries))

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        value, factor = _real(self.initial), jnp.asarray(self.factor)
        for boundary in self.boundaries:
            value = jnp.where(round_ >= boundary, value * factor.astype(value.dtype), value)
        return value


class FromFunction(Rate):
    """A bare function of the round, for instance an optax schedule; opaque in a description."""

    function: Callable[[jax.Array], Any] = static()

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        with third_party():
            return jnp.asarray(self.function(round_))


def _real(value: Any) -> jax.Array:
    """``value`` as an array of floats: what is cast to an integer's type would lose its fraction."""
    array = jnp.asarray(value)
    return array.astype(jnp.result_type(float)) if jnp.issubdtype(array.dtype, jnp.integer) else array


def _one_axis(what: str, values: Any, each: str) -> Any:
    check_real(what, values, low=0.0)
    values = jnp.asarray(values) if isinstance(values, (list, tuple)) else values
    if np.ndim(values) != 1:
        raise ValueError(f"{what} has shape {np.shape(values)}: give one value a {each}")
    return values


over_rounds = factory("rate.over_rounds", OverRounds)
over_clients = factory("rate.over_clients", OverClients)
inverse_time = factory("rate.inverse_time", InverseTime)
piecewise = factory("rate.piecewise", Piecewise)


def as_rate(given: Any, what: str) -> Any:
    """``given`` checked: a number, a pytree of numbers, a :class:`Rate`, or a function of the round (wrapped).

    Raises:
      TypeError: something else.
      ValueError: negative or not finite.
    """
    if isinstance(given, Rate):
        return given
    if callable(given) and not isinstance(given, (jax.Array, np.ndarray)):
        return FromFunction(function=given)
    check_real(what, given, low=0.0)
    return given


def rate_at(rate: Any, round_: jax.Array, client: jax.Array) -> Any:
    """The value of a rate (see :func:`as_rate`) in a round for a client: a scalar or a pytree like the parameters."""
    return rate.at(round_, client) if isinstance(rate, Rate) else rate
