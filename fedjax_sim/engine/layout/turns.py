"""One client after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.loops import Read, Total, with_static_derivative
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, left_shapes
from fedjax_sim.engine.layout.queue import run_queue
from fedjax_sim.engine.solver import Slot, Solver


class Turns(Layout):
    """``scan`` over the cohort, and for each client a loop of exactly its own tau_i steps.

    Computes no idle step and batches nothing over models: best on CPU, and for very unequal tau_i. Memory holds one
    model at work. Its derivative is that of masked scans of the largest number of steps where the clients' bounds are
    alike, else that of the statically bounded queue of one lane (see :mod:`fedjax_sim.layout.queue`).
    """

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return ()  # its loops follow the clients

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        if not bounds.reverse:
            return run_turns(solver, sent, states, slots, skip_void=False)
        alike = len(slots.offset) * bounds.per_client <= _MOST_IDLE * bounds.per_cohort

        def static(*operands: Any) -> LocalResult:
            if alike:
                return run_turns(*operands, most=bounds.per_client, most_survey=bounds.survey_per_client)
            return run_queue(*operands, lanes=1, bound=bounds.per_cohort, survey_bound=bounds.survey_per_cohort)

        return with_static_derivative(run_turns, static)(solver, sent, states, slots)  # type: ignore[no-any-return]


# Idle steps over useful ones up to which the derivative masks a scan over each client's steps. The queue has none, but
# it asks after every step whether a client is done, which its derivative pays for at every step.
_MOST_IDLE = 1.25


def run_turns(
    solver: Solver,
    sent: Any,
    states: Any,
    slots: Slot,
    *,
    most: int | None = None,
    most_survey: int = 0,
    skip_void: bool = True,
) -> LocalResult:
    """The program of :class:`Turns`: loops of the clients' own steps, or masked scans of ``most``, for reverse mode.

    Void slots are passed by (``skip_void``) but where the dynamic loops are themselves differentiated: jax 0.6 fails
    within a choice with a loop in it, before it can say that reverse mode cannot pass.
    """
    serial, read = jax.default_backend() == "cpu", Read.of(sent)

    def worked(solver: Solver, c_i: Any, slot: Slot, most: int | None) -> Any:
        start, total = solver.begin(read.value, c_i, slot), solver.micro_steps(slot)
        if most is None:
            return lax.fori_loop(0, total, lambda k, p: solver.step(read.value, slot, p, k, serial=serial), start)

        def masked(progress: Any, k: jax.Array) -> tuple[Any, None]:
            return trees.select(k < total, solver.step(read.value, slot, progress, k, serial=serial), progress), None

        return lax.scan(masked, start, jnp.arange(most, dtype=jnp.int32))[0]

    def client(sums: Total, x: tuple[Any, Slot]) -> tuple[Any, Any]:
        c_i, slot = x
        if solver.surveyor is not None:
            # Client by client, so that there is one survey at a time.
            slot = slot.told(worked(solver.surveyor, c_i, slot, None if most is None else most_survey).survey.value)
        left = solver.finish(read.value, c_i, slot, worked(solver, c_i, slot, most))
        return sums.add(left.sums), (left.stacks, left.kept)

    def visit(sums: Any, x: tuple[Any, Slot]) -> tuple[Any, Any]:
        if most is not None or not skip_void:
            return client(sums, x)

        def pass_by(sums: Any, x: tuple[Any, Slot]) -> tuple[Any, Any]:
            return sums, (trees.zeros_like(shapes.stacks), x[0])

        # To begin and to end with nobody would cost as much as with a client: a device's void slots are many.
        return lax.cond(x[1].client.steps > 0, client, pass_by, sums, x)  # type: ignore[no-any-return]

    shapes = left_shapes(solver, sent, states, slots)
    sums, (stacks, new) = lax.scan(visit, Total.zero(shapes.values), (states, slots))
    if most is None:
        computed = jnp.sum(solver.all_micro_steps(slots), dtype=jnp.int32)
    else:
        computed = jnp.int32(len(slots.offset) * (most + most_survey))
    return LocalResult(sums.value, stacks, new, computed)


turns = factory("layout.turns", Turns)
