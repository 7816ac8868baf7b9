"""Several clients at once, the next one as soon as one is done."""

from __future__ import annotations

from typing import Any, ClassVar

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.loops import with_static_derivative
from fedjax_sim.core.values import check_count
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult
from fedjax_sim.engine.layout.queue import run_queue
from fedjax_sim.engine.solver import Slot, Solver


class Lanes(Layout):
    """L models side by side; a lane whose client finishes takes the next one, longest first.

    Computes about sum tau_i / L batched micro-steps: for accelerators with unequal tau_i. Memory holds L models at
    work.

    Args:
      num_lanes: L; the cohort's size where that is smaller.
    """

    num_lanes: int = static(default=8)

    def checked(self) -> Lanes:
        check_count("lanes(num_lanes)", self.num_lanes)
        return self

    def as_it_runs(self) -> Lanes:
        return LoopedLanes(num_lanes=self.num_lanes)

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        lanes = min(self.num_lanes, len(slots.offset))

        def dynamic(*operands: Any) -> LocalResult:
            return run_queue(*operands, lanes=lanes, bound=None)

        def static_(*operands: Any) -> LocalResult:
            return run_bounded(*operands, lanes=lanes, bounds=bounds)

        return with_static_derivative(dynamic, static_)(solver, sent, states, slots)  # type: ignore[no-any-return]


class LoopedLanes(Lanes):
    """*lanes* without the static schedule: forward mode only."""

    reverse: ClassVar[bool] = False

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        lanes = min(self.num_lanes, len(slots.offset))
        return run_queue(solver, sent, states, slots, lanes=lanes, bound=None)


class Static(Layout):
    """The lanes' queue as a ``scan`` of a static number of iterations: what the derivative of the others runs.

    Useful by itself to look at the reverse schedule's cost; iterations after the last client are skipped.

    Args:
      num_lanes: L; the cohort's size where that is smaller.
    """

    num_lanes: int = static(default=1)

    def checked(self) -> Static:
        check_count("static_schedule(num_lanes)", self.num_lanes)
        return self

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        lanes = min(self.num_lanes, len(slots.offset))
        return run_bounded(solver, sent, states, slots, lanes=lanes, bounds=bounds)


def run_bounded(solver: Solver, sent: Any, states: Any, slots: Slot, *, lanes: int, bounds: Bounds) -> LocalResult:
    """The queue in a static number of iterations."""
    bound, survey_bound = queue_bound(bounds, lanes), queue_bound(bounds.of_survey, lanes)
    return run_queue(solver, sent, states, slots, lanes=lanes, bound=bound, survey_bound=survey_bound)


def queue_bound(bounds: Bounds, lanes: int) -> int:
    """Iterations that a queue of L lanes surely ends in: sum tau / L + (1 - 1/L) max tau (Graham 1969)."""
    return min(-(-bounds.per_cohort // lanes) + bounds.per_client, bounds.per_cohort)


lanes = factory("layout.lanes", Lanes)
static_schedule = factory("layout.static_schedule", Static)
