"""Minimisers of a convex quadratic over the simplex: the loops behind the shortest vector of a hull."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.trees import matmul, root
from fedjax_sim.core.values import INT32_MAX

ROUND_OFF = 4.0  # rounding errors that an inner product is allowed, in units of eps times the two lengths
_REFRESH = 1000  # steps after which a gradient that is kept up to date is computed anew


class Quadratic(NamedTuple):
    """f(w) = |sum_i w_i s_i m_i|^2 / 2 over the simplex of the seen ones, seen from a point w0.

    Its gradient is written c + G (w - w0) with c = <m_i, d(w0)> computed from the vectors. G alone (w0 = 0, c = 0)
    knows f to eps max |m_i|^2; a gradient that is right at w0 makes the errors of G second order.
    """

    gram: jax.Array  # <m_i, m_j>, [n, n]
    scales: jax.Array  # s_i, [n]
    seen: jax.Array  # bool[n], who may have a weight
    centre: jax.Array  # w0, [n]
    pull: jax.Array  # c, [n]
    length: jax.Array  # |d(w0)|
    eps: float  # relative rounding error of ``gram`` and ``pull``

    @classmethod
    def of_gram(cls, gram: jax.Array, scales: jax.Array, seen: jax.Array, eps: float) -> Self:
        """Of which only the Gram matrix is known."""
        nothing = jnp.zeros_like(scales)
        return cls(gram, scales, seen, nothing, nothing, jnp.zeros((), scales.dtype), eps)

    @property
    def lengths(self) -> jax.Array:
        """|s_i m_i|, [n]."""
        return jnp.abs(self.scales) * root(jnp.maximum(jnp.diagonal(self.gram), 0))

    def times(self, weights: jax.Array) -> jax.Array:
        """G w, [n]."""
        return self.scales * matmul(self.gram, self.scales * weights)

    def column(self, j: jax.Array) -> jax.Array:
        """G_ij for all i, [n]."""
        return self.scales * self.scales[j] * self.gram[j]

    def gradient(self, weights: jax.Array) -> jax.Array:
        """<s_i m_i, d(w)>, [n]."""
        return self.pull + self.times(weights - self.centre)

    def noise(self, weights: jax.Array, lengths: jax.Array) -> jax.Array:
        """Bound of the rounding errors of :meth:`gradient`, [n]."""
        moved = jnp.sum(lengths * jnp.abs(weights - self.centre))
        return ROUND_OFF * self.eps * lengths * (self.length + moved)

    def first(self, start: jax.Array) -> jax.Array:
        """A feasible point: ``start``, or the shortest vector where it has no mass on the seen ones."""
        start = jnp.where(self.seen & (start > 0), start, 0)
        total = jnp.sum(start)
        shortest = jnp.argmin(jnp.where(self.seen, self.lengths, jnp.inf))
        vertex = jnp.zeros_like(start).at[shortest].set(1)
        vertex = jnp.where(self.seen, vertex, 0)
        return jnp.where(total > 0, start / jnp.where(total > 0, total, 1), vertex)


class MinNormSolver(Described):
    """Base of the solvers of :func:`~fedjax_sim.min_norm.shortest`.

    Args:
      tolerance: the duality gap, relative to |d|^2, at which it stops; None for 1e-12 in float64 and 1e-5 in float32.
      max_steps: most steps of one call, all refinements included.
    """

    tolerance: Any = real(default=None, low=0.0)
    max_steps: int = count(default=5000, high=INT32_MAX)

    implicit: ClassVar[bool] = False  # whether it ends at the minimiser over a face, which has a derivative

    def relative_gap(self, eps: float, dtype: Any) -> jax.Array:
        """The tolerance at this precision."""
        default = 1e-12 if eps < 1e-12 else 1e-5
        return jnp.asarray(default if self.tolerance is None else self.tolerance).astype(dtype)

    def weights(self, problem: Quadratic, start: jax.Array, steps: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(weights [n] of the minimiser, steps used up by now).

        From the weights ``start`` [n], all zero for none, with ``steps`` (int32) of ``max_steps`` used up.
        """
        raise TypeError(f"{type(self).__name__} must define weights(problem, start, steps)")


class _Walk(NamedTuple):
    weights: jax.Array
    product: jax.Array  # G w
    moved: jax.Array  # G (w - w0), kept apart: it is small where G w is not
    steps: jax.Array
    done: jax.Array


