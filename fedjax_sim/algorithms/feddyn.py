"""Dynamic regularisation."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Requires, Share
from fedjax_sim.algorithms.fedavg import Controlled
from fedjax_sim.core.fields import choice, real
from fedjax_sim.core.trees import add, inner, square, subtract


class FedDyn(Controlled):
    """FedDyn: a linear term per client and a proximal term make the clients' stationary points those of F.

    y_i: steps along g_i(y) - h_i + alpha (y - x);   h_i <- h_i - alpha (y_i - x)
    h <- h - (alpha/N) sum_S (y_i - x);   x <- mean_S y_i - h / alpha

    Kept is b_i = -h_i / alpha = sum_t (y_i - x_t), the sum of the client's changes, and their mean b = -h / alpha =
    (1/N) sum_j b_j over all clients: the server's line is x <- x + eta_g (mean_S (y_i - x) + b). That is the same at
    constant alpha, and it is what the authors' code keeps.

    Args:
      alpha: regularisation > 0.
      form: ``"paper"``: every client uses alpha; ``"code"``: the authors' code uses alpha_i = alpha n / (n_i N) at
        client i (and draws cohorts as ``cohort.independent`` does), which turns the minimum of (1/N) sum F_i into that
        of sum p_i F_i.

    Raises:
      ValueError: an average other than the plain mean, or a scheme with replacement.

    Reference: Acar et al. 2021, "Federated learning based on dynamic regularization", Algorithm 1.
    """

    alpha: Any = real(default=0.1, above=0.0)
    form: str = choice(("paper", "code"), default="paper")

    @property
    def requires(self) -> Requires:
        minimises = str if self.form == "paper" else lambda objective: "sum p_i F_i"
        averages = frozenset({"plain"})
        return Requires(average="plain", averages=averages, duplicates=False, minimises=minimises)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        alpha = self.alpha if self.form == "paper" else self.alpha / client.relative_size
        return F(y) + alpha * inner(c_i, y) + alpha / 2 * square(subtract(y, sent.params))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        # "sum" is the same message, weighted differently.
        return {"delta": Mean(delta), "sum": Share(delta, nbytes=0)}, add(c_i, delta)

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        b = add(server.extra, got["sum"])
        return self.server_step(server._replace(extra=b), add(got["delta"], b), cohort)


feddyn = recorded(
    "algorithm.feddyn",
    FedDyn,
    step="local gradient + α (y − x + b_i); x ← x + mean Δ_i + b",
    cite="acar2021federated",
    kept="1",
    options="`alpha`; `form` paper or code",
    case={"alpha": 0.5},
)
