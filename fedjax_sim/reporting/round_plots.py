"""Figures of what is recorded of every round: bands of quantiles and heat maps of matrices; they need matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, plain
from fedjax_sim.reporting.recorded import Recorded, in_words, rounds_of


def bands(run: Recorded, name: str, *, seed: int = 0, ax: Any = None) -> Any:
    """Draws quantiles against rounds: the middle one as a line, each pair around it as a band.

    Args:
      run: a record.
      name: of quantiles in rising order, [seeds, R, Q].
      seed: the position of the seed to draw.
      ax: matplotlib axes to draw on; None makes a figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: the record has another shape.
      IndexError: no such seed.
    """
    check_matplotlib()
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    values = np.asarray(run[name], dtype=float)
    if values.ndim != 3:
        raise ValueError(f"bands: {name!r} has shape {values.shape}: it takes quantiles of every round, [seeds, R, Q]")
    levels = _of_seed(values, name, seed).T
    rounds, pairs = rounds_of(run, name), len(levels) // 2
    if ax is None:
        _, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
    words = [f"levels {i + 1} to {len(levels) - i}" for i in range(pairs)]
    if len(levels) == 5:
        words = ["range", "middle half"]
    for i in range(pairs):
        shade = 0.12 + 0.2 * i / max(pairs - 1, 1)
        ax.fill_between(rounds, levels[i], levels[-1 - i], color=COLOURS[0], alpha=shade, linewidth=0, label=words[i])
    if len(levels) % 2:
        ax.plot(rounds, levels[pairs], color=COLOURS[0], linewidth=1.8, label="median")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("rounds")
    ax.set_ylabel(in_words(name))
    ax.legend(loc="best", **LEGEND)
    plain(ax)
    return ax


def heat_map(run: Recorded, name: str, *, round: int | None = None, seed: int = 0, ax: Any = None) -> Any:
    """Draws the matrix of one round; cosines (all within -1 and 1) on a fixed scale with white at 0.

    Args:
      run: a record.
      name: of matrices, [seeds, R, S, S].
      round: the round to draw, 1 to R; None for the last.
      seed: the position of the seed to draw.
      ax: matplotlib axes to draw on; None makes a figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: the record has another shape.
      IndexError: no such round or seed.
    """
    check_matplotlib()
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    values = np.asarray(run[name], dtype=float)
    if values.ndim != 4:
        raise ValueError(f"heat_map: {name!r} has shape {values.shape}: it takes a matrix of every round")
    count = values.shape[1]
    at = count if round is None else round
    if not 1 <= at <= count:
        raise IndexError(f"heat_map(round={round}): rounds are 1 to {count}")
    matrix = _of_seed(values, name, seed)[at - 1]
    if ax is None:
        _, ax = pyplot.subplots(figsize=(5.2, 4.4), layout="constrained")
    largest = float(np.nanmax(np.abs(matrix), initial=0.0))
    limit = 1.0 if largest <= 1.001 else largest
    image = ax.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("client of the cohort")
    ax.set_ylabel("client of the cohort")
    ax.set_title(f"round {at}", fontsize="medium")
    ax.figure.colorbar(image, ax=ax, label=in_words(name.removesuffix("_matrix")))
    return ax


def _of_seed(values: np.ndarray, name: str, seed: int) -> np.ndarray:
    if not 0 <= seed < len(values):
        raise IndexError(f"{name!r} has the seeds at positions 0 to {len(values) - 1}, not {seed}")
    one: np.ndarray = values[seed]
    return one
