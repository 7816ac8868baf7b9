"""Rules that make one vector of many, some of which may lie: what :func:`fedjax_sim.robust` aggregates by.

A vector is a pytree; S of them are a *stack*, leaves [S, ...]. Rules are pure functions of stacks, so they work on any
stack of one's own too: ``fedjax_sim.aggregators.median().of(stack)``.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.stacks import distances, middle, only, squared_distances
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import check_single, count, real
from fedjax_sim.core.values import INT32_MAX


class Present(NamedTuple):
    """Which slots of a stack hold a vector.

    Attributes:
      valid: bool[S].
      weights: [S], 0 in void slots; they sum to 1 (to 0 where no slot is valid).
      indices: int32[S], distinct numbers of the valid vectors (their clients), by which ties are broken.
      size: int32, number of valid slots.
    """

    valid: jax.Array
    weights: jax.Array
    indices: jax.Array
    size: jax.Array

    @staticmethod
    def among(valid: jax.Array, weights: jax.Array, indices: jax.Array) -> Present:
        """The valid slots, with weights that sum to 1."""
        weights = jnp.where(valid, weights, jnp.zeros_like(weights))
        total = jnp.sum(weights)
        weights = weights / jnp.where(total > 0, total, jnp.ones_like(total))
        return Present(valid, weights, indices, jnp.sum(valid, dtype=jnp.int32))

    def finite(self, stack: Any) -> tuple[Any, Present]:
        """The stack without the vectors that are not finite, as any server can tell: void slots of zeros."""
        valid = self.valid & jax.vmap(trees.all_finite)(stack)
        return only(valid, stack), Present.among(valid, self.weights, self.indices)


class Combined(NamedTuple):
    """What a rule makes of a stack.

    Attributes:
      value: the vector.
      state: what the rule keeps from round to round, ``()`` for nothing.
      report: numbers by name for the record of the round.
    """

    value: Any
    state: Any
    report: dict[str, jax.Array]


class Aggregator(Described):
    """Base of the rules.

    Attributes:
      weighted: whether the vectors' weights enter; the other rules count every vector once.
    """

    weighted: ClassVar[bool] = False

    def check(self, slots: int) -> None:
        """Raises ``ValueError`` where a stack of ``slots`` vectors is too small for the rule."""

    def init(self, params: Any) -> Any:
        """The rule's state before the first round, for vectors like ``params``."""
        return ()

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        """The aggregate of the vectors of ``stack``, leaves [S, ...], that ``who`` counts: finite, void ones zero."""
        raise TypeError(f"{type(self).__name__} must define combine(stack, who, state)")

    def of(self, stack: Any, *, valid: Any = None, weights: Any = None) -> Any:
        """The aggregate of a stack of one's own, pytree of leaves [S, ...]; vectors that are not finite are left out.

        ``valid``, bool[S], are those that count, None for all; ``weights``, numbers [S] >= 0, None for equal ones.
        """
        stack = jax.tree.map(trees.real, stack)
        slots = len(jax.tree.leaves(stack)[0])
        check_single(self, self.factory_name())
        self.check(slots)
        one = jax.tree.map(lambda leaf: leaf[0], stack)
        stack, who = present(slots, valid, weights).finite(stack)
        return self.combine(stack, who, self.init(one)).value


def present(slots: int, valid: Any = None, weights: Any = None) -> Present:
    """All ``slots`` slots, or the ``valid`` ones, with equal or the given weights (normalised here)."""
    dtype = jnp.result_type(float)
    mask = jnp.ones((slots,), bool) if valid is None else jnp.asarray(valid, bool)
    mass = jnp.ones((slots,), dtype) if weights is None else jnp.asarray(weights).astype(dtype)
    return Present.among(mask, mass, jnp.arange(slots, dtype=jnp.int32))


class Mean(Aggregator):
    """The weighted mean, which one vector can move anywhere: what the others are compared with."""

    weighted: ClassVar[bool] = True

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        return Combined(trees.weighted_sum(who.weights, stack), (), {})


