"""BlazeFL 2.0.3 with a thread for each core, the mode that it recommends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from benchmarks.speed.peers import blazefl
from benchmarks.speed.workloads import Weights, Workload

PEER = dataclasses.replace(
    blazefl.PEER,
    title="BlazeFL, threads",
    configuration="contrib.fedavg: server and thread pool, one PyTorch thread each",
    environment="blazefl",
)


def simulate(work: Workload, tick: Callable[..., None]) -> Weights:
    """As in :mod:`.blazefl`."""
    return blazefl.simulate(work, tick, threads=True)
