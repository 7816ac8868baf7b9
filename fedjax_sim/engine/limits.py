"""What a run counts in 32 bits, and where that ends."""

from __future__ import annotations

from fedjax_sim.core.values import INT32_MAX, shown
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.stacked import Stacked
from fedjax_sim.engine.plan import Plan

_LANES = 32  # clients side by side, at most, where the rule chooses the layout


def check_counts(plan: Plan, rounds: int) -> None:
    """Checks that rounds, the rows of a batch, the cohort and the steps of a round fit int32, which counts them.

    The steps are the micro-steps of all phases: what the cohort may need at most, and as many again as the layout may
    compute for nothing while it waits for the slowest.

    Raises:
      ValueError: they do not; they would wrap round without a word.
    """
    if rounds > INT32_MAX:
        raise ValueError(f"rounds is {rounds}: at most {INT32_MAX} can be counted")
    dataset = plan.dataset
    rows = plan.batches.rows(dataset)
    if dataset.num_examples + rows > INT32_MAX:
        raise ValueError(
            f"batches={shown(plan.batches)} has {rows} rows beside {dataset.num_examples} examples: together at "
            f"most {INT32_MAX} can be counted: use smaller batches"
        )
    slots = plan.cohort.size(dataset.num_clients)
    if slots > INT32_MAX:
        raise ValueError(f"cohort={shown(plan.cohort)} has {slots} slots: at most {INT32_MAX} can be counted")
    layout = plan.layout.inner if isinstance(plan.layout, OnMesh) else plan.layout
    side_by_side = slots if isinstance(layout, Stacked) else getattr(layout, "num_lanes", _LANES)
    total = most = 0
    for method in plan.algorithm.phases():
        limits = plan.bounds(method)
        total += limits.per_cohort + min(slots, side_by_side) * limits.per_client
        most = max(most, limits.per_client)
    if total > INT32_MAX:
        work = " ".join(shown(plan.work).split())
        raise ValueError(
            f"a round may compute {total} local steps ({slots} clients with up to {most} each, work={work}): at most "
            f"{INT32_MAX} can be counted: ask for fewer steps or epochs, larger batches or a smaller cohort"
        )
