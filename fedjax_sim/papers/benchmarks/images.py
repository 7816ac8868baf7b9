"""Fashion-MNIST and MNIST as the benchmarks take them, and how their accuracies are read and drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Effect
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain
from fedjax_sim.reporting.recorded import measured
from fedjax_sim.run.history import History

FMNIST, MNIST = "Fashion-MNIST", "MNIST"
DATA_SEED = 0
_SETS = {FMNIST: fjs.datasets.fashion_mnist, MNIST: fjs.datasets.mnist}
_SMOKE_IMAGES = 240
_COLUMNS = 3  # of panels, at most

Examples = dict[str, np.ndarray]


class Score(NamedTuple):
    """A method's accuracy in percent, the best of all evaluations of each seed."""

    mean: float  # over seeds
    std: float  # of a sample; 0 of one seed
    values: tuple[float, ...] = ()  # by seed


def halves(bench: Bench, name: str, normalise: Any = False) -> tuple[Examples, Examples]:
    """Training and test images [n, 28, 28, 1] of a set, in random order; at the smoke size digits of 8 x 8."""

    def real() -> tuple[Examples, Examples]:
        data = _SETS[name](1, partition="iid", seed=DATA_SEED, flat=False, normalise=normalise)
        assert data.test is not None
        order = np.random.default_rng(DATA_SEED).permutation(data.num_examples)
        examples = {key: np.asarray(values)[order] for key, values in data.client(0).items()}
        return examples, data.test.client(0)

    def digits() -> tuple[Examples, Examples]:
        data = fjs.datasets.digits(1, 1.0, DATA_SEED, test_fraction=0.2)
        assert data.test is not None
        most = bench.choose(_SMOKE_IMAGES, None)
        train, test = ({key: values[:most] for key, values in of.client(0).items()} for of in (data, data.test))
        return train, test

    return bench.load(name, real, digits, "scikit-learn's digits")


def best(history: History, metric: str) -> Score:
    """Of a metric that is a share of the examples."""
    found = 100 * np.nanmax(measured(history, metric), axis=1)
    return Score(float(found.mean()), float(found.std(ddof=min(len(found) - 1, 1))), tuple(found.tolist()))


def effects(
    scores: Mapping[str, Mapping[str, Score]], published: Mapping[str, Mapping[str, float]], base: str
) -> list[Effect]:
    """How far each method is above ``base``, in points, where both have a published number."""
    return [
        Effect(f"{method} less {base}, {partition}", "points", value - cells[base],
               [ours - plain for ours, plain in zip(of[method].values, of[base].values, strict=True)])
        for partition, cells in published.items() if partition in scores
        for of in [scores[partition]]
        for method, value in cells.items() if method != base and method in of
    ]  # fmt: skip


def dots(scores: Mapping[str, Mapping[str, Score]], published: Mapping[str, Mapping[str, float]]) -> Any:
    """A panel for each partition, a line for each method: ours with its standard deviation, and the published."""
    methods: Sequence[str] = [*dict.fromkeys(name for of in scores.values() for name in of)]
    columns = min(len(scores), _COLUMNS)
    rows = math.ceil(len(scores) / columns)
    figure, grid = canvas(3.2 * columns + 1.4, (0.28 * len(methods) + 1.0) * rows + 0.4, rows, columns, sharey=True)
    for axis, (partition, of) in zip(grid.flat, scores.items(), strict=False):
        places = [methods.index(name) for name in of]
        style = {"fmt": "o", "color": COLOURS[0], "label": "here, ± standard deviation over seeds"}
        axis.errorbar([s.mean for s in of.values()], places, xerr=[s.std for s in of.values()], **style)
        known = {name: value for name, value in published.get(partition, {}).items() if name in methods}
        if known:
            axis.plot([*known.values()], [methods.index(name) for name in known], "x", color="black", label="published")
        axis.set_title(partition, fontsize="medium")
        axis.set_yticks(range(len(methods)), methods)
        axis.set_ylim(len(methods) - 0.5, -0.5)
        plain(axis)
    for axis in grid[-1]:
        axis.set_xlabel("best test accuracy, %")
    for axis in grid.flat[len(scores) :]:
        axis.set_axis_off()
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, **LEGEND)
    return figure
