"""Variance reduction by the server alone."""

from __future__ import annotations

from typing import Any

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires, Share
from fedjax_sim.algorithms.fedavg import Controlled
from fedjax_sim.core.trees import add, subtract


class FedVarp(Controlled):
    """FedVARP: the last change of a client stands in for it in the rounds in which it is not drawn.

    v = mean_S (Delta_i - h_i) + (1/N) sum_j h_j;   x <- x + eta_g v;   h_i <- Delta_i for i in S

    with Delta_i = y_i - x and all h_i = 0 at the start. Clients do what FedAvg's do and send what FedAvg's send; the
    server remembers the h_i, here where client states are. With everybody in every round it is FedAvg with the plain
    mean. It removes the noise of who is drawn, not the drift of local steps: where all rests, sum_i Delta_i = 0, as for
    FedAvg with everybody. With ``average="sample"`` v = sum_S w_i (Delta_i - h_i) + sum_j p_j h_j.

    Raises:
      ValueError: another average, or a scheme with replacement.

    Reference: Jhunjhunwala et al. 2022, "FedVARP: Tackling the variance due to partial client participation in
    federated learning", Algorithm 2.
    """

    requires = Requires(average="plain", averages=WEIGHTED_MEANS, duplicates=False)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        news = subtract(delta, c_i)  # the server has h_i: "memory" is the same message, weighted differently
        return {"delta": Mean(news), "memory": Share(news, nbytes=0)}, delta

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        step = add(got["delta"], server.extra)  # (1/N) sum_j h_j
        return self.server_step(server._replace(extra=add(server.extra, got["memory"])), step, cohort)


fedvarp = recorded(
    "algorithm.fedvarp",
    FedVarp,
    step="x ← x + η_g (mean_S (Δ_i − h_i) + mean_j h_j); h_i ← Δ_i",
    cite="""@inproceedings{jhunjhunwala2022fedvarp,
  title = {{FedVARP}: Tackling the Variance Due to Partial Client Participation in Federated Learning},
  author = {Jhunjhunwala, Divyansh and Sharma, Pranay and Nagarkatti, Aushim and Joshi, Gauri},
  booktitle = {Conference on Uncertainty in Artificial Intelligence (UAI)},
  year = {2022},
  eprint = {2207.14130},
  archiveprefix = {arXiv},
}""",
    kept="1",
)
