"""What all methods but the wrappers have, optimisers and rates; how methods are registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from fedjax_sim import optim
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import flag
from fedjax_sim.core.records import RECORDS, Record
from fedjax_sim.optim import rates

P = ParamSpec("P")
T = TypeVar("T")


class Sent(NamedTuple):
    """What FedAvg and its kin broadcast: the model x, where clients start."""

    params: Any


class ServerState(NamedTuple):
    """What a server keeps from round to round.

    Attributes:
      params: the global model x.
      optimizer: state of the server optimiser.
      extra: what the method adds (SCAFFOLD's c), ``()`` for none.
    """

    params: Any
    optimizer: Any
    extra: Any = ()


class Algorithm(Method, kw_only=True):
    """The hyper-parameters that all methods have.

    Attributes:
      client_optimizer: local solver; its state is fresh every round, unless ``keep_optimizer``.
      client_learning_rate: l in y <- y + l u: number, pytree like the parameters, or a rate of ``fedjax_sim.rates``.
      server_learning_rate: eta_g in x <- x + eta_g u: likewise, but not over clients, of whom a server has none.
      server_optimizer: acts on the negative pseudo-gradient; None means u = Delta.
      keep_optimizer: whether a client keeps its solver's state from visit to visit, as DiLoCo's workers do.
    """

    client_optimizer: optim.Optimizer  # type: ignore[misc]
    client_learning_rate: Any = 1.0  # type: ignore[misc]
    server_learning_rate: Any = 1.0  # type: ignore[misc]
    server_optimizer: optim.Optimizer | None = None  # type: ignore[misc]
    keep_optimizer: bool = flag(default=False)  # type: ignore[misc]

    def checked(self) -> Self:
        name = type(self).__name__
        made = {
            "client_optimizer": optim.as_optimizer(self.client_optimizer, f"{name}(client_optimizer=...)"),
            "client_learning_rate": rates.as_rate(self.client_learning_rate, f"{name}(client_learning_rate=...)"),
            "server_learning_rate": rates.as_rate(self.server_learning_rate, f"{name}(server_learning_rate=...)"),
        }
        if self.server_optimizer is not None:
            made["server_optimizer"] = optim.as_optimizer(self.server_optimizer, f"{name}(server_optimizer=...)")
        checked = super().checked().replace(**made)
        probed = checked.requires.slope and not checked.requires.nonlinear
        if probed and not optim.is_linear(checked.client_optimizer):
            raise ValueError(
                f"{name} normalises by the sum of the local solver's accumulation weights, which exists for linear "
                f"solvers only, and {optim.describe_name(checked.client_optimizer)} is not linear in the gradients: "
                "use sgd (with any momentum), or FedAvg with this solver"
            )
        return checked


def recorded(name: str, cls: Callable[P, T], **about: Any) -> Callable[P, T]:
    """The factory of a method, as :func:`fedjax_sim.factory` makes it, of whom ``about`` is the ``Record``."""
    record = RECORDS[name] = Record(**about)
    make = factory(name, cls)
    sends = record.sends[:1].lower() + record.sends[1:]
    own = isinstance(cls, type) and issubclass(cls, Algorithm)
    said = f"State per client: {record.keeps}. Sent a round and client: {sends}.\n    "
    said += "Optimisers and rates: those of :class:`fedjax_sim.algorithms.Algorithm`.\n    " if own else ""
    make.__doc__ = f"{make.__doc__}\n    {said}"
    return make
