"""FedAvg with a proximal term and partial work."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires, affine
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import count, flag, real
from fedjax_sim.core.trees import as_dtype, square, subtract
from fedjax_sim.core.values import INT32_MAX


class Steering(NamedTuple):
    """The state of an adaptive mu."""

    mu: jax.Array  # of this round
    falls: jax.Array  # of F in a row
    objective: jax.Array  # F at the start of this round


ProxSent = namedtuple("ProxSent", ["params", "mu"])  # the model x and the strength of the proximal term of this round


class FedProx(FedAvg):
    """FedProx: each client approximately minimises h_i(y) = F_i(y) + mu/2 |y - x|^2 (Li et al. 2020, eq. 2).

    y_i <- y_i - eta (g_i(y_i) + mu (y_i - x));   x <- x + eta_g sum_S w_i (y_i - x)

    The proximal gradient passes through the local optimiser like the loss's. mu = 0 is FedAvg. The other half of the
    method, keeping the partial work of stragglers, is the ``work`` argument's: ``stragglers(..., keep=True)``.

    With ``adaptive``, mu follows the objective F (section 5.3.2): a round after which F is higher adds ``increment``;
    ``patience`` falls in a row take it away again, down to 0. Recorded: ``"mu"``, the one that the round's clients
    used. It costs one evaluation of F a round.

    Args:
      mu: strength of the proximal term, >= 0; where ``adaptive`` begins.
      adaptive: whether mu follows F.
      increment: what mu is changed by.
      patience: falls in a row before mu is lowered.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2.
    """

    mu: Any = real(default=1.0, low=0.0)
    adaptive: bool = flag(default=False)
    increment: Any = real(default=0.1, low=0.0)
    patience: int = count(default=5, high=INT32_MAX)

    @property
    def requires(self) -> Requires:
        return Requires(objective=self.adaptive)

    def init(self, params: Any, shares: jax.Array) -> Any:
        server = super().init(params, shares)
        if not self.adaptive:
            return server
        dtype = jnp.result_type(float)
        # F before the first round is compared with nothing: comparisons with nan are false.
        return server._replace(extra=Steering(jnp.asarray(self.mu, dtype), jnp.int32(0), jnp.asarray(jnp.nan, dtype)))

    def open(self, server: Any, objective: jax.Array) -> Any:
        mu, falls, before = server.extra
        objective, increment = objective.astype(before.dtype), as_dtype(self.increment, mu)
        falls = jnp.where(objective > before, 0, jnp.where(objective < before, falls + 1, falls))
        enough = falls == self.patience
        mu = jnp.where(objective > before, mu + increment, jnp.where(enough, jnp.maximum(mu - increment, 0), mu))
        return server._replace(extra=Steering(mu, jnp.where(enough, 0, falls), objective))

    def send(self, server: Any) -> Any:
        return ProxSent(server.params, server.extra.mu if self.adaptive else self.mu)

    @affine
    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y) + sent.mu / 2 * square(subtract(y, sent.params))

    def report(self, server: Any) -> dict[str, jax.Array]:
        return {"mu": server.extra.mu} if self.adaptive else {}


fedprox = recorded(
    "algorithm.fedprox",
    FedProx,
    step="local gradient + μ (y − x), then FedAvg",
    cite="li2020federated",
    sent="1 + a scalar / 1",
    options="`mu`; μ follows F: `adaptive`, `increment`, `patience`",
    case={"mu": 0.8, "inert": ("increment",)},
)
