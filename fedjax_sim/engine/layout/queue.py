"""Several clients at once, the next one as soon as one is done: a queue of clients inside the program."""

from __future__ import annotations

import contextlib
import functools
import heapq
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count
from fedjax_sim.core.loops import Read, Total, with_static_derivative
from fedjax_sim.core.values import check_count, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, Run, drawn_ahead, left_shapes, surveyed
from fedjax_sim.engine.solver import Draw, Progress, Slot, Solver
from fedjax_sim.models.conv import side_by_side


class Lanes(Layout):
    """L models side by side; a lane whose client finishes takes the next one, longest first.

    Computes about sum tau_i / L batched micro-steps: for accelerators with unequal tau_i. Memory holds L models at
    work.

    Args:
      num_lanes: L; the cohort's size where that is smaller.
    """

    num_lanes: int = count(default=8)

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return ()  # its loops follow the clients

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        lanes = min(self.num_lanes, len(slots.offset))
        # On a CPU nothing is drawn ahead: idle steps cost there as others do.
        ahead = None if jax.default_backend() == "cpu" else (bounds.per_client, bounds.survey_per_client)
        run: Run = functools.partial(run_queue, lanes=lanes, ahead=ahead)
        if bounds.reverse:
            run = with_static_derivative(run, functools.partial(run_bounded, lanes=lanes, bounds=bounds))
        return run(solver, sent, states, slots)


class Static(Layout):
    """The lanes' queue as a ``scan`` of a static number of iterations: what the derivative of *lanes* runs.

    To look at the reverse schedule's cost; iterations after the last client are skipped.

    Args:
      num_lanes: L; the cohort's size where that is smaller.
    """

    num_lanes: int = count(default=1)

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return bounds

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        lanes = min(self.num_lanes, len(slots.offset))
        return run_bounded(solver, sent, states, slots, lanes=lanes, bounds=bounds)


def run_bounded(solver: Solver, sent: Any, states: Any, slots: Slot, *, lanes: int, bounds: Bounds) -> LocalResult:
    """The queue in a static number of iterations."""
    bound, survey_bound = queue_bound(bounds, lanes), queue_bound(bounds.of_survey, lanes)
    return run_queue(solver, sent, states, slots, lanes=lanes, bound=bound, survey_bound=survey_bound)


