"""A start from which one step on a client's data is good."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import choice, real
from fedjax_sim.core.trees import add_scaled, inner, scale, subtract


class PerFedAvg(FedAvg):
    """Per-FedAvg: FedAvg on the losses after one gradient step, F_i(y - alpha grad F_i(y)) (Fallah et al. 2020, eq. 3).

    y_i <- y_i - beta d_i;   w = y_i - alpha g_i(y_i; D), on the inner batch D;   g = g_i(w; D'), on another batch D'

    d_i = g - alpha grad^2 F_i(y_i; D) g                                                   (``"exact"``)
    d_i = g                                                                                (``"first_order"``, FO)
    d_i = g - alpha (g_i(y_i + delta g; D) - g_i(y_i - delta g; D)) / (2 delta)            (``"hessian_free"``, HF)

    beta is the local solver's rate. alpha = 0 is FedAvg. The inner batches are those that the client would see after
    its tau_i steps; of full batches both are all of its data. A client uses x - alpha grad F_i(x), which is not kept
    but made of its data, by ``evaluate=fedjax_sim.personalise(task, sgd(alpha), steps(1))``.

    Args:
      alpha: the inner step, >= 0.
      form: which direction; ``"exact"`` differentiates through the gradient.
      delta: > 0, the Hessian-free form's finite difference.

    Raises:
      ValueError: (before a run) batches that are taken in pieces, or an average that scales the clients' objectives.

    Reference: Fallah, Mokhtari and Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a
    model-agnostic meta-learning approach", Algorithm 1; its first-order and Hessian-free forms: section 5.
    """

    alpha: Any = real(default=0.01, low=0.0)
    form: str = choice(("exact", "first_order", "hessian_free"), default="exact")
    delta: Any = real(default=1e-3, above=0.0)

    @property
    def requires(self) -> Requires:
        # Of the exact form the product with the Hessian counts as a gradient.
        return OWN_MODELS.but(
            average="plain", duplicates=True, other_batch=True, whole_batches=True, elsewhere=self.form != "exact",
            per_step={"exact": 3, "first_order": 2, "hessian_free": 4}[self.form],
        )  # fmt: skip

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        inner_gradient = jax.grad(F.other)
        if self.form == "exact":
            return F(add_scaled(y, -self.alpha, inner_gradient(y)))
        # What is computed at client.held is a constant, so that the gradient in y is the direction.
        step = scale(-self.alpha, inner_gradient(client.held))
        if self.form == "first_order":
            return F(add_scaled(y, 1, step))
        g = jax.grad(F)(add_scaled(client.held, 1, step))
        ahead, back = (inner_gradient(add_scaled(client.held, sign * self.delta, g)) for sign in (1, -1))
        return inner(subtract(g, scale(self.alpha / (2 * self.delta), subtract(ahead, back))), y)


perfedavg = recorded(
    "algorithm.perfedavg",
    PerFedAvg,
    step="FedAvg on F_i(y − α ∇F_i(y)), on two batches a step",
    cite="""@inproceedings{fallah2020personalized,
  title = {Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach},
  author = {Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020},
  eprint = {2002.07948},
  archiveprefix = {arXiv},
}""",
    options="`alpha`; `form` exact, first_order or hessian_free; `delta`",
    case={"alpha": 0.05, "inert": ("delta",)},
)
