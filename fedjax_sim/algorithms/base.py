"""Federated averaging with a server optimiser: the base of all methods but the wrappers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim import optim, rates, trees
from fedjax_sim.algorithms.contract import Client, Cohort, Method


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
    """Base of all methods: federated averaging with a server optimiser, to be overridden where a method differs.

    Attributes:
      client_optimizer: local solver; its state is fresh every round.
      client_learning_rate: l in y <- y + l u: number, pytree like the parameters, or a rate of ``fedjax_sim.rates``.
      server_learning_rate: eta_g in x <- x + eta_g u: number or rate over rounds.
      server_optimizer: acts on the negative pseudo-gradient; None means u = Delta.
    """

    client_optimizer: optim.Optimizer  # type: ignore[misc]
    client_learning_rate: Any = 1.0  # type: ignore[misc]
    server_learning_rate: Any = 1.0  # type: ignore[misc]
    server_optimizer: optim.Optimizer | None = None  # type: ignore[misc]

    @property
    def accepts_nonlinear(self) -> bool:
        """Whether a local solver that is not linear in the gradients may be probed all the same."""
        return False

    def checked(self) -> Self:
        name = type(self).__name__
        checked = self.replace(
            client_optimizer=optim.as_optimizer(self.client_optimizer, f"{name}(client_optimizer=...)"),
            client_learning_rate=rates.as_rate(self.client_learning_rate, f"{name}(client_learning_rate=...)"),
            server_learning_rate=rates.as_rate(self.server_learning_rate, f"{name}(server_learning_rate=...)"),
        )
        if self.server_optimizer is not None:
            server = optim.as_optimizer(self.server_optimizer, f"{name}(server_optimizer=...)")
            checked = checked.replace(server_optimizer=server)
        probed = "slope" in checked.needs and not checked.accepts_nonlinear
        if probed and not optim.is_linear(checked.client_optimizer):
            raise ValueError(
                f"{name} normalises by the sum of the local solver's accumulation weights, which exists for linear "
                f"solvers only, and {optim.describe_name(checked.client_optimizer)} is not linear in the gradients: "
                "use sgd (with any momentum), or FedAvg with this solver"
            )
        return checked

    def hoisted(self, params: Any) -> Self:
        changed = {"client_optimizer": optim.hoist(self.client_optimizer, params)}
        if self.server_optimizer is not None:
            changed["server_optimizer"] = optim.hoist(self.server_optimizer, params)
        return self.replace(**changed)

    def init(self, params: Any, num_clients: int) -> Any:
        solver = self.server_solver()
        return ServerState(params, () if solver is None else solver.init(params))

    def broadcast(self, server: Any) -> Any:
        return Sent(server.params)

    def aggregate(self, server: Any, sums: dict[str, Any], cohort: Cohort) -> Any:
        return self.server_step(server, averaged(server.params, sums["delta"], cohort), cohort)

    def server_solver(self) -> optim.Optimizer | None:
        """The optimiser of :meth:`server_step`: what the user gave, or the one that makes the method what it is."""
        return self.server_optimizer

    def server_step(self, server: Any, delta: Any, cohort: Cohort) -> Any:
        """x <- x + eta_g u, with u the server optimiser's update for the gradient -Delta (u = Delta without one)."""
        state = server.optimizer
        solver = self.server_solver()
        if solver is not None:
            negative = jax.tree.map(jnp.negative, delta)
            delta, state = solver.update(negative, state, server.params)
        rate = rates.rate_at(self.server_learning_rate, cohort.round, jnp.int32(0))
        return server._replace(params=trees.add_scaled(server.params, rate, delta), optimizer=state)


def averaged(params: Any, delta: Any, cohort: Cohort) -> Any:
    """The averaged model less x: the weighted sum of the changes, and the shift of x in schemes that average models."""
    shifts = not isinstance(cohort.shift, tuple)
    return trees.add_scaled(delta, cohort.shift, params) if shifts else delta


__all__ = ["Algorithm", "Client", "Cohort", "Method", "Sent", "ServerState", "averaged"]
