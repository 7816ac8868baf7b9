"""A softmax in which the classes that a client lacks count less."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.labels import counts, cross_entropies, of_classes
from fedjax_sim.core.fields import choice, real
from fedjax_sim.core.trees import divide


class FedRs(FedAvg):
    """FedRS: restricted softmax: logits of the classes that a client lacks are multiplied by alpha.

    mean_j -log softmax(a_i z)_{y_j} + penalty(y),   a_ic = 1 where n_ic > 0, else alpha               (``"paper"``)
                                                   a_ic = alpha + (1 - alpha) n_ic / max_c n_ic        (``"code"``)

    with z the logits of example j in y and n_ic how many labels of class c the client has: it counts them before its
    first step, in a pass that runs no model. The paper's last layer has no bias, so that z is linear in its weights.
    This cross-entropy stands in the place of the task's loss; the server averages as FedAvg does. alpha = 1 is FedAvg.

    Args:
      alpha: in [0, 1]; 0 leaves the absent classes' weights alone.
      form: ``"paper"``, or ``"code"``: the factors of the authors' implementation, of all classes by their counts.

    Raises:
      ValueError: (before a run) a task without classes.

    Reference: Li and Zhan 2021, "FedRS: Federated learning with restricted softmax for label distribution non-IID
    data", section 4.
    """

    alpha: Any = real(default=0.5, low=0.0, high=1.0)
    form: str = choice(("paper", "code"), default="paper")

    requires = Requires(survey=True, classes=True)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return counts(F, sent.params, client)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        logits = F.outputs(y)
        number = of_classes(client.survey, logits)
        shares = jnp.where(number > 0, 1, 0) if self.form == "paper" else divide(number, jnp.max(number))
        factors = self.alpha + (1 - self.alpha) * shares
        return F.mean(cross_entropies(factors * logits, F.labels)) + F.penalty(y)


fedrs = recorded(
    "algorithm.fedrs",
    FedRs,
    step="cross-entropy of logits, those of the classes that the client lacks times α; FedAvg",
    cite="""@inproceedings{li2021fedrs,
  title = {{FedRS}: Federated Learning with Restricted Softmax for Label Distribution Non-{IID} Data},
  author = {Li, Xin-Chun and Zhan, De-Chuan},
  booktitle = {ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD)},
  year = {2021},
  doi = {10.1145/3447548.3467254},
}""",
    options="`alpha`; `form` paper or code",
    case=None,
)
