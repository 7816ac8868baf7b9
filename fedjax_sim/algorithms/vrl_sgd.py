"""Variance-reduced local SGD."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import Controlled
from fedjax_sim.core.trees import add, divide, inner, scale


class VrlSgd(Controlled):
    """VRL-SGD: each client corrects its gradients by how far it moved apart from the average.

    y_i <- y_i - eta (g_i(y_i) - v_i);   v_i <- v_i + (x^ - y_i) / (tau_i eta),   x^ = sum w_i y_i the new average

    with everybody in every round; tau_i eta is the solver's slope h_i (see FedNova). The plain average is the
    paper's, ``average="sample"`` takes w_i = p_i. Conserved is sum_i tau_i v_i = 0: with constant unequal tau_i the
    limit minimises sum_i w_i tau_i F_i, not sum_i w_i F_i; with tau_i that change from round to round nothing is
    conserved and the method may diverge (Wang et al. 2020, Fig. 2b). A client dropped from a round keeps its v_i.

    Raises:
      ValueError: a local solver that is not linear, or a cohort without a slot for every client.

    Reference: Liang et al. 2019, "Variance reduced local SGD with lower communication complexity", Algorithm 1.
    """

    requires = Requires(
        slope=True, everyone=True, hears=("extra",), average="plain", averages=WEIGHTED_MEANS,
        duplicates=False,
    )  # fmt: skip

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y) - inner(c_i, y)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        # The average is not known yet: x^ - y_i = (x^ - x) - (y_i - x), the second half now.
        return {"delta": Mean(delta)}, self.corrected(c_i, scale(-1.0, delta), client)

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return super().update(server._replace(extra=got["delta"]), got, cohort)

    def settle(self, server: Any, c_i: Any, client: Client) -> Any:
        return self.corrected(c_i, server.extra, client)

    def corrected(self, c_i: Any, change: Any, client: Client) -> Any:
        """The correction c_i moved by a part of x^ - y_i."""
        return add(c_i, divide(change, client.slope))


vrl_sgd = recorded(
    "algorithm.vrl_sgd",
    VrlSgd,
    step="local gradient − v_i; v_i += (x̂ − y_i)/h_i; everybody",
    cite="liang2019variance",
    kept="1",
    sent="2 / 1",
)
