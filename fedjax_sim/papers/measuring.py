"""What claims of all papers are measured by: where a curve ends, how steady it is, differences over the same seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.papers.bench import Why
from fedjax_sim.reporting.recorded import measured
from fedjax_sim.reporting.table import half_width
from fedjax_sim.run.history import History

TAIL = 10  # a level is the mean over the last tenth of the evaluations: single rounds of FedAvg jump about


class Difference(NamedTuple):
    """The mean of the seeds' differences, and what the seeds say of it."""

    mean: float
    half: float  # of Student's 95 % interval; NaN with one seed, and where a difference is not finite
    above: bool  # the whole interval is above 0; with one seed the difference is, else all are where one is not finite

    @property
    def words(self) -> str:
        """As tables print it: 1.2 ± 0.31."""
        return f"{self.mean:.3g}" + (f" ± {self.half:.2g}" if math.isfinite(self.half) else "")

    @property
    def numbers(self) -> list[float]:
        """Mean and half, for the numbers of a claim."""
        return [self.mean, self.half]


class Order(NamedTuple):
    """Whether one method is below another, seed by seed."""

    held: bool
    why: Why  # should it not: seeds too few to tell, or the other way round
    numbers: dict[str, Any]


def tail(history: History, metric: str) -> np.ndarray:
    """The mean of a metric, or of a record of every round, over its last tenth, [seeds]; NaN of what diverged there."""
    values = np.asarray(measured(history, metric), float)
    return np.asarray(values[:, -max(1, values.shape[1] // TAIL) :].mean(axis=1))


def levels(history: History, metric: str) -> np.ndarray:
    """:func:`tail`, the worst for NaN, [seeds].

    A run that is not finite any more has an infinite loss and variance, and an accuracy of 0.
    """
    return _of_diverged(tail(history, metric), metric)


def finals(history: History, metric: str) -> np.ndarray:
    """A metric at the end, the worst for NaN as in :func:`levels`, [seeds]."""
    return _of_diverged(np.asarray(measured(history, metric), float)[:, -1], metric)


def _of_diverged(values: np.ndarray, metric: str) -> np.ndarray:
    return np.where(np.isnan(values), 0.0 if metric.endswith("accuracy") else math.inf, values)


def mean(values: np.ndarray) -> float:
    """Of the seeds, as a plain number."""
    return float(values.mean())


def rises(history: History) -> np.ndarray:
    """The mean rise max(0, F_t - F_s) from an evaluation to the next, over the second half of the run, [seeds].

    0 for a loss that only falls; inf for one that is not finite any more.
    """
    losses = np.asarray(history["loss"], float)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        rises = np.maximum(np.diff(losses[:, losses.shape[1] // 2 - 1 :], axis=1), 0.0)
    return np.where(np.isfinite(rises).all(axis=1), rises.mean(axis=1), math.inf)


def areas(history: History) -> np.ndarray:
    """The mean training loss of all evaluations, [seeds], what is lower converged faster; inf where a run diverged."""
    losses = np.asarray(history["loss"], float)
    return np.asarray(np.where(np.isfinite(losses), losses, np.inf).mean(axis=1))


def with_spread(values: np.ndarray, decimals: int) -> str:
    """The mean ± standard deviation over seeds, of a sample; 0 of one seed."""
    return f"{values.mean():.{decimals}f} ± {values.std(ddof=min(values.size - 1, 1)):.{decimals}f}"


def largest(errors: Iterable[float]) -> float:
    """The largest of errors, NaN where one is: Python's ``max`` passes over it, and the claim would hold."""
    return float(np.max([*errors]))


def difference(a: np.ndarray, b: np.ndarray | float = 0.0) -> Difference:
    """Of a - b, by seed."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        of = np.asarray(a, float) - np.asarray(b, float)
        mean = float(of.mean())
    if of.size == 1 or not np.isfinite(of).all():
        return Difference(mean, math.nan, bool((of > 0).all()))
    half = float(half_width(of))
    return Difference(mean, half, mean > half)


def reason(why: Why, *found: Difference, needed: int | None = None) -> Why:
    """Why a claim that ``needed`` of the differences, or all, are above 0 does not hold.

    ``why`` where so many are below 0 by what the seeds tell that too few remain; else the seeds are too few.
    """
    spared = len(found) - (len(found) if needed is None else needed)
    below = [one.mean < -(one.half if math.isfinite(one.half) else 0.0) for one in found]
    return why if sum(below) > spared else "few seeds"


def below(lower: np.ndarray, upper: np.ndarray, why: Why = "unexplained") -> Order:
    """Whether ``lower`` is below ``upper`` by the interval of their difference; ``why`` it is not, where seeds tell.

    A seed of ``upper`` that is infinite (a target not reached, a run that diverged) is above a finite one.
    """
    found = difference(upper, lower)
    told = found.above or difference(lower, upper).above or not np.isfinite(lower).all()
    numbers = [-found.mean, found.half]
    return Order(found.above, why if told else "few seeds", {"difference, mean and half of its 95 % interval": numbers})


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The correlation of two lists' ranks; NaN where one has all equal."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]  # of scipy, which jax brings

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
