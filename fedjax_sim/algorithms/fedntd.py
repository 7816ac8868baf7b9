"""Distillation of what the server's model says of the classes that an example is not of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.labels import one_hot
from fedjax_sim.core.fields import real
from fedjax_sim.models.supervised import per_example


class FedNtd(FedAvg):
    """FedNTD: local models keep what the server's model says of the classes that are not the true one.

    F_i(y) + beta mean_j sum_{c != y_j} q_x(c) log (q_x(c) / q_y(c)),   q(c) = e^{z_c/temperature} / sum_{c' != y_j} ...

    with z the logits of example j in y and in x. beta = 0 is FedAvg.

    Args:
      beta: weight of the distillation, >= 0.
      temperature: > 0, in units of logits.

    Raises:
      ValueError: (before a run) a task without classes.

    Reference: Lee et al. 2022, "Preservation of the global knowledge by not-true distillation in federated learning",
    section 4, Algorithm 1.
    """

    beta: Any = real(default=1.0, low=0.0)
    temperature: Any = real(default=1.0, above=0.0)

    requires = Requires(classes=True)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        logits = F.outputs(y)
        others = one_hot(F.labels, logits) == 0

        def logs(logits: jax.Array) -> jax.Array:
            scaled = logits / self.temperature
            return scaled - jax.nn.logsumexp(scaled, axis=-1, where=others, keepdims=True)

        of_x, of_y = logs(F.outputs(sent.params)), logs(logits)
        apart = jnp.sum(jnp.where(others, jnp.exp(jnp.where(others, of_x, 0)) * (of_x - of_y), 0), axis=-1)
        return F(y) + self.beta * F.mean(per_example(apart))


fedntd = recorded(
    "algorithm.fedntd",
    FedNtd,
    step="local loss + β KL(x‖y) of the softmax over the classes that are not true; FedAvg",
    cite="""@inproceedings{lee2022fedntd,
  title = {Preservation of the Global Knowledge by Not-True Distillation in Federated Learning},
  author = {Lee, Gihun and Jeong, Minchan and Shin, Yongjin and Bae, Sangmin and Yun, Se-Young},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2022},
  eprint = {2106.03097},
  archiveprefix = {arXiv},
}""",
    case=None,
)
