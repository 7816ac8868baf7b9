"""The shortest vector in the convex hull of n vectors: FedAWARE's weights, min over the simplex of |sum_i w_i m_i|^2.

Zeng et al. 2025, "On the power of adaptive weighted aggregation in heterogeneous federated learning and beyond", eq. 2.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.derived import with_derivative
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.loops import jvp_of_varying
from fedjax_sim.optim.simplex import (
    ROUND_OFF,
    ActiveSet,
    AwaySteps,
    FrankWolfe,
    MinNormSolver,
    Quadratic,
    smallest_damping,
    towards_affine_minimum,
)

_FEW = 512  # vectors up to which a factorisation a step is affordable
_PASSES = 30  # of the solver, each about a better known gradient; one is enough unless |d| is tiny

active_set = factory("min_norm.active_set", ActiveSet)
away_steps = factory("min_norm.away_steps", AwaySteps)
frank_wolfe = factory("min_norm.frank_wolfe", FrankWolfe)


class Shortest(NamedTuple):
    """The shortest vector found.

    Attributes:
      weights: [n], on the simplex of the seen ones; all zero if nobody was seen.
      point: d = sum_i w_i m_i, a pytree like one vector.
      squared_norm: |d|^2, computed from d.
      gap: duality gap |d|^2 - min_i <m_i, d> over the seen ones, computed from the vectors; |d|^2 exceeds the minimum
        by at most this. It carries the round-off of d, about eps max |m_i|^2.
      stationary: whether the hull contains 0 as far as d can tell: |d| <= eps^(3/4) sum_i w_i |m_i|.
      steps: taken by the solver, int32.
    """

    weights: jax.Array
    point: Any
    squared_norm: jax.Array
    gap: jax.Array
    stationary: jax.Array
    steps: jax.Array


class _Found(NamedTuple):
    weights: jax.Array
    point: Any
    pull: jax.Array


class _Search(NamedTuple):
    found: _Found
    squared_norm: jax.Array
    centre: jax.Array
    passes: jax.Array
    steps: jax.Array
    done: jax.Array


def gram_rows(vectors: Any, rows: jax.Array) -> jax.Array:
    """<m_r, m_j> for r in ``rows``, int32[S], and all j, [S, n], of leaves [n, ...]; bad indices are clipped."""
    flat = [_flat(leaf) for leaf in jax.tree.leaves(vectors)]
    return _summed([trees.matmul(one.at[rows].get(mode="clip"), one.T) for one in flat])


def full_gram(vectors: Any) -> jax.Array:
    """<m_i, m_j>, [n, n], of leaves [n, ...]."""
    return _summed([trees.matmul(_flat(leaf), _flat(leaf).T) for leaf in jax.tree.leaves(vectors)])


def shortest(
    vectors: Any,
    gram: jax.Array,
    seen: jax.Array,
    start: jax.Array,
    *,
    solver: MinNormSolver | None = None,
    scales: jax.Array | None = None,
) -> Shortest:
    """The shortest vector in the convex hull of the seen ones: argmin over the simplex of |sum_i w_i m_i|^2.

    The solver works on the Gram matrix, which knows |d|^2 to eps max |m_i|^2 only. So d and <m_i, d> are then computed
    from the vectors, and where the gap shows that more can be had the solver goes on about that point, with its exact
    gradient: |d|^2 becomes right to about eps |d| max |m_i|. Ends where the gap is below ``tolerance`` |d|^2 or
    round-off, where d = 0 to precision, at ``max_steps``, or where |d| decreases no more.

    Derivatives: with the active set, those of the exact minimiser on its support (they exist where the support does
    not change), to any order if ``gram`` is a differentiable function of the vectors, to the first order anyhow. With
    the other solvers the weights are constants and d is differentiated through the vectors.

    Args:
      vectors: m_i, pytree of leaves [n, ...]; they must be finite, also the unseen ones.
      gram: <m_i, m_j>, [n, n]: see :func:`full_gram`, :func:`gram_rows`.
      seen: bool[n], who may have a weight.
      start: weights to start from, as a rule of the last call, [n]; all zero for none.
      solver: :func:`active_set`, :func:`away_steps` or :func:`frank_wolfe`; None for active sets up to 512 vectors,
        away steps beyond.
      scales: s_i, [n]: the vectors are s_i m_i, for the weights and for d; None for 1.
    """
    count, dtype = gram.shape[0], gram.dtype
    if solver is None:
        solver = active_set() if count <= _FEW else away_steps()
    scales = jnp.ones((count,), dtype) if scales is None else jnp.asarray(scales).astype(dtype)
    problem = Quadratic.of_gram(*lax.stop_gradient((gram, scales)), seen, _precision(gram, vectors))
    search = _search(solver, problem, *lax.stop_gradient((vectors, start.astype(dtype))))
    found = search.found
    if solver.implicit:
        found = with_derivative(_over_the_face, found, (vectors, gram, scales))
    else:
        found = _Found(found.weights, *_point_and_pull(found.weights, vectors, scales))
    squared_norm, gap = _measures(found, seen)
    return Shortest(
        weights=found.weights,
        point=jax.tree.map(lambda d, m: d.astype(m.dtype), found.point, vectors),
        squared_norm=squared_norm,
        gap=gap,
        stationary=_vanishes(found.weights, squared_norm, problem),
        steps=search.steps,
    )


def _search(solver: MinNormSolver, problem: Quadratic, vectors: Any, start: jax.Array) -> _Search:
    """Passes of the solver, each about the point that the last one found."""
    lengths, seen = problem.lengths, problem.seen
    tolerance = solver.relative_gap(problem.eps, start.dtype)

    def improve(search: _Search) -> _Search:
        best, square = search.found, search.squared_norm
        length = jnp.where(jnp.isfinite(square), jnp.sqrt(square), 0)
        about = problem._replace(centre=search.centre, pull=best.pull, length=length)
        weights, steps = solver.weights(about, best.weights, search.steps)
        found = _Found(weights, *_point_and_pull(weights, vectors, problem.scales))
        squared_norm, _ = _measures(found, seen)
        # Round-off: of <m_i, d>, and of d, which is felt along m_i - d only.
        distances = jnp.sqrt(jnp.maximum(lengths**2 - 2 * found.pull + squared_norm, 0))
        noise = ROUND_OFF * problem.eps * (jnp.sqrt(squared_norm) * lengths + jnp.sum(weights * lengths) * distances)
        violation = jnp.max(jnp.where(seen, squared_norm - found.pull - noise, -jnp.inf), initial=-jnp.inf)
        worse = squared_norm >= square
        done = worse | ~(violation > tolerance * squared_norm) | _vanishes(weights, squared_norm, problem)
        kept: _Found = trees.select(worse, best, found)
        square = jnp.where(worse, square, squared_norm)
        return _Search(kept, square, kept.weights, search.passes + 1, steps, done)

    point = jax.tree.map(lambda m: jnp.zeros(m.shape[1:], _wide(m)), vectors)
    search = _Search(
        found=_Found(start, point, problem.pull),
        squared_norm=jnp.full_like(problem.length, jnp.inf),
        centre=problem.centre,
        passes=jnp.int32(0),
        steps=jnp.int32(0),
        done=jnp.zeros((), bool),
    )
    return lax.while_loop(lambda s: ~s.done & (s.passes < _PASSES) & (s.steps < solver.max_steps), improve, search)


def _over_the_face(found: _Found, of: Any, of_dot: Any, _: Any) -> _Found:
    """The derivative of the exact minimiser over the face that it lies in.

    There <m_i, d> = mu and sum_i w_i = 1 on the support: the derivative of the weights is the Newton step for the
    derivative of <m_i, d> at constant weights.
    """
    (vectors, gram, scales), (vectors_dot, _, scales_dot) = of, of_dot
    weights = found.weights
    support = weights > 0
    at_constant_weights = functools.partial(_point_and_pull, weights)
    _, (_, pull_dot) = jvp_of_varying(at_constant_weights, (vectors, scales), (vectors_dot, scales_dot))
    problem = Quadratic.of_gram(gram, scales, support, _precision(gram, vectors))
    damping = jnp.asarray(smallest_damping(problem), gram.dtype)
    step = towards_affine_minimum(problem, support, damping, pull_dot, jnp.zeros_like(damping))
    _, tangent = jvp_of_varying(_point_and_pull, (weights, vectors, scales), (step, vectors_dot, scales_dot))
    return _Found(step, *tangent)


def _point_and_pull(weights: jax.Array, vectors: Any, scales: jax.Array) -> tuple[Any, jax.Array]:
    """d = sum_i w_i s_i m_i (in float32 at least) and <s_i m_i, d>, [n]."""
    factors = weights * scales
    point = jax.tree.map(lambda m: trees.matmul(factors.astype(_wide(m)), _flat(m)).reshape(m.shape[1:]), vectors)
    products = [
        trees.matmul(_flat(m), d.reshape(-1)) for m, d in zip(*map(jax.tree.leaves, (vectors, point)), strict=True)
    ]
    return point, scales * _summed(products).astype(scales.dtype)


def _measures(found: _Found, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """|d|^2 and the duality gap."""
    squared_norm = _summed([jnp.sum(d * d) for d in jax.tree.leaves(found.point)]).astype(found.pull.dtype)
    gap = jnp.max(jnp.where(seen, squared_norm - found.pull, -jnp.inf), initial=-jnp.inf)
    return squared_norm, jnp.where(jnp.any(seen), gap, 0)


def _vanishes(weights: jax.Array, squared_norm: jax.Array, problem: Quadratic) -> jax.Array:
    size = jnp.sum(weights * problem.lengths)
    return jnp.any(problem.seen) & (squared_norm <= problem.eps**1.5 * size**2)


def _wide(leaf: jax.Array) -> Any:
    return trees.widest(leaf, jnp.float32)


def _eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps)


def _precision(gram: jax.Array, vectors: Any) -> float:
    return max(_eps(gram.dtype), *(_eps(_wide(m)) for m in jax.tree.leaves(vectors)))


def _flat(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0], -1).astype(_wide(leaf))


def _summed(parts: list[jax.Array]) -> jax.Array:
    """The sum in the widest of the parts' dtypes."""
    return jax.tree.reduce(jnp.add, [part.astype(trees.widest(parts)) for part in parts])


__all__ = [
    "MinNormSolver", "Shortest", "active_set", "away_steps", "frank_wolfe", "full_gram", "gram_rows", "shortest",
]  # fmt: skip
