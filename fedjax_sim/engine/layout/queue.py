"""A queue of clients inside the program: L lanes, each takes the next client when its own is done."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.engine.layout.base import LocalResult, left_shapes, surveyed
from fedjax_sim.engine.solver import Progress, Slot, Solver


class Lanes(NamedTuple):
    """The queue at work.

    Attributes:
      place: int32[L], each lane's client as its place in the queue; S or more for an idle lane.
      k: int32[L], each lane's next micro-step.
      slot: [L, ...], each lane's client; any, in an idle lane.
      total: int32[L], its micro-steps; 0 in an idle lane.
      progress: [L, ...], how far it is.
      next: int32, place of the next client to start.
      sums: weighted sums of the finished clients' messages.
      stacks: [S + 1, ...], stacked messages by slot; the last row is for lanes with nothing to write.
      states: [S + 1, ...], client states by slot, likewise.
      computed: int32, micro-steps computed so far, idle lanes included.
    """

    place: jax.Array
    k: jax.Array
    slot: Slot
    total: jax.Array
    progress: Progress
    next: jax.Array
    sums: Any
    stacks: Any
    states: Any
    computed: jax.Array


def run_queue(
    solver: Solver,
    sent: Any,
    states: Any,
    slots: Slot,
    *,
    lanes: int,
    bound: int | None,
    survey_bound: int | None = None,
) -> LocalResult:
    """Runs a cohort through ``lanes`` lanes, clients with most steps first; before that its survey.

    Args:
      solver: what one client does.
      sent: the round's broadcast.
      states: client states, [S, ...].
      slots: the cohort, leaves [S, ...].
      lanes: L, at most S.
      bound: None for a ``while_loop`` that ends with the last client (dynamic); a number for a ``scan`` of that many
        iterations (static, differentiable in reverse), which must be an upper bound of the iterations needed.
      survey_bound: likewise for the survey.
    """

    def survey(*operands: Any) -> LocalResult:
        return run_queue(*operands, lanes=lanes, bound=None if bound is None else survey_bound)

    slots, computed = surveyed(survey, solver, sent, states, slots)
    totals = solver.micro_steps(slots)
    size = len(totals)
    order = jnp.argsort(-totals, stable=True).astype(jnp.int32)
    busy = jnp.sum(totals > 0, dtype=jnp.int32)
    serial = lanes == 1 and jax.default_backend() == "cpu"

    def state(places: jax.Array) -> Any:
        at = order[jnp.minimum(places, size - 1)]
        return jax.tree.map(lambda leaf: leaf[at], states)

    def load(places: jax.Array) -> tuple[Slot, jax.Array]:
        at = order[jnp.minimum(places, size - 1)]
        return jax.tree.map(lambda leaf: leaf[at], slots), jnp.where(places < busy, totals[at], 0)

    def each(function: Any, *arguments: Any) -> Any:
        """``vmap`` over lanes; a single lane stays unbatched, so that its ``cond`` and slices stay what they are."""
        if lanes > 1:
            return jax.vmap(function)(*arguments)
        only = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], only)

    def step_lane(slot: Slot, total: jax.Array, progress: Progress, k: jax.Array) -> Progress:
        moved = solver.step(sent, slot, progress, k, serial=serial)
        if lanes == 1:
            return moved  # the loop ends with the only lane's last client
        return trees.select(k < total, moved, progress)  # type: ignore[no-any-return]

    def advance(at: Lanes) -> Lanes:
        progress = each(step_lane, at.slot, at.total, at.progress, at.k)
        live = at.place < busy
        k = jnp.where(live, at.k + 1, at.k)
        done = live & (k >= at.total)
        at = at._replace(progress=progress, k=k, computed=at.computed + lanes)
        return lax.cond(jnp.any(done), lambda: hand_over(at, done), lambda: at)  # type: ignore[no-any-return]

    def hand_over(at: Lanes, done: jax.Array) -> Lanes:
        """Finished clients leave their messages; their lanes take the next clients of the queue."""
        left = each(lambda c, s, p: solver.finish(sent, c, s, p), state(at.place), at.slot, at.progress)

        def add(total: jax.Array, leaf: jax.Array) -> jax.Array:
            mask = done.reshape(-1, *[1] * (leaf.ndim - 1))
            return total + jnp.sum(jnp.where(mask, leaf, jnp.zeros_like(leaf)), axis=0)

        where = jnp.where(done, order[jnp.minimum(at.place, size - 1)], size)
        place = jnp.where(done, at.next + jnp.cumsum(done, dtype=jnp.int32) - 1, at.place)
        slot, total = load(place)
        fresh = each(lambda c, s: solver.begin(sent, c, s), state(place), slot)

        def renew(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return at._replace(
            place=place,
            k=jnp.where(done, 0, at.k),
            slot=slot,
            total=total,
            progress=jax.tree.map(renew, fresh, at.progress),
            next=at.next + jnp.sum(done, dtype=jnp.int32),
            sums=jax.tree.map(add, at.sums, left.sums),
            stacks=jax.tree.map(lambda all_, rows: all_.at[where].set(rows), at.stacks, left.stacks),
            states=jax.tree.map(lambda all_, rows: all_.at[where].set(rows), at.states, left.kept),
        )

    def with_spare(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, jnp.zeros((1, *leaf.shape[1:]), leaf.dtype)])

    shapes = left_shapes(solver, sent, states, slots)
    place = jnp.arange(lanes, dtype=jnp.int32)
    slot, total = load(place)
    start = Lanes(
        place=place,
        k=jnp.zeros((lanes,), jnp.int32),
        slot=slot,
        total=total,
        progress=each(lambda c, s: solver.begin(sent, c, s), state(place), slot),
        next=jnp.int32(lanes),
        sums=trees.zeros_like(shapes.sums),
        stacks=jax.tree.map(lambda s: jnp.zeros((size + 1, *s.shape), s.dtype), shapes.stacks),
        states=jax.tree.map(with_spare, states),
        computed=computed,
    )

    def working(at: Lanes) -> jax.Array:
        return jnp.any(at.place < busy)

    if bound is None:
        end = lax.while_loop(working, advance, start)
    else:

        def tick(at: Lanes, _: None) -> tuple[Lanes, None]:
            return lax.cond(working(at), advance, lambda at: at, at), None

        end, _ = lax.scan(tick, start, None, length=bound)
    first = jax.tree.map(lambda leaf: leaf[:size], (end.stacks, end.states))
    return LocalResult(end.sums, first[0], first[1], end.computed)
