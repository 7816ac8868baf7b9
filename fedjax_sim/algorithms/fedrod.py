"""A generic head that is robust to the clients' class distributions, and a personal one on top of it."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Mean, Message
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.labels import counts, cross_entropies, of_classes
from fedjax_sim.algorithms.partial import as_patterns, merged, split
from fedjax_sim.core.fields import static
from fedjax_sim.core.trees import add, subtract, zeros_like
from fedjax_sim.optim.parts import Parts


class FedRoD(FedAvg):
    """Fed-RoD: a shared model trained on the balanced softmax, and each client's residual of its last layer.

    z = logits of (body, head) at x;   y_i: steps along the gradient of mean -log softmax(z + log pi_i)_label
    v_i: steps along the gradient in v_i alone of F_i(body, head + v_i), at the y_i before the step;   x as FedAvg

    with pi_i,c the share of class c in the client's data (a class that it lacks takes no part in its softmax). The
    personal model is (body, head + v_i): for a head that is linear, the last dense layer, the residual on its
    parameters is one on the logits. v_i starts at zero. The task must be a classification, whose outputs are logits.

    Args:
      head: parts of paths of the last layer's parameters, ``"Dense_1"``, one or a tuple of them; structure.

    Raises:
      ValueError: (before a run) a task without classes, a pattern that matches nothing, a scheme with replacement, or
        an average that scales the clients' objectives.

    Reference: Chen and Chao 2022, "On bridging generic and personalized federated learning for image classification",
    sections 4.1 and 4.2, with the linear personal head.
    """

    head: tuple[str, ...] = static(kw_only=True)

    requires = OWN_MODELS.but(survey=True, classes=True)

    def checked(self) -> Self:
        checked = super().checked()
        return checked.replace(head=as_patterns("fedrod(head=...)", self.head))

    def init_client(self, params: Any) -> Any:
        return zeros_like(split(params, self.head, "fedrod(head=...)")[1])

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return counts(F, sent.params, client)

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(shared=sent.params, own=c_i)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        logits = F.outputs(y["shared"])
        number = of_classes(client.survey, logits)  # log n_ic is log pi_ic and a constant, which no softmax sees
        adjusted = logits + jnp.log(jnp.where(number > 0, number, 1))
        balanced = F.mean(cross_entropies(adjusted, F.labels, among=number > 0)) + F.penalty(y["shared"])
        return balanced + F(self._with_own(client.held["shared"], y["own"]))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y["shared"], sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, y["own"]

    def personal(self, server: Any, c_i: Any) -> Any:
        return self._with_own(server.params, c_i)

    def _with_own(self, params: Any, own: Any) -> Any:
        body, head = split(params, self.head, "fedrod(head=...)")
        return merged(body, add(head, own))


fedrod = recorded(
    "algorithm.fedrod",
    FedRoD,
    step="FedAvg on the balanced softmax; v_i, added to the head, on F_i",
    cite="""@inproceedings{chen2022bridging,
  title = {On Bridging Generic and Personalized Federated Learning for Image Classification},
  author = {Chen, Hong-You and Chao, Wei-Lun},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2022},
  eprint = {2107.00778},
  archiveprefix = {arXiv},
}""",
    kept="a head",
    case=None,
)
