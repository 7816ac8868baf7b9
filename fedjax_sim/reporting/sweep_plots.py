"""Figures of a metric over hyper-parameters, of sweeps and phase diagrams; they need the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.reporting.figures import leading_digits, plain_numbers, spans_a_decade, write_cells
from fedjax_sim.reporting.plots import COLOURS, DIVERGED, LEGEND, axes_or_new, cross, plain
from fedjax_sim.reporting.recorded import in_words

_NUMBERED_CELLS = 150  # cells up to which the heat map prints its numbers
_TICKS = 12
_GREY = "0.82"
_HATCH = "/////"
_COLUMN = (3.5, 3.3)  # inches, of one column of a page


class Axis(NamedTuple):
    """A hyper-parameter along an axis: its printed name and its values, float[n]."""

    name: str
    values: np.ndarray


def heat_map(
    table: np.ndarray, x: Axis, y: Axis, *, label: str, less_is_better: bool, others: Sequence[str] = (), ax: Any = None
) -> Any:
    """Draws a table of means: dark is good, crossed-out cells diverged, the best cell has a frame.

    Cells are equally wide whatever the distances of the values, since grids are seldom even. Colours are logarithmic
    where positive losses span more than a decade; losses that ran away, beyond ten times the median, share the last
    colour. ``table`` is float[len(y), len(x)], NaN where the point diverged; of ``others`` the best values were taken.
    """
    across, up = np.argsort(x.values, kind="stable"), np.argsort(y.values, kind="stable")
    shown = np.asarray(table, float)[np.ix_(up, across)]
    numbered = shown.size <= _NUMBERED_CELLS
    width = np.clip((0.62 if numbered else 0.25) * shown.shape[1] + 2.2, 4.2, 12)
    height = np.clip((0.42 if numbered else 0.25) * shown.shape[0] + 1.4, 2.8, 9)
    ax = axes_or_new(ax, float(width), float(height))
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    known = shown[np.isfinite(shown)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    ran_away = less_is_better and low > 0 and high > 10 * float(np.median(known))
    high = 10 * float(np.median(known)) if ran_away else high
    logarithmic = less_is_better and low > 0 and high > 10 * low
    norm = LogNorm(low, high) if logarithmic else Normalize(low, high if high > low else low + 1e-12)
    colours = "viridis" if less_is_better else "viridis_r"
    look: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    image = ax.imshow(np.ma.masked_invalid(shown), norm=norm, cmap=colours, **look)
    _cross_out(ax, np.argwhere(~np.isfinite(shown)), crosses=numbered)
    for axis, values in ((ax.xaxis, x.values[across]), (ax.yaxis, y.values[up])):
        places = range(0, len(values), -(-len(values) // _TICKS))
        axis.set_ticks(places, [f"{values[place]:.3g}" for place in places])
    if known.size:
        best = np.nanargmin(shown) if less_is_better else np.nanargmax(shown)
        row, column = np.unravel_index(int(best), shown.shape)
        corner = (float(column) - 0.5, float(row) - 0.5)
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.5, zorder=3))
    if numbered:
        sizes = np.abs(known)
        wide = known.size > 0 and (sizes.max() >= 100 or sizes.min() < 0.001)
        write_cells(ax, shown, image, _short if wide else "{:.3f}".format)
    ax.set(xlabel=x.name, ylabel=y.name)
    if others:
        ax.set_title(f"best over {', '.join(others)}", fontsize="medium", loc="right")
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02, extend="max" if ran_away else "neither")
    if logarithmic:
        plain_numbers(bar.ax.yaxis, leading_digits(high / low))
    return ax


def line(x: Axis, lines: np.ndarray, *, label: str, others: Sequence[str] = (), ax: Any = None) -> Any:
    """Draws a metric's mean over seeds against a hyper-parameter, the range of the seeds as a band.

    A cross at the upper edge marks values at which a seed diverged: NaN in ``lines``, float[len(x), seeds].
    """
    order = np.argsort(x.values, kind="stable")
    values, lines = x.values[order], np.asarray(lines, float)[order]
    ax = axes_or_new(ax, 6, 3.6)
    _scale(ax.xaxis, values)
    finite = np.isfinite(lines).all(axis=1)
    low, high, means = (
        np.where(finite, edge, np.nan) for edge in (lines.min(axis=1), lines.max(axis=1), lines.mean(axis=1))
    )
    if lines.shape[1] > 1:
        said = f"range of {lines.shape[1]} seeds"
        ax.fill_between(values, low, high, color=COLOURS[0], alpha=0.15, linewidth=0, label=said)
    ax.plot(values, means, color=COLOURS[0], marker="o", markersize=4, label="mean")
    _finish(ax, x, label, values[~finite])
    if lines.shape[1] > 1 or not finite.all():
        # One row, with room for it: a band may fill the axes so that no place within is free.
        bottom, top = ax.get_ylim()
        log = ax.get_yscale() == "log"
        ax.set_ylim(bottom, top * (top / bottom) ** 0.15 if log else top + 0.15 * (top - bottom))
        ax.legend(loc="upper left", ncols=3, columnspacing=1.2, **LEGEND)
    if others:
        ax.set_title(f"best over {', '.join(others)}", fontsize="medium")
    return ax


def scatter(x: Axis, means: np.ndarray, *, label: str, less_is_better: bool, ax: Any = None) -> Any:
    """Draws a dot for each point of a list; the best one is marked, crosses at the upper edge diverged (NaN)."""
    ax = axes_or_new(ax, 6, 3.6)
    _scale(ax.xaxis, x.values)
    finite = np.isfinite(means)
    dots: dict[str, Any] = {"linestyle": "", "marker": "o"}
    ax.plot(x.values[finite], means[finite], markersize=5, color=COLOURS[0], alpha=0.7, **dots)
    if finite.any():
        best = int(np.nanargmin(means) if less_is_better else np.nanargmax(means))
        ring = dots | {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": COLOURS[1], "markeredgewidth": 2}
        ax.plot(x.values[best], means[best], label="best", **ring)
    _finish(ax, x, label, x.values[~finite])
    ax.legend(loc="best", **LEGEND)
    return ax


def _scale(axis: Any, values: np.ndarray) -> None:
    """A logarithmic axis for positive values that span more than a decade; with a zero, linear below the smallest."""
    positive = values[values > 0]
    if not spans_a_decade(positive) or values.min() < 0:
        return
    set_scale = getattr(axis.axes, f"set_{axis.axis_name}scale")
    if values.min() > 0:
        set_scale("log")
    else:
        set_scale("symlog", linthresh=float(positive.min()), linscale=0.5)


def _finish(ax: Any, x: Axis, label: str, diverged: np.ndarray) -> None:
    """Scale, ticks and labels, and a cross for each value that diverged."""
    if ax.get_yscale() == "linear":
        shown = np.concatenate([np.ravel(drawn.get_ydata()) for drawn in ax.get_lines()])
        if spans_a_decade(shown[np.isfinite(shown)].astype(float)):
            ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            low, high = sorted(axis.get_view_interval())
            plain_numbers(axis, leading_digits(high / low))
    for number, value in enumerate(diverged):
        cross(ax, value, color="0.45", markeredgewidth=1.5, label="_" if number else DIVERGED)
    plain(ax, xlabel=x.name, ylabel=label)


def _cross_out(ax: Any, places: np.ndarray, *, crosses: bool) -> None:
    """Grey where a seed diverged, which is no colour of the scale, with crosses where there is room for them."""
    from matplotlib.lines import Line2D

    ax.set_facecolor("0.9")
    mark: dict[str, Any] = {"linestyle": "", "marker": "x", "color": "0.45", "markersize": 7, "markeredgewidth": 1.5}
    if not crosses:
        mark = {"linestyle": "", "marker": "s", "color": "0.8", "markersize": 8}
    for row, column in places if crosses else ():
        ax.plot(column, row, **mark)
    if len(places):
        handle = Line2D([], [], label=DIVERGED, **mark)
        ax.legend(handles=[handle], loc="lower left", bbox_to_anchor=(0.0, 1.0), borderpad=0.1, **LEGEND)


def _short(value: float) -> str:
    return f"{value:.3g}" if 0.001 <= abs(value) < 1000 else f"{value:.0e}".replace("e+", "e")


def phase_map(diagram: Any, what: str, winner: np.ndarray | None, ax: Any) -> Any:
    """Draws winners, a difference or a method's mean; the horizontal axis is the first of the arrays' axes."""
    ax = axes_or_new(ax, *_COLUMN)
    from matplotlib.colors import CenteredNorm, ListedColormap, LogNorm
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    edges = [_edges(ax, which, values) for which, values in (("x", diagram.x), ("y", diagram.y))]
    blank, names = ~diagram.computed, list(diagram.methods)
    handles: list[Any] = []
    look: dict[str, Any] = {"rasterized": True, "linewidth": 0}
    means = np.where(blank[..., None], np.nan, diagram.values.mean(axis=3))
    if what == "winner":
        assert winner is not None
        table, colours = np.ma.array(winner + 1, mask=blank), [_GREY, *COLOURS[: len(names)]]
        ax.pcolormesh(
            *edges, table.T, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, alpha=0.85, **look
        )
        handles = [Patch(facecolor=COLOURS[m], alpha=0.85, label=f"{name} better") for m, name in enumerate(names)]
    else:
        drawn = means[..., 0] - means[..., 1] if what == "difference" else means[..., names.index(what)]
        known = drawn[np.isfinite(drawn)]
        norm: Any = CenteredNorm() if what == "difference" else LogNorm() if spans_a_decade(known) else None
        colour = "PuOr" if what == "difference" else "viridis"
        image = ax.pcolormesh(*edges, np.ma.masked_invalid(drawn).T, cmap=colour, norm=norm, **look)
        label = in_words(diagram.metric) + (f", {names[0]} − {names[1]}" if what == "difference" else f" of {what}")
        ax.figure.colorbar(image, ax=ax, label=label, pad=0.02)
    if winner is not None:
        even = np.ma.array(np.ones(winner.shape), mask=(winner != -1) | diagram.diverged.any(axis=2))
        if even.count():
            hatched = ax.pcolor(*edges, even.T, hatch=_HATCH, facecolor="none", edgecolor="0.55", linewidth=0, alpha=0)
            hatched.set(alpha=None, facecolor="none")
            face = _GREY if what == "winner" else "none"
            handles.append(Patch(facecolor=face, edgecolor="0.55", hatch=_HATCH, label="not significant"))
    if len(names) == 2 and what != names[0] and min(diagram.computed.shape) > 1:
        gap = np.ma.masked_invalid(means[..., 0] - means[..., 1])
        if gap.count() and gap.min() < 0 < gap.max():
            ax.contour(diagram.x, diagram.y, gap.T, levels=[0.0], colors="black", linewidths=1.0)
            handles.append(Line2D([], [], color="black", linewidth=1.0, label="equal means"))
    bad = np.argwhere(diagram.diverged.any(axis=2))
    if len(bad):
        mark: dict[str, Any] = {"linestyle": "", "marker": "x", "color": "0.2", "markersize": 3, "clip_on": False}
        ax.plot(diagram.x[bad[:, 0]], diagram.y[bad[:, 1]], **mark)
        handles.append(Line2D([], [], label=DIVERGED, **mark))
    if blank.any():
        handles.append(Patch(facecolor="white", edgecolor="0.7", label="not computed"))
    ax.set(xlabel=diagram.x_name, ylabel=diagram.y_name)
    if handles:
        ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, **LEGEND)
    return ax


def _edges(ax: Any, which: str, values: np.ndarray) -> np.ndarray:
    """Borders half-way between the values, of a logarithmic axis in the logarithm; the outer cells end at theirs."""
    log = spans_a_decade(values)
    inner = np.log(values) if log else values.astype(float)
    ends = inner[[0, -1]] if len(inner) > 1 else inner[0] + np.array([-0.5, 0.5])
    found: np.ndarray = np.concatenate([ends[:1], (inner[1:] + inner[:-1]) / 2, ends[1:]])
    if not log:
        return found
    getattr(ax, f"set_{which}scale")("log")
    plain_numbers(getattr(ax, f"{which}axis"), leading_digits(float(values.max() / values.min())))
    found = np.exp(found)
    return found
