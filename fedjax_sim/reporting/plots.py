"""Figures of results; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.figures import FONTS, cut_bands, keep_in_view, plain_numbers, spans_a_decade
from fedjax_sim.reporting.recorded import AXES, Recorded, in_words
from fedjax_sim.reporting.table import half_width

Band = Literal["range", "std", "sem", "ci95"] | None

# Okabe and Ito's palette, which colour-blind readers can tell apart; for its yellow, which nobody sees on white, a wine
# red of Tol's. Eight colours and five dashes have no common divisor: 40 methods before a pair comes again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
LEGEND: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "frameon": False, "handlelength": 2.8}
DIVERGED = "a seed diverged"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_WIDTH = 7.0  # inches, of a figure of one axes
_BANDS: dict[str | None, str] = {  # what line and band are, for a legend
    "range": "mean and range of",
    "std": "mean ± standard deviation of",
    "sem": "mean ± standard error of",
    "ci95": "mean and 95 % interval of",
    None: "mean of",
}


def curves(
    histories: Mapping[str, Recorded],
    metric: str = "loss",
    ax: Any = None,
    *,
    log: bool | None = None,
    against: str = "round",
    band: Band = "range",
) -> Any:
    """Draws a metric against rounds: the mean over seeds as a line, by default their range as a band.

    Against virtual time or bytes each seed is evaluated at places of its own. There a seed's value holds until its next
    evaluation, so the lines are steps: what was known by then. A line ends where the first of its seeds does. A seed
    that was stopped early holds its last value.

    A cross at the upper edge marks the first evaluation at which a seed was NaN or infinite; there the method's line
    ends. All metrics of a seed count as not finite where its training or test loss is not: the accuracy of such a model
    says nothing.

    An axis of losses stops at ten times the start (twice, if it is linear) when a method runs away. A linear one begins
    below the first evaluations where these would take most of its height. Limits that were set before stay.

    Args:
      histories: the methods' records by the name to print.
      metric: its name, or that of a record of every round.
      ax: matplotlib axes to add the lines to; None makes a figure.
      log: whether the metric's axis is logarithmic; None chooses it for positive losses whose means span more than a
        decade.
      against: ``"round"``, ``"virtual_time"`` or ``"bytes"``; the last two are recorded by runs with a ``system=``.
      band: ``"range"``, from the lowest to the highest seed; ``"std"``, the standard deviation of a sample (as
        :func:`results_table` prints) on either side of the mean; ``"sem"``, the standard error of the mean (the former
        over the root of the number of seeds); ``"ci95"``, Student's 95 % interval of the mean, t times the latter; None
        for no band. The legend says which.

    Returns:
      The axes.

    Raises:
      KeyError: a record lacks the metric.
      ValueError: no histories, a metric that is not one number per seed and evaluation, an axis that a run did not
        record, or another ``band``.
    """
    check_matplotlib()
    recorded.check_runs("curves: histories", histories)
    check_band("curves", band)
    below = ax is None and len(histories) > 1
    rows = -(-len(histories) // columns_fitting(map(str, histories), _WIDTH - 0.8))
    ax = axes_or_new(ax, _WIDTH, 4 + 0.2 * rows)
    drawn_before = len(_labelled(ax))
    styles = {name: line_style(drawn_before + index) for index, name in enumerate(histories)}
    draw(ax, histories, metric, styles, log, against, band)
    ax.set_xlabel(AXES[against][1])
    handles = legend_entries(_labelled(ax), [ax])
    place: dict[str, Any] = {"loc": "best"}
    if below:  # the label of the horizontal axis; the distance is in units of the legend's font
        columns = columns_fitting([handle.get_label() for handle in handles], _WIDTH - 0.8)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.5, "ncols": columns}
    ax.legend(handles=handles, title=band_words(histories.values(), band), **LEGEND, **place)
    return ax


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a matplotlib figure atomically, with fonts that venues of papers take.

    Args:
      figure: matplotlib's, or axes in it.
      path: where it goes, as PNG with 150 dots an inch unless the name ends otherwise (``.pdf``, ``.svg``, ``.eps``).
        Fonts in PDF and PostScript are TrueType (42), not Type 3.
    """
    check_matplotlib()
    import matplotlib

    kind = Path(path).suffix[1:] or "png"
    while figure is not figure.figure:  # of axes their figure, of that in a figure the whole
        figure = figure.figure
    with matplotlib.rc_context(FONTS):
        write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150))


def check_matplotlib() -> None:
    """Raises ``ImportError`` with the extra's name where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'fedjax_sim[plot]'") from error


def axes_or_new(ax: Any, width: float, height: float) -> Any:
    """``ax``, or where that is None the axes of a new figure, in inches."""
    check_matplotlib()
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and width of the index-th line; the width is 1.2 times matplotlib's ``lines.linewidth``."""
    import matplotlib

    width = 1.2 * matplotlib.rcParams["lines.linewidth"]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)], "linewidth": width}


