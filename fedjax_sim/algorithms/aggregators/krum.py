"""Rules that choose among the vectors by their distances: Krum and multi-Krum."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.aggregators.base import Aggregator, Combined, Present, column, weighted_sum
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_count


class Krum(Aggregator):
    """Krum: the vector whose |S| - f - 2 nearest others are nearest, in the sum of their squared distances.

    score_i = sum over the |S| - f - 2 vectors nearest to v_i of |v_j - v_i|^2;   the v_i of the smallest score

    Of two equal scores the client of the smaller index wins. Weights do not enter. With |S| - f - 2 < 1 (slots fell
    void) one neighbour is counted and nothing is promised. The result is one client's message: where clients differ by
    nature, not by noise, it is biased towards the crowd, and nothing is averaged over. Recorded: ``"krum_selected"``,
    the index of the client chosen.

    The choice is piecewise constant: derivatives pass through the vector chosen alone. Distances are those of the Gram
    matrix, right to about 1e-3 |v| in single precision.

    Args:
      f: how many vectors may lie; |S| >= 2 f + 3 slots are needed.

    Raises:
      ValueError: (when a program is traced) a cohort of fewer than 2 f + 3 slots.

    Reference: Blanchard, El Mhamdi, Guerraoui and Stainer 2017, "Machine learning with adversaries: Byzantine tolerant
    gradient descent", section 4.
    """

    f: int = static(default=0)

    def checked(self) -> Self:
        check_count(f"{type(self)._registered_name.partition('.')[2]}(f=...)", self.f, low=0)  # type: ignore[attr-defined]
        return self

    def check(self, slots: int) -> None:
        name = type(self)._registered_name.partition(".")[2]  # type: ignore[attr-defined]
        if slots < 2 * self.f + 3:
            raise ValueError(
                f"{name}(f={self.f}) needs cohorts of at least 2 f + 3 = {2 * self.f + 3} slots and this one has "
                f"{slots}: draw more clients, or give f <= {max((slots - 3) // 2, 0)}"
            )

    def unreported(self) -> dict[str, jax.Array]:
        return {"krum_selected": jnp.int32(0)}

    def how_many(self, who: Present) -> jax.Array:
        """How many vectors are averaged."""
        return jnp.ones_like(who.size)

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        scores = krum_scores(stack, who, self.f)
        order = jnp.lexsort((who.indices, scores, ~who.valid))  # valid ones first, by score, ties by index
        places = jnp.arange(len(order), dtype=jnp.int32)
        ranks = jnp.zeros_like(places).at[order].set(places)
        chosen = who.valid & (ranks < self.how_many(who))
        share = chosen.astype(who.weights.dtype)
        share = share / jnp.maximum(jnp.sum(share), 1)
        # Those not chosen may be huge: they are replaced, not multiplied by zero.
        kept = jax.tree.map(lambda leaf: jnp.where(column(chosen, leaf), leaf, jnp.zeros_like(leaf)), stack)
        selected = who.indices[order[0]].astype(jnp.int32)
        return Combined(weighted_sum(share, kept), (), {"krum_selected": selected})


class MultiKrum(Krum):
    """Multi-Krum: the mean of the m vectors with the smallest scores of Krum.

    Args:
      f: how many vectors may lie; |S| >= 2 f + 3 slots are needed.
      m: how many are averaged; None for |S| - f, all that need not lie. More than |S| means |S|.

    Raises:
      ValueError: m < 1, or (when a program is traced) a cohort of fewer than 2 f + 3 slots.

    Reference: Blanchard et al. 2017 (see Krum), section 6.
    """

    m: int | None = static(default=None)

    def checked(self) -> Self:
        if self.m is not None:
            check_count("multi_krum(m=...)", self.m)
        return super().checked()

    def how_many(self, who: Present) -> jax.Array:
        wanted: jax.Array = jnp.maximum(who.size - self.f, 1) if self.m is None else jnp.int32(self.m)
        return wanted


def krum_scores(stack: Any, who: Present, f: int) -> jax.Array:
    """Krum's scores, [S]; infinite in void slots."""
    squares = squared_distances(stack)
    slots = len(who.valid)
    others = who.valid[:, None] & who.valid[None, :] & ~jnp.eye(slots, dtype=bool)
    ordered = jnp.sort(jnp.where(others, squares, jnp.full_like(squares, jnp.inf)), axis=1)
    neighbours = jnp.clip(who.size - f - 2, 1, jnp.maximum(who.size - 1, 1))
    counted = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None, :] < neighbours, ordered.shape)
    scores = jnp.sum(jnp.where(counted, ordered, jnp.zeros_like(ordered)), axis=1)
    return jnp.where(who.valid, scores, jnp.full_like(scores, jnp.inf))


def squared_distances(stack: Any) -> jax.Array:
    """|v_i - v_j|^2 over all leaves together, [S, S], symmetric and without a derivative; overflow is infinite."""
    dtype = jnp.result_type(float)

    def of_leaf(leaf: jax.Array) -> jax.Array:
        flat = lax.stop_gradient(leaf).reshape(len(leaf), -1).astype(dtype)
        return jnp.matmul(flat, flat.T, precision=lax.Precision.HIGHEST)

    gram: jax.Array = jax.tree.reduce(jnp.add, jax.tree.map(of_leaf, stack))
    norms = jnp.diagonal(gram)
    # The mean of both triangles: equal distances must be equal numbers, or ties would depend on the slots.
    squares = norms[:, None] + norms[None, :] - (gram + gram.T)
    return jnp.where(jnp.isnan(squares), jnp.full_like(squares, jnp.inf), jnp.maximum(squares, 0))


krum = factory("aggregator.krum", Krum)
multi_krum = factory("aggregator.multi_krum", MultiKrum)
