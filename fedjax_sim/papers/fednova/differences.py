"""Comparisons of two methods over the seeds that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting.paired import half_width


class Difference(NamedTuple):
    """The mean of the seeds' differences and half of its 95 % interval.

    The half is infinite with one seed, and where a difference is not finite: such seeds support nothing.
    """

    mean: float
    half: float

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 0: the seeds support it."""
        return self.mean - self.half > 0

    @property
    def words(self) -> str:
        """As tables print it: 1.2 ± 0.31."""
        return f"{self.mean:.3g} ± {self.half:.2g}"


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Of a - b, both [seeds]."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        of = np.asarray(a, float) - np.asarray(b, float)
    known = of.size > 1 and np.isfinite(of).all()
    return Difference(float(of.mean()), float(half_width(of)) if known else math.inf)


def means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Of each array."""
    return {name: float(np.mean(of)) for name, of in values.items()}
