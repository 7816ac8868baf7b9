"""All clients at once, on a leading axis."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count
from fedjax_sim.core.loops import Read, longest, with_static_derivative
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, Run, drawn_ahead, surveyed
from fedjax_sim.engine.solver import Draw, Left, Slot, Solver
from fedjax_sim.models.conv import side_by_side


class Stacked(Layout):
    """``vmap`` over the cohort of a masked scan over the largest possible number of steps.

    Computes |S| max tau micro-steps whatever the clients need: best where the tau_i are alike and the hardware is wide
    (GPU, TPU). The first step is peeled: before it all clients hold the same x, so its products are not batched over
    models. Idle steps are masked by selection, never by a zero weight, and reuse a real batch: NaN-safe in reverse.
    """

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return bounds

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        return run_stacked(solver, sent, states, slots, bounds=bounds)


class Buckets(Stacked):
    """*stacked* that gets narrower: clients in the order of their tau_i, the longest first, in a few loops.

    All S clients are side by side until the longer half of them alone has steps left, then these until half of them
    has, and so on. Each loop has a width that is compiled, and ends where the cohort's own tau_i let it: between
    Sum tau_i and |S| max tau_i micro-steps are computed, and no more follow one another than the longest client takes.
    For accelerators with unequal tau_i. Reverse mode computes what *stacked* does.

    Args:
      number: loops at most, each half as wide as the one before. The compiler reads the step once for each.
    """

    number: int = count(default=3)

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return ()  # its loops follow the clients

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        run: Run = functools.partial(run_buckets, number=self.number, bounds=bounds)
        if bounds.reverse:
            run = with_static_derivative(run, functools.partial(run_stacked, bounds=bounds))
        return run(solver, sent, states, slots)


class _Stack:
    """A cohort side by side: how it begins, steps and ends."""

    def __init__(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> None:
        self.solver, self.sent, self.states, self.slots = solver, Read.of(sent), states, Read.of(slots)
        self.totals, self._last = solver.micro_steps(slots), max(bounds.per_client - 1, 0)
        self._ahead = drawn_ahead(solver, slots, bounds.per_client)

    def _masked(self, slot: Slot, total: jax.Array, drawn: Draw | None, progress: Any, k: jax.Array) -> Any:
        moved = self.solver.step(self.sent.value, slot, progress, jnp.minimum(k, self._last), drawn=drawn)
        return trees.select(k < total, moved, progress)

    def first(self) -> Any:
        """Everybody's progress after the step 0."""

        def one(c_i: Any, slot: Slot, total: jax.Array, drawn: Draw | None) -> Any:
            return self._masked(slot, total, drawn, self.solver.begin(self.sent.value, c_i, slot), jnp.int32(0))

        return jax.vmap(one)(self.states, self.slots.value, self.totals, _rows(self._ahead, 0))

    def step(self, progress: Any, k: jax.Array, width: int) -> Any:
        """The progress of the first ``width`` clients after step ``k``; who has no such step stays as it is."""
        longest, taus = _rows((self.slots.value, self.totals), slice(width))
        drawn = _rows(_rows(self._ahead, jnp.minimum(k, self._last)), slice(width))
        return jax.vmap(self._masked, (0, 0, 0, 0, None))(longest, taus, drawn, progress, k)

    def result(self, progress: Any, computed: jax.Array, slots: jax.Array | None = None) -> LocalResult:
        """What the cohort leaves; ``slots`` says where each client's slot is, where they are in another order."""
        finish = functools.partial(self.solver.finish, self.sent.value)
        left: Left = jax.vmap(finish)(self.states, self.slots.value, progress)
        sums = {name: trees.weighted_sum(left.weights[name], value) for name, value in left.values.items()}
        stacks, kept = left.stacks, left.kept
        if slots is not None:
            stacks, kept = _rows((stacks, kept), slots)
        return LocalResult(sums, stacks, kept, computed)


def run_stacked(solver: Solver, sent: Any, states: Any, slots: Slot, *, bounds: Bounds) -> LocalResult:
    """The program of :class:`Stacked`."""
    survey: Run = functools.partial(run_stacked, bounds=bounds.of_survey)
    slots, computed = surveyed(survey, solver, sent, states, slots)
    stack, width = _Stack(solver, sent, states, slots, bounds), len(slots.offset)
    with side_by_side():
        progress = stack.first()
        if bounds.per_client > 1:  # jax.disable_jit() has no loops of no length
            ks = jnp.arange(1, bounds.per_client, dtype=jnp.int32)
            progress = lax.scan(lambda at, k: (stack.step(at, k, width), None), progress, ks)[0]
    return stack.result(progress, computed + jnp.int32(width * bounds.per_client))


# Steps of the longest client for each question to the host whether a loop goes on, which costs an accelerator as much
# as a step of a small model; those beyond a loop's end are computed and masked.
_ASKED = 32


def run_buckets(solver: Solver, sent: Any, states: Any, slots: Slot, *, number: int, bounds: Bounds) -> LocalResult:
    """The program of :class:`Buckets`: loops whose ends are traced."""
    survey: Run = functools.partial(run_buckets, number=number, bounds=bounds.of_survey)
    slots, computed = surveyed(survey, solver, sent, states, slots)
    order = jnp.argsort(-solver.micro_steps(slots), stable=True).astype(jnp.int32)
    states, slots = _rows((states, slots), order)
    stack, turn = _Stack(solver, sent, states, slots, bounds), turn_of(bounds)

    def steps(progress: Any, k: jax.Array, width: int) -> Any:
        ks = k + jnp.arange(turn, dtype=jnp.int32)
        return lax.scan(lambda at, k: (stack.step(at, k, width), None), progress, ks)[0]

    widths = widths_of(len(slots.offset), number)
    with side_by_side():
        progress, k, ended = stack.first(), jnp.int32(1), []
        computed += jnp.int32(widths[0])
        for width, narrower in itertools.pairwise((*widths, 0)):
            start, stop = k, longest(stack.totals[narrower])  # from there on only those before it have steps

            def going_on(at: tuple[Any, jax.Array], stop: jax.Array = stop) -> jax.Array:
                return at[1] < stop

            def go_on(at: tuple[Any, jax.Array], width: int = width) -> tuple[Any, jax.Array]:
                return steps(*at, width), at[1] + turn

            progress, k = lax.while_loop(going_on, go_on, (progress, k))
            computed += width * (k - start)
            ended.append(_rows(progress, slice(narrower, None)))
            progress = _rows(progress, slice(narrower))
    progress = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *reversed(ended))
    return stack.result(progress, computed, jnp.argsort(order))


def turn_of(bounds: Bounds) -> int:
    """Steps in a turn of a loop, after which the host is asked whether it goes on."""
    return max(bounds.per_client // _ASKED, 1)


def widths_of(slots: int, number: int) -> tuple[int, ...]:
    """S, S / 2, S / 4, ..., rounded up, each once: ``number`` of them at most."""
    return tuple(dict.fromkeys(-(-slots // 2**i) for i in range(number)))


def _rows(tree: Any, at: Any) -> Any:
    """The rows of all leaves."""
    return jax.tree.map(lambda leaf: leaf[at], tree)


stacked = factory("layout.stacked", Stacked)
buckets = factory("layout.buckets", Buckets)
