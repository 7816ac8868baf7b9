"""Rounds to a target accuracy, each method with the best local step size of a grid, and their figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.bench import Bench, rounds_in_words
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.measuring import difference
from fedjax_sim.papers.scaffold.images import METHODS
from fedjax_sim.reporting.figures import plain_numbers
from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain
from fedjax_sim.reporting.recorded import first_reached, measured

METRIC = "test_accuracy"
_PAPERS_LIMIT = 1000


class Tuned(NamedTuple):
    """The best step size, and what came of it."""

    rate: float  # the step size; the one that came nearest where the target was not reached
    rounds: np.ndarray  # to the target, by seed; inf where it was not reached
    limit: int  # the most rounds

    @property
    def mean(self) -> float:
        """Over the seeds; inf if one did not reach the target."""
        return float(np.mean(self.rounds))

    @property
    def least(self) -> float:
        """The least that the mean can be: a seed that did not reach the target needs more rounds than there were."""
        return float(np.mean(np.minimum(self.rounds, self.limit + 1)))

    @property
    def words(self) -> str:
        """As the paper prints it: "77", or "400+"."""
        return rounds_in_words(self.mean, self.limit)


def at_most(a: Tuned, b: Tuned, factor: float = 1.0, *, strict: bool = False) -> bool | None:
    """Whether a <= factor b in the mean over the seeds, as far as the rounds that were run can tell; else None."""
    if (a.mean < factor * b.least) if strict else (a.mean <= factor * b.least):
        return True
    return False if (a.least >= factor * b.mean if strict else a.least > factor * b.mean) else None


def less(a: Tuned, b: Tuned, factor: float = 1.0) -> bool | None:
    """:func:`at_most`, strictly."""
    return at_most(a, b, factor, strict=True)


def every(answers: Iterable[bool | None]) -> bool | None:
    """Whether all are true: False if one is not, None if that is open or there are none."""
    given = list(answers)
    if False in given:
        return False
    return True if given and None not in given else None


def some(answers: Iterable[bool | None]) -> bool | None:
    """Whether at least one is true; None if none is and some are open."""
    given = list(answers)
    return True if True in given else None if None in given else False


def ahead(a: Tuned, b: Tuned) -> list[float]:
    """By how many rounds ``a`` is ahead of ``b`` in the mean, and half of its 95 % interval over the seeds.

    NaN where a seed did not reach the target, the second also of one seed.
    """
    if not np.isfinite([a.mean, b.mean]).all():
        return [math.nan, math.nan]
    return difference(b.rounds, a.rounds).numbers


def tuned(
    bench: Bench,
    label: str,
    method: Callable[[float], Method],
    data: fjs.FederatedDataset,
    *,
    target: float,
    limit: int,
    rates: Sequence[float],
    **setting: Any,
) -> Tuned:
    """The fewest rounds to a test accuracy, over local step sizes.

    They are tried from the largest to the smallest, until a smaller one is no better. Runs stop at the target or where
    the model is not finite any more, and a step size is given up after as many rounds as the slowest seed needed with
    the best one before it.
    """
    best, nearest = None, -1.0
    for rate in sorted(rates, reverse=True):
        history = bench.simulate(
            f"{label}, rate={rate:g}", method(rate), data, eval_every=1, evaluate_train=False,
            stop=fjs.stopping.reached(METRIC, target), on_divergence="stop", divergence_factor=None, **setting,
            rounds=limit if best is None or np.isinf(best.mean) else int(best.rounds.max()),
        )  # fmt: skip
        accuracies = measured(history, METRIC)
        height = float(np.nanmax(accuracies, axis=1).mean())
        trained = accuracies[:, 1:]  # the model before the first round is not counted
        rounds = first_reached(trained, np.arange(1, accuracies.shape[1]), target, falling=False)
        found = Tuned(rate, rounds, limit)
        if best is None or found.mean < best.mean or (np.isinf(best.mean) and height > nearest):
            best, nearest = found, height
        elif np.isfinite(best.mean):
            break
    assert best is not None  # there is a rate
    return best


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
    """
    figure, [axes] = canvas(3.4 * len(similarities) + 0.6, 3.9, 1, len(similarities), sharey=True)
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(key[0] for key in found))
    colours = dict(zip(METHODS, COLOURS, strict=False))  # the same in all tables
    places = {number: place for place, number in enumerate(numbers)}
    for ax, similarity in zip(axes, similarities, strict=True):
        for method in methods:
            keys = {number: (method, number, similarity) for number in numbers}
            ours = {number: found[key].mean for number, key in keys.items() if key in found}
            theirs = {number: paper[key] for number, key in keys.items() if key in paper}
            _line(ax, places, ours, limit, colours[method], filled=True, everywhere=method == "SGD")
            _line(ax, places, theirs, _PAPERS_LIMIT, colours[method], filled=False, everywhere=method == "SGD")
        ax.set(yscale="log", xlabel=what)
        ax.set_xticks(list(places.values()), list(map(str, numbers)))
        ax.set_title(f"{similarity:g} % similarity", fontsize="medium")
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