def columns_fitting(labels: Iterable[str], width: float) -> int:
    """How many columns a legend in so many inches has, at least 1: as few as the fewest rows need."""
    import matplotlib

    labels = list(labels)
    inches = matplotlib.rcParams["font.size"] / 10 * (0.08 * max(map(len, labels)) + 0.7)
    rows = -(-len(labels) // max(1, int(width / inches)))
    return -(-len(labels) // rows)


def draw(
    ax: Any,
    histories: Mapping[str, Recorded],
    metric: str,
    styles: Mapping[str, Mapping[str, Any]],
    log: bool | None,
    against: str,
    band: Band,
) -> None:
    """The lines, bands and crosses of one axes, and its scale."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    means, extremes, stepped = [], [], against != "round"
    for name, run in histories.items():
        values, stopped = recorded.held(run, metric)
        values = values.astype(float)
        if values.ndim != 2:
            raise ValueError(
                f"{metric!r} of {name!r} has shape {values.shape}: a curve needs one number per seed and evaluation"
            )
        places = np.asarray(recorded.rounds_of(run, metric))
        if stepped:
            try:
                at = recorded.positions(run, metric, against)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from error
            places, values = on_one_axis(at, values, stopped)
        finite = np.asarray(recorded.drawable(values).all(axis=0))
        end = len(finite) if finite.all() else int(np.argmin(finite))
        extremes += [values[:, :end].min(), values[:, :end].max()] if end else []
        means.append(mean_and_band(ax, places[:end], values[:, :end], styles[name], band, stepped=stepped, label=name))
        if end < len(finite):
            cross(ax, places[end], color=styles[name]["color"], markeredgewidth=2, label=f"_{DIVERGED}")
    if log is None:
        log = metric.endswith("loss") and spans_a_decade(np.concatenate(means))
    if log:
        ax.set_yscale("log")
    if metric.endswith("loss"):
        keep_in_view(ax)
    accuracy = metric.endswith("accuracy")
    if extremes:  # a gain may be negative though no seed's is: what its interval says of 0 stays in view
        never = (accuracy or recorded.less_is_better(metric)) and min(extremes) >= 0
        cut_bands(ax, 0.0 if never else None, 1.0 if accuracy and max(extremes) <= 1 else None)
    if log and min(ax.get_ylim()) > 0 and ax.get_ylim()[1] < 1000 * ax.get_ylim()[0]:
        plain_numbers(ax.yaxis, (1.0, 2.0, 5.0))  # beyond three decades powers of ten are easier to read
    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator) and not stepped:
        locator.set_params(integer=True)
    if against == "bytes":
        ax.xaxis.set_major_formatter(EngFormatter(unit="B"))  # 120 MB: a power of ten at the axis' end is overlooked
    plain(ax, ylabel=in_words(metric, histories.values()))


def mean_and_band(
    ax: Any, x: np.ndarray, values: np.ndarray, style: Mapping[str, Any], band: Band, *, stepped: bool, label: str
) -> np.ndarray:
    """Draws the mean over seeds of [seeds, n] and, of several seeds, their band; returns the mean."""
    mean: np.ndarray = values.mean(axis=0)
    ax.plot(x, mean, label=label, drawstyle="steps-post" if stepped else "default", **style)
    if band is not None and len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        if band != "range":
            with np.errstate(over="ignore"):  # squares of what has almost diverged
                deviation = half_width(values.T) if band == "ci95" else values.std(axis=0, ddof=1)
                deviation = deviation / (len(values) ** 0.5 if band == "sem" else 1.0)
            deviation = np.where(np.isfinite(deviation), deviation, 0.0)
            low, high = mean - deviation, mean + deviation
        step = {"step": "post"} if stepped else {}
        ax.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0, **step)
    return mean


def cross(ax: Any, x: Any, *, y: float = 1.0, markersize: float = 7, **style: Any) -> None:
    """Crosses at the upper edge, where something diverged."""
    place = {"transform": ax.get_xaxis_transform(), "clip_on": False}
    ax.plot(x, np.full(np.shape(x), y), linestyle="", marker="x", markersize=markersize, **place, **style)


def on_one_axis(places: np.ndarray, values: np.ndarray, stopped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values [seeds, E, ...] that hold from places [seeds, E] of each seed on, as step functions on one axis.

    That is [P] and the values [seeds, P, ...]: all places at which a seed has a new value, from where all seeds have
    one to where the first of those ends that did not stop (of seeds that all stopped, the last).
    """
    axis, ends = np.unique(places), places[:, -1]
    end = ends.max() if stopped.all() else ends[~stopped].min()
    axis = axis[(axis >= places[:, 0].max()) & (axis <= end)]
    rows = [of[np.searchsorted(at, axis, side="right") - 1] for at, of in zip(places, values, strict=True)]
    return axis, np.stack(rows)


def plain(ax: Any, **given: Any) -> None:
    """No frame above and to the right, a faint grid behind; what is given goes to ``ax.set``."""
    ax.set(**given)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _labelled(ax: Any) -> list[Any]:
    return [line for line in ax.get_lines() if not line.get_label().startswith("_")]


def legend_entries(lines: list[Any], axes: Iterable[Any]) -> list[Any]:
    """The entries of a legend; one for the crosses if there is any."""
    from matplotlib.lines import Line2D

    if any(line.get_label() == f"_{DIVERGED}" for ax in axes for line in ax.get_lines()):
        entry = Line2D([], [], linestyle="", marker="x", color="0.3", markersize=7, markeredgewidth=2, label=DIVERGED)
        return [*lines, entry]
    return lines


def check_band(what: str, band: Band) -> None:
    """Raises ``ValueError`` for another name of a band."""
    if not isinstance(band, (str, type(None))) or band not in _BANDS:
        raise ValueError(f"{what}(band={band!r}): it must be one of {', '.join(map(repr, _BANDS))}")


def band_words(runs: Iterable[Recorded], band: Band = "range") -> str | None:
    """What line and band are, for a legend; None of runs of one seed."""
    counts = {int(next(iter(run.metrics.values())).shape[0]) for run in runs}
    if counts == {1}:
        return None
    return f"{_BANDS[band]} {counts.pop()} seeds" if len(counts) == 1 else f"{_BANDS[band]} the seeds"
