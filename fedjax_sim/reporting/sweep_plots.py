"""Figures of sweeps, a metric over hyper-parameters; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, plain
from fedjax_sim.reporting.ticks import leading_digits, plain_numbers

_NUMBERED_CELLS = 150  # cells up to which the heat map prints its numbers
_TICKS = 12


class Axis(NamedTuple):
    """A hyper-parameter along an axis.

    Attributes:
      name: as it is printed.
      values: float[n].
    """

    name: str
    values: np.ndarray


def heat_map(
    table: np.ndarray,
    x: Axis,
    y: Axis,
    *,
    label: str,
    less_is_better: bool,
    others: list[str] | None = None,
    ax: Any = None,
) -> Any:
    """Draws a table of means: dark is good, crossed-out cells diverged, the best cell has a frame.

    Cells are equally wide whatever the distances of the values, since grids are seldom even. Colours are logarithmic
    where positive losses span more than a decade; losses that ran away, beyond ten times the median, share the last
    colour. Numbers are written into the cells where there are few.

    Args:
      table: float[len(y), len(x)], NaN where the point diverged.
      x: along the horizontal axis, from left to right in rising order.
      y: along the vertical axis, from below.
      label: what the numbers are.
      less_is_better: which end of the colours is good.
      others: hyper-parameters whose best values were taken.
      ax: matplotlib axes to draw on; None makes a figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm, Normalize

    across, up = np.argsort(x.values, kind="stable"), np.argsort(y.values, kind="stable")
    shown = np.asarray(table, float)[np.ix_(up, across)]
    if ax is None:
        numbered = shown.size <= _NUMBERED_CELLS
        width = np.clip((0.62 if numbered else 0.25) * shown.shape[1] + 2.2, 4.2, 12)
        height = np.clip((0.42 if numbered else 0.25) * shown.shape[0] + 1.4, 2.8, 9)
        _, ax = pyplot.subplots(figsize=(float(width), float(height)), layout="constrained")
    known = shown[np.isfinite(shown)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    ran_away = less_is_better and low > 0 and high > 10 * float(np.median(known))
    high = 10 * float(np.median(known)) if ran_away else high
    logarithmic = less_is_better and low > 0 and high > 10 * low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high if high > low else low + 1e-12)
    image = ax.imshow(
        np.ma.masked_invalid(shown), origin="lower", aspect="auto", norm=norm, interpolation="nearest",
        cmap="viridis" if less_is_better else "viridis_r",
    )  # fmt: skip
    _cross_out(ax, np.argwhere(~np.isfinite(shown)), crosses=shown.size <= _NUMBERED_CELLS)
    _number_axis(ax.xaxis, x.values[across])
    _number_axis(ax.yaxis, y.values[up])
    if known.size:
        place = int(np.nanargmin(shown) if less_is_better else np.nanargmax(shown))
        _frame(ax, *np.unravel_index(place, shown.shape))
    if shown.size <= _NUMBERED_CELLS:
        _write_numbers(ax, shown, image)
    ax.set_xlabel(x.name)
    ax.set_ylabel(y.name)
    if others:
        ax.set_title(f"best over {', '.join(others)}", fontsize="medium", loc="right")
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02, extend="max" if ran_away else "neither")
    if logarithmic:
        plain_numbers(bar.ax.yaxis, leading_digits(high / low))
    return ax


