"""Client-level momentum."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, ServerState
from fedjax_sim.descriptions import factory, static
from fedjax_sim.values import check_real, check_scalar


class MomentumSent(NamedTuple):
    """The model x and the momentum D_t."""

    params: Any
    momentum: Any


class FedCm(Algorithm):
    """FedCM: every local step mixes the last round's mean direction into the gradient.

    y_i <- y_i - eta (alpha g_i(y_i) + (1 - alpha) D_t)
    D_{t+1} = mean_S (x - y_i) / (tau_i eta),   D_0 = 0;   x <- x + eta_g mean_S (y_i - x)

    tau_i eta is the solver's slope h_i (see FedNova). The paper writes x <- x - eta_g' D_{t+1}: its server rate is
    eta tau times ours where all tau_i are equal. ``scaling="direction"`` steps as it writes,
    x <- x - eta_g H D_{t+1} with H = mean_S h_i, which differs from the mean where the tau_i do. alpha = 1 is FedAvg
    with the plain mean (FedNova with it, in the second form).
    State per client: none. Two models down, one up.

    Args:
      alpha: weight of the fresh gradient, in (0, 1].
      scaling: ``"mean"`` of the models, or ``"direction"``.

    Raises:
      ValueError: a local solver that is not linear, or another scaling.

    Reference: Xu et al. 2021, "FedCM: Federated learning with client-level momentum", Algorithm 2.
    """

    alpha: Any = 0.1
    scaling: str = static(default="mean")

    default_average: ClassVar[str] = "plain"
    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"slope"})

    def checked(self) -> Self:
        check_real("fedcm(alpha=...)", self.alpha, low=0.0, high=1.0)
        if self.scaling not in ("mean", "direction"):
            raise ValueError(f"fedcm(scaling={self.scaling!r}): it must be 'mean' or 'direction'")
        return super().checked()

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=trees.zeros_like(params))

    def broadcast(self, server: ServerState) -> MomentumSent:
        return MomentumSent(server.params, server.extra)

    def direction(self, g: Any, y: Any, sent: MomentumSent, local: Any, client: Client) -> Any:
        check_scalar("fedcm(alpha=...)", self.alpha)
        return trees.mix(self.alpha, g, sent.momentum)

    def finish(self, y: Any, sent: MomentumSent, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        messages = {"momentum": trees.divide(trees.scale(-1.0, delta), client.slope)}
        return messages | ({"delta": delta} if self.scaling == "mean" else {"slope": client.slope}), c_i

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        # "momentum" is the change over h_i, which tau_i and the rates give the server; without a change, it is sent.
        known = ("momentum",) if self.scaling == "mean" else ()
        sent_up = {name: message for name, message in messages.items() if name not in known}
        return super().upload_bytes(sent_up, sent)

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        momentum = sums["momentum"]
        if self.scaling == "mean":
            delta = sums["delta"]
        else:
            delta = trees.scale(-1.0, trees.multiply(momentum, sums["slope"]))
        return self.server_step(server._replace(extra=momentum), delta, cohort)  # type: ignore[no-any-return]


fedcm = factory("algorithm.fedcm", FedCm)
