"""What the claims of the paper rest on: the level a curve ends at, its unsteadiness, the paper's end of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.run.history import History

K = TypeVar("K")
L = TypeVar("L")
TAIL = 10  # a level is the mean over the last tenth of the evaluations: single rounds of FedAvg jump about


def tail(history: History, metric: str) -> np.ndarray:
    """The mean of a metric, or of a record of every round, over its last tenth, [seeds]."""
    values = np.asarray(history[metric], float)
    means: np.ndarray = values[:, -max(1, values.shape[1] // TAIL) :].mean(axis=1)
    return means


def level(history: History, metric: str) -> float:
    """:func:`tail`, mean of the seeds; the worst for NaN.

    A run that is not finite any more has an infinite loss and variance, and an accuracy of 0.
    """
    mean = float(tail(history, metric).mean())
    worst = 0.0 if metric.endswith("accuracy") else math.inf
    return worst if math.isnan(mean) else mean


def each(runs: Mapping[K, Mapping[L, History]], measure: str | Callable[[History], float]) -> dict[K, dict[L, float]]:
    """A measure of every run; that of a metric is its :func:`level`."""
    of: Any = (lambda history: level(history, measure)) if isinstance(measure, str) else measure
    return {name: {label: of(history) for label, history in group.items()} for name, group in runs.items()}


def first_rounds(history: History, rounds: int) -> History:
    """What the metrics of a run were up to a number of rounds."""
    count = int(np.searchsorted(history.evaluated, rounds, side="right"))
    metrics = {name: values[:, :count] for name, values in history.metrics.items()}
    return dataclasses.replace(history, evaluated=history.evaluated[:count], metrics=metrics)


def unsteadiness(history: History) -> float:
    """The mean rise max(0, F_t - F_s) from an evaluation to the next, over the second half of the run and the seeds.

    0 for a loss that only falls; inf for one that is not finite any more.
    """
    losses = np.asarray(history["loss"], float)
    rises = np.maximum(np.diff(losses[:, losses.shape[1] // 2 - 1 :], axis=1), 0.0)
    return float(rises.mean()) if np.isfinite(rises).all() else math.inf


class End(NamedTuple):
    """Where the paper stops looking at a run (appendix C.3.2)."""

    place: int  # number of the evaluation
    how: str  # "converged", "diverged" or "ran to the end"


def end(evaluated: np.ndarray, losses: np.ndarray) -> End:
    """The first evaluation with |f_t - f_{t-1}| < 1e-4 or f_t - f_{t-10} > 1, else the last; NaN has diverged too."""
    converged, rising = fjs.stopping.converged(1e-4), fjs.stopping.rising(1.0, over=10)
    for place in range(1, len(losses)):
        so_far = evaluated[: place + 1], {"loss": losses[: place + 1]}
        if not np.isfinite(losses[place]) or rising.reason(*so_far) is not None:
            return End(place, "diverged")
        if converged.reason(*so_far) is not None:
            return End(place, "converged")
    return End(len(losses) - 1, "ran to the end")


def ends(history: History) -> list[End]:
    """:func:`end` of every seed."""
    return [end(history.evaluated, np.asarray(losses, float)) for losses in history["loss"]]


def diverged(history: History) -> int:
    """Seeds that diverge by the paper's rule f_t - f_{t-10} > 1, anywhere in the run."""
    rule, at = fjs.stopping.rising(1.0, over=10), history.evaluated

    def rises(losses: np.ndarray) -> bool:
        return any(rule.reason(at[:stop], {"loss": losses[:stop]}) is not None for stop in range(2, len(losses) + 1))

    return sum(not np.isfinite(losses).all() or rises(losses) for losses in np.asarray(history["loss"], float))


def accuracy_by_rule(history: History) -> float:
    """The test accuracy where the paper reads it off, mean over the seeds."""
    accuracies = history["test_accuracy"]
    return float(np.mean([accuracies[seed, found.place] for seed, found in enumerate(ends(history))]))