class AwaySteps(MinNormSolver):
    """Frank-Wolfe with away steps and exact line search: O(n) a step, and one row of the Gram matrix.

    Towards the vector with the smallest <m_i, d>, or away from the one with weight and the largest, whichever
    promises more; converges linearly. For thousands of vectors. Its weights are constants to a derivative: d is
    differentiated through the vectors alone.

    Arguments: see :class:`MinNormSolver`.

    Reference: Guelat and Marcotte 1986, "Some comments on Wolfe's 'away step'"; Lacoste-Julien and Jaggi 2015, "On the
    global linear convergence of Frank-Wolfe optimization variants", Algorithm 1.
    """

    max_steps: int = count(default=8000, high=INT32_MAX)

    leaves_vectors: ClassVar[bool] = True

    def weights(self, problem: Quadratic, start: jax.Array, steps: jax.Array) -> tuple[jax.Array, jax.Array]:
        lengths = problem.lengths
        tolerance = self.relative_gap(problem.eps, lengths.dtype)

        def step(at: _Walk) -> _Walk:
            gradient = problem.pull + at.moved
            value = jnp.sum(gradient * at.weights)
            towards = jnp.argmin(jnp.where(problem.seen, gradient, jnp.inf))
            gain = value - gradient[towards]
            if self.leaves_vectors:
                behind = jnp.argmax(jnp.where(at.weights > 0, gradient, -jnp.inf))
                loss = gradient[behind] - value
                away = (loss > gain) & (at.weights[behind] < 1)
            else:
                behind, loss, away = towards, gain, jnp.zeros((), bool)
            vertex, slope = jnp.where(away, behind, towards), jnp.where(away, loss, gain)
            column = problem.column(vertex)
            curvature = column[vertex] - 2 * at.product[vertex] + jnp.sum(at.weights * at.product)
            rest = at.weights[vertex]
            furthest = jnp.where(away, rest / jnp.where(away, 1 - rest, 1), 1)
            length = jnp.where(curvature > 0, slope / jnp.where(curvature > 0, curvature, 1), jnp.inf)
            noise = problem.noise(at.weights, lengths)[towards]
            length = jnp.where(gain > jnp.maximum(tolerance * jnp.abs(value), noise), jnp.clip(length, 0, furthest), 0)
            signed = jnp.where(away, -length, length)
            change = signed * (column - at.product)
            emptied = away & (length >= furthest)
            weights = ((1 - signed) * at.weights).at[vertex].set(jnp.where(emptied, 0, rest + signed * (1 - rest)))
            return _Walk(weights, at.product + change, at.moved + change, at.steps + 1, ~(length > 0))

        def block(at: _Walk) -> _Walk:
            total = jnp.sum(at.weights)
            weights = at.weights / jnp.where(total > 0, total, 1)
            at = at._replace(
                weights=weights, product=problem.times(weights), moved=problem.times(weights - problem.centre)
            )
            end = jnp.minimum(at.steps + _REFRESH, self.max_steps)
            return lax.while_loop(lambda at: ~at.done & (at.steps < end), step, at)

        weights = problem.first(start)
        nothing = jnp.zeros_like(weights)
        at = _Walk(weights, nothing, nothing, steps, ~jnp.any(problem.seen))
        at = lax.while_loop(lambda at: ~at.done & (at.steps < self.max_steps), block, at)
        return at.weights, at.steps


class FrankWolfe(AwaySteps):
    """The plain Frank-Wolfe method with exact line search, the FedAWARE paper's.

    Converges like 1 / steps where d lies on a face, so that its gap stays orders above the other solvers'. Weights
    are constants to a derivative, as in :class:`AwaySteps`.

    Arguments: see :class:`MinNormSolver`.

    Reference: Jaggi 2013, "Revisiting Frank-Wolfe: projection-free sparse convex optimization", Algorithm 3.
    """

    max_steps: int = count(default=1000, high=INT32_MAX)

    leaves_vectors: ClassVar[bool] = False


class _Corral(NamedTuple):
    weights: jax.Array
    gradient: jax.Array
    members: jax.Array
    entered: jax.Array
    damping: jax.Array
    steps: jax.Array
    done: jax.Array