class Median(Aggregator):
    """Coordinate-wise median; the mean of the two middle values where the number is even.

    It stays between the honest values in every coordinate while fewer than half of the vectors lie. Weights do not
    enter: a vote by size would let one large client be half of all.

    Reference: Yin, Chen, Ramchandran and Bartlett 2018, "Byzantine-robust distributed learning: towards optimal
    statistical rates", definition 1.
    """

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        return Combined(middle(stack, who.valid, (who.size - 1) // 2), (), {})


class TrimmedMean(Aggregator):
    """Coordinate-wise mean without the floor(beta |S|) largest and as many smallest values.

    Up to beta |S| liars move the result no further than the honest values reach. Weights do not enter. Recorded:
    ``"trimmed"``, the number cut on each side.

    Args:
      beta: fraction cut on each side, in [0, 1/2); 0 is the plain mean.

    Raises:
      ValueError: outside of that range.

    Reference: Yin et al. 2018 (see Median), definition 2.
    """

    beta: float = real(default=0.1, low=0.0, below=0.5, structure=True)

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        counts = np.arange(len(who.valid) + 1)
        # The product is rounded first: 0.29 * 100 is 28.999... in floating point.
        cuts = np.floor(np.round(self.beta * counts, 9)).astype(np.int32)
        cut = jnp.asarray(np.minimum(cuts, np.maximum(counts - 1, 0) // 2), jnp.int32)[who.size]
        return Combined(middle(stack, who.valid, cut), (), {"trimmed": cut})


class GeometricMedian(Aggregator):
    """The point with the smallest weighted sum of distances, by smoothed Weiszfeld steps (RFA).

    v = argmin_z g(z),  g(z) = sum_i w_i |z - v_i|
    z <- sum_i b_i v_i / sum_i b_i,   b_i = w_i / max(nu, |z - v_i|)

    The scheme's weights enter: vectors of less than half of the weight move the result a bounded way. The steps begin
    at the coordinate-wise median (the paper leaves it open, its code takes the mean, which liars may have moved far).
    Recorded: ``"median_distance"``, g at the result, and ``"median_gap"``, a bound of how far that is above the
    minimum, which tells whether ``iterations`` were enough. Derivatives pass through the steps.

    The dual problem is the largest sum_i <u_i, v_i> with sum_i u_i = 0 and |u_i| <= w_i. With
    u_i = w_i (v_i - z) / max(nu, |v_i - z|) and their sum r, the vectors (u_i - w_i r) / (1 + |r|) are feasible.

    Args:
      nu: smoothing > 0, in units of the vectors: distances below it count as nu.
      iterations: Weiszfeld steps; the paper takes 3.

    Raises:
      ValueError: nu <= 0 or no iterations.

    Reference: Pillutla, Kakade and Harchaoui 2022, "Robust aggregation for federated learning", algorithm 2.
    """

    nu: Any = real(default=1e-6, above=0.0)
    iterations: int = count(default=10, high=INT32_MAX)

    weighted: ClassVar[bool] = True

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        weights = who.weights.astype(jnp.result_type(float))

        def pulls(z: Any) -> tuple[jax.Array, jax.Array]:
            apart = distances(stack, z)
            return apart, weights / jnp.maximum(trees.as_dtype(self.nu, apart), apart)

        def step(z: Any, _: None) -> tuple[Any, None]:
            pull = pulls(z)[1]
            total = jnp.sum(pull)
            return trees.weighted_sum(pull / jnp.where(total > 0, total, 1), stack), None

        start = Median().combine(stack, who).value
        z = lax.scan(step, start, length=self.iterations)[0]
        apart, pull = pulls(z)
        value = jnp.sum(weights * apart)

        def gap(z: Any, apart: jax.Array, pull: jax.Array, value: jax.Array) -> jax.Array:
            residual, offset = trees.weighted_sum(pull, _from(z, stack)), trees.weighted_sum(weights, _from(z, stack))
            shift = trees.inner(residual, offset).astype(value.dtype)
            dual = (jnp.sum(pull * jnp.square(apart)) - shift) / (1 + trees.norm(residual).astype(value.dtype))
            return jnp.maximum(value - dual, 0)

        bound = lax.stop_gradient(gap(z, apart, pull, value))
        return Combined(z, (), {"median_distance": value, "median_gap": bound})


class CenteredClipping(Aggregator):
    """Centred clipping: from the last aggregate, a step along the mean of differences that are no longer than tau.

    v <- v + (1/|S|) sum_i (v_i - v) min(1, tau / |v_i - v|),   ``iterations`` times, from the last round's v (v_0 = 0)

    A liar moves v by at most tau / |S| a step. Weights do not enter. Recorded: ``"centered_clipped"``, how many vectors
    were clipped in the last step.

    Args:
      tau: radius > 0, in units of the vectors.
      iterations: steps a round; the paper takes 1.

    Raises:
      ValueError: tau <= 0 or no iterations.

    Reference: Karimireddy, He and Jaggi 2021, "Learning from history for Byzantine robust optimization", section 4.
    """

    tau: Any = real(default=10.0, above=0.0)
    iterations: int = count(default=1, high=INT32_MAX)

    def init(self, params: Any) -> Any:
        return trees.zeros_like(jax.tree.map(jnp.asarray, params))

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        count = jnp.maximum(who.size, 1)

        def step(v: Any, _: None) -> tuple[Any, jax.Array]:
            apart = distances(stack, v)
            tau = trees.as_dtype(self.tau, apart)
            beyond = who.valid & (apart > tau)
            factor = jnp.where(beyond, tau / jnp.where(beyond, apart, 1), 1)
            share = jnp.where(who.valid, factor, 0) / count.astype(factor.dtype)
            return trees.add(v, trees.weighted_sum(share, _from(v, stack))), jnp.sum(beyond, dtype=jnp.int32)

        v, clipped = lax.scan(step, state, length=self.iterations)
        return Combined(v, v, {"centered_clipped": clipped[-1]})


def _from(z: Any, stack: Any) -> Any:
    """v_i - z."""
    return jax.tree.map(lambda leaf, at: leaf - at[None], stack, z)


class Krum(Aggregator):
    """Krum: the vector whose |S| - f - 2 nearest others are nearest, in the sum of their squared distances.

    score_i = sum over the |S| - f - 2 vectors nearest to v_i of |v_j - v_i|^2;   the v_i of the smallest score

    Of two equal scores the client of the smaller index wins. Weights do not enter. With |S| - f - 2 < 1 (slots fell
    void) one neighbour is counted and nothing is promised. Where clients differ by nature, not by noise, the result is
    biased towards the crowd. Recorded: ``"krum_selected"``, the index of the client chosen. Derivatives pass through
    the vector chosen alone. Distances are right to about 1e-3 |v| in single precision.

    Args:
      f: how many vectors may lie; |S| >= 2 f + 3 slots are needed.

    Raises:
      ValueError: (when a program is traced) a cohort of fewer than 2 f + 3 slots.

    Reference: Blanchard, El Mhamdi, Guerraoui and Stainer 2017, "Machine learning with adversaries: Byzantine tolerant
    gradient descent", section 4.
    """

    f: int = count(default=0, low=0)

    def check(self, slots: int) -> None:
        name = self.factory_name()
        if slots < 2 * self.f + 3:
            raise ValueError(
                f"{name}(f={self.f}) needs cohorts of at least 2 f + 3 = {2 * self.f + 3} slots and this one has "
                f"{slots}: draw more clients, or give f <= {max((slots - 3) // 2, 0)}"
            )

    def how_many(self, who: Present) -> jax.Array:
        """How many vectors are averaged."""
        return jnp.ones_like(who.size)

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        scores = _krum_scores(stack, who, self.f)
        order = jnp.lexsort((who.indices, scores, ~who.valid))  # valid ones first, by score, ties by index
        places = jnp.arange(len(order), dtype=jnp.int32)
        ranks = jnp.zeros_like(places).at[order].set(places)
        chosen = who.valid & (ranks < self.how_many(who))
        share = chosen.astype(who.weights.dtype)
        share = share / jnp.maximum(jnp.sum(share), 1)
        # Those not chosen may be huge: they are replaced, not multiplied by zero.
        value = trees.weighted_sum(share, only(chosen, stack))
        return Combined(value, (), {"krum_selected": who.indices[order[0]].astype(jnp.int32)})


class MultiKrum(Krum):
    """Multi-Krum: the mean of the m vectors with the smallest scores of Krum.

    Args:
      f: how many vectors may lie; |S| >= 2 f + 3 slots are needed.
      m: how many are averaged; None for |S| - f, all that need not lie. More than |S| means |S|.

    Raises:
      ValueError: m < 1, or (when a program is traced) a cohort of fewer than 2 f + 3 slots.

    Reference: Blanchard et al. 2017 (see Krum), section 6.
    """

    m: int | None = count(default=None)

    def how_many(self, who: Present) -> jax.Array:
        return jnp.maximum(who.size - self.f, 1) if self.m is None else jnp.int32(self.m)


def _krum_scores(stack: Any, who: Present, f: int) -> jax.Array:
    """Krum's scores, [S]; infinite in void slots."""
    squares = squared_distances(stack)
    slots = len(who.valid)
    others = who.valid[:, None] & who.valid[None, :] & ~jnp.eye(slots, dtype=bool)
    ordered = jnp.sort(jnp.where(others, squares, jnp.full_like(squares, jnp.inf)), axis=1)
    neighbours = jnp.clip(who.size - f - 2, 1, jnp.maximum(who.size - 1, 1))
    counted = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None, :] < neighbours, ordered.shape)
    scores = jnp.sum(jnp.where(counted, ordered, jnp.zeros_like(ordered)), axis=1)
    return jnp.where(who.valid, scores, jnp.full_like(scores, jnp.inf))


mean = factory("aggregator.mean", Mean)
median = factory("aggregator.median", Median)
trimmed_mean = factory("aggregator.trimmed_mean", TrimmedMean)
geometric_median = factory("aggregator.geometric_median", GeometricMedian)
centered_clipping = factory("aggregator.centered_clipping", CenteredClipping)
krum = factory("aggregator.krum", Krum)
multi_krum = factory("aggregator.multi_krum", MultiKrum)
