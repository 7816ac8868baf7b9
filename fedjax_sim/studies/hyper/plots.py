"""The traces of a tuning; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, plain

if TYPE_CHECKING:
    from fedjax_sim.studies.hyper.tuned import Tuned

_COLUMNS = 3


def traces(tuned: Tuned) -> Any:
    """One panel for the objective and one for every hyper-parameter.

    The restart that found the best value is drawn in colour, the others in grey; a dot marks the best step, crosses at
    the upper edge the rejected ones. An array is drawn as it was at the start and at the best step.

    Args:
      tuned: the result of :func:`fedjax_sim.hyper.tune`.

    Returns:
      The matplotlib figure.

    Raises:
      ImportError: matplotlib is not installed.
    """
    check_matplotlib()

    count = 1 + len(tuned.hyper)
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(3.6 * columns, 2.9 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    objective, *others = axes
    _trace(objective, tuned, tuned.values, "objective")
    for ax, (path, leaf) in zip(others, tuned.hyper.items(), strict=False):
        if leaf.ndim == 2:
            _trace(ax, tuned, leaf, path)
        else:
            _before_and_after(ax, leaf[0, 0].ravel(), leaf[tuned.best].ravel(), path)
    for ax in axes[count:]:
        ax.axis("off")
    return figure


def _trace(ax: Any, tuned: Tuned, lines: np.ndarray, title: str) -> None:
    """[restarts, E] against the steps."""
    best, at = tuned.best
    steps = np.arange(lines.shape[1])
    for restart, (line, accepted) in enumerate(zip(lines, tuned.accepted, strict=True)):
        style = {"color": COLOURS[0], "linewidth": 1.8, "zorder": 3} if restart == best else {"color": "0.75"}
        ax.plot(steps[accepted], line[accepted], **style)
    ax.plot(at, lines[best, at], color=COLOURS[1], marker="o", markersize=5, linestyle="", zorder=4)
    rejected = np.flatnonzero((~tuned.accepted).any(axis=0))
    if rejected.size:
        edge = {"transform": ax.get_xaxis_transform(), "clip_on": False, "linestyle": "", "markersize": 4}
        ax.plot(rejected, np.full(rejected.size, 1.01), marker="x", color="0.3", **edge)
    known = lines[tuned.accepted]
    if known.min() > 0 and known.max() > 5 * known.min():
        ax.set_yscale("log")
    ax.set_title(title, fontsize="medium", pad=9)
    ax.set_xlabel("step")
    plain(ax)


def _before_and_after(ax: Any, start: np.ndarray, best: np.ndarray, title: str) -> None:
    ax.plot(start, color="0.75", linewidth=1.2, label="start")
    ax.plot(best, color=COLOURS[0], linewidth=1.8, label="best")
    ax.set_title(title, fontsize="medium")
    ax.set_xlabel("entry")
    ax.legend(**LEGEND)
    plain(ax)
