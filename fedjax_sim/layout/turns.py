"""One client after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import trees
from fedjax_sim.descriptions import factory
from fedjax_sim.layout.base import Bounds, Layout, LocalResult, finish, zero_sums
from fedjax_sim.layout.queue import run_queue
from fedjax_sim.local.solver import Slot, Solver
from fedjax_sim.loops import with_static_derivative


class Turns(Layout):
    """``scan`` over the cohort, and for each client a loop of exactly its own tau_i steps.

    Computes no idle step and batches nothing over models: best on CPU, and for very unequal tau_i. Memory holds one
    model at work. Its derivative is that of the statically bounded queue of one lane (see
    :mod:`fedjax_sim.layout.queue`).
    """

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        def static(*operands: Any) -> LocalResult:
            return run_queue(*operands, lanes=1, bound=bounds.per_cohort)

        return with_static_derivative(run_turns, static)(solver, sent, states, slots)  # type: ignore[no-any-return]


def run_turns(solver: Solver, sent: Any, states: Any, slots: Slot) -> LocalResult:
    """The dynamic program of :class:`Turns`."""
    serial = jax.default_backend() == "cpu"

    def client(sums: Any, x: tuple[Any, Slot, jax.Array]) -> tuple[Any, Any]:
        c_i, slot, total = x
        progress = lax.fori_loop(
            0, total, lambda k, p: solver.step(sent, slot, p, k, serial=serial), solver.begin(sent, c_i, slot)
        )
        weighted, stacks, new = finish(solver, sent, c_i, slot, progress)
        return trees.add(sums, weighted), (stacks, new)

    totals = solver.micro_steps(slots)
    start = zero_sums(solver, sent, states, slots)
    sums, (stacks, new) = lax.scan(client, start, (states, slots, totals))
    return LocalResult(sums, stacks, new, jnp.sum(totals, dtype=jnp.int32))


turns = factory("layout.turns", Turns)
