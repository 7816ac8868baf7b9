"""How well a queue of clients fills its lanes."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.values import check_count, shown


class Makespan(NamedTuple):
    """A cohort on L lanes.

    Attributes:
      iterations: steps of the busiest lane: how long the queue's loop runs.
      share: sum tau_i / L, which no schedule can be below.
      longest: max tau_i, likewise. Where it is above ``share``, more lanes do not make the loop shorter.
      ratio: ``iterations / share``, 1 where no lane is ever idle; 1 for a cohort without steps.
      bound: what ``ratio`` cannot exceed for this cohort, 1 + (L - 1) max tau_i / sum tau_i (Graham 1966).
    """

    iterations: int
    share: float
    longest: int
    ratio: float
    bound: float


def makespan(steps: Any, num_lanes: int) -> Makespan:
    """The iterations of :func:`fedjax_sim.layout.lanes`: longest client first, each to the first lane that is free.

    This is the rule LPT for identical machines, at most 4/3 - 1/(3L) times as long as the best schedule there is
    (Graham 1969).

    Args:
      steps: tau_i of the cohort, integers [S]; 0 for void slots.
      num_lanes: L; the cohort's size where that is smaller.

    Raises:
      TypeError, ValueError: not integers of at least 0 in one row, or no lanes.

    Example:
      >>> makespan([5, 4, 3, 3, 3], 2)
      Makespan(iterations=10, share=9.0, longest=5, ratio=1.1111111111111112, bound=1.2777777777777777)

    Reference: Graham 1966, "Bounds for certain multiprocessing anomalies"; 1969, "Bounds on multiprocessing timing
    anomalies", SIAM Journal on Applied Mathematics 17(2).
    """
    check_count("makespan(num_lanes)", num_lanes)
    taus = np.asarray(steps)
    if taus.ndim != 1 or not (np.issubdtype(taus.dtype, np.integer) or taus.size == 0):
        raise TypeError(f"makespan(steps) is {shown(steps)}: it must be one row of integers, the steps of each client")
    if taus.size and taus.min() < 0:
        raise ValueError(f"makespan(steps) has the entry {taus.min()}: steps must be at least 0")
    num_lanes = max(min(num_lanes, taus.size), 1)
    ends = [0] * num_lanes
    for tau in sorted(taus.tolist(), reverse=True):
        heapq.heapreplace(ends, ends[0] + tau)
    iterations, total = max(ends), sum(taus.tolist())
    if total == 0:
        return Makespan(0, 0.0, 0, 1.0, 1.0)
    share, longest = total / num_lanes, int(taus.max())
    return Makespan(iterations, share, longest, iterations / share, 1 + (num_lanes - 1) * longest / total)
