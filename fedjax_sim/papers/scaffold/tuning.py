"""Rounds to a target accuracy, each method with the best local step size of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.bench import Bench, rounds_in_words

METRIC = "test_accuracy"


class Tuned(NamedTuple):
    """The best step size, and what came of it.

    Attributes:
      rate: the step size; the one that came nearest where the target was not reached.
      rounds: to the target, by seed; inf where it was not reached.
      limit: the most rounds.
    """

    rate: float
    rounds: np.ndarray
    limit: int

    @property
    def mean(self) -> float:
        """Over the seeds; inf if one did not reach the target."""
        return float(np.mean(self.rounds))

    @property
    def words(self) -> str:
        """As the paper prints it: "77", or "400+"."""
        return rounds_in_words(self.mean, self.limit)


def at_most(a: float, b: float, limit: int, factor: float = 1.0, *, strict: bool = False) -> bool | None:
    """Whether a <= factor b, as far as runs of ``limit`` rounds can tell; None where they cannot.

    Args:
      a: rounds to a target; inf for more than ``limit``.
      b: the same of another run.
      limit: the most rounds of both.
      factor: at least 1.
      strict: whether a < factor b.
    """
    if math.isinf(b):
        return None if math.isinf(a) else True
    if math.isinf(a):
        return False if limit >= factor * b else None
    return a < factor * b if strict else a <= factor * b


def less(a: float, b: float, limit: int, factor: float = 1.0) -> bool | None:
    """:func:`at_most`, strictly."""
    return at_most(a, b, limit, factor, strict=True)


def every(answers: Iterable[bool | None]) -> bool | None:
    """Whether all are true: False if one is not, None if that is open or there are none."""
    given = list(answers)
    if False in given:
        return False
    return True if given and None not in given else None


def rounds_to(accuracies: np.ndarray, target: float, over: int) -> np.ndarray:
    """The first round at which the mean of the last ``over`` accuracies is at least the target; inf for never.

    Args:
      accuracies: [seeds, R + 1], after every round and before the first, which is not counted.
      target: the accuracy.
      over: how many are averaged.
    """
    if accuracies.shape[1] <= over:
        return np.full(len(accuracies), np.inf)
    sums = np.cumsum(accuracies.astype(float), axis=1)
    means = (sums[:, over:] - sums[:, :-over]) / over  # of rounds t - over + 1 .. t, t = over .. R
    there = means >= target - 1e-6  # 0.45 in single precision is less than 0.45
    return np.where(there.any(axis=1), there.argmax(axis=1) + over, np.inf)


def tuned(
    bench: Bench,
    label: str,
    method: Callable[[float], Method],
    data: fjs.FederatedDataset,
    *,
    target: float,
    limit: int,
    rates: Sequence[float],
    over: int = 1,
    **setting: Any,
) -> tuple[Tuned, Tuned]:
    """The fewest rounds to a test accuracy, over local step sizes.

    They are tried from the largest to the smallest, until a smaller one is no better. Runs stop at the target if it is
    that of a single round, and a step size is given up after as many rounds as the slowest seed needed with the best
    one before it.

    Args:
      bench: what runs it.
      label: of the runs.
      method: the method of a step size.
      data: whose data.
      target: the test accuracy.
      limit: the most rounds.
      rates: the grid.
      over: rounds whose mean accuracy must reach the target.
      **setting: keywords of ``simulate``.

    Returns:
      The best for the first round at the target, and for the mean of ``over`` rounds.
    """
    best: dict[int, Tuned] = {}
    stop = {"stop": fjs.stopping.reached(METRIC, target)} if over == 1 else {}
    nearest = dict.fromkeys((1, over), -1.0)
    for rate in sorted(rates, reverse=True):
        known = best.get(over)
        history = bench.simulate(
            f"{label}, rate={rate:g}", method(rate), data, eval_every=1, **stop, **setting,
            rounds=limit if known is None or np.isinf(known.mean) else int(known.rounds.max()),
        )  # fmt: skip
        accuracies = history[METRIC]
        improved = False
        for window in dict.fromkeys((1, over)):
            found = Tuned(rate, rounds_to(accuracies, target, window), limit)
            before, height = best.get(window), float(accuracies.max(axis=1).mean())
            if before is None or found.mean < before.mean or (np.isinf(before.mean) and height > nearest[window]):
                best[window], nearest[window], improved = found, height, True
        if not improved and np.isfinite(best[over].mean):
            break
    return best[1], best[over]
