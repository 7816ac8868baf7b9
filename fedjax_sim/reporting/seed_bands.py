"""What the band around a mean over seeds is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from fedjax_sim.reporting.recorded import Recorded

Band = Literal["range", "std", "sem"] | None


class _Kind(NamedTuple):
    """A kind of band.

    Attributes:
      edges: from values [seeds, n] to the lower and the upper edge, [n].
      words: what the line and the band are.
    """

    edges: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    words: str


def _about_the_mean(values: np.ndarray, over: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean minus and plus the standard deviation of a sample (divided by seeds - 1) over ``over``."""
    with np.errstate(over="ignore"):  # squares of what has almost diverged
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) / over
    deviation = np.where(np.isfinite(deviation), deviation, 0.0)
    return mean - deviation, mean + deviation


_KINDS: dict[str | None, _Kind] = {
    "range": _Kind(lambda values: (values.min(axis=0), values.max(axis=0)), "mean and range of"),
    "std": _Kind(lambda values: _about_the_mean(values, 1.0), "mean ± standard deviation of"),
    "sem": _Kind(lambda values: _about_the_mean(values, len(values) ** 0.5), "mean ± standard error of"),
    None: _Kind(lambda values: (values.mean(axis=0),) * 2, "mean of"),
}


def check_band(what: str, band: Band) -> None:
    """Checks the name of a band.

    Raises:
      ValueError: another one.
    """
    if not isinstance(band, (str, type(None))) or band not in _KINDS:
        known = ", ".join(map(repr, _KINDS))
        raise ValueError(f"{what}(band={band!r}): it must be one of {known}")


def edges(values: np.ndarray, band: Band) -> tuple[np.ndarray, np.ndarray] | None:
    """The lower and the upper edge of the band of [seeds, n]; None where there is none."""
    return None if band is None or len(values) < 2 else _KINDS[band].edges(values)


def band_words(runs: Iterable[Recorded], band: Band = "range") -> str | None:
    """What line and band are, for a legend; None of runs of one seed."""
    counts = {int(next(iter(run.metrics.values())).shape[0]) for run in runs}
    if counts == {1}:
        return None
    return f"{_KINDS[band].words} {counts.pop()} seeds" if len(counts) == 1 else f"{_KINDS[band].words} the seeds"
