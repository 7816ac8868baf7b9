"""Local steps that mimic an optimiser which sees all clients."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax

from fedjax_sim import optim
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Method, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.feddane import Collect, Gradient
from fedjax_sim.core.trees import inner, scale, select, subtract

MimeSent = namedtuple("MimeSent", ["params", "statistics", "gradient"])  # x, s, and for Mime the mean gradient c


class MimeLite(FedAvg):
    """MimeLite: local steps of the server's optimiser, whose statistics s stay what they are until the round is over.

    y_i <- y_i - eta U(g_i(y_i), s);   x <- x + eta_g mean_S (y_i - x);   s <- V(mean_S grad F_i(x), s)

    U is the optimiser's step and V how it moves its statistics, never along the clients' changes. With
    ``optim.sgd(1 - beta, momentum=beta)`` that is the paper's momentum, U = (1 - beta) g + beta m and
    m <- (1 - beta) g + beta m; ``optim.fedadam(beta1, beta2, tau)`` its Adam, U = ((1 - beta1) g + beta1 m) /
    (sqrt(v) + tau) with v as the round found it; ``fedadagrad`` and ``fedyogi`` likewise; beta1 = 0 is RMSProp. Of any
    other optimiser U is the step that it would make next, then forgotten. The local solver steps along U: ``sgd(eta)``.

    Each client takes one more pass over its data for grad F_i(x), and sends it. None as the optimiser is FedAvg.

    Args:
      server_optimizer: what is mimicked; here it does not move x.

    Raises:
      ValueError: another average.

    Reference: Karimireddy et al. 2021, "Breaking the centralized barrier for cross-device federated learning",
    Algorithm 1 and its table of base algorithms.
    """

    server_optimizer: optim.Optimizer | None = optim.sgd(0.1, momentum=0.9)  # type: ignore[misc]

    @property
    def requires(self) -> Requires:
        return Requires(survey=self.server_optimizer is not None, average="plain", averages=WEIGHTED_MEANS)

    def server_solver(self) -> None:
        return None  # x moves by the mean change

    def init(self, params: Any, shares: jax.Array) -> Any:
        mimicked = self.server_optimizer
        statistics = () if mimicked is None else mimicked.init(params)
        return super().init(params, shares)._replace(optimizer=statistics)

    def send(self, server: Any) -> Any:
        return MimeSent(server.params, server.optimizer, ())

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.grad(F)(sent.params)

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        if self.server_optimizer is not None:
            g = scale(-1.0, self.server_optimizer.peek(g, sent.statistics, y))
        return super().step(g, y, state, k, sent, c_i, client)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        gradient: dict[str, Message] = {} if self.server_optimizer is None else {"gradient": Mean(client.survey)}
        return {"delta": Mean(delta), **gradient}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return super().update(self.tracked(server, got.get("gradient")), got, cohort)

    def tracked(self, server: Any, gradient: Any) -> Any:
        """The server with its statistics moved along the mean gradient at x."""
        if self.server_optimizer is None:
            return server
        _, statistics = self.server_optimizer.update(gradient, server.optimizer, server.params)
        return server._replace(optimizer=statistics)


class Mime(MimeLite):
    """Mime: MimeLite with gradients that are corrected to be those of all clients, on the same batch at y and at x.

    first:  c = mean_S grad F_i(x)
    then:   y_i <- y_i - eta U(g_i(y_i; b) - g_i(x; b) + c, s);   x <- x + eta_g mean_S (y_i - x);   s <- V(c, s)

    with b the step's batch. Two exchanges with one cohort; nobody is dropped from the first, tau_i and stragglers
    belong to the second. Each local step takes two gradients. A round whose first exchange found nobody changes
    nothing. With full local gradients and None as the optimiser it is FedDANE at mu = 0 with one cohort for both.

    Args:
      server_optimizer: what is mimicked, as for :class:`MimeLite`; None for SGD.

    Raises:
      ValueError: another average.

    Reference: Karimireddy et al. 2021, "Breaking the centralized barrier for cross-device federated learning",
    Algorithm 1.
    """

    requires = Requires(average="plain", averages=WEIGHTED_MEANS, elsewhere=True, per_step=2)

    def phases(self) -> tuple[Method, ...]:
        collect = Collect(client_optimizer=self.client_optimizer, shared=True, average="plain", averages=WEIGHTED_MEANS)
        return collect, self

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=Gradient.none(params))

    def send(self, server: Any) -> Any:
        return MimeSent(server.params, server.optimizer, server.extra.mean)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y) + inner(subtract(sent.gradient, jax.grad(F)(sent.params)), y)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        moved = FedAvg.update(self, self.tracked(server, server.extra.mean), got, cohort)
        moved = select(server.extra.round == cohort.round, moved, server)
        return moved._replace(extra=server.extra.used())


mime_lite = recorded(
    "algorithm.mime_lite",
    MimeLite,
    step="local steps of the server's optimiser, s fixed; s ← V(mean ∇F_i(x), s)",
    cite="karimireddy2021breaking",
    sent="2 / 2 (with momentum)",
    options="`server_optimizer`: what is mimicked",
)
mime = recorded(
    "algorithm.mime",
    Mime,
    step="the same along g(y; b) − g(x; b) + mean ∇F_i(x), in two exchanges",
    cite="karimireddy2021breaking",
    sent="4 / 2 (with momentum)",
    options="`server_optimizer`: what is mimicked",
)
