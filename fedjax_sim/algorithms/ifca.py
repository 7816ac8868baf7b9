"""Clusters that clients choose by their losses."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.several import Several, apart, pick
from fedjax_sim.core.fields import choice, count, real
from fedjax_sim.core.trees import column, divide, size_in_bytes, subtract
from fedjax_sim.core.values import INT32_MAX


class HypCluster(Several):
    """HypCluster: K models; each client trains the one that has the least loss on its data.

    k_i = argmin_k F_i(x_k);   x_k <- x_k + eta_g sum_{i in S, k_i = k} w_i (y_i - x_k) / sum_{i in S, k_i = k} w_i

    with y_i from tau_i local steps from x_{k_i} and weights by the clients' examples. A model that nobody of the cohort
    chose stays; a server optimiser sees a change of 0 for it. The models start around the run's x, x_k = x + spread
    (n_k - mean_l n_l) with n_k ~ N(0, I) drawn from ``seed`` alone. To choose costs a pass over the client's data for
    each model. A client keeps the number of the model that it chose last (of the first one before its first visit),
    which is what it would use itself; what is evaluated as the shared model is the mean of the K. Recorded:
    ``"cluster_<k>"``, the weight of the clients of the round that chose model k.

    Args:
      clusters: K; with 1 it is FedAvg.
      spread: standard deviation of the draws by which the models start apart, >= 0, in units of the parameters.
      seed: of these draws.

    Reference: Mansour, Mohri, Ro and Suresh 2020, "Three approaches for personalization with applications to federated
    learning", Algorithm 1.
    """

    clusters: int = count(default=2, high=INT32_MAX)
    spread: Any = real(default=0.1, low=0.0)
    seed: int = count(default=0, low=0, high=INT32_MAX)
    option: ClassVar[str] = "models"

    @property
    def requires(self) -> Requires:
        return Requires(
            survey=True, several=True, averages=WEIGHTED_MEANS,
            averages_why="a cluster's average is one of its own clients, whose weights must sum to one",
            partwise=True, minimises=lambda objective: objective.replace("F_i", "min_k F_i(x_k)"),
        )  # fmt: skip

    def checked(self) -> Self:
        if self.keep_optimizer:
            raise ValueError(
                f"{self.factory_name()}(keep_optimizer=True): a client may train another model at its next visit, for "
                "which the state of its solver has no meaning: leave it out"
            )
        return super().checked()

    def init(self, params: Any, shares: jax.Array) -> Any:
        server = super().init(apart(params, self.clusters, self.spread, self.seed), shares)
        return server._replace(extra=jnp.zeros((self.clusters,), jnp.result_type(float)))

    def init_client(self, params: Any) -> Any:
        return jnp.int32(0)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.vmap(F)(sent.params)

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return pick(sent.params, _chosen(client))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y, pick(sent.params, _chosen(client)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        chosen = _chosen(client)
        mine = jnp.arange(self.clusters, dtype=jnp.int32) == chosen
        # One model goes up, and its number.
        placed = jax.tree.map(lambda leaf: jnp.where(column(mine, leaf[None]), leaf[None], 0), delta)
        share = mine.astype(jnp.result_type(float))
        return {"delta": Mean(placed, size_in_bytes(delta)), "chosen": Mean(share, chosen.dtype.itemsize)}, chosen

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        delta, chosen = got["delta"], got["chosen"]
        if self.option == "models":
            delta = jax.tree.map(lambda leaf: divide(leaf, column(chosen, leaf)), delta)
        return self.server_step(server._replace(extra=chosen.astype(server.extra.dtype)), delta, cohort)

    def report(self, server: Any) -> dict[str, jax.Array]:
        return {f"cluster_{k}": server.extra[k] for k in range(self.clusters)}

    def personal(self, server: Any, c_i: Any) -> Any:
        return pick(server.params, c_i)


class Ifca(HypCluster):
    """IFCA: K models; each client trains the one that has the least loss on its data. HypCluster with plain averages.

    k_i = argmin_k F_i(x_k)
    models:     x_k <- x_k + eta_g mean of y_i - x_k over the i in S with k_i = k
    gradients:  x_k <- x_k + eta_g (1 / |S|) sum_{i in S, k_i = k} (y_i - x_k)

    The second one is the paper's gradient averaging where clients take one step, ``work=local.steps(1)``: models that
    few have chosen move less. How the models start, what clients keep and what is recorded: see :class:`HypCluster`.

    Args:
      clusters: K; with 1 it is FedAvg with the plain mean.
      spread: standard deviation of the draws by which the models start apart, >= 0, in units of the parameters.
      seed: of these draws.
      option: ``"models"`` or ``"gradients"``.

    Reference: Ghosh, Chung, Yin and Ramchandran 2020, "An efficient framework for clustered federated learning",
    Algorithm 1, options II and I.
    """

    option: str = choice(("models", "gradients"), default="models")  # type: ignore[misc]

    @property
    def requires(self) -> Requires:
        return super().requires.but(average="plain")


def _chosen(client: Client) -> jax.Array:
    """k_i, int32. A loss that is no number is the last to be chosen: else who meets a diverged model trains it."""
    largest = jnp.finfo(client.survey.dtype).max
    losses = jnp.where(jnp.isnan(client.survey), jnp.inf, jnp.minimum(client.survey, largest))
    return jnp.argmin(losses).astype(jnp.int32)


hypcluster = recorded(
    "algorithm.hypcluster",
    HypCluster,
    step="k_i = argmin F_i(x_k); x_k ← x_k + η_g Σ w_i Δ_i over those with k_i = k, weights by examples",
    cite="""@misc{mansour2020three,
  title = {Three Approaches for Personalization with Applications to Federated Learning},
  author = {Mansour, Yishay and Mohri, Mehryar and Ro, Jae and Suresh, Ananda Theertha},
  year = {2020},
  eprint = {2002.10619},
  archiveprefix = {arXiv},
}""",
    kept="none + a number",
    sent="2 / 1 + a scalar (K down)",
    options="K: `clusters`; how they start: `spread`, `seed`",
    case={"spread": 0.6},
)
ifca = recorded(
    "algorithm.ifca",
    Ifca,
    step="the same, plain averages",
    cite="""@inproceedings{ghosh2020efficient,
  title = {An Efficient Framework for Clustered Federated Learning},
  author = {Ghosh, Avishek and Chung, Jichan and Yin, Dong and Ramchandran, Kannan},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020},
  eprint = {2006.04088},
  archiveprefix = {arXiv},
}""",
    kept="none + a number",
    sent="2 / 1 + a scalar (K down)",
    options="K: `clusters`; `option` models or gradients; how they start: `spread`, `seed`",
    case={"spread": 0.6},
)
