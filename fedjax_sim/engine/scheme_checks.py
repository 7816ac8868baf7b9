"""What cohort and work schemes of one's own return, checked before a run is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.cohort.participation import Selection, storage
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.core.keys import client_draws
from fedjax_sim.core.mistakes import explained, unchanged
from fedjax_sim.core.own import origin
from fedjax_sim.core.values import is_concrete, shapes
from fedjax_sim.engine.plan import Plan


def check_schemes(plan: Plan) -> None:
    """Draws round 0, where a scheme is not the package's: shapes and types, and values where they are concrete.

    Clients that there are not would be trained as others, of a client drawn twice one state would be lost, and steps
    beyond their bound left out, without a word.
    """
    cohort, work, data, t = plan.cohort, plan.work, plan.dataset, jnp.int32(0)
    own = [origin(type(part).__module__) is None for part in (cohort, work)]
    if not any(own) or work.needs_system:
        return
    known = is_concrete((cohort, work, data, jax.random.key_data(plan.key)))
    call: Any = (lambda function, *given: jax.jit(function)(*given)) if known else jax.eval_shape

    def turn(found: Selection, data: Any, key: jax.Array) -> Turn:
        stored = storage(data, found.indices)
        ids, epoch = data.client_ids[stored], plan.batches.epoch(data.sizes[stored], plan.batches.rows(data))
        return Turn(client_draws(key, t, ids), t, found.indices, ids, found.present, epoch)

    slots, number, who = cohort.size(data.num_clients), data.num_clients, type(cohort).__name__
    with explained(of=cohort.select), unchanged(f"{who}.select"):
        found = call(lambda cohort, data, key: cohort.select(data, key, t), cohort, data, plan.key)
        if not (isinstance(found, Selection) and _whole(found.indices, slots) and _whole(found.count, slots)):
            wanted = f"Selection(indices=int32[{slots}], count=int32[{slots}]), for each of its size() slots"
            raise TypeError(f"{who}.select returned {shapes(found)}: return {wanted}")
        drawn = np.asarray(found.indices)[np.asarray(found.count) != 0] if known else np.empty(0)
        if (wrong := drawn[(drawn < 0) | (drawn >= number)]).size:
            fix = f"clients are numbered from 0 to {number - 1}, and a void slot has count 0"
            raise ValueError(f"{who}.select drew the client {wrong[0]} of {number}: {fix}")
        ids, times = np.unique(drawn, return_counts=True)
        if (twice := ids[times > 1]).size:
            fix = "a client has one slot, whose count says how often it was drawn; a void slot has count 0"
            raise ValueError(f"{who}.select has the client {twice[0]} in {max(times)} slots: {fix}")
    who = type(work).__name__
    with explained(of=work.steps), unchanged(f"{who}.steps"):
        told = call(turn, found, data, plan.key)
        steps = call(lambda work, told: work.steps(told), work, told)
        if not _whole(steps, slots):
            raise TypeError(f"{who}.steps returned {shapes(steps)}: return int32[{slots}], a number for each slot")
    with explained(of=work.most_steps):
        for tau, epoch in np.transpose([steps, told.epoch])[np.asarray(told.valid)] if known else ():
            if tau > (most := work.most_steps(int(epoch))):
                bound = f"most_steps({epoch}), the bound that layouts are built by, is {most}"
                raise ValueError(f"{who}.steps gives a client {tau} steps, and {bound}: return what no client exceeds")


def _whole(array: Any, length: int) -> bool:
    return getattr(array, "shape", None) == (length,) and array.dtype.kind in "iub"