def line(
    x: Axis, lines: np.ndarray, *, label: str, others: list[str] | None = None, ax: Any = None
) -> Any:  # fmt: skip
    """Draws a metric's mean over seeds against a hyper-parameter, the range of the seeds as a band.

    A cross at the upper edge marks values at which a seed diverged.

    Args:
      x: the hyper-parameter.
      lines: float[len(x), seeds], NaN where the point diverged.
      label: what the numbers are.
      others: hyper-parameters whose best values were taken.
      ax: matplotlib axes to draw on; None makes a figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    order = np.argsort(x.values, kind="stable")
    values, lines = x.values[order], np.asarray(lines, float)[order]
    ax = _axes(ax)
    _scale(ax.xaxis, values)
    finite = np.isfinite(lines).all(axis=1)
    if lines.shape[1] > 1:
        ax.fill_between(
            values, np.where(finite, lines.min(axis=1), np.nan), np.where(finite, lines.max(axis=1), np.nan),
            color=COLOURS[0], alpha=0.15, linewidth=0, label=f"range of {lines.shape[1]} seeds",
        )  # fmt: skip
    means = np.where(finite, lines.mean(axis=1), np.nan)
    ax.plot(values, means, color=COLOURS[0], marker="o", markersize=4, label="mean")
    _finish(ax, x, label, values[~finite], legend=False)
    if lines.shape[1] > 1 or not finite.all():
        _legend_above_the_curves(ax)
    if others:
        ax.set_title(f"best over {', '.join(others)}", fontsize="medium")
    return ax


def scatter(x: Axis, means: np.ndarray, *, label: str, less_is_better: bool, ax: Any = None) -> Any:
    """Draws a dot for each point of a list; the best one is marked, crosses at the upper edge diverged.

    Args:
      x: a hyper-parameter.
      means: float[len(x)], NaN where the point diverged.
      label: what the numbers are.
      less_is_better: which point is marked.
      ax: matplotlib axes to draw on; None makes a figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
    """
    check_matplotlib()
    ax = _axes(ax)
    _scale(ax.xaxis, x.values)
    finite = np.isfinite(means)
    ax.plot(x.values[finite], means[finite], linestyle="", marker="o", markersize=5, color=COLOURS[0], alpha=0.7)
    if finite.any():
        best = int(np.nanargmin(means) if less_is_better else np.nanargmax(means))
        ax.plot(
            x.values[best], means[best], linestyle="", marker="o", markersize=9, markerfacecolor="none",
            markeredgecolor=COLOURS[1], markeredgewidth=2, label="best",
        )  # fmt: skip
    _finish(ax, x, label, x.values[~finite], legend=True)
    return ax


def _axes(ax: Any) -> Any:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(6, 3.6), layout="constrained")[1] if ax is None else ax


def _scale(axis: Any, values: np.ndarray) -> None:
    """A logarithmic axis for positive values that span more than a decade; with a zero, linear below the smallest."""
    positive = values[values > 0]
    if not positive.size or positive.max() <= 10 * positive.min() or values.min() < 0:
        return
    scale = {"symlog": {"linthresh": float(positive.min()), "linscale": 0.5}, "log": {}}
    kind = "log" if values.min() > 0 else "symlog"
    getattr(axis.axes, f"set_{axis.axis_name}scale")(kind, **scale[kind])


def _finish(ax: Any, x: Axis, label: str, diverged: np.ndarray, *, legend: bool) -> None:
    if ax.get_yscale() == "linear":
        shown = np.concatenate([np.ravel(drawn.get_ydata()) for drawn in ax.get_lines()])
        shown = shown[np.isfinite(shown)].astype(float)
        if shown.size and shown.min() > 0 and shown.max() > 10 * shown.min():
            ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            low, high = sorted(axis.get_view_interval())
            plain_numbers(axis, leading_digits(high / low))
    for number, value in enumerate(diverged):
        ax.plot(
            value, 1.0, transform=ax.get_xaxis_transform(), clip_on=False, linestyle="", marker="x", color="0.45",
            markersize=7, markeredgewidth=1.5, label="a seed diverged" if number == 0 else "_",
        )  # fmt: skip
    ax.set_xlabel(x.name)
    ax.set_ylabel(label)
    if legend:
        ax.legend(loc="best", **LEGEND)
    plain(ax)


def _legend_above_the_curves(ax: Any) -> None:
    """A legend of one row, with room for it: a band may fill the axes so that no place within is free."""
    low, high = ax.get_ylim()
    room = 0.15
    ax.set_ylim(low, high * (high / low) ** room if ax.get_yscale() == "log" else high + room * (high - low))
    ax.legend(loc="upper left", ncols=3, columnspacing=1.2, **LEGEND)


def _number_axis(axis: Any, values: np.ndarray) -> None:
    """The values as labels of equally wide cells; every second, third ... where there are many."""
    step = -(-len(values) // _TICKS)
    places = range(0, len(values), step)
    axis.set_ticks(places, [f"{values[place]:.3g}" for place in places])


def _cross_out(ax: Any, places: np.ndarray, *, crosses: bool) -> None:
    """Grey where a seed diverged, which is no colour of the scale, with crosses where there is room for them."""
    from matplotlib.lines import Line2D

    ax.set_facecolor("0.9")
    mark: dict[str, Any] = {"linestyle": "", "marker": "x", "color": "0.45", "markersize": 7, "markeredgewidth": 1.5}
    if crosses:
        for row, column in places:
            ax.plot(column, row, **mark)
    else:
        mark = {"linestyle": "", "marker": "s", "color": "0.8", "markersize": 8}
    if len(places):
        handle = Line2D([], [], label="a seed diverged", **mark)
        ax.legend(handles=[handle], loc="lower left", bbox_to_anchor=(0.0, 1.0), borderpad=0.1, **LEGEND)


def _frame(ax: Any, row: Any, column: Any) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.5, zorder=3))


def _write_numbers(ax: Any, shown: np.ndarray, image: Any) -> None:
    known = np.abs(shown[np.isfinite(shown)])
    wide = known.size > 0 and (known.max() >= 100 or known.min() < 0.001)
    for (row, column), value in np.ndenumerate(shown):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            plain_digits = f"{value:.3g}" if 0.001 <= abs(value) < 1000 else f"{value:.0e}".replace("e+", "e")
            text = plain_digits if wide else f"{value:.3f}"
            ax.text(column, row, text, ha="center", va="center", color="white" if dark else "black", fontsize="x-small")
