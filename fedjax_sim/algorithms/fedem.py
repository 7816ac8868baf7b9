"""Clients as mixtures of components that all share."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Mean, Message, Parts, Requires
from fedjax_sim.algorithms.several import Several, apart, pick
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.trees import subtract
from fedjax_sim.core.values import INT32_MAX
from fedjax_sim.models.contract import Mixture


class FedEM(Several):
    """FedEM: every client's data are a mixture, with weights pi_i of its own, of K components that all share.

    E:  q_jk = pi_ik exp(-loss_j(x_k)) / sum_l pi_il exp(-loss_j(x_l))                        for its examples j
    M:  pi_ik <- mean_j q_jk;   y_k <- y_k - eta grad (mean_j q_jk loss_j(y_k)), tau_i times from y_k = x_k
    x_k <- x_k + eta_g sum_S w_i (y_ik - x_k)

    with loss_j(x) the task's loss of the example j, -log p(label | x) up to a constant. The q are those of x and of the
    client's pi before the round, in every step on its batch; a penalty of the task is added for each component. All K
    components go down and up, and K models are trained. pi_i starts at 1/K and stays with the client, unchanged
    where its examples all have the weight 0. The components start around the run's x, x_k = x + spread (n_k - mean_l
    n_l) with n_k ~ N(0, I) drawn from ``seed`` alone. A client itself would use the mixture: what it says of an example
    is sum_k pi_ik of what the components say (probabilities of a classification). What is evaluated as the shared model
    is the mean of the components.

    Args:
      components: K; with 1 it is FedAvg.
      spread: standard deviation of the draws by which the components start apart, >= 0, in units of the parameters.
      seed: of these draws.

    Reference: Marfoq, Neglia, Bellet, Kameni and Vidal 2021, "Federated multi-task learning under a mixture of
    distributions", Algorithm 1.
    """

    components: int = count(default=2, high=INT32_MAX)
    spread: Any = real(default=0.1, low=0.0)
    seed: int = count(default=0, low=0, high=INT32_MAX)

    @property
    def requires(self) -> Requires:
        return Requires(
            survey=True, several=True, duplicates=False, averages=WEIGHTED_MEANS, per_step=self.components,
            averages_why="the components are averages of the clients' models, whose weights must sum to one",
            minimises=lambda objective: objective.replace("F_i", "mean_j -log sum_k pi_ik exp(-loss_j(x_k))"),
        )  # fmt: skip

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(apart(params, self.components, self.spread, self.seed), shares)

    def init_client(self, params: Any) -> Any:
        return jnp.full((self.components,), 1 / self.components, jnp.result_type(float))

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return F.mean(_responsibilities(F, sent.params, c_i))

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts({str(k): pick(sent.params, k) for k in range(self.components)})

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        rest = 1 - _responsibilities(F, sent.params, c_i)
        # F(y) is the mean of all losses, and the penalty: what belongs to other components is taken away again.
        parts: list[jax.Array] = [
            F(y[str(k)]) - F.mean(rest[:, k] * F.losses(y[str(k)])) for k in range(self.components)
        ]
        return functools.reduce(jnp.add, parts)

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        components = [y[str(k)] for k in range(self.components)]
        return subtract(jax.tree.map(lambda *leaves: jnp.stack(leaves), *components), sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        total = jnp.sum(client.survey)  # 1, but for example weights
        pi = (client.survey / jnp.where(total == 0, 1, total)).astype(c_i.dtype)
        return {"delta": Mean(delta)}, jnp.where(total == 0, c_i, pi)

    def personal(self, server: Any, c_i: Any) -> Any:
        return Mixture(server.params, c_i)


def _responsibilities(F: Any, models: Any, pi: jax.Array) -> jax.Array:
    """q, [B, K]."""
    losses = jax.vmap(F.losses)(models).T
    # A weight that has fallen to 0 has no logarithm; the smallest number is as good as 0.
    least = jnp.finfo(losses.dtype).tiny
    return jax.nn.softmax(jnp.log(jnp.maximum(pi.astype(losses.dtype), least))[None, :] - losses, axis=1)


fedem = recorded(
    "algorithm.fedem",
    FedEM,
    step="q_jk ∝ π_ik exp(−loss_j(x_k)); π_ik ← mean q_jk; each x_k: FedAvg on losses weighted by q_jk",
    cite="""@inproceedings{marfoq2021federated,
  title = {Federated Multi-Task Learning under a Mixture of Distributions},
  author = {Marfoq, Othmane and Neglia, Giovanni and Bellet, Aur{\\'e}lien and Kameni, Laetitia and Vidal, Richard},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2021},
  eprint = {2108.10252},
  archiveprefix = {arXiv},
}""",
    kept="none + K numbers",
    sent="2 / 2 (K / K)",
    options="K: `components`; how they start: `spread`, `seed`",
    case={"spread": 0.6},
)
