"""What a run's arrays take, said where there is no memory for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_sim.core.mistakes import Note
from fedjax_sim.core.trees import size_in_bytes
from fedjax_sim.core.values import shown
from fedjax_sim.engine.layout.choose import MOST_LANES
from fedjax_sim.engine.layout.factored import Factored
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.pooled import Pooled
from fedjax_sim.engine.layout.stacked import Stacked
from fedjax_sim.engine.layout.turns import Turns
from fedjax_sim.engine.plan import Plan


@contextlib.contextmanager
def room(plan: Plan) -> Iterator[None]:
    """Within, an error for lack of memory says what the arrays of a run take, and what takes less."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            with contextlib.suppress(Exception):  # of a class that cannot be asked: the error itself is what counts
                error.add_note(Note(_sizes(plan)))
        raise


def side_by_side(layout: Any, slots: int) -> int:
    """How many clients' models a layout has at work at once, on all devices together, at most."""
    while isinstance(layout, (OnMesh, Factored, Pooled)):
        layout = layout.inner
    if isinstance(layout, Turns):
        return 1
    return slots if isinstance(layout, Stacked) else min(slots, getattr(layout, "num_lanes", MOST_LANES))


def _sizes(plan: Plan) -> str:
    from fedjax_sim.reporting.html.tables import in_bytes

    nbytes, clients = size_in_bytes(plan.params), plan.dataset.num_clients
    working = side_by_side(plan.layout, plan.slots)
    kept = size_in_bytes(jax.eval_shape(plan.algorithm.init_client, plan.params))
    at_once = "layout=fedjax_sim.layout.turns(), one after the other" if working > 1 else "a smaller model"
    models = f"for {working:,} models at work, {in_bytes(nbytes)} each, in layout={shown(plan.layout)}"
    found = [
        (working * nbytes, f"{models}, and as much for their gradients: {at_once}"),
        (size_in_bytes(plan.dataset.examples), "for the examples: fedjax_sim.datasets.on_host(dataset)"),
        (
            clients * kept,
            f"for the states of {clients:,} clients, {in_bytes(kept)} each: "
            "client_states=fedjax_sim.client_states.on_host()",
        ),
    ]
    lines = [f"{in_bytes(taken)} {what}" for taken, what in sorted(found, reverse=True) if taken]
    rest = "what layers compute: smaller batches, full_batch(piece_size=32); fewer seeds at once, sweep(chunk=1)"
    return "\n  ".join(["there is no room for the arrays of a run, and what takes less:", *lines, rest])
