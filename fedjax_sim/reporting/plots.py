"""Figures of results; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.atomic import write_atomically
from fedjax_sim.reporting.containers import check_runs
from fedjax_sim.reporting.figures import FONTS
from fedjax_sim.reporting.recorded import AXES, Recorded, drawable, held, in_words, positions, rounds_of
from fedjax_sim.reporting.seed_bands import Band, band_words, check_band, edges
from fedjax_sim.reporting.ticks import plain_numbers
from fedjax_sim.reporting.views import keep_in_view, spans_a_decade

# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow, which nobody sees on white.
# Seven colours and five dashes have no common divisor: 35 methods before a pair comes again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
_DIVERGED = "a seed diverged"
_DPI = 150
_WIDTH = 7.0  # inches, of a figure of one axes


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
        over the root of the number of seeds); None for no band. The legend says which.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      KeyError: a record lacks the metric.
      TypeError: another container than ``{name: history}``.
      ValueError: no histories, a metric that is not one number per seed and evaluation, an axis that a run did not
        record, or another ``band``.
    """
    check_matplotlib()
    check_runs("curves: histories", histories)
    check_band("curves", band)
    own = ax is None
    if own:
        from matplotlib import pyplot

        rows = -(-len(histories) // columns_fitting(map(str, histories), _WIDTH - 0.8))
        _, ax = pyplot.subplots(figsize=(_WIDTH, 4 + 0.2 * rows), layout="constrained")
    drawn_before = len(_labelled(ax))
    styles = {name: line_style(drawn_before + index) for index, name in enumerate(histories)}
    draw(ax, histories, metric, styles, log, against, band)
    ax.set_xlabel(AXES[against][1])
    handles = legend_entries(_labelled(ax), [ax])
    below = own and len(histories) > 1
    ax.legend(
        handles=handles, title=band_words(histories.values(), band), **LEGEND,
        **(_below([handle.get_label() for handle in handles]) if below else {"loc": "best"}),
    )  # fmt: skip
    return ax


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a matplotlib figure atomically, with fonts that venues of papers take.

    Args:
      figure: matplotlib's; of axes it is ``ax.figure``.
      path: where it goes, as PNG with 150 dots an inch unless the name ends otherwise (``.pdf``, ``.svg``, ``.eps``).
        Fonts in PDF and PostScript are TrueType (42), not Type 3.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: a kind of file that matplotlib cannot write.
    """
    check_matplotlib()
    import matplotlib

    kind = Path(path).suffix[1:] or "png"

    def write(file: Any) -> None:
        with matplotlib.rc_context(FONTS):
            figure.savefig(file, format=kind, dpi=_DPI)

    write_atomically(path, write)


LEGEND: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "frameon": False, "handlelength": 2.8}


def check_matplotlib() -> None:
    """Raises ``ImportError`` with the extra's name where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'fedjax_sim[plot]'") from error


def line_style(index: int) -> dict[str, Any]:
    """Colour, dash and width of the index-th line; the width is 1.2 times matplotlib's ``lines.linewidth``."""
    import matplotlib

    width = 1.2 * matplotlib.rcParams["lines.linewidth"]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)], "linewidth": width}


def columns_fitting(labels: Iterable[str], width: float) -> int:
    """How many columns a legend in so many inches may have, at least 1 and at most one for each label."""
    import matplotlib

    labels = list(labels)
    inches = matplotlib.rcParams["font.size"] / 10 * (0.08 * max(map(len, labels)) + 0.7)
    return max(1, min(len(labels), int(width / inches)))


def _below(labels: list[str]) -> dict[str, Any]:
    """A legend below the label of the horizontal axis; its distance is in units of the legend's font."""
    return {
        "loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.5,
        "ncols": columns_fitting(labels, _WIDTH - 0.8),
    }  # fmt: skip


def draw(
    ax: Any,
    histories: Mapping[str, Recorded],
    metric: str,
    styles: Mapping[str, Mapping[str, Any]],
    log: bool | None,
    against: str,
    band: Band = "range",
) -> None:
    """The lines, bands and crosses of one axes, and its scale."""
    from matplotlib.ticker import MaxNLocator

    means = []
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
        finite = np.asarray(drawable(values).all(axis=0))
        end = len(finite) if finite.all() else int(np.argmin(finite))
        kept = values[:, :end]
        mean = kept.mean(axis=0)
        ax.plot(places[:end], mean, label=name, drawstyle="steps-post" if stepped else "default", **styles[name])
        area = edges(kept, band)
        if area is not None:
            look = {"color": styles[name]["color"], "alpha": 0.15, "linewidth": 0}
            look |= {"step": "post"} if stepped else {}
            ax.fill_between(places[:end], *area, **look)
        if end < len(finite):
            cross = {"color": styles[name]["color"], "marker": "x", "markersize": 7, "markeredgewidth": 2}
            ax.plot(places[end], 1.0, transform=ax.get_xaxis_transform(), clip_on=False, label=f"_{_DIVERGED}", **cross)
        means.append(mean)
    if log is None:
        log = metric.endswith("loss") and spans_a_decade(np.concatenate(means))
    if log:
        ax.set_yscale("log")
    if metric.endswith("loss"):
        keep_in_view(ax)
    if log and min(ax.get_ylim()) > 0 and ax.get_ylim()[1] < 1000 * ax.get_ylim()[0]:
        plain_numbers(ax.yaxis, (1.0, 2.0, 5.0))  # beyond three decades powers of ten are easier to read
    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator) and against == "round":
        locator.set_params(integer=True)
    ax.set_ylabel(in_words(metric, histories.values()))
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
