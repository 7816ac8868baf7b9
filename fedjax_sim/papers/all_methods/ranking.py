"""Ranks of methods on problems, Friedman's test and Nemenyi's critical difference (Demsar 2006, JMLR 7:1-30)."""

from __future__ import annotations

import math

import numpy as np

_DRAWS = 20_000


def ranks(values: np.ndarray, *, less: bool) -> np.ndarray:
    """1 for the best; equal values share the mean of their ranks, and NaN are the worst, all equal.

    Args:
      values: [k], one a method.
      less: whether less is better.
    """
    bad = np.where(np.isnan(values), np.inf, values if less else -values)
    smaller = (bad[None, :] < bad[:, None]).sum(axis=1)
    equal = (bad[None, :] == bad[:, None]).sum(axis=1)
    found: np.ndarray = smaller + (equal + 1) / 2
    return found


def friedman(table: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Friedman's statistic of ranks [N problems, k methods], and the chance of one as large if all methods were alike.

    The chance is that of random orders within each problem, by 20,000 draws: the chi-square approximation wants more
    problems than we have.

    Returns:
      ``(W, p)``: Kendall's W = chi-square / (N (k - 1)), 0 for no agreement of the problems and 1 for one order on all.
    """
    table = np.asarray(table, float)
    blocks, count = table.shape

    def spread(sums: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.square(sums - blocks * (count + 1) / 2).sum(axis=-1)
        return found

    rng = np.random.default_rng(seed)
    sums = sum(rng.permuted(np.broadcast_to(row, (_DRAWS, count)), axis=1) for row in table)
    observed = float(spread(table.sum(axis=0)))
    larger = int((spread(np.asarray(sums)) >= observed - 1e-9).sum())
    most = blocks**2 * count * (count**2 - 1) / 12
    return observed / most, (larger + 1) / (_DRAWS + 1)


def critical_difference(count: int, blocks: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks of two of ``count`` methods over ``blocks`` problems that differ by more are not alike."""
    return nemenyi(count, level) * math.sqrt(count * (count + 1) / (6 * blocks))


def nemenyi(count: int, level: float = 0.05) -> float:
    """q of ``count`` methods: the upper point of the range of so many standard normal numbers, over sqrt(2)."""
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _range_below(middle, count) < 1 - level else (low, middle)
    return low / math.sqrt(2)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The correlation of two lists' ranks; NaN where one has all equal."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    a, b = (ranks(np.asarray(values, float), less=True) for values in (first, second))
    return float(np.corrcoef(a, b)[0, 1])


def cliques(mean_ranks: np.ndarray, difference: float) -> list[tuple[float, float]]:
    """The longest runs of methods, in the order of their mean ranks, that differ by no more than the difference.

    Returns:
      (first, last) mean rank of each run of two or more methods that no other run contains.
    """
    ordered = np.sort(mean_ranks)
    ends = np.searchsorted(ordered, ordered + difference, side="right") - 1
    found: list[tuple[float, float]] = []
    reached = -1
    for start, end in enumerate(ends):
        if end > reached and end > start:
            found.append((float(ordered[start]), float(ordered[end])))
        reached = max(reached, int(end))
    return found


def _range_below(width: float, count: int) -> float:
    """P(range of ``count`` standard normal numbers <= width) = k int phi(z) (Phi(z) - Phi(z - width))^(k - 1) dz."""
    z = np.linspace(-8.0, 8.0 + width, 801)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    heights = count * density * (_normal(z) - _normal(z - width)) ** (count - 1)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(z)).sum())


def _normal(z: np.ndarray) -> np.ndarray:
    return np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in z])
