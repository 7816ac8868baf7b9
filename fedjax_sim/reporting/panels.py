"""Figures of several panels with one legend; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_sim.reporting import plots
from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.plots import LEGEND, Band
from fedjax_sim.reporting.recorded import AXES, Recorded, check_problems, check_rows, loss_of_data

_PANEL, _NARROW = (3.3, 2.6), (2.5, 2.1)  # inches; of three columns and more, whose text would be too small in print


class Panel(NamedTuple):
    """One panel of a figure.

    Attributes:
      runs: the methods' records by the name to print.
      metric: what is drawn: the name of a metric, or of a record of every round.
      title: above the panel; "" for none.
      log: whether the vertical axis is logarithmic; None as in :func:`curves`.
      label: of the vertical axis; None for the metric's name in words.
      limits: (bottom, top) of the vertical axis, None for an end that is chosen; None chooses both, as :func:`curves`.
    """

    runs: Mapping[str, Recorded]
    metric: str = "loss"
    title: str = ""
    log: bool | None = None
    label: str | None = None
    limits: tuple[float | None, float | None] | None = None


def panels(
    rows: Sequence[Sequence[Panel | None]],
    *,
    against: str = "round",
    band: Band = "range",
    size: tuple[float, float] | None = None,
) -> Any:
    """One figure of many panels, in which a method has one colour and dash; below, one legend.

    A label that the panel to the left has too is not repeated. See :func:`curves` for how lines are drawn.

    Args:
      rows: panels from top to bottom, each row from left to right; None leaves a place empty.
      against: ``"round"``, ``"virtual_time"`` or ``"bytes"``, for all panels.
      band: as in :func:`curves`.
      size: (width, height) of the whole figure in inches; None takes 3.3 by 2.6 for each panel (three columns
        or more: 2.5 by 2.1) and room for the legend.

    Returns:
      The matplotlib figure.
    """
    plots.check_matplotlib()
    from matplotlib.lines import Line2D

    check_rows(rows, Panel)
    plots.check_band("panels", band)
    all_panels = [panel for row in rows for panel in row if panel is not None]
    methods = list(dict.fromkeys(itertools.chain.from_iterable(panel.runs for panel in all_panels)))
    styles = {name: plots.line_style(index) for index, name in enumerate(methods)}
    columns = len(rows[0])
    wide, high = _PANEL if columns <= 2 else _NARROW
    width, height = size or (max(wide * columns + 0.6, 4.5), high * len(rows) + 0.5)
    figure = new_figure(width, height)
    axes = figure.subplots(len(rows), columns, sharex="col", squeeze=False)
    for row, places in zip(rows, axes, strict=True):
        for panel, ax in zip(row, places, strict=True):
            if panel is None:
                ax.axis("off")
                continue
            plots.draw(ax, panel.runs, panel.metric, styles, panel.log, against, band)
            if panel.limits is not None:
                ax.set_ylim(*panel.limits)
            if panel.label is not None:
                ax.set_ylabel(panel.label)
            if panel.title:
                ax.set_title(textwrap.fill(panel.title, max(12, int(11 * width / columns))), fontsize="medium")
        for left, right in reversed(list(itertools.pairwise(places))):
            if left.get_ylabel() == right.get_ylabel():
                right.set_ylabel("")
    for number, row in enumerate(rows):  # the lowest panel of each column names the axis
        for column, panel in enumerate(row):
            if panel is not None and all(below[column] is None for below in rows[number + 1 :]):
                axes[number][column].set_xlabel(AXES[against][1])
                axes[number][column].tick_params(labelbottom=True)
    handles = plots.legend_entries([Line2D([], [], label=name, **style) for name, style in styles.items()], axes.flat)
    fitting = plots.columns_fitting([handle.get_label() for handle in handles], width)
    title = plots.band_words((run for panel in all_panels for run in panel.runs.values()), band)
    figure.legend(handles=handles, loc="outside lower center", ncols=fitting, title=title, **LEGEND)
    return figure


def comparison(
    problems: Mapping[str, Mapping[str, Recorded]],
    path: str | os.PathLike[str],
    *,
    against: str = "round",
    band: Band = "range",
    size: tuple[float, float] | None = None,
) -> Any:
    """One figure of methods on problems: a column per problem, the training loss above the test accuracy.

    The loss is without the penalty where tasks have one, and its axis says so. Where a problem has no test accuracy the
    training accuracy is drawn; the lower row is left out if no problem has either. See :func:`panels`.

    Args:
      problems: the methods' records by the problem's and the method's name.
      path: where the figure goes (atomically), as PNG unless the name ends otherwise (``.pdf``, ``.svg``).
      against: ``"round"``, ``"virtual_time"`` or ``"bytes"``, for all columns.
      band: as in :func:`curves`.
      size: (width, height) of the whole figure in inches, as :func:`panels`.

    Returns:
      The matplotlib figure.
    """
    plots.check_matplotlib()
    check_problems(problems)
    above = [Panel(runs, loss_of_data(runs.values()), problem) for problem, runs in problems.items()]
    below = [_accuracies(runs) for runs in problems.values()]
    figure = panels([above, below] if any(below) else [above], against=against, band=band, size=size)
    plots.save_figure(figure, path)
    return figure


def _accuracies(runs: Mapping[str, Recorded]) -> Panel | None:
    """The panel of the test accuracy, else of the training accuracy, of those runs that have it."""
    for accuracy in ("test_accuracy", "accuracy"):
        recorded = {name: run for name, run in runs.items() if accuracy in run.metrics}
        if recorded:
            return Panel(recorded, accuracy)
    return None
