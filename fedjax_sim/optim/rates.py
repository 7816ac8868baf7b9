"""Learning rates that change over rounds or differ between clients.

A rate multiplies what the optimiser proposes: y <- y + l u on a client (``client_learning_rate``),
x <- x + eta_g u on the server (``server_learning_rate``). It is a number, a pytree like the parameters, one of the
objects below, or a function of the round (an optax schedule).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import real, static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real
from fedjax_sim.optim import third_party


class Rate(Described):
    """A learning rate as a function of round and client."""

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        """The rate, a scalar, in round ``round_``, int32 from 0, for the client of index ``client``, int32."""
        raise TypeError(f"{type(self).__name__} must define at(round_, client)")

    def check(self, what: str, num_clients: int, rounds: int) -> None:
        """Raises ``ValueError`` where the shape cannot serve N clients or this many rounds."""


class _Table(Rate):
    values: Any = real(low=0.0, several=True)

    each: ClassVar[str]  # what there is a value of: round or client

    def checked(self) -> Self:
        checked = super().checked()
        if np.ndim(checked.values) != 1:
            name, shape = self.factory_name(), np.shape(checked.values)
            raise ValueError(f"{name}(values) has shape {shape}: give one value a {self.each}")
        return checked

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        return jnp.asarray(self.values)[round_ if self.each == "round" else client]

    def check(self, what: str, num_clients: int, rounds: int) -> None:
        held, needed = jnp.shape(self.values)[0], rounds if self.each == "round" else num_clients
        if held < needed or (held > needed and self.each == "client"):
            raise ValueError(f"{what} has {held} values for {needed} {self.each}s: give one a {self.each}")


class OverRounds(_Table):
    """values[t] in round t.

    Args:
      values: array of one value a round.
    """

    each: ClassVar[str] = "round"


class OverClients(_Table):
    """values[i] for client i (numbered in the order of the client ids).

    Args:
      values: array of one value a client.
    """

    each: ClassVar[str] = "client"


class InverseTime(Rate):
    """initial / (1 + decay t): Li et al. 2020 use decay 1.

    Args:
      initial: eta_0.
      decay: per round.
    """

    initial: Any = real(default=1.0, low=0.0)
    decay: Any = real(default=1.0, low=0.0)

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        initial = trees.real(self.initial)  # what is cast to an integer's type would lose its fraction
        time = round_.astype(initial.dtype)
        return initial / (1 + jnp.asarray(self.decay).astype(initial.dtype) * time)


def _check_boundaries(what: str, value: Any) -> None:
    if not isinstance(value, (tuple, list, np.ndarray)):
        raise TypeError(f"{what} is {value!r}: give a tuple of rounds, (600, 900)")
    for boundary in value:
        check_count(what, boundary, low=0, high=INT32_MAX)


class Piecewise(Rate):
    """initial * factor^(number of ``boundaries`` at or before the round).

    Args:
      initial: value before the first boundary.
      boundaries: rounds from which on one more factor applies, ``(600, 900)``.
      factor: what each boundary multiplies by.
    """

    initial: Any = real(low=0.0)
    boundaries: tuple[int, ...] = static(_check_boundaries)
    factor: Any = real(default=0.1, low=0.0)

    def checked(self) -> Self:
        super().checked()
        return self.replace(boundaries=tuple(int(b) for b in self.boundaries))

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        value, factor = trees.real(self.initial), jnp.asarray(self.factor)
        for boundary in self.boundaries:
            value = jnp.where(round_ >= boundary, value * factor.astype(value.dtype), value)
        return value


class FromFunction(Rate):
    """A bare function of the round, for instance an optax schedule; opaque in a description."""

    function: Callable[[jax.Array], Any] = static()

    def as_given(self) -> Any:
        """What it is known by."""
        return self.function

    def at(self, round_: jax.Array, client: jax.Array) -> Any:
        with third_party():
            return jnp.asarray(self.function(round_))


over_rounds = factory("rate.over_rounds", OverRounds)
over_clients = factory("rate.over_clients", OverClients)
inverse_time = factory("rate.inverse_time", InverseTime)
piecewise = factory("rate.piecewise", Piecewise)


def as_rate(given: Any, what: str) -> Any:
    """``given`` checked: a number, a pytree of numbers, a :class:`Rate`, or a function of the round (wrapped)."""
    if isinstance(given, Rate):
        return given
    if callable(given) and not isinstance(given, (jax.Array, np.ndarray)):
        return FromFunction(function=given)
    check_real(what, given, low=0.0)
    return given


def of_all_parameters(rate: Any) -> bool:
    """Whether a rate is one for all parameters, in a round and for a client: a number or a :class:`Rate`."""
    return isinstance(rate, Rate) or (jax.tree_util.all_leaves([rate]) and np.shape(rate) == ())


def rate_at(rate: Any, round_: jax.Array, client: jax.Array) -> Any:
    """The value of a rate (see :func:`as_rate`) in a round for a client: a scalar or a pytree like the parameters."""
    return rate.at(round_, client) if isinstance(rate, Rate) else rate
