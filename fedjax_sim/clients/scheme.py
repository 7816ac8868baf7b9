"""What is said of clients: the base of all schemes, and fields that are one number or one a client."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlog1py, xlogy

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import Check
from fedjax_sim.core.values import array_of, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset

T = TypeVar("T", bound=Described)


@dataclasses.dataclass(frozen=True)
class EachClient:
    """The check of a field that is one number for everybody, or one a client in the order of the ids.

    For :func:`fedjax_sim.core.fields.leaf`. That there is one number a client is checked when the data are known.

    Attributes:
      low, high, above: the interval, as in :func:`fedjax_sim.core.values.check_real`.
      other: types of what else is allowed.
      rounds: whether an array [rounds, N] is allowed too.
    """

    low: float = 0.0
    high: float | None = None
    above: float | None = None
    other: tuple[type, ...] = ()
    rounds: bool = False

    def __call__(self, what: str, value: Any) -> None:
        if isinstance(value, self.other):
            return
        if isinstance(value, Described):
            raise TypeError(f"{what} is {shown(value)}: it must be a real number or an array of them")
        check_real(what, value, low=self.low, high=self.high, above=self.above)
        shape = np.shape(array_of(what, value))
        if len(shape) > 1 + self.rounds or 0 in shape:
            raise ValueError(
                f"{what} has shape {shape}: give one number, or one a client{' or [rounds, N]' * self.rounds}"
            )


def check_kind(what: str, value: Any, *kinds: type, example: str) -> None:
    """Raises ``TypeError`` for a ``value`` of another class; ``example`` is what a message shows of the first."""
    if not isinstance(value, kinds):
        kind = kinds[0].__name__
        call = ", so call it" if inspect.isroutine(value) or isinstance(value, type) else ""
        article = "an" if kind[0] in "AEIOU" else "a"
        raise TypeError(f"{what} is {shown(value)}: it must be {article} {kind}{call}, for instance {example}")


def one_of(*kinds: type, example: str) -> Check:
    """The check of a field that is an object of one of these classes."""
    return lambda what, value: check_kind(what, value, *kinds, example=example)


class Scheme(Described):
    """Base of all that a run is given about its clients."""

    def checked(self) -> Self:
        return as_arrays(super().checked())

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        """Raises ``ValueError`` where it cannot serve this data set or number of rounds."""
        check_lengths(self, dataset.num_clients, rounds)


def as_arrays(obj: T) -> T:
    """``obj`` with arrays in the place of lists of one number a client."""
    return obj.replace(**{name: array_of(name, getattr(obj, name)) for name in _each_client(obj)})


def check_lengths(obj: Described, num_clients: int, rounds: int = 0) -> None:
    """Checks, once the data set is known, that there is one number or one a client; else a ``ValueError``."""
    for name, kind in _each_client(obj).items():
        value = getattr(obj, name)
        if not isinstance(value, kind.other):
            check_shape(f"{obj.factory_name()}({name}=...)", value, num_clients, rounds)


def check_shape(what: str, value: Any, num_clients: int, rounds: int = 0) -> None:
    """Checks that ``value`` is one number, [N] or [rounds or more, N]; else a ``ValueError``."""
    shape = np.shape(value)
    if len(shape) == 1 and shape[0] != num_clients:
        raise ValueError(f"{what} has {shape[0]} values for {num_clients} clients: give one a client")
    if len(shape) == 2 and (shape[1] != num_clients or shape[0] < rounds):
        raise ValueError(f"{what} is {list(shape)}: the run needs [{rounds} rounds, {num_clients} clients]")


def at_clients(value: Any, indices: jax.Array) -> jax.Array:
    """The values of the clients ``indices``, in the default float type; of indices out of range, anything."""
    array = jnp.asarray(value).astype(jnp.result_type(float))
    return array.at[indices].get(mode="clip") if array.ndim else jnp.full(indices.shape, array)


def _each_client(obj: Any) -> dict[str, EachClient]:
    checks = {field.name: field.metadata.get("check") for field in dataclasses.fields(obj)}
    return {name: check for name, check in checks.items() if isinstance(check, EachClient)}


def unparametrised(scheme: Scheme) -> jax.Array:
    """log p of a scheme's draws, of which no real parameter is part: 0; an error where it has one."""
    real = [leaf for leaf in jax.tree.leaves(scheme) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    if real:
        raise TypeError(
            f"{scheme.factory_name()}: the probability of its draws is not written down, so that score() has no "
            "derivative of it: define log_probability"
        )
    return jnp.zeros(())


def log_of_events(happened: jax.Array, probability: jax.Array) -> jax.Array:
    """log p of independent events that did or did not happen, each; 0 where there was no choice."""
    happened = happened.astype(probability.dtype)
    return xlogy(happened, probability) + xlog1py(1 - happened, -probability)
