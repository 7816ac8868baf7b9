"""The derivative of a fixed point, without the rounds that led to it; and solvers of (I - J) u = b for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.feddane import Dane
from fedjax_sim.algorithms.wrapper import innermost
from fedjax_sim.clients.cohort.schemes import Full
from fedjax_sim.clients.local.batches import FullBatch, InOrder
from fedjax_sim.clients.local.clock import Deadline
from fedjax_sim.clients.local.work import GivenSteps, RandomEpochs, Steps, Work
from fedjax_sim.clients.scheme import one_of
from fedjax_sim.core import trees
from fedjax_sim.core.derived import with_derivative
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf, real
from fedjax_sim.core.loops import jvp_of_varying
from fedjax_sim.core.replayed import reals, with_reals
from fedjax_sim.core.values import INT32_MAX, is_concrete, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.adjoints.scans import Adjoint, Ran, Run, constant
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import run_round
from fedjax_sim.optim import third_party
from fedjax_sim.optim.rates import OverClients, Rate

Step = Callable[[Plan, TrainState], TrainState]
Matvec = Callable[[Any], Any]


class Solved(NamedTuple):
    """What a solver found."""

    solution: Any  # u
    residual: jax.Array  # |b - (I - J) u| / |b|, 0 for b = 0
    steps: jax.Array  # int32, products with I - J; of a bound where the solver does not count


class LinearSolver(Described, kw_only=True):
    """Base of the solvers; pure structure.

    Attributes:
      tolerance: relative residual at which a solution counts; None for eps^(2/3) of the numbers' dtype, 2.4e-5 in
        float32 and 3.7e-11 in float64.
      max_steps: most products with I - J.
    """

    tolerance: float | None = real(default=None, above=0.0, structure=True)
    max_steps: int = count(default=1000, high=INT32_MAX)

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
        return Solved(u, trees.norm(term) / _divisor(size), steps)


class Gmres(LinearSolver):
    """Restarted GMRES (``jax.scipy.sparse.linalg.gmres``): fewer products where J contracts slowly.

    Args:
      restart: products between restarts; that many states are held in memory.
    """

    restart: int = count(default=20, high=INT32_MAX)

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        restarts = -(-self.max_steps // self.restart)
        with third_party():
            solution, _ = jax.scipy.sparse.linalg.gmres(
                matvec, b, tol=self.limit(b), atol=0.0, restart=self.restart, maxiter=restarts
            )
        return _judged(matvec, b, solution, self.max_steps)


class CgNormal(LinearSolver):
    """Conjugate gradients on (I - J)^T (I - J) u = (I - J)^T b; two products a step.

    Needs no contraction, only that I - J is regular; its condition number counts squared. Of the many solutions where
    I - J is singular it finds the shortest, which need not be the derivative; so it solves for that one too, which
    only the derivative allows, at twice the cost. Reverse mode may refuse (NaN) where every solution would do.
    """

    def solve(self, matvec: Matvec, b: Any) -> Solved:
        found = self._shortest(matvec, b)
        again = self._shortest(matvec, found.solution)  # the limit of rounds is in the range of I - J, as b is
        only = again.residual <= self.limit(b) ** 0.5
        return found._replace(residual=jnp.where(only, found.residual, jnp.inf))

    def _shortest(self, matvec: Matvec, b: Any) -> Solved:
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
    return Solved(solution, left / _divisor(trees.norm(b)), jnp.int32(steps))


def _divisor(size: jax.Array) -> jax.Array:
    return jnp.where(size == 0, jnp.ones_like(size), size)


class Implicit(Adjoint):
    """The implicit function theorem at a fixed point x* = Phi(x*, theta) of a round Phi.

    dx*/dtheta = (I - dPhi/dx)^-1 dPhi/dtheta at the final state. Reverse mode solves (I - dPhi/dx)^T u = v for the
    cotangent v and returns (dPhi/dtheta)^T u; forward mode solves with the tangents. x is the whole state, server and
    client states; its integers (a server optimiser's counter) are constants. Memory: the run, and the inside of ONE
    round, which is differentiated once and not again for every product.

    The derivative is that of the limit, not of R rounds. Initial parameters have derivative zero, and so have all
    records and all evaluations but the last. Every round must be the same function: everybody takes part, with fixed
    batches, steps and rates; a model without dropout. ``dane``, whose clients take no step where their problems are
    solved, is refused. A run that has not settled to ``settled``, or a solver that does
    not converge (the round does not contract, or keeps something fixed, as SCAFFOLD keeps c - mean c_i), gives NaN
    for a derivative, never a wrong number; :func:`fixed_point` says which.

    Args:
      solver: ``neumann()``, ``gmres()`` or ``cg_normal()``.
      settled: largest |Phi(x) - x| / |x| at the final state. The error it leaves in the derivative is of that order
        over one less the contraction.

    Reference: the implicit function theorem; Bai et al. 2019, "Deep equilibrium models", for its use with a
    matrix-free solver.
    """

    solver: LinearSolver = leaf(one_of(LinearSolver, example="fedjax_sim.adjoints.neumann()"), default=Neumann())
    settled: float = real(default=1e-4, above=0.0, structure=True)

    def check(self, plan: Plan, rounds: int) -> None:
        method, batches, system = plan.algorithm, plan.batches, plan.system
        same = {
            "asynchronous": (plan.asynchronous is None, "none"),
            "keep_optimizer": (not method.keep_optimizer, "False"),
            "cohort": (isinstance(plan.cohort, Full), "cohort.full()"),
            "batches": (isinstance(batches, (FullBatch, InOrder)), "local.full_batch() or local.in_order(B)"),
            "work": (_same_steps(plan.work, rounds), "local.steps(tau) or equal rows of given_steps"),
            "system": (
                system is None or system.repeats,
                "devices without dropout, without first(K) and, unless the server waits for all, without jitter",
            ),
        }
        for name in ("client_learning_rate", "server_learning_rate"):
            rate = getattr(method, name)
            same[name] = (not isinstance(rate, Rate) or isinstance(rate, OverClients), "a constant rate")
        for name, (repeats, instead) in same.items():
            if not repeats:
                value = getattr(plan, name) if hasattr(plan, name) else getattr(method, name)
                raise ValueError(
                    f"adjoint=implicit() needs every round to be the same function, and {name} is {shown(value)}: use "
                    f"{instead}, or another adjoint, such as nested() or truncated(...) of fedjax_sim.adjoints"
                )
        if isinstance(innermost(method), Dane):
            raise ValueError(
                "adjoint=implicit() with dane(...): its clients take no step once their problems are solved, so that a "
                "round that has settled is the identity, which says nothing of the model: use another adjoint, such as "
                "nested() or truncated(...) of fedjax_sim.adjoints"
            )

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        reached, records, metrics = constant(run, plan, state, run.rounds)
        x = reals(reached.state)

        def step(plan: Plan, state: TrainState) -> TrainState:
            return run.step(plan, state, jnp.int32(run.rounds - 1))[0]

        at_rest = with_derivative(functools.partial(_at_rest, self, step), x, plan, reached.state)
        final = with_reals(reached.state, at_rest)
        last = run.measure(plan, final)
        metrics = jax.tree.map(lambda all_, one: jnp.concatenate([all_[:-1], one[None]]), metrics, last)
        return Ran(final, records, metrics)


def _at_rest(adjoint: Implicit, step: Step, x: Any, plan: Plan, plan_dot: Any, state: TrainState) -> list[jax.Array]:
    """The derivative along ``plan_dot`` of the fixed point x, the real leaves of a state."""
    state = with_reals(state, x)  # which moves with the plan in derivatives of this derivative
    moved, b = jvp_of_varying(lambda plan: reals(step(plan, state)), (plan,), (plan_dot,))
    settled = trees.norm(trees.subtract(moved, x)) <= jnp.asarray(adjoint.settled) * trees.norm(x)

    def solve(matvec: Matvec, b: Any) -> Any:
        solved = adjoint.solver.solve(matvec, b)
        good = settled & (solved.residual <= adjoint.solver.limit(b))
        return jax.tree.map(lambda leaf: jnp.where(good, leaf, jnp.nan), solved.solution)

    matvec = less_round(step, plan, state)
    x_dot = lax.custom_linear_solve(matvec, _tied(b, plan_dot), solve, transpose_solve=solve)
    return _tied(x_dot, x_dot)


class FixedPoint(NamedTuple):
    """How close a run is to a fixed point, and how well the linear system there is solved.

    Attributes:
      residual: |Phi(x) - x| / |x| at the state given.
      contraction: |J^21 v| / |J^20 v| for v = 1: an estimate of the spectral radius of J = dPhi/dx. Rounds converge
        below 1, at this rate.
      solve_residual: relative residual of (I - J) u = 1 by the adjoint's solver.
      solve_steps: int32, products with I - J that took.
    """

    residual: jax.Array
    contraction: jax.Array
    solve_residual: jax.Array
    solve_steps: jax.Array


def fixed_point(
    algorithm: Method,
    dataset: FederatedDataset,
    key: jax.Array,
    state: TrainState,
    *,
    adjoint: Implicit | None = None,
    **run: Any,
) -> FixedPoint:
    """Whether :func:`implicit` can be trusted at ``state``, and if not why; a pure function.

    Args:
      algorithm: the method.
      dataset: the data.
      key: the run's key.
      state: ``train(...).state``, after the run.
      adjoint: whose solver is tried; None for ``implicit()``.
      **run: the keyword arguments of :func:`fedjax_sim.make_train`.

    Raises:
      TypeError, ValueError: as ``make_train``, and where the adjoint refuses the run.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> run = dict(task=fjs.quadratic(), rounds=200, eval_every=200, batches=fjs.local.full_batch(),
      ...            cohort=fjs.cohort.full(), work=fjs.local.steps(2))
      >>> algorithm, key = fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1), mu=0.1), jax.random.key(0)
      >>> state = jax.jit(fjs.make_train(**run))(algorithm, data, key).state
      >>> found = jax.jit(lambda state: fjs.adjoints.fixed_point(algorithm, data, key, state, **run))(state)
      >>> bool(found.residual < 1e-5), bool(found.contraction < 1)
      (True, True)
    """
    adjoint = Implicit() if adjoint is None else adjoint
    asked, rounds = asked_of(run)
    plan = resolve(asked._replace(algorithm=algorithm, dataset=dataset, key=key), rounds)
    adjoint.check(plan, rounds)

    def step(plan: Plan, state: TrainState) -> TrainState:
        return run_round(plan, state, jnp.int32(rounds - 1))[0]

    x = reals(state)
    moved = reals(step(plan, state))
    matvec = less_round(step, plan, state)
    ones = jax.tree.map(jnp.ones_like, x)
    v = lax.fori_loop(0, 20, lambda _, v: _unit(trees.subtract(v, matvec(v))), _unit(ones))
    solved = adjoint.solver.solve(matvec, ones)
    return FixedPoint(
        residual=trees.norm(trees.subtract(moved, x)) / trees.norm(x),
        contraction=trees.norm(trees.subtract(v, matvec(v))),
        solve_residual=solved.residual,
        solve_steps=solved.steps,
    )


def _tied(b: list[jax.Array], of: Any) -> list[jax.Array]:
    """``b``, every leaf with a derivative in ``of``, which may be zero: JAX's rules of a linear solve ask for one.

    Of what goes in they ask for one in the plan: a count of clients that were clipped has none, and what comes out of a
    ``cond`` or a loop has zeros. Of what comes out, jax 0.6 asks for one where nobody uses a part of it.
    """
    real = [leaf for leaf in reals(of) if isinstance(leaf, jax.core.Tracer) and leaf.size]
    total = sum((jnp.ravel(leaf)[0].astype(jnp.result_type(float)) for leaf in real), start=jnp.zeros(()))
    nothing = jnp.where(False, total, jnp.zeros_like(total))  # a choice: 0 times infinity is NaN
    return [leaf + nothing.astype(leaf.dtype) for leaf in b]


def less_round(step: Step, plan: Plan, state: TrainState) -> Callable[[Any], Any]:
    """v -> v - J v, with J the derivative of a round in the real leaves of the state, taken once."""
    _, push = jax.linearize(lambda x: reals(step(plan, with_reals(state, x))), reals(state))
    return lambda v: trees.subtract(v, push(v))


def _unit(v: Any) -> Any:
    return trees.scale(1 / _divisor(trees.norm(v)), v)


def _same_steps(work: Work, rounds: int) -> bool:
    """Whether the work is the same in every round, as far as that can be seen."""
    if isinstance(work, GivenSteps):
        if not is_concrete(work.tau):
            return True
        tau = np.asarray(work.tau)  # numpy's, since jnp's would be traced here
        return bool((tau[:rounds] == tau[0]).all())
    if isinstance(work, RandomEpochs):
        return work.low == work.high
    return isinstance(work, (Steps, Deadline))


implicit = factory("adjoint.implicit", Implicit)
neumann = factory("linear_solver.neumann", Neumann)
gmres = factory("linear_solver.gmres", Gmres)
cg_normal = factory("linear_solver.cg_normal", CgNormal)
