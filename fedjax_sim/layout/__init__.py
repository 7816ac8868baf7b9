"""How a cohort meets the hardware: the same round, in another order of the same operations."""

from fedjax_sim.layout.base import Bounds, Layout, LocalResult
from fedjax_sim.layout.choose import choose_layout
from fedjax_sim.layout.lanes import lanes, static_schedule
from fedjax_sim.layout.stacked import stacked
from fedjax_sim.layout.turns import turns

__all__ = ["Bounds", "Layout", "LocalResult", "choose_layout", "lanes", "stacked", "static_schedule", "turns"]