class ActiveSet(MinNormSolver):
    """Wolfe's method: the minimiser over the affine hull of a few vectors (the corral), which vectors enter and leave.

    The vector with the largest violation enters; where the affine minimiser lies outside the simplex, the step stops
    at its border and that vector leaves. One Cholesky factorisation of an n x n matrix a step; a start without weights
    first takes up to 4 n away steps (counted too), which leave few to take. Ends at the exact minimiser, so that its
    weights have a derivative: for up to a few hundred vectors.

    The affine minimiser is found from G + e e^T (Wolfe's matrix) with rows and columns divided by |m_i|, so that bad
    scaling does no harm, plus a multiple of the identity at the level of round-off, as in the proximal point method:
    f(w) + lambda sum_i |m_i|^2 (w_i - w0_i)^2 / 2 has the same minimiser once w0 is it.

    Arguments: see :class:`MinNormSolver`.

    Reference: Wolfe 1976, "Finding the nearest point in a polytope".
    """

    implicit: ClassVar[bool] = True

    def weights(self, problem: Quadratic, start: jax.Array, steps: jax.Array) -> tuple[jax.Array, jax.Array]:
        lengths = floored(problem)
        tolerance = self.relative_gap(problem.eps, lengths.dtype)

        def gradient(weights: jax.Array, damping: jax.Array) -> jax.Array:
            return problem.gradient(weights) + damping * lengths**2 * (weights - problem.centre)

        def step(at: _Corral) -> _Corral:
            # Without what the members' gradients have in common, nothing cancels where the step is small.
            uncommon = at.gradient - jnp.sum(at.gradient * at.weights)
            change = towards_affine_minimum(problem, at.members, at.damping, uncommon, 1 - jnp.sum(at.weights))
            sound = jnp.all(jnp.isfinite(change))
            change = jnp.where(sound, change, 0)
            shrinks = at.members & (change < 0)
            ratios = jnp.where(shrinks, at.weights / jnp.where(shrinks, -change, 1), jnp.inf)
            leaving = jnp.argmin(ratios)
            inside = ratios[leaving] >= 1
            weights = jnp.where(at.members, at.weights + jnp.minimum(ratios[leaving], 1) * change, 0)
            weights = jnp.maximum(weights, 0)
            weights = weights.at[leaving].set(jnp.where(inside, weights[leaving], 0))
            members = at.members.at[leaving].set(inside & at.members[leaving])
            # Non-positive pivots: the corral is dependent to round-off. More damping makes the problem convex again.
            damping = jnp.where(sound, at.damping, 100 * at.damping)
            new = gradient(weights, damping)
            value = jnp.sum(new * weights)
            violation = value - new - jnp.maximum(problem.noise(weights, lengths), tolerance * jnp.abs(value) / 2)
            merit = jnp.where(problem.seen & ~members, violation / lengths, -jnp.inf)
            entering = jnp.argmax(merit)
            enters = sound & inside & (merit[entering] > 0)
            # In exact arithmetic a vector that has just entered gains weight: if it leaves, that was round-off.
            bounced = ~inside & (leaving == at.entered)
            return _Corral(
                weights,
                new,
                members.at[entering].set(members[entering] | enters),
                jnp.where(enters, entering, jnp.where(sound, -1, at.entered)),
                damping,
                at.steps + 1,
                bounced | (sound & inside & ~enters) | (damping > 1),
            )

        # A few away steps, at less than a factorisation's price, find most of the corral where there is none yet.
        bound = min(4 * len(start), self.max_steps // 2)
        taken = jnp.where(jnp.any(problem.seen & (start > 0)), bound, 0)
        weights, away = AwaySteps(self.tolerance, bound).weights(problem, start, taken)
        steps = steps + away - taken
        damping = jnp.asarray(smallest_damping(problem), lengths.dtype)
        at = _Corral(
            weights,
            gradient(weights, damping),
            members=weights > 0,
            entered=-jnp.ones_like(jnp.argmin(weights)),
            damping=damping,
            steps=steps,
            done=~jnp.any(problem.seen),
        )
        at = lax.while_loop(lambda at: ~at.done & (at.steps < self.max_steps), step, at)
        total = jnp.sum(at.weights)
        return at.weights / jnp.where(total > 0, total, 1), at.steps


def smallest_damping(problem: Quadratic) -> float:
    """lambda: what keeps G positive definite in spite of its rounding errors, relative to |m_i|^2."""
    return float(problem.eps * (8 + 2 * problem.seen.shape[0] ** 0.5))


def floored(problem: Quadratic) -> jax.Array:
    """|s_i m_i|, and where that is zero something to divide by, [n]."""
    lengths = problem.lengths
    longest = jnp.max(jnp.where(problem.seen, lengths, 0), initial=0)
    return jnp.maximum(lengths, jnp.where(longest > 0, longest * problem.eps**2, 1))


def towards_affine_minimum(
    problem: Quadratic, members: jax.Array, damping: jax.Array, gradient: jax.Array, missing: jax.Array
) -> jax.Array:
    """The Newton step to the minimiser over the affine hull of the members, [n]; not finite if they are dependent.

    Solves (G + lambda diag |m_i|^2) delta = mu - gradient on the members, sum delta = missing, and is linear in
    ``gradient`` and ``missing``. A constant added to the gradient changes mu alone.
    """
    lengths = floored(problem)
    shortest = jnp.min(jnp.where(members, lengths, jnp.inf))
    border = jnp.where(members, shortest / lengths, 0)
    factors = jnp.where(members, problem.scales / lengths, 0)
    matrix = problem.gram * factors[:, None] * factors[None, :] + border[:, None] * border[None, :]
    matrix = matrix + jnp.diag(jnp.where(members, damping, 1))
    factor = jsp.linalg.cho_factor(matrix, lower=True)
    free = jsp.linalg.cho_solve(factor, jnp.where(members, -gradient / lengths, 0))
    along = jsp.linalg.cho_solve(factor, border)
    share = jnp.sum(border * along)
    sum_ = jnp.where(jnp.any(members), missing * jnp.where(jnp.any(members), shortest, 1), 0)
    return (free + (sum_ - jnp.sum(border * free)) / jnp.where(share == 0, 1, share) * along) / lengths
