"""One client after another."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.loops import Total, filled, longest
from fedjax_sim.core.replayed import Loop, reals, replayed, with_reals
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, left_shapes, of_one
from fedjax_sim.engine.layout.queue import run_queue
from fedjax_sim.engine.solver import Progress, Slot, Solver


class Turns(Layout):
    """``scan`` over the cohort, and for each client a loop of exactly its own tau_i steps.

    Computes no idle step and batches nothing over models: best on CPU, and for very unequal tau_i. Memory holds one
    model at work. Nor does its derivative in reverse mode compute an idle step: a round records what each step begins
    with, and the way back takes the steps one by one. Its memory holds a model and an optimiser's state for each step
    that a cohort may take, in pieces of a gradient their sum too, and the surveys of methods that survey. Its own
    derivatives are such loops too. Where a part of a run closes over a traced value, or tells the host something in
    order, they are those of the statically bounded queue of one lane (see :mod:`fedjax_sim.layout.queue`).
    """

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return ()  # its loops follow the clients

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        if not bounds.reverse:
            return run_turns(solver, sent, states, slots, skip_void=False)
        loop = _Turns(bounds, (solver, sent, states, slots))
        leaves = replayed(loop, (solver, sent, states, slots), loop.static)
        return jax.tree.unflatten(loop.result, leaves)


Worked = Callable[[Solver, Any, Slot, Any], tuple[Progress, Any]]  # (solver, c_i, slot, trails) -> its end, trails


def run_turns(solver: Solver, sent: Any, states: Any, slots: Slot, *, skip_void: bool = True) -> LocalResult:
    """The program of :class:`Turns`.

    Void slots are passed by (``skip_void``) but where the dynamic loops are themselves differentiated: jax 0.6 fails
    within a choice with a loop in it, before it can say that reverse mode cannot pass.
    """

    def worked(of: Solver, c_i: Any, slot: Slot, trails: Any) -> tuple[Progress, Any]:
        step, start = functools.partial(_step, of, sent, slot), of.begin(sent, c_i, slot)
        return lax.fori_loop(0, of.micro_steps(slot), lambda k, progress: step(progress, k), start), trails

    return _in_turn(solver, sent, states, slots, worked, (), skip_void)[0]


def _step(of: Solver, sent: Any, slot: Slot, progress: Progress, k: jax.Array) -> Progress:
    return of.step(sent, slot, progress, k, serial=jax.default_backend() == "cpu")


def _in_turn(
    solver: Solver, sent: Any, states: Any, slots: Slot, worked: Worked, trails: Any, skip_void: bool
) -> tuple[LocalResult, Any]:
    """A cohort, client after client, each with a survey of its own: so there is one survey at a time."""

    def client(carry: Any, x: tuple[Any, Slot]) -> tuple[Any, Any]:
        (sums, trails), (c_i, slot) = carry, x
        if solver.surveyor is not None:
            surveyed, trails = worked(solver.surveyor, c_i, slot, trails)
            slot = slot.told(surveyed.survey.value)
        progress, trails = worked(solver, c_i, slot, trails)
        left = solver.finish(sent, c_i, slot, progress)
        return (sums.add(left.sums), trails), (left.stacks, left.kept)

    def visit(carry: Any, x: tuple[Any, Slot]) -> tuple[Any, Any]:
        def pass_by(carry: Any, x: tuple[Any, Slot]) -> tuple[Any, Any]:
            return carry, (trees.zeros_like(shapes.stacks), x[0])

        # To begin and to end with nobody would cost as much as with a client: a device's void slots are many.
        return lax.cond(x[1].client.steps > 0, client, pass_by, carry, x)

    shapes = left_shapes(solver, sent, states, slots)
    start = Total.zero(shapes.values), trails
    (sums, trails), (stacks, new) = lax.scan(visit if skip_void else client, start, (states, slots))
    computed = jnp.sum(solver.all_micro_steps(slots), dtype=jnp.int32)
    return LocalResult(sums.value, stacks, new, computed), trails


class _Turns(Loop):
    """The program as functions of its leaves, for its derivatives."""

    result: Any = None  # the structure of what it computes

    def __init__(self, bounds: Bounds, operands: Any) -> None:
        self.bounds, self.structure = bounds, jax.tree.structure(operands)
        self.shared = len(jax.tree.leaves(operands[:2]))  # leaves before those that each client has its own of

    def _operands(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self.structure, leaves)

    def _left(self, result: LocalResult) -> list[Any]:
        leaves, self.result = jax.tree.flatten(result)
        return leaves

    def plain(self, leaves: list[Any]) -> list[Any]:
        return self._left(run_turns(*self._operands(leaves)))

    def static(self, leaves: list[Any]) -> list[Any]:
        most, most_survey = self.bounds.per_cohort, self.bounds.survey_per_cohort
        return self._left(run_queue(*self._operands(leaves), lanes=1, bound=most, survey_bound=most_survey))

    def recorded(self, leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        solver, sent, states, slots = self._operands(leaves)

        def worked(of: Solver, c_i: Any, slot: Slot, trails: Any) -> tuple[Progress, Any]:
            (trail, row), total = trails[of is solver], of.micro_steps(slot)

            def step(k: jax.Array, at: tuple[Progress, Any]) -> tuple[Progress, Any]:
                progress, trail = at
                moved = trees.select(k < total, _step(of, sent, slot, progress, k), progress)
                return moved, _with_row(trail, row + jnp.minimum(k, total), progress)

            # Under vmap all take as many steps as the longest: a loop that ended for some would choose between trails.
            progress, trail = lax.fori_loop(0, longest(total), step, (of.begin(sent, c_i, slot), trail))
            end = row + total
            return progress, {**trails, of is solver: (_with_row(trail, end, progress), end + 1)}

        trails = {
            of is solver: (self._trail(of, of is solver, sent, states, slots), jnp.int32(0)) for of in _solvers(solver)
        }
        result, trails = _in_turn(solver, sent, states, slots, worked, trails, skip_void=False)
        return self._left(result), jax.tree.leaves([trails[of is solver][0] for of in _solvers(solver)])

    def _trail(self, of: Solver, trains: bool, sent: Any, states: Any, slots: Slot) -> Progress:
        """Room for what each step begins with and each client ends with, [rows, ...]."""

        def begun(c_i: Any, slot: Slot) -> Progress:
            told = slot if of.surveyor is None else slot.told(of.surveyor.begin(sent, c_i, slot).survey.value)
            return of.begin(sent, c_i, told)

        one = jax.eval_shape(begun, *of_one((states, slots)))
        rows = (self.bounds.per_cohort if trains else self.bounds.survey_per_cohort) + len(slots.offset)
        return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), one._replace(kept=None))

    def pulled(
        self, leaves: list[Any], trail: list[Any] | None, cotangents: list[Any], places: tuple[int, ...]
    ) -> list[Any]:
        trail = self.recorded(leaves)[1] if trail is None else trail
        solver, sent, states, slots = self._operands(leaves)
        shared, own = ([i for i in places if (i < self.shared) == those] for those in (True, False))
        solvers = _solvers(solver)
        shapes = jax.eval_shape(lambda: [self._trail(of, of is solver, sent, states, slots) for of in solvers])
        trails = jax.tree.unflatten(jax.tree.structure(shapes), trail)
        recorded = [(trail, _ends(of, slots), of) for trail, of in zip(trails, solvers, strict=True)]
        sums = len(reals(left_shapes(solver, sent, states, slots).values))

        def client(shared_bar: list[Any], i: jax.Array) -> tuple[list[Any], list[Any]]:
            rows = [leaf if n < self.shared else leaf[i] for n, leaf in enumerate(leaves)]
            ways = [Way(trail, of_all[i], of.micro_steps(slots)[i]) for trail, of_all, of in recorded]
            survey = None if solver.surveyor is None else ways[0].at(ways[0].total).survey.value

            def before(over: Any) -> Any:
                """The solver, what is sent, the client's state and its slot."""
                found = [*shared, *own], [*over[0], *over[1]]
                narrow = [value.astype(leaves[n].dtype) for n, value in zip(*found, strict=True)]
                return self._operands(filled(rows, found[0], narrow))

            def operands(over: Any) -> Any:
                solver, sent, c_i, slot = before(over)
                told = [value.astype(one.dtype) for value, one in zip(over[2], reals(survey), strict=True)]
                return solver, sent, c_i, slot if survey is None else slot.told(with_reals(survey, told))

            def surveyor(over: Any) -> Any:
                solver, *others = before(over)
                return solver.surveyor, *others

            def left(operands: Any, progress: Progress) -> Any:
                solver, *others = operands
                left = solver.finish(*others, progress)
                return left.sums, left.stacks, left.kept

            # Sums over steps and clients are of single precision at least.
            over = trees.wide(([leaves[n] for n in shared], [rows[n] for n in own]))
            wanted = [*cotangents[:sums], *(one[i] for one in cotangents[sums:])]
            *bars, survey_bar = _back(ways[-1], operands, (*over, trees.wide(reals(survey))), left, wanted)
            if survey is not None:
                wanted = [bar.astype(one.dtype) for bar, one in zip(survey_bar, reals(survey), strict=True)]
                bars = trees.add(bars, list(_back(ways[0], surveyor, over, lambda _, at: at.survey.value, wanted)))
            return trees.add(shared_bar, bars[0]), bars[1]

        of_states = [n for n in range(self.shared, self.shared + len(jax.tree.leaves(states))) if reals(leaves[n])]
        kept = dict(zip(of_states, cotangents[len(cotangents) - len(of_states) :], strict=True))

        def pass_by(shared_bar: list[Any], i: jax.Array) -> tuple[list[Any], list[Any]]:
            """Void slots keep their state, and have nothing else."""
            own_bar = [kept[n][i] if n in kept else jnp.zeros_like(leaves[n][0]) for n in own]
            return shared_bar, trees.wide(own_bar)

        def visit(shared_bar: list[Any], i: jax.Array) -> tuple[list[Any], list[Any]]:
            return lax.cond(slots.client.steps[i] > 0, client, pass_by, shared_bar, i)

        start = trees.wide([jnp.zeros_like(leaves[n]) for n in shared])
        numbers = jnp.arange(len(slots.offset), dtype=jnp.int32)
        shared_bar, own_bar = lax.scan(visit, start, numbers, reverse=True)
        found = dict(zip([*shared, *own], [*shared_bar, *own_bar], strict=True))
        return [found[n].astype(leaves[n].dtype) for n in places]


