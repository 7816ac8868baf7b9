"""FedAvg with a proximal term and partial work."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import Algorithm, ServerState
from fedjax_sim.descriptions import factory, static
from fedjax_sim.values import INT32_MAX, check_count, check_flag, check_real, check_scalar


class Steering(NamedTuple):
    """The state of an adaptive mu.

    Attributes:
      mu: of the next round.
      used: of the last one.
      falls: of F in a row.
      objective: F after the last round.
    """

    mu: jax.Array
    used: jax.Array
    falls: jax.Array
    objective: jax.Array


class ProxSent(NamedTuple):
    """The model x and the strength of the proximal term of this round."""

    params: Any
    mu: Any


class FedProx(Algorithm):
    """FedProx: each client approximately minimises h_i(y) = F_i(y) + mu/2 |y - x|^2 (Li et al. 2020, eq. 2).

    y_i <- y_i - eta (g_i(y_i) + mu (y_i - x));   x <- x + eta_g sum_S w_i (y_i - x)

    The proximal gradient passes through the local optimiser like the loss's. mu = 0 is FedAvg. The other half of the
    method, keeping the partial work of stragglers, is the ``work`` argument's: ``stragglers(..., keep=True)``.
    State per client: none. One model down, one up a round and client.

    With ``adaptive``, mu follows the objective F (section 5.3.2): a round after which F is higher adds ``increment``;
    ``patience`` falls in a row take it away again, down to 0. It holds from the next round on. Recorded: ``"mu"``, the
    one that the round's clients used. One evaluation of F a round is what this costs.

    Args:
      mu: strength of the proximal term, >= 0; where ``adaptive`` begins.
      adaptive: whether mu follows F.
      increment: what mu is changed by.
      patience: falls in a row before mu is lowered.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2.
    """

    mu: Any = 1.0
    adaptive: bool = static(default=False)
    increment: Any = 0.1
    patience: int = static(default=5)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"objective"} if self.adaptive else ())

    def checked(self) -> Self:
        check_real("fedprox(mu=...)", self.mu, low=0.0)
        check_flag("fedprox(adaptive=...)", self.adaptive)
        check_real("fedprox(increment=...)", self.increment, low=0.0)
        check_count("fedprox(patience=...)", self.patience, high=INT32_MAX)
        return super().checked()

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        if not self.adaptive:
            return server
        check_scalar("fedprox(mu=...)", self.mu)
        dtype = jnp.result_type(float)
        mu = jnp.asarray(self.mu, dtype)
        return server._replace(extra=Steering(mu, mu, jnp.int32(0), jnp.zeros((), dtype)))

    def broadcast(self, server: ServerState) -> ProxSent:
        return ProxSent(server.params, server.extra.mu if self.adaptive else self.mu)

    def proximal(self, sent: ProxSent) -> Any:
        check_scalar("fedprox(mu=...)", sent.mu)
        return sent.mu

    def before(self, server: ServerState, objective: jax.Array) -> ServerState:
        start = server.extra._replace(objective=objective.astype(server.extra.objective.dtype))
        return server._replace(extra=start)

    def after(self, server: ServerState, objective: jax.Array) -> ServerState:
        used, _, falls, before = server.extra
        objective = objective.astype(before.dtype)
        increment = jnp.asarray(self.increment).astype(used.dtype)
        falls = jnp.where(objective > before, 0, jnp.where(objective < before, falls + 1, falls))
        enough = falls == self.patience
        mu = jnp.where(objective > before, used + increment, jnp.where(enough, jnp.maximum(used - increment, 0), used))
        return server._replace(extra=Steering(mu, used, jnp.where(enough, 0, falls), objective))

    def report(self, server: ServerState) -> dict[str, jax.Array]:
        return {"mu": server.extra.used} if self.adaptive else {}


fedprox = factory("algorithm.fedprox", FedProx)
