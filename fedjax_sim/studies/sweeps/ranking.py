"""Which point of a sweep is better."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Ranked(NamedTuple):
    """A point and how it did.

    Attributes:
      number: of the point, 0 to P - 1.
      point: the values of the hyper-parameters by name.
      values: float[seeds], the metric at the last evaluation.
      mean: over seeds.
      std: over seeds, of a sample (divided by seeds - 1); 0 for one seed.
    """

    number: int
    point: dict[str, Any]
    values: np.ndarray
    mean: float
    std: float


def means(finals: np.ndarray, diverged: np.ndarray) -> np.ndarray:
    """Means over seeds of the values [P, seeds], NaN where a seed diverged: a point is as good as its worst habit."""
    whole = ~(diverged | ~np.isfinite(finals)).any(axis=1)
    return np.where(whole, np.where(whole[:, None], finals, 0.0).mean(axis=1), np.nan)


def order(point_means: np.ndarray, *, less: bool) -> np.ndarray:
    """The numbers of the points from the best to the worst, those that diverged left out; equal ones in their order."""
    known = np.flatnonzero(np.isfinite(point_means))
    ranked: np.ndarray = known[np.argsort(point_means[known] if less else -point_means[known], kind="stable")]
    return ranked