class Way(NamedTuple):
    """A client's steps as they were recorded."""

    trail: Progress  # of all clients, [rows, ...]; ``kept`` is left out, which no step changes
    end: jax.Array  # int32, the row that the client ended with, behind those of its steps
    total: jax.Array  # int32, its steps

    def at(self, k: jax.Array) -> Progress:
        """What its step ``k`` began with."""
        row = self.end - self.total + k
        return jax.tree.map(lambda leaf: leaf[row], self.trail)


def _back(way: Way, operands: Any, over: Any, after: Any, cotangents: list[Any]) -> Any:
    """Cotangents of ``over``, from those of the real numbers of ``after(operands(over), the progress at the end)``."""

    def begun(over: Any) -> tuple[Any, Any]:
        solver, *others = operands(over)
        start = solver.begin(*others)
        return (reals(start._replace(kept=None)), reals(start.kept)), start.kept

    (_, held), back_begun, kept = jax.vjp(begun, over, has_aux=True)

    def progress(row: Progress, at: list[Any], held: list[Any]) -> Progress:
        return with_reals(row, at)._replace(kept=with_reals(kept, held))

    end = way.at(way.total)

    def ended(over: Any, held: list[Any], at: list[Any]) -> list[Any]:
        return reals(after(operands(over), progress(end, at, held)))

    def step_back(n: jax.Array, bars: Any) -> Any:
        k = way.total - 1 - n
        row = way.at(k)

        def stepped(over: Any, held: list[Any], at: list[Any]) -> list[Any]:
            solver, sent, _, slot = operands(over)
            return reals(_step(solver, sent, slot, progress(row, at, held), k)._replace(kept=None))

        *more, at_bar = jax.vjp(stepped, over, held, reals(row))[1](bars[2])
        return *trees.add(bars[:2], tuple(more)), at_bar

    bars = jax.vjp(ended, over, held, reals(end))[1](cotangents)
    over_bar, held_bar, start_bar = lax.fori_loop(0, way.total, step_back, bars)
    return trees.add(over_bar, back_begun((start_bar, held_bar))[0])


def _solvers(solver: Solver) -> list[Solver]:
    """What a client works with, one after the other."""
    return [of for of in (solver.surveyor, solver) if of is not None]


def _ends(of: Solver, slots: Slot) -> jax.Array:
    """The rows of a trail in which clients end, int32[S]."""
    return jnp.cumsum(of.micro_steps(slots) + 1, dtype=jnp.int32) - 1


def _with_row(trail: Progress, row: jax.Array, progress: Progress) -> Progress:
    new = progress._replace(kept=None)
    return jax.tree.map(lambda rows, leaf: lax.dynamic_update_index_in_dim(rows, leaf, row, 0), trail, new)


turns = factory("layout.turns", Turns)
