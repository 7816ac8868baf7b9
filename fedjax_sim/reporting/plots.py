"""Figures of results; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.reporting.files import write_atomically
from fedjax_sim.reporting.recorded import AXES, Recorded, held, in_words, positions, rounds_of
from fedjax_sim.reporting.ticks import plain_numbers

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow, which nobody sees on white.
# Seven colours and five dashes have no common divisor: 35 methods before a pair comes again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_DIVERGED = "a seed diverged"
_DPI = 150


def curves(
    histories: Mapping[str, Recorded],
    metric: str = "loss",
    ax: Any = None,
    *,
    log: bool | None = None,
    against: str = "round",
) -> Any:
    """Draws a metric against rounds: the mean over seeds as a line, their range (minimum to maximum) as a band.

    Against virtual time or bytes each seed is evaluated at places of its own. There a seed's value holds until its next
    evaluation, so the lines are steps: what was known by then. A line ends where the first of its seeds does. A seed
    that was stopped early holds its last value.

    A cross at the upper edge marks the first evaluation at which a seed was NaN or infinite; there the method's line
    ends. An axis of losses stops at ten times the start (twice, if it is linear) when a method runs away.

    Args:
      histories: the methods' records by the name to print.
      metric: its name, or that of a record of every round.
      ax: matplotlib axes to add the lines to; None makes a figure.
      log: whether the metric's axis is logarithmic; None chooses it for positive losses whose means span more than a
        decade.
      against: ``"round"``, ``"virtual_time"`` or ``"bytes"``; the last two are recorded by runs with a ``system=``.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      KeyError: a record lacks the metric.
      ValueError: no histories, a metric that is not one number per seed and evaluation, or an axis that a run did not
        record.
    """
    check_matplotlib()
    if not histories:
        raise ValueError("curves: no histories were given; it takes {name: history}")
    own = ax is None
    if own:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(7, 4), layout="constrained")
    drawn_before = len(_labelled(ax))
    styles = {name: line_style(drawn_before + index) for index, name in enumerate(histories)}
    draw(ax, histories, metric, styles, log, against)
    ax.set_xlabel(AXES[against][1])
    beside = own and len(histories) > 1
    place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)} if beside else {"loc": "best"}
    ax.legend(handles=legend_entries(_labelled(ax), [ax]), title=band_words(histories.values()), **LEGEND, **place)
    return ax


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a matplotlib figure atomically at 150 dots an inch, as PNG unless the name ends otherwise."""
    kind = Path(path).suffix[1:] or "png"
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=_DPI))


LEGEND: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "frameon": False, "handlelength": 2.8}


