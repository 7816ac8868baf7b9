"""All clients at once, on a leading axis."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, surveyed
from fedjax_sim.engine.solver import Slot, Solver


class Stacked(Layout):
    """``vmap`` over the cohort of a masked scan over the largest possible number of steps.

    Computes |S| max tau micro-steps whatever the clients need: best where the tau_i are alike and the hardware is wide
    (GPU, TPU). The first step is peeled: before it all clients hold the same x, so its products are not batched over
    models. Idle steps are masked by selection, never by a zero weight, and reuse a real batch: NaN-safe in reverse.
    """

    def sized_by(self, bounds: Bounds, dataset: FederatedDataset) -> Any:
        return bounds

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        run = functools.partial(_run, most=bounds.survey_per_client)
        slots, computed = surveyed(run, solver, sent, states, slots)
        result = _run(solver, sent, states, slots, bounds.per_client)
        return result._replace(computed=result.computed + computed)


def _run(solver: Solver, sent: Any, states: Any, slots: Slot, most: int) -> LocalResult:
    totals = solver.micro_steps(slots)

    def masked(slot: Slot, total: jax.Array, progress: Any, k: jax.Array) -> Any:
        return trees.select(k < total, solver.step(sent, slot, progress, k), progress)

    def first(c_i: Any, slot: Slot, total: jax.Array) -> Any:
        return masked(slot, total, solver.begin(sent, c_i, slot), jnp.int32(0))

    def step(progress: Any, k: jax.Array) -> tuple[Any, None]:
        return jax.vmap(masked, (0, 0, 0, None))(slots, totals, progress, k), None

    progress = jax.vmap(first)(states, slots, totals)
    if most > 1:  # jax.disable_jit() has no loops of no length
        progress, _ = lax.scan(step, progress, jnp.arange(1, most, dtype=jnp.int32))
    left = jax.vmap(lambda c_i, slot, at: solver.finish(sent, c_i, slot, at))(states, slots, progress)
    sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), left.sums)
    return LocalResult(sums, left.stacks, left.kept, jnp.int32(len(totals) * most))


stacked = factory("layout.stacked", Stacked)
