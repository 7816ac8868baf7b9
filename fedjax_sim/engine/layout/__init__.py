"""How a cohort meets the hardware: the same round, in another order of the same operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult
from fedjax_sim.engine.layout.choose import choose_layout
from fedjax_sim.engine.layout.factored import factored
from fedjax_sim.engine.layout.mesh import mesh
from fedjax_sim.engine.layout.pooled import pooled
from fedjax_sim.engine.layout.queue import Makespan, lanes, makespan, static_schedule
from fedjax_sim.engine.layout.stacked import buckets, stacked
from fedjax_sim.engine.layout.turns import turns

if TYPE_CHECKING:
    from fedjax_sim.engine.layout_tuning import Tuning, tune

__all__ = [
    "Bounds", "Layout", "LocalResult", "Makespan", "Tuning", "buckets", "choose_layout", "factored", "lanes",
    "makespan", "mesh", "pooled", "stacked", "static_schedule", "tune", "turns",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Measuring runs whole rounds, so it stands on what stands on the layouts: loaded when it is asked for.
    if name not in ("tune", "Tuning"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedjax_sim.engine import layout_tuning

    return getattr(layout_tuning, name)