def queue_bound(bounds: Bounds, lanes: int) -> int:
    """Iterations that a queue of L lanes surely ends in: sum tau / L + (1 - 1/L) max tau (Graham 1969)."""
    return min(-(-bounds.per_cohort // lanes) + bounds.per_client, bounds.per_cohort)


class Queue(NamedTuple):
    """The queue at work."""

    place: jax.Array  # int32[L], each lane's client as its place in the queue; S or more for an idle lane
    k: jax.Array  # int32[L], each lane's next micro-step
    slot: Read  # [L, ...], each lane's client; any, in an idle lane
    total: jax.Array  # int32[L], its micro-steps; 0 in an idle lane
    progress: Progress  # [L, ...], how far it is
    next: jax.Array  # int32, place of the next client to start
    sums: Total  # weighted sums of the finished clients' messages
    stacks: Any  # [S + 1, ...], stacked messages by slot; the last row is for lanes with nothing to write
    states: Any  # [S + 1, ...], client states by slot, likewise
    computed: jax.Array  # int32, micro-steps computed so far, idle lanes included


def run_queue(
    solver: Solver,
    sent: Any,
    states: Any,
    slots: Slot,
    *,
    lanes: int,
    bound: int | None = None,
    survey_bound: int = 0,
    ahead: tuple[int, int] | None = None,
) -> LocalResult:
    """Runs a cohort through ``lanes`` lanes, clients with most steps first; before that its survey.

    With ``bound`` None it is a ``while_loop`` that ends with the last client; with a number a ``scan`` of so many
    iterations, differentiable in reverse, which must be an upper bound of those needed; ``survey_bound`` likewise.
    ``ahead`` are the most micro-steps of a client and of its survey, where they are to be drawn ahead.
    """
    survey = functools.partial(
        run_queue, lanes=lanes, bound=None if bound is None else survey_bound,
        ahead=None if ahead is None else (ahead[1], 0),
    )  # fmt: skip
    slots, computed = surveyed(survey, solver, sent, states, slots)
    totals = solver.micro_steps(slots)
    size = len(totals)
    order = jnp.argsort(-totals, stable=True).astype(jnp.int32)
    busy = jnp.sum(totals > 0, dtype=jnp.int32)
    serial = lanes == 1 and jax.default_backend() == "cpu"
    draws = None if ahead is None else drawn_ahead(solver, slots, ahead[0])
    read, read_slots = Read.of(sent), Read.of(slots)

    def at_places(tree: Any, places: jax.Array) -> Any:
        at = order[jnp.minimum(places, size - 1)]
        return jax.tree.map(lambda leaf: leaf[at], tree)

    def load(places: jax.Array) -> tuple[Read, jax.Array, Progress]:
        """The clients of these places, their micro-steps, and how they begin."""
        slot = at_places(read_slots, places)
        start = each(functools.partial(solver.begin, read.value), at_places(states, places), slot.value)
        return slot, jnp.where(places < busy, at_places(totals, places), 0), start

    def each(function: Any, *arguments: Any) -> Any:
        """``vmap`` over lanes; a single lane stays unbatched, so that its ``cond`` and slices stay what they are."""
        if lanes > 1:
            return jax.vmap(function)(*arguments)
        only = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], only)

    def step_lane(slot: Read, total: jax.Array, progress: Progress, k: jax.Array, drawn: Draw | None) -> Progress:
        with side_by_side() if lanes > 1 else contextlib.nullcontext():
            moved = solver.step(read.value, slot.value, progress, k, serial=serial, drawn=drawn)
        if lanes == 1:
            return moved  # the loop ends with the only lane's last client
        return trees.select(k < total, moved, progress)

    def known(at: Queue) -> Draw | None:
        """What the lanes' next steps draw, where it is drawn ahead."""
        if draws is None or ahead is None:
            return None
        k, slot = jnp.minimum(at.k, ahead[0] - 1), order[jnp.minimum(at.place, size - 1)]
        return jax.tree.map(lambda leaf: leaf[k, slot], draws)

    def advance(at: Queue) -> Queue:
        progress = each(step_lane, at.slot, at.total, at.progress, at.k, known(at))
        live = at.place < busy
        k = jnp.where(live, at.k + 1, at.k)
        done = live & (k >= at.total)
        at = at._replace(progress=progress, k=k, computed=at.computed + lanes)
        return lax.cond(jnp.any(done), lambda: hand_over(at, done), lambda: at)

    def hand_over(at: Queue, done: jax.Array) -> Queue:
        """Finished clients leave their messages; their lanes take the next clients of the queue."""
        finish, slot = functools.partial(solver.finish, read.value), at.slot.value
        left = each(finish, at_places(states, at.place), slot, at.progress)
        sums = each(lambda one: one.sums, left)
        reported = trees.select(done, sums, trees.zeros_like(sums))
        where = jnp.where(done, order[jnp.minimum(at.place, size - 1)], size)
        place = jnp.where(done, at.next + jnp.cumsum(done, dtype=jnp.int32) - 1, at.place)
        next_slot, total, fresh = load(place)
        return at._replace(
            place=place,
            k=jnp.where(done, 0, at.k),
            slot=next_slot,
            total=total,
            progress=trees.select(done, fresh, at.progress),
            next=at.next + jnp.sum(done, dtype=jnp.int32),
            sums=at.sums.add(jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), reported)),
            stacks=jax.tree.map(lambda all_, rows: all_.at[where].set(rows), at.stacks, left.stacks),
            states=jax.tree.map(lambda all_, rows: all_.at[where].set(rows), at.states, left.kept),
        )

    def with_spare(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, jnp.zeros((1, *leaf.shape[1:]), leaf.dtype)])

    shapes = left_shapes(solver, sent, states, slots)
    place = jnp.arange(lanes, dtype=jnp.int32)
    slot, total, progress = load(place)
    start = Queue(
        place=place,
        k=jnp.zeros((lanes,), jnp.int32),
        slot=slot,
        total=total,
        progress=progress,
        next=jnp.int32(lanes),
        sums=Total.zero(shapes.values),
        stacks=jax.tree.map(lambda s: jnp.zeros((size + 1, *s.shape), s.dtype), shapes.stacks),
        states=jax.tree.map(with_spare, states),
        computed=computed,
    )

    def working(at: Queue) -> jax.Array:
        return jnp.any(at.place < busy)

    def tick(at: Queue, _: None) -> tuple[Queue, None]:
        return lax.cond(working(at), advance, lambda at: at, at), None

    end = lax.while_loop(working, advance, start) if bound is None else lax.scan(tick, start, None, length=bound)[0]
    stacks, clients = jax.tree.map(lambda leaf: leaf[:size], (end.stacks, end.states))
    return LocalResult(end.sums.value, stacks, clients, end.computed)


