"""One client after another."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import trees
from fedjax_sim.descriptions import factory
from fedjax_sim.layout.base import Bounds, Layout, LocalResult, finish, finish_shapes
from fedjax_sim.layout.queue import run_queue
from fedjax_sim.local.solver import Slot, Solver
from fedjax_sim.loops import with_static_derivative


class Turns(Layout):
    """``scan`` over the cohort, and for each client a loop of exactly its own tau_i steps.

    Computes no idle step and batches nothing over models: best on CPU, and for very unequal tau_i. Memory holds one
    model at work. Its derivative is that of masked scans of the largest number of steps where the clients' bounds are
    alike, else that of the statically bounded queue of one lane (see :mod:`fedjax_sim.layout.queue`).
    """

    def as_it_runs(self) -> Turns:
        return LoopedTurns()

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        alike = len(slots.offset) * bounds.per_client <= _MOST_IDLE * bounds.per_cohort

        def static(*operands: Any) -> LocalResult:
            if alike:
                return run_turns(*operands, most=bounds.per_client)
            return run_queue(*operands, lanes=1, bound=bounds.per_cohort)

        return with_static_derivative(run_turns, static)(solver, sent, states, slots)  # type: ignore[no-any-return]


class LoopedTurns(Turns):
    """*turns* without the static schedule: its forward-mode derivative computes no idle step either."""

    reverse: ClassVar[bool] = False

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        return run_turns(solver, sent, states, slots, skip_void=False)


# Idle steps over useful ones up to which the derivative masks a scan over each client's steps. The queue has none, but
# it asks after every step whether a client is done, which its derivative pays for at every step.
_MOST_IDLE = 1.25


def run_turns(
    solver: Solver, sent: Any, states: Any, slots: Slot, *, most: int | None = None, skip_void: bool = True
) -> LocalResult:
    """The program of :class:`Turns`.

    Args:
      solver: what one client does.
      sent: the round's broadcast.
      states: client states, [S, ...].
      slots: the cohort, leaves [S, ...].
      most: None for loops of each client's own steps (dynamic); an upper bound of them for masked scans of that many
        (static, differentiable in reverse).
      skip_void: whether void slots are passed by in the dynamic loops. Where these are themselves differentiated they
        are not: jax 0.6 fails within a choice with a loop in it, before it can say that reverse mode cannot pass.
    """
    serial = jax.default_backend() == "cpu"

    def client(sums: Any, x: tuple[Any, Slot, jax.Array]) -> tuple[Any, Any]:
        c_i, slot, total = x
        start = solver.begin(sent, c_i, slot)
        if most is None:
            progress = lax.fori_loop(0, total, lambda k, p: solver.step(sent, slot, p, k, serial=serial), start)
        else:

            def masked(progress: Any, k: jax.Array) -> tuple[Any, None]:
                return trees.select(k < total, solver.step(sent, slot, progress, k, serial=serial), progress), None

            progress, _ = lax.scan(masked, start, jnp.arange(most, dtype=jnp.int32))
        weighted, stacks, new = finish(solver, sent, c_i, slot, progress)
        return trees.add(sums, weighted), (stacks, new)

    def visit(sums: Any, x: tuple[Any, Slot, jax.Array]) -> tuple[Any, Any]:
        if most is not None or not skip_void:
            return client(sums, x)

        def pass_by(sums: Any, x: tuple[Any, Slot, jax.Array]) -> tuple[Any, Any]:
            return sums, (trees.zeros_like(stacked), x[0])

        # To begin and to end with nobody would cost as much as with a client: a device's void slots are many.
        return lax.cond(x[1].client.steps > 0, client, pass_by, sums, x)  # type: ignore[no-any-return]

    totals = solver.micro_steps(slots)
    weighted, stacked = finish_shapes(solver, sent, states, slots)
    sums, (stacks, new) = lax.scan(visit, trees.zeros_like(weighted), (states, slots, totals))
    computed = jnp.sum(totals, dtype=jnp.int32) if most is None else jnp.int32(len(totals) * most)
    return LocalResult(sums, stacks, new, computed)


turns = factory("layout.turns", Turns)
