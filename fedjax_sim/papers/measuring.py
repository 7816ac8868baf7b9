"""What claims of several papers are measured by."""

from __future__ import annotations

import math

import numpy as np


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The correlation of two lists' ranks; NaN where one has all equal."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]  # of scipy, which jax brings

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
