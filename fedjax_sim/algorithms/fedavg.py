"""Federated averaging and the two special cases that have names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim import optim
from fedjax_sim.algorithms.base import Algorithm, Sent, ServerState, recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Requires, affine
from fedjax_sim.core.trees import add_scaled, subtract, zeros_like
from fedjax_sim.optim import parts, rates
from fedjax_sim.optim.described import move


class FedAvg(Algorithm):
    """FedAvg: tau_i local steps, then a weighted average of the models.

    y_i <- y_i - eta g_i(y_i), tau_i times from y_i = x;   x <- x + eta_g sum_S w_i (y_i - x)

    with w_i from the cohort scheme (n_i / sum_S n by default). Minimises a surrogate, not F, when the tau_i differ
    (Wang et al. 2020, Theorem 1).

    Reference: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
    Algorithm 1; with a server optimiser: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 1.
    """

    def init(self, params: Any, shares: jax.Array) -> Any:
        solver = self.server_solver()
        return ServerState(params, () if solver is None else solver.init(params))

    def send(self, server: Any) -> Any:
        return Sent(server.params)

    @affine
    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        return parts.descend(self.client_optimizer, g, y, state, client.learning_rate)

    @affine
    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y, sent.params)

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        delta = got["delta"]
        if cohort.shift is not None:  # schemes that average models, not changes
            delta = add_scaled(delta, cohort.shift, server.params)
        return self.server_step(server, delta, cohort)

    def server_solver(self) -> optim.Optimizer | None:
        """The optimiser of :meth:`server_step`: what the user gave, or the one that makes the method what it is."""
        return self.server_optimizer

    def server_step(self, server: Any, delta: Any, cohort: Cohort, **extra: Any) -> Any:
        """x <- x + eta_g u, with u the server optimiser's update for the gradient -delta (u = delta without one).

        ``extra`` is what the optimiser is told besides.
        """
        state, solver = server.optimizer, self.server_solver()
        if solver is not None:
            delta, state = solver.update(jax.tree.map(jnp.negative, delta), state, server.params, **extra)
        rate = rates.rate_at(self.server_learning_rate, cohort.round, jnp.int32(0))
        return server._replace(params=move(server.params, rate, delta), optimizer=state)


class Controlled(FedAvg):
    """Base of the methods with a control variate of every client and one of the server: like the model, 0 at first."""

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=zeros_like(params))

    def init_client(self, params: Any) -> Any:
        return zeros_like(params)


class LocalSgd(FedAvg):
    """Local SGD: FedAvg with everybody in every round; any other cohort is refused.

    Raises:
      ValueError: (before a run) a cohort scheme that has no slot for every client.

    Reference: Stich 2019, "Local SGD converges fast and communicates little", Algorithm 1.
    """

    requires = Requires(everyone=True)


class LargeBatchSgd(FedAvg):
    """Large-batch SGD: each client of the cohort takes ONE step along its full local gradient.

    x <- x + eta_g sum_S w_i u_i,   u_i = -eta grad F_i(x)

    What ``work`` and the batches say about local steps does not matter here: nobody takes more than one and nobody
    straggles; the batch size only sets the pieces in which a gradient is accumulated.

    Reference: the baseline "SGD" of Karimireddy et al. 2020 (SCAFFOLD), section 7; FedSGD of McMahan et al. 2017.
    """

    requires = Requires(survey=True, steps=False)

    @affine
    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.grad(F)(sent.params)

    @affine
    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        state = parts.begin(self.client_optimizer, y)
        y, _ = self.step(client.survey, y, state, jnp.int32(0), sent, c_i, client)
        return subtract(y, sent.params)


fedavg = recorded(
    "algorithm.fedavg",
    FedAvg,
    step="x ← x + η_g Σ w_i Δ_i, Δ_i = y_i − x",
    cite="mcmahan2017communication",
    options="any optax client and server optimiser",
)
local_sgd = recorded(
    "algorithm.local_sgd", LocalSgd, step="FedAvg, everybody in every round", cite="stich2019local", options="the same"
)
large_batch_sgd = recorded(
    "algorithm.large_batch_sgd",
    LargeBatchSgd,
    step="one step each along the full local gradient",
    cite="karimireddy2020scaffold",
    options="the same",
)
