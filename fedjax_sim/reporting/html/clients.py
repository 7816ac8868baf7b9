"""How what was evaluated of every client is spread over the clients, at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting.recorded import Recorded, drawable, measured, recorded_as

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the table of quantiles
_MOST_POINTS = 300


class Spread(NamedTuple):
    """The values of one metric at the last evaluation, one for each client (and seed).

    Attributes:
      values: float[M], those that are finite in rising order, of all seeds together.
      clients: entries of a seed.
      missing: how many values of all seeds are not finite: clients without examples, models that diverged.
    """

    values: np.ndarray
    clients: int
    missing: int

    def quantiles(self) -> np.ndarray:
        """Float[6], at :data:`LEVELS`; NaN if no value is finite."""
        if not self.values.size:
            return np.full(len(LEVELS), np.nan)
        found: np.ndarray = np.quantile(self.values, LEVELS)
        return found

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """``(x, share)``: from each x on at least that share of the values is at most x."""
        x, counts = np.unique(self.values, return_counts=True)
        share = np.cumsum(counts) / max(self.values.size, 1)
        if len(x) > _MOST_POINTS:
            kept = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int))
            x, share = x[kept], share[kept]
        return x, share


def entries_of(name: str) -> str:
    """What the values of a metric belong to, in words."""
    return "clients" if "client" in name else "entries"


def spreads(histories: Mapping[str, Recorded]) -> dict[str, dict[str, Spread]]:
    """By metric and run; metrics of which some run has several values at once, [seeds, E, N]."""
    found: dict[str, dict[str, Spread]] = {}
    names = list(dict.fromkeys(name for run in histories.values() for name in run.metrics))
    for run_name, run in histories.items():
        for name in names:
            array = np.asarray(run.metrics.get(recorded_as(run, name)))
            if array.ndim == 3 and array.size:
                last = measured(run, name)[:, -1].astype(float)
                finite = drawable(last)
                spread = Spread(np.sort(last[finite]), last.shape[1], int((~finite).sum()))
                found.setdefault(name, {})[run_name] = spread
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith("test_"), item[0])))