class Makespan(NamedTuple):
    """A cohort on L lanes.

    Attributes:
      iterations: steps of the busiest lane: how long the queue's loop runs.
      share: sum tau_i / L, which no schedule can be below.
      longest: max tau_i, likewise. Where it is above ``share``, more lanes do not make the loop shorter.
      ratio: ``iterations / share``, 1 where no lane is ever idle; 1 for a cohort without steps.
      bound: what ``ratio`` cannot exceed for this cohort, 1 + (L - 1) max tau_i / sum tau_i (Graham 1966).
    """

    iterations: int
    share: float
    longest: int
    ratio: float
    bound: float


def makespan(steps: Any, num_lanes: int) -> Makespan:
    """The iterations of :func:`fedjax_sim.layout.lanes`: longest client first, each to the first lane that is free.

    This is the rule LPT for identical machines, at most 4/3 - 1/(3L) times as long as the best schedule there is
    (Graham 1969).

    Args:
      steps: tau_i of the cohort, integers [S]; 0 for void slots.
      num_lanes: L; the cohort's size where that is smaller.

    Raises:
      TypeError, ValueError: not integers of at least 0 in one row, or no lanes.

    Example:
      >>> makespan([5, 4, 3, 3, 3], 2)
      Makespan(iterations=10, share=9.0, longest=5, ratio=1.1111111111111112, bound=1.2777777777777777)

    Reference: Graham 1966, "Bounds for certain multiprocessing anomalies"; 1969, "Bounds on multiprocessing timing
    anomalies", SIAM Journal on Applied Mathematics 17(2).
    """
    check_count("makespan(num_lanes)", num_lanes)
    taus = np.asarray(steps)
    if taus.ndim != 1 or not (np.issubdtype(taus.dtype, np.integer) or taus.size == 0):
        raise TypeError(f"makespan(steps) is {shown(steps)}: it must be one row of integers, the steps of each client")
    if taus.size and taus.min() < 0:
        raise ValueError(f"makespan(steps) has the entry {taus.min()}: steps must be at least 0")
    num_lanes = max(min(num_lanes, taus.size), 1)
    ends = [0] * num_lanes
    for tau in sorted(taus.tolist(), reverse=True):
        heapq.heapreplace(ends, ends[0] + tau)
    iterations, total = max(ends), sum(taus.tolist())
    if total == 0:
        return Makespan(0, 0.0, 0, 1.0, 1.0)
    share, longest = total / num_lanes, int(taus.max())
    return Makespan(iterations, share, longest, iterations / share, 1 + (num_lanes - 1) * longest / total)


lanes = factory("layout.lanes", Lanes)
static_schedule = factory("layout.static_schedule", Static)
