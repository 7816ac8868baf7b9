"""Client-level momentum."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import choice, real
from fedjax_sim.core.trees import divide, inner, multiply, scale, zeros_like

MomentumSent = namedtuple("MomentumSent", ["params", "momentum"])  # the model x and the momentum D_t


class FedCm(FedAvg):
    """FedCM: every local step mixes the last round's mean direction into the gradient.

    y_i <- y_i - eta (alpha g_i(y_i) + (1 - alpha) D_t)
    D_{t+1} = mean_S (x - y_i) / (tau_i eta),   D_0 = 0;   x <- x + eta_g mean_S (y_i - x)

    tau_i eta is the solver's slope h_i (see FedNova). The paper writes x <- x - eta_g' D_{t+1}: its server rate is
    eta tau times ours where all tau_i are equal. ``scaling="direction"`` steps as it writes,
    x <- x - eta_g H D_{t+1} with H = mean_S h_i, which differs from the mean where the tau_i do. alpha = 1 is FedAvg
    with the plain mean (FedNova with it, in the second form).

    Args:
      alpha: weight of the fresh gradient, in (0, 1].
      scaling: ``"mean"`` of the models, or ``"direction"``.

    Raises:
      ValueError: a local solver that is not linear, or another scaling.

    Reference: Xu et al. 2021, "FedCM: Federated learning with client-level momentum", Algorithm 2.
    """

    alpha: Any = real(default=0.1, above=0.0, high=1.0)
    scaling: str = choice(("mean", "direction"), default="mean")

    requires = Requires(slope=True, average="plain", averages=WEIGHTED_MEANS)

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=zeros_like(params))

    def send(self, server: Any) -> Any:
        return MomentumSent(server.params, server.extra)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return self.alpha * F(y) + (1 - self.alpha) * inner(sent.momentum, y)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        momentum = divide(scale(-1.0, delta), client.slope)
        if self.scaling == "mean":  # "momentum" is the change over h_i, which tau_i and the rates give the server
            return {"momentum": Mean(momentum, nbytes=0), "delta": Mean(delta)}, c_i
        return {"momentum": Mean(momentum), "slope": Mean(client.slope)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        server, momentum = server._replace(extra=got["momentum"]), got["momentum"]
        if self.scaling == "mean":
            return self.server_step(server, got["delta"], cohort)
        # H is of those who took part: scheme I's draws that were dropped, 1/K each, are missing in D already.
        dropped = (cohort.mass > 0) & (cohort.mass < 1 - 0.5 / len(cohort.valid))
        slope = scale(1 / jnp.where(dropped, cohort.mass, 1), got["slope"])
        return self.server_step(server, scale(-1.0, multiply(momentum, slope)), cohort)


fedcm = recorded(
    "algorithm.fedcm",
    FedCm,
    step="local gradient α g + (1 − α) D, D the last mean direction",
    cite="xu2021fedcm",
    sent="2 / 1",
    options="`alpha`; `scaling` mean or direction",
    case={"alpha": 0.4},
)
