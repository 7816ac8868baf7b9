"""All clients at once, on a leading axis."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, drawn_ahead, surveyed
from fedjax_sim.engine.solver import Draw, Slot, Solver
from fedjax_sim.models.conv import side_by_side


class Stacked(Layout):
    """``vmap`` over the cohort of a masked scan over the largest possible number of steps.

    Computes |S| max tau micro-steps whatever the clients need: best where the tau_i are alike and the hardware is wide
    (GPU, TPU). The first step is peeled: before it all clients hold the same x, so its products are not batched over
    models. Idle steps are masked by selection, never by a zero weight, and reuse a real batch: NaN-safe in reverse.
    """

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return bounds._replace(ranked=())

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        return run_stacked(solver, sent, states, slots, bounds)


class Buckets(Stacked):
    """*stacked* that gets narrower: clients in the order of their tau_i, the longest first, in a few masked scans.

    Of a cohort's clients all but k - 1 have no more examples than the k-th largest of the data set, which is known
    before a run compiles. So from that client's number of steps on the stack needs no more than k - 1 places. No more
    steps follow one another than in *stacked*, fewer are computed, and every number of steps is static: an accelerator
    that runs a loop of so many steps is not asked after each of them whether it is to go on.

    The bound is that of the data set's largest clients, met where all clients take part, and loose where few do.

    Args:
      number: scans at most, each of a width of its own; what is saved most decides where the stack gets narrower. The
        compiler reads the step once for each.
      unroll: steps in one turn of a scan's loop. The compiler reads the step so many times more.
    """

    number: int = count(default=3)
    unroll: int = count(default=1)

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return bounds

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        return run_stacked(solver, sent, states, slots, bounds, number=self.number, unroll=self.unroll)


def run_stacked(
    solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds, *, number: int = 1, unroll: int = 1
) -> LocalResult:
    """The program of :class:`Buckets`; with one bucket that of :class:`Stacked`."""
    run = functools.partial(_run, number=number, unroll=unroll)
    slots, computed = surveyed(functools.partial(run, bounds=bounds.of_survey), solver, sent, states, slots)
    result = run(solver, sent, states, slots, bounds=bounds)
    return result._replace(computed=result.computed + computed)


class Bucket(NamedTuple):
    """Steps in which a stack keeps its width."""

    width: int  # the clients with most steps
    start: int
    stop: int


def buckets_of(slots: int, bounds: Bounds, most: int) -> list[Bucket]:
    """The cut into ``most`` buckets at most that computes the fewest steps; as few of them as do."""
    cuts: dict[int, int] = {}  # from so many steps on, how wide the stack must be
    for steps, width in sorted((steps, width) for width, steps, _ in bounds.ranked):
        narrowest = min(cuts.values(), default=slots)
        if 0 < width < narrowest and 0 < steps < bounds.per_client:
            cuts[steps] = width

    def cut_at(at: tuple[int, ...]) -> list[Bucket]:
        widths = (slots, *(cuts[steps] for steps in at))
        return [Bucket(*one) for one in zip(widths, (0, *at), (*at, bounds.per_client), strict=True)]

    ways = (at for number in range(min(most - 1, len(cuts)) + 1) for at in itertools.combinations(cuts, number))
    return min(map(cut_at, ways), key=computed_in)


def computed_in(buckets: list[Bucket]) -> int:
    """Micro-steps that a stack computes."""
    return sum(width * (stop - start) for width, start, stop in buckets)


def _run(
    solver: Solver, sent: Any, states: Any, slots: Slot, *, bounds: Bounds, number: int, unroll: int
) -> LocalResult:
    cut = buckets_of(len(slots.offset), bounds, number)
    totals, order = solver.micro_steps(slots), None
    if len(cut) > 1:
        order = jnp.argsort(-totals, stable=True).astype(jnp.int32)
        totals, states, slots = _rows((totals, states, slots), order)
    ahead, computed = drawn_ahead(solver, slots, bounds.per_client), computed_in(cut)

    def masked(slot: Slot, total: jax.Array, drawn: Draw | None, progress: Any, k: jax.Array) -> Any:
        return trees.select(k < total, solver.step(sent, slot, progress, k, drawn=drawn), progress)

    def first(c_i: Any, slot: Slot, total: jax.Array, drawn: Draw | None) -> Any:
        return masked(slot, total, drawn, solver.begin(sent, c_i, slot), jnp.int32(0))

    def steps(progress: Any, bucket: Bucket) -> Any:
        width, start, stop = bucket
        longest, taus = _rows((slots, totals), slice(width))

        def step(progress: Any, x: tuple[jax.Array, Draw | None]) -> tuple[Any, None]:
            return jax.vmap(masked, (0, 0, 0, 0, None))(longest, taus, x[1], progress, x[0]), None

        xs = jnp.arange(start, stop, dtype=jnp.int32), _rows(ahead, (slice(start, stop), slice(width)))
        return lax.scan(step, progress, xs, unroll=unroll)[0]

    with side_by_side():
        progress = jax.vmap(first)(states, slots, totals, _rows(ahead, 0))
        ended = []
        for bucket in (cut[0]._replace(start=1), *cut[1:]):
            ended.append(_rows(progress, slice(bucket.width, None)))
            progress = _rows(progress, slice(bucket.width))
            if bucket.start < bucket.stop:  # jax.disable_jit() has no loops of no length
                progress = steps(progress, bucket)
    if len(cut) > 1:
        progress = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), progress, *reversed(ended))
    left = jax.vmap(lambda c_i, slot, at: solver.finish(sent, c_i, slot, at))(states, slots, progress)
    sums = {name: trees.weighted_sum(left.weights[name], value) for name, value in left.values.items()}
    stacks, kept = left.stacks, left.kept
    if order is not None:
        stacks, kept = _rows((stacks, kept), jnp.argsort(order))
    return LocalResult(sums, stacks, kept, jnp.int32(computed))


def _rows(tree: Any, at: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[at], tree)


stacked = factory("layout.stacked", Stacked)
buckets = factory("layout.buckets", Buckets)
