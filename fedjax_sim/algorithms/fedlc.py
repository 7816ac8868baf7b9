"""Logits that are calibrated by how often a client has seen their classes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.labels import counts, cross_entropies, of_classes
from fedjax_sim.core.fields import real


class FedLc(FedAvg):
    """FedLC: the local softmax is over logits less tau n_ic^(-1/4), so that rare classes need larger margins.

    mean_j -log softmax(z - tau n_i^(-1/4))_{y_j} + penalty(y), over the classes with n_ic > 0

    with z the logits of example j in y and n_ic how many labels of class c the client has: it counts them before its
    first step, in a pass that runs no model. This cross-entropy stands in the place of the task's loss; the server
    averages as FedAvg does. tau = 0 is FedAvg where every client has all classes.

    Args:
      tau: >= 0, in units of logits: what is taken off the logit of a class with one label.

    Raises:
      ValueError: (before a run) a task without classes.

    Reference: Zhang et al. 2022, "Federated learning with label distribution skew via logits calibration", section 4.
    """

    tau: Any = real(default=1.0, low=0.0)

    requires = Requires(survey=True, classes=True)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return counts(F, sent.params, client)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        logits = F.outputs(y)
        number = of_classes(client.survey, logits)
        margins = self.tau * jnp.where(number > 0, number, 1) ** -0.25
        return F.mean(cross_entropies(logits - margins, F.labels, among=number > 0)) + F.penalty(y)


fedlc = recorded(
    "algorithm.fedlc",
    FedLc,
    step="cross-entropy of logits less τ n_ic^(−1/4), over the classes that the client has; FedAvg",
    cite="""@inproceedings{zhang2022fedlc,
  title = {Federated Learning with Label Distribution Skew via Logits Calibration},
  author = {Zhang, Jie and Li, Zhiqi and Li, Bo and Xu, Jianghe and Wu, Shuang and Ding, Shouhong and Wu, Chao},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022},
  eprint = {2209.00189},
  archiveprefix = {arXiv},
}""",
    case=None,
)
