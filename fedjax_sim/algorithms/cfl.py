"""Clusters that are split where their clients' updates disagree."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Each, Message, Requires, Stack
from fedjax_sim.algorithms.several import Several, pick
from fedjax_sim.algorithms.stacks import cosines
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.trees import divide, norm, weighted_sum
from fedjax_sim.core.values import INT32_MAX


class Tree(NamedTuple):
    """The clusters and where they come from.

    Attributes:
      cluster: int32[N], each client's cluster, by client index.
      parent: int32[C], the cluster that each one was split from; itself for the first one and where there is none yet.
      number: int32, how many clusters there are: 0 .. number - 1.
    """

    cluster: jax.Array
    parent: jax.Array
    number: jax.Array


ClusterSent = namedtuple("ClusterSent", ["params", "cluster"])  # the model of the client's cluster, and its number


class Cfl(Several):
    """Clustered federated learning: FedAvg in clusters, which are split near rest where clients disagree.

    x_c <- x_c + eta_g Delta_c,   Delta_c = sum of w_i Delta_i over the clients of c, with weights of sum one there
    split c where |Delta_c| < epsilon1 and max |Delta_i| > epsilon2, into the halves c1, c2 of least cross similarity:
      min over c1 + c2 = c of max over i in c1, j in c2 of a_ij,   a_ij = <Delta_i, Delta_j> / (|Delta_i| |Delta_j|)
    unless sqrt((1 - that) / 2) <= gamma

    At the start all clients are one cluster. Both halves start from the x_c that the round has led to; the half with
    the lowest client index keeps the number c, the other one gets the next number. There are ``clusters`` places:
    once all are taken nothing is split, and where several clusters would be split at once the lowest numbers come
    first. A cluster is judged in rounds in which all of its clients take part. The halves are those of single linkage:
    pairs are joined, the most similar ones first, until two groups are left. Similarities take a matrix of all pairs of
    clients, halves a loop over the clients, made only in rounds in which there is something to split.

    A client hears the number of its cluster with the model and keeps it; what it would use itself is that cluster's
    model. What is evaluated as the shared model is the mean of the clusters, each by the number of its clients.
    Recorded: ``"clusters"``, how many there are after the round.

    Args:
      clusters: the most clusters that there can be.
      epsilon1: >= 0, in units of |Delta|: the cluster's update is shorter near rest.
      epsilon2: >= 0, likewise: some client's update is longer where they disagree.
      gamma: in [0, 1], an estimate of how far a client's update is from that of its data's distribution; the larger,
        the rarer are splits.

    Reference: Sattler, Mueller and Samek 2020, "Clustered federated learning: Model-agnostic distributed multitask
    optimization under privacy constraints", Algorithms 1 and 3.
    """

    clusters: int = count(default=8, high=INT32_MAX)
    epsilon1: Any = real(default=0.4, low=0.0)
    epsilon2: Any = real(default=1.6, low=0.0)
    gamma: Any = real(default=0.0, low=0.0, high=1.0)

    @property
    def requires(self) -> Requires:
        return Requires(
            everyone=True, duplicates=False, several=True, average="plain", averages=WEIGHTED_MEANS,
            averages_why="a cluster's average is one of its own clients, whose weights must sum to one",
            minimises=lambda objective: objective.replace("F_i", "F_i(x_c(i))"),
        )  # fmt: skip

    def init(self, params: Any, shares: jax.Array) -> Any:
        models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (self.clusters, *leaf.shape)), params)
        places = jnp.arange(self.clusters, dtype=jnp.int32)
        tree = Tree(jnp.zeros((len(shares),), jnp.int32), places, jnp.int32(1))
        return super().init(models, shares)._replace(extra=tree)

    def init_client(self, params: Any) -> Any:
        return jnp.int32(0)

    def model(self, server: Any) -> Any:
        share = jnp.mean(self._members(server.extra.cluster).astype(jnp.result_type(float)), axis=0)
        return weighted_sum(share, server.params)

    def send(self, server: Any) -> Any:
        cluster = server.extra.cluster
        return ClusterSent(Each(pick(server.params, cluster)), Each(cluster))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Stack(delta)}, sent.cluster

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        tree, deltas = server.extra, got["delta"]
        member = self._members(tree.cluster.at[cohort.indices].get(mode="clip")) & cohort.valid[:, None]  # [S, C]
        weights = jnp.where(member, cohort.weights[:, None], 0)
        weights = divide(weights, jnp.sum(weights, axis=0)[None])
        mean = jax.vmap(weighted_sum, (1, None))(weights, deltas)  # [C, ...]
        server = self.server_step(server, mean, cohort)
        longest = jnp.max(jnp.where(member, jax.vmap(norm)(deltas)[:, None], 0), axis=0)
        present = jnp.sum(member, axis=0, dtype=jnp.int32)
        judged = (present > 1) & (present == jnp.sum(self._members(tree.cluster), axis=0, dtype=jnp.int32))
        disagree = (jax.vmap(norm)(mean) < self.epsilon1) & (longest > self.epsilon2)
        split = judged & disagree & (tree.number < self.clusters)
        return lax.cond(jnp.any(split), lambda: self._split(server, deltas, member, split, cohort), lambda: server)

    def _split(self, server: Any, deltas: Any, member: jax.Array, split: jax.Array, cohort: Cohort) -> Any:
        """The server after the splits of those clusters whose halves are far enough apart, and for which is place."""
        tree, places = server.extra, jnp.arange(self.clusters, dtype=jnp.int32)
        second, cross = halves(cosines(deltas), member, cohort.indices)
        split = split & (jnp.sqrt(jnp.maximum((1 - cross) / 2, 0)) > self.gamma)
        place = tree.number + jnp.cumsum(split, dtype=jnp.int32) - 1
        split = split & (place < self.clusters)
        place = jnp.where(split, place, self.clusters)  # where there is none
        source = places.at[place].set(places, mode="drop")
        moves = jnp.any(member & split[None], axis=1) & second
        cluster = tree.cluster.at[cohort.indices].get(mode="clip")
        cluster = jnp.where(moves, place[cluster], cluster)
        new = Tree(
            tree.cluster.at[cohort.indices].set(cluster, mode="drop"),
            jnp.where(source == places, tree.parent, source),
            tree.number + jnp.sum(split, dtype=jnp.int32),
        )
        # An optimiser's counts have no place for each model.
        copied = jax.tree.map(lambda leaf: leaf[source] if leaf.ndim else leaf, (server.params, server.optimizer))
        return server._replace(params=copied[0], optimizer=copied[1], extra=new)

    def _members(self, cluster: jax.Array) -> jax.Array:
        """Who is in which cluster, bool[..., C]."""
        return cluster[:, None] == jnp.arange(self.clusters, dtype=jnp.int32)[None]

    def report(self, server: Any) -> dict[str, jax.Array]:
        return {"clusters": server.extra.number}

    def personal(self, server: Any, c_i: Any) -> Any:
        return pick(server.params, c_i)


def halves(similar: jax.Array, member: jax.Array, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of every cluster the two halves of least cross similarity: who is in the second one, and that similarity.

    The largest similarity across is least where the most similar pairs are joined first, until two groups are left.

    Args:
      similar: [S, S], symmetric.
      member: bool[S, C], who is in which cluster.
      indices: [S], clients' indices; the lowest of a cluster is in its first half.

    Returns:
      bool[S], and [C], -infinity of clusters with less than two members.
    """
    slots, lowest = jnp.arange(len(similar), dtype=jnp.int32), jnp.full_like(similar, -jnp.inf)
    together = jnp.any(member[:, None] & member[None], axis=-1)

    def join(_: Any, group: jax.Array) -> jax.Array:
        several = jnp.sum(member & (group == slots)[:, None], axis=0) > 2
        apart = together & (group[:, None] != group[None]) & jnp.any(member & several[None], axis=1)[:, None]
        one, other = jnp.divmod(jnp.argmax(jnp.where(apart, similar, lowest)).astype(jnp.int32), len(slots))
        low, high = jnp.minimum(group[one], group[other]), jnp.maximum(group[one], group[other])
        return jnp.where(jnp.any(apart) & (group == high), low, group)

    group = lax.fori_loop(0, max(len(slots) - 2, 0), join, slots)
    first = jnp.argmin(jnp.where(member, indices[:, None], jnp.iinfo(indices.dtype).max), axis=0)  # [C], a slot
    second = jnp.any(member & (group[:, None] != group[first][None]), axis=1)
    across = jnp.where(together & (second[:, None] != second[None]), similar, lowest)
    return second, jnp.max(jnp.where(member, jnp.max(across, axis=1)[:, None], -jnp.inf), axis=0)


cfl = recorded(
    "algorithm.cfl",
    Cfl,
    step="FedAvg in each cluster; where ‖Δ_c‖ < ε₁ and max ‖Δ_i‖ > ε₂, c is split by the cosines of its Δ_i",
    cite="""@article{sattler2020clustered,
  title = {Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints},
  author = {Sattler, Felix and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2020},
  eprint = {1910.01991},
  archiveprefix = {arXiv},
}""",
    kept="none + a number",
    sent="1 + a scalar / 1",
    case={"clusters": 3, "epsilon1": 50.0, "epsilon2": 0.01, "gamma": 0.1, "inert": ("epsilon1", "epsilon2", "gamma")},
)
