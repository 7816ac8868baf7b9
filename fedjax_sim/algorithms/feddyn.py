"""Dynamic regularisation."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, ServerState
from fedjax_sim.descriptions import factory, static
from fedjax_sim.values import check_real, check_scalar


class FedDyn(Algorithm):
    """FedDyn: a linear term per client and a proximal term make the clients' stationary points those of F.

    y_i: steps along g_i(y) - h_i + alpha (y - x);   h_i <- h_i - alpha (y_i - x)
    h <- h - (alpha/N) sum_S (y_i - x);   x <- mean_S y_i - h / alpha

    Kept is b_i = -h_i / alpha = sum_t (y_i - x_t), the sum of the client's changes, and their mean b = -h / alpha =
    (1/N) sum_j b_j over all clients: the server's line is x <- x + eta_g (mean_S (y_i - x) + b). That is the same at
    constant alpha, and it is what the authors' code keeps. State per client: one model. One model down, one up.

    Args:
      alpha: regularisation > 0.
      form: ``"paper"``: every client uses alpha; ``"code"``: the authors' code uses alpha_i = alpha n / (n_i N) at
        client i (and draws cohorts as ``cohort.independent`` does), which turns the minimum of (1/N) sum F_i into that
        of sum p_i F_i.

    Raises:
      ValueError: an average other than the plain mean, or a scheme with replacement.

    Reference: Acar et al. 2021, "Federated learning based on dynamic regularization", Algorithm 1.
    """

    alpha: Any = 0.1
    form: str = static(default="paper")

    default_average: ClassVar[str] = "plain"
    averages: ClassVar[frozenset[str]] = frozenset({"plain"})
    duplicates: ClassVar[bool] = False

    def checked(self) -> Self:
        check_real("feddyn(alpha=...)", self.alpha, low=0.0, open_=True)
        if self.form not in ("paper", "code"):
            raise ValueError(f"feddyn(form={self.form!r}): it must be 'paper' or 'code'")
        return super().checked()

    def minimises(self, objective: str) -> str:
        return objective if self.form == "paper" else "sum p_i F_i"

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=trees.zeros_like(params))

    def init_client(self, params: Any) -> Any:
        return trees.zeros_like(params)

    def start(self, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        return sent.params, c_i

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        check_scalar("feddyn(alpha=...)", self.alpha)
        moved = trees.add(trees.subtract(y, sent.params), local)
        alpha = self.alpha if self.form == "paper" else self.alpha / client.relative_size
        return trees.add_scaled(g, alpha, moved)

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        return {"delta": delta, "sum": delta}, trees.add(c_i, delta)

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"sum": client.share}

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        # "sum" is the same message, weighted differently.
        sent_up = {name: message for name, message in messages.items() if name != "sum"}
        return super().upload_bytes(sent_up, sent)

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        b = trees.add(server.extra, sums["sum"])
        return self.server_step(server._replace(extra=b), trees.add(sums["delta"], b), cohort)  # type: ignore[no-any-return]


feddyn = factory("algorithm.feddyn", FedDyn)
