"""What the claims of the paper rest on: measures of many runs, pairs, the end of a run by the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Claim, Why
from fedjax_sim.papers.measuring import below, levels
from fedjax_sim.reporting.recorded import measured
from fedjax_sim.run.history import History

K = TypeVar("K")
L = TypeVar("L")
Pairs = Mapping[str, tuple[np.ndarray, np.ndarray]]  # by case: what should be less and what more, both [seeds]
LAST = "measured by the last tenth of the rounds"
STEADY = "steadier: a smaller mean rise of the loss from an evaluation to the next, over the second half of the run"


def whole(history: History, metric: str) -> np.ndarray:
    """The mean of a loss, or of a record of every round, over the run, [seeds]; inf for NaN, as of :func:`levels`."""
    means: np.ndarray = np.asarray(history[metric], float).mean(axis=1)
    return np.where(np.isnan(means), np.inf, means)


def each(runs: Mapping[K, Mapping[L, History]], measure: str | Callable[[History], Any]) -> dict[K, dict[L, Any]]:
    """A measure of every run; that of a metric is its :func:`levels`, [seeds]."""
    of: Any = (lambda history: levels(history, measure)) if isinstance(measure, str) else measure
    return {name: {label: of(history) for label, history in group.items()} for name, group in runs.items()}


def lower(
    statement: str,
    pairs: Pairs,
    order: str,
    *,
    most: bool = False,
    can: bool = False,
    why: Why = "unexplained",
    **about: Any,
) -> Claim:
    """A claim that in each pair the first is below the second, in the mean of the seeds.

    It holds if that is so in every case, and in more than half of them by a difference whose 95 % interval leaves out
    0. With ``most``, for what the paper says of most cases, if it is so in more than half; with ``can``, for what it
    says that can happen, if a 95 % interval says so of one. Where there is no pair it cannot be told.

    Args:
      statement: the claim's.
      pairs: what it is about.
      order: the first and the second in words, for the numbers.
      most: see above.
      can: likewise.
      why: the reason if seeds tell in some case that it is the other way round; else seeds are too few.
      **about: further fields of the claim.
    """
    found = {case: below(first, second, "fragile") for case, (first, second) in pairs.items()}
    right = [bool(first.mean() < second.mean()) for first, second in pairs.values()]
    told = [of.held for of in found.values()]
    against = sum(not held and of.why == "fragile" for held, of in zip(right, found.values(), strict=True))
    half = len(right) / 2
    held = any(told) if can else sum(right) > half if most else all(right) and sum(told) > half
    numbers = {
        "cases": f"{sum(right)} of {len(right)}",
        "told by a 95 % interval": sum(told),
        **({"the other way by one": against} if can else {}),
        f"{order}; difference, half of its 95 % interval": {
            case: [float(first.mean()), float(second.mean()), *np.atleast_1d(*found[case].numbers.values()).tolist()]
            for case, (first, second) in pairs.items()
        },
    }
    return Claim(statement, held if pairs else None, numbers, why=why if against or most else "few seeds", **about)


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


def accuracy_by_rule(history: History) -> np.ndarray:
    """The test accuracy where the paper reads it off, [seeds]; 0 where there is no finite model any more."""
    values = measured(history, "test_accuracy")
    found = np.array([of[at.place] for of, at in zip(values, ends(history), strict=True)])
    return np.where(np.isnan(found), 0.0, found)