def check_matplotlib() -> None:
    """Raises ``ImportError`` with the extra's name where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'fedjax_sim[plot]'") from error


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and width of the index-th line."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)], "linewidth": 1.8}


def draw(
    ax: Any,
    histories: Mapping[str, Recorded],
    metric: str,
    styles: Mapping[str, Mapping[str, Any]],
    log: bool | None,
    against: str,
) -> None:
    """The lines, bands and crosses of one axes, and its scale."""
    from matplotlib.ticker import MaxNLocator

    means, kept_values = [], []
    for name, run in histories.items():
        values, stopped = held(run, metric)
        if values.ndim != 2:
            raise ValueError(
                f"{metric!r} of {name!r} has shape {values.shape}: a curve needs one number per seed and evaluation"
            )
        stepped = against != "round"
        if stepped:
            try:
                at = positions(run, metric, against)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from error
            places, values = on_one_axis(at, values, stopped)
        else:
            places = np.asarray(rounds_of(run, metric))
        finite = np.isfinite(values).all(axis=0)
        end = len(finite) if finite.all() else int(np.argmin(finite))
        kept = values[:, :end]
        mean = kept.mean(axis=0)
        ax.plot(places[:end], mean, label=name, drawstyle="steps-post" if stepped else "default", **styles[name])
        if len(kept) > 1:
            band = {"color": styles[name]["color"], "alpha": 0.15, "linewidth": 0}
            band |= {"step": "post"} if stepped else {}
            ax.fill_between(places[:end], kept.min(axis=0), kept.max(axis=0), **band)
        if end < len(finite):
            cross = {"color": styles[name]["color"], "marker": "x", "markersize": 7, "markeredgewidth": 2}
            ax.plot(places[end], 1.0, transform=ax.get_xaxis_transform(), clip_on=False, label=f"_{_DIVERGED}", **cross)
        means.append(mean)
        kept_values.append(kept.ravel())
    if log is None:
        log = metric.endswith("loss") and _spans_a_decade(np.concatenate(means))
    if log:
        ax.set_yscale("log")
    if metric.endswith("loss"):
        _keep_in_view(ax, np.concatenate(kept_values), np.array([mean[0] for mean in means if mean.size]), log)
    if log and min(ax.get_ylim()) > 0 and ax.get_ylim()[1] < 1000 * ax.get_ylim()[0]:
        plain_numbers(ax.yaxis, (1.0, 2.0, 5.0))  # beyond three decades powers of ten are easier to read
    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator) and against == "round":
        locator.set_params(integer=True)
    ax.set_ylabel(in_words(metric))
    plain(ax)


def on_one_axis(places: np.ndarray, values: np.ndarray, stopped: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of several seeds, each recorded at places of its own, as step functions on one axis.

    Args:
      places: [seeds, E], not decreasing along the second axis.
      values: [seeds, E]; each holds from its place to the next one.
      stopped: bool[seeds], whose last value holds for ever.

    Returns:
      ``(axis, values)``, [P] and [seeds, P]: all places at which a seed has a new value, from where all seeds have one
      to where the first of those ends that did not stop (of seeds that all stopped, the last).
    """
    axis, ends = np.unique(places), places[:, -1]
    end = ends.max() if stopped.all() else ends[~stopped].min()
    axis = axis[(axis >= places[:, 0].max()) & (axis <= end)]
    rows = [of[np.searchsorted(at, axis, side="right") - 1] for at, of in zip(places, values, strict=True)]
    return axis, np.stack(rows)


def _spans_a_decade(values: np.ndarray) -> bool:
    return values.size > 0 and bool(values.min() > 0 and values.max() > 10 * values.min())


def _keep_in_view(ax: Any, values: np.ndarray, starts: np.ndarray, log: bool) -> None:
    """Where a loss runs away, the axis stops a little above the start, and the other lines can still be read."""
    start = np.abs(starts).max(initial=0.0)
    if start == 0 or values.max() <= 100 * start:
        return
    if log:
        ax.set_ylim(values[values > 0].min() / 1.5, 10 * start)
    else:
        ax.set_ylim(values.min() - 0.1 * start, 2 * start)


def plain(ax: Any) -> None:
    """No frame above and to the right, a faint grid behind."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def _labelled(ax: Any) -> list[Any]:
    return [line for line in ax.get_lines() if not line.get_label().startswith("_")]


def legend_entries(lines: list[Any], axes: Iterable[Any]) -> list[Any]:
    """The entries of a legend; one for the crosses if there is any."""
    from matplotlib.lines import Line2D

    if any(line.get_label() == f"_{_DIVERGED}" for ax in axes for line in ax.get_lines()):
        cross = Line2D([], [], linestyle="", marker="x", color="0.3", markersize=7, markeredgewidth=2, label=_DIVERGED)
        return [*lines, cross]
    return lines


def band_words(runs: Iterable[Recorded]) -> str | None:
    """What the band is; None without one."""
    counts = {int(next(iter(run.metrics.values())).shape[0]) for run in runs}
    if counts == {1}:
        return None
    return f"mean and range of {counts.pop()} seeds" if len(counts) == 1 else "mean and range of the seeds"
