"""Rounds to a target drawn: a panel for each similarity, the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_sim.papers.scaffold.images import METHODS
from fedjax_sim.papers.scaffold.tuning import Tuned
from fedjax_sim.reporting.figures import new_figure, plain_numbers
from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, plain

_PAPERS_LIMIT = 1000


def rounds_figure(
    found: Mapping[tuple[str, int, float], Tuned],
    paper: Mapping[tuple[str, int, float], float],
    similarities: Sequence[float],
    numbers: Sequence[int],
    what: str,
    limit: int,
) -> Any:
    """Rounds against epochs or clients sampled, ours filled and solid, the paper's hollow and dashed.

    What did not reach the target is a triangle at the most rounds that were allowed. SGD, which has no epochs, is a
    horizontal line.

    Args:
      found: ours by method, number and similarity.
      paper: the paper's.
      similarities: in per cent, a panel each.
      numbers: of the horizontal axis.
      what: the axis.
      limit: the most rounds of ours.
    """
    check_matplotlib()
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(key[0] for key in found))
    colours = dict(zip(METHODS, COLOURS, strict=False))  # the same in all tables
    figure = new_figure(3.4 * len(similarities) + 0.6, 3.9)
    axes = figure.subplots(1, len(similarities), sharey=True, squeeze=False)[0]
    places = {number: place for place, number in enumerate(numbers)}
    for ax, similarity in zip(axes, similarities, strict=True):
        for method in methods:
            ours = {
                number: found[method, number, similarity].mean
                for number in numbers
                if (method, number, similarity) in found
            }
            theirs = {
                number: paper[method, number, similarity] for number in numbers if (method, number, similarity) in paper
            }
            _line(ax, places, ours, limit, colours[method], filled=True, everywhere=method == "SGD")
            _line(ax, places, theirs, _PAPERS_LIMIT, colours[method], filled=False, everywhere=method == "SGD")
        ax.set_yscale("log")
        ax.set_xticks(list(places.values()), [str(number) for number in numbers])
        ax.set_title(f"{similarity:g} % similarity", fontsize="medium")
        ax.set_xlabel(what)
        plain(ax)
    plain_numbers(axes[0].yaxis, (1.0, 2.0, 5.0))
    axes[0].set_ylabel("rounds to the target accuracy")
    handles = [Line2D([], [], color=colours[method], label=method, linewidth=1.8) for method in methods]
    grey: dict[str, Any] = {"color": "0.3", "marker": "o", "markersize": 5}
    handles += [
        Line2D([], [], label="here", **grey),
        Line2D([], [], label="paper", linestyle="--", markerfacecolor="white", **grey),
        Line2D([], [], label="target not reached", linestyle="", color="0.3", marker="^", markersize=6),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), **LEGEND)
    return figure


def _line(
    ax: Any, places: Mapping[int, int], values: Mapping[int, float], limit: int, colour: str, *, filled: bool,
    everywhere: bool,
) -> None:  # fmt: skip
    style = {"color": colour, "linewidth": 1.8 if filled else 1.2, "linestyle": "-" if filled else "--"}
    face = colour if filled else "white"
    if everywhere and values:
        ax.axhline(min(next(iter(values.values())), limit), **style)
        return
    drawn = {places[number]: min(value, limit) for number, value in values.items()}
    ax.plot(list(drawn), list(drawn.values()), **style)
    for number, value in values.items():
        marker = "^" if math.isinf(value) else "o"
        ax.plot(places[number], min(value, limit), marker=marker, markersize=6, color=colour, markerfacecolor=face)
