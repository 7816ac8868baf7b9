"""Solvers of (I - J) u = b where only products with J are known, for :func:`fedjax_sim.adjoints.implicit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real
from fedjax_sim.optim import third_party

Matvec = Callable[[Any], Any]


class Solved(NamedTuple):
    """What a solver found.

    Attributes:
      solution: u.
      residual: |b - (I - J) u| / |b|, 0 for b = 0.
      steps: int32, products with I - J; of a bound where the solver does not count.
    """

    solution: Any
    residual: jax.Array
    steps: jax.Array


class LinearSolver(Described, kw_only=True):
    """Base of the solvers; pure structure.

    Attributes:
      tolerance: relative residual at which a solution counts; None for eps^(2/3) of the numbers' dtype, 2.4e-5 in
        float32 and 3.7e-11 in float64.
      max_steps: most products with I - J.
    """

    tolerance: float | None = static(default=None)
    max_steps: int = static(default=1000)

    def checked(self) -> LinearSolver:
        name = type(self).__name__.lower()
        check_real(f"{name}(tolerance=...)", self.tolerance, low=0.0, open_=True, optional=True)
        check_count(f"{name}(max_steps=...)", self.max_steps, high=INT32_MAX)
        return self

    def limit(self, b: Any) -> float:
        """The relative residual at which a solution counts."""
        if self.tolerance is not None:
            return self.tolerance
        return float(max(jnp.finfo(leaf.dtype).eps for leaf in jax.tree.leaves(b)) ** (2 / 3))

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        """u with matvec(u) = b, where ``matvec`` is linear: u - J u."""
        raise TypeError(f"{type(self).__name__} must define solve(matvec, b)")


class Neumann(LinearSolver):
    """u = b + J b + J^2 b + ..., one product a term: what unrolling for ever would do.

    Converges where J contracts, which is where the rounds converge by themselves, at their rate.
    """

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        size = trees.norm(b)
        small = size * jnp.asarray(self.limit(b), size.dtype)

        def going_on(at: tuple[Any, Any, jax.Array]) -> jax.Array:
            _, term, steps = at
            return (trees.norm(term) > small) & (steps < self.max_steps)

        def add_term(at: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
            u, term, steps = at
            term = trees.subtract(term, matvec(term))  # J times the last one
            return trees.add(u, term), term, steps + 1

        # The residual of the sum up to J^k b is J^(k+1) b: where J contracts, less than the last term.
        u, term, steps = lax.while_loop(going_on, add_term, (b, b, jnp.int32(0)))
        return Solved(u, _relative(trees.norm(term), size), steps)


class Gmres(LinearSolver):
    """Restarted GMRES (``jax.scipy.sparse.linalg.gmres``): fewer products where J contracts slowly.

    Args:
      restart: products between restarts; that many states are held in memory.
    """

    restart: int = static(default=20)

    def checked(self) -> Gmres:
        check_count("gmres(restart=...)", self.restart, high=INT32_MAX)
        super().checked()
        return self

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        restarts = -(-self.max_steps // self.restart)
        with third_party():
            solution, _ = jax.scipy.sparse.linalg.gmres(
                matvec, b, tol=self.limit(b), atol=0.0, restart=self.restart, maxiter=restarts
            )
        return _judged(matvec, b, solution, self.max_steps)


class CgNormal(LinearSolver):
    """Conjugate gradients on (I - J)^T (I - J) u = (I - J)^T b; two products a step.

    Needs no contraction, only that I - J is regular; its condition number counts squared.
    """

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        transpose = jax.linear_transpose(matvec, b)

        def normal(u: Any) -> Any:
            return transpose(matvec(u))[0]

        with third_party():
            # Its residual is of the normal equations: a tenth of the tolerance leaves room for the difference.
            solution, _ = jax.scipy.sparse.linalg.cg(
                normal, transpose(b)[0], tol=self.limit(b) / 10, atol=0.0, maxiter=-(-self.max_steps // 2)
            )
        return _judged(matvec, b, solution, self.max_steps)


def _judged(matvec: Matvec, b: Any, solution: Any, steps: int) -> Solved:
    left = trees.norm(trees.subtract(b, matvec(solution)))
    return Solved(solution, _relative(left, trees.norm(b)), jnp.int32(steps))


def _relative(part: jax.Array, whole: jax.Array) -> jax.Array:
    return part / jnp.where(whole == 0, jnp.ones_like(whole), whole)


neumann = factory("linear_solver.neumann", Neumann)
gmres = factory("linear_solver.gmres", Gmres)
cg_normal = factory("linear_solver.cg_normal", CgNormal)
