"""Did all train the same model, and how do their times compare."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.speed.peers.contract import Peer
from benchmarks.speed.workloads import Weights, Workload


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the final weights of one peer say.

    Attributes:
      loss: mean cross-entropy, by the harness.
      distance: norm of the difference from the reference, over the norm of what the reference moved by; the reference
        is the peer that is nearest to the others (the median of its distances is the smallest).
      error: why no time may be reported; None if the peer agrees.
    """

    loss: float
    distance: float
    error: str | None


def check(work: Workload, weights: Mapping[str, Weights], peers: Mapping[str, Peer]) -> dict[str, Finding]:
    """Compares final weights. Whoever trained alone is not compared; if all differ, nobody is right.

    Raises:
      ValueError: weights whose shapes are not those of the workload's start.
    """
    start = flat(work.start)
    ends = {name: flat(one) for name, one in weights.items()}
    for name, end in ends.items():
        if end.shape != start.shape:
            raise ValueError(f"{peers[name].title} returned {end.size} numbers, the model has {start.size}")
    losses = {name: work.loss(one) for name, one in weights.items()}
    reference = min(ends, key=lambda name: _remoteness(name, ends))
    moved = float(np.linalg.norm(ends[reference] - start))
    if not moved > 0:  # also if it is not a number
        return {name: Finding(losses[name], float("nan"), "the model did not move") for name in ends}
    changed, tolerance = abs(losses[reference] - work.loss(work.start)), work.tolerance()
    findings = {}
    for name, end in ends.items():
        distance = float(np.linalg.norm(end - ends[reference])) / moved
        error = None
        if not abs(losses[name] - losses[reference]) <= tolerance.loss * changed:
            error = f"final loss {losses[name]:.6f}, {peers[reference].title} has {losses[reference]:.6f}"
        elif not distance <= tolerance.distance:
            error = f"final weights differ from {peers[reference].title}'s by {distance:.2g} of the way"
        findings[name] = Finding(losses[name], distance, error)
    if len(ends) > 1 and sum(finding.error is None for finding in findings.values()) < 2:
        findings = {
            name: dataclasses.replace(finding, error=finding.error or "no other peer agrees")
            for name, finding in findings.items()
        }
    return findings


def flat(weights: Weights) -> np.ndarray:
    """All numbers of a model, in float64."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for pair in weights for leaf in pair])


def _remoteness(name: str, ends: Mapping[str, np.ndarray]) -> float:
    """The middle one of its distances to the others; infinitely far from what is not a number."""
    distances = [float(np.linalg.norm(ends[name] - end)) for other, end in ends.items() if other != name]
    return statistics.median_low([d if np.isfinite(d) else float("inf") for d in distances] or [0.0])


@dataclasses.dataclass(frozen=True)
class Row:
    """One peer on one workload: medians over the repeats.

    Attributes:
      ratio: median over the repeats of its seconds per round over those of ours; None where ours was not run.
      error: why there are no numbers.
    """

    name: str
    title: str
    framework: bool
    round_ms: float | None
    ratio: float | None
    set_up_s: float | None
    peak_mb: float | None
    loss: float | None
    distance: float | None
    error: str | None


def rows(report: Mapping[str, Any], workload: str) -> list[Row]:
    """The rows of one workload, in the order in which the peers were run."""
    measured = report["workloads"][workload]["peers"]
    ours = measured.get("ours")
    found = []
    for name, one in measured.items():
        about = report["peers"][name]
        if one["error"] is not None:
            found.append(Row(name, about["title"], about["framework"], *[None] * 6, one["error"]))
            continue
        runs = one["runs"]
        ratio = None
        if ours is not None and ours["error"] is None:
            pairs = zip(runs, ours["runs"], strict=True)
            ratio = statistics.median(run["round_s"] / reference["round_s"] for run, reference in pairs)
        middle = {key: statistics.median(run[key] for run in runs) for key in ("round_s", "set_up_s", "peak_mb")}
        found.append(
            Row(
                name, about["title"], about["framework"], 1e3 * middle["round_s"], ratio, middle["set_up_s"],
                middle["peak_mb"], one["loss"], one["distance"], None,
            )
        )  # fmt: skip
    return found


def best_framework(found: list[Row]) -> Row | None:
    """The fastest federated framework among these rows."""
    timed = [row for row in found if row.framework and row.round_ms is not None]
    return min(timed, key=lambda row: row.round_ms or 0.0, default=None)
