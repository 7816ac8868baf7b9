"""Fashion-MNIST and MNIST as the benchmarks take them, and how their accuracies are read and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.run.history import History

FMNIST, MNIST = "Fashion-MNIST", "MNIST"
DATA_SEED = 0
_SETS = {FMNIST: fjs.datasets.fashion_mnist, MNIST: fjs.datasets.mnist}
_SMOKE_IMAGES = 240

Examples = dict[str, np.ndarray]


class Score(NamedTuple):
    """A method's accuracy in percent, the best of all evaluations of each seed."""

    mean: float  # over seeds
    std: float  # of a sample; 0 of one seed


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
    found = 100 * history[metric].max(axis=1)
    return Score(float(found.mean()), float(found.std(ddof=min(len(found) - 1, 1))))


def dots(scores: Mapping[str, Mapping[str, Score]], published: Mapping[str, Mapping[str, float]]) -> Any:
    """A panel for each partition, a line for each method: ours with its standard deviation, and the published."""
    methods: Sequence[str] = [*dict.fromkeys(name for of in scores.values() for name in of)]
    width = 3.2 * len(scores) + 1.4
    figure, [axes] = canvas(width, 0.28 * len(methods) + 1.3, columns=len(scores), sharey=True)
    for axis, (partition, of) in zip(axes, scores.items(), strict=True):
        places = [methods.index(name) for name in of]
        axis.errorbar([s.mean for s in of.values()], places, xerr=[s.std for s in of.values()], fmt="o", label="here")
        known = {name: value for name, value in published.get(partition, {}).items() if name in methods}
        if known:
            axis.plot([*known.values()], [methods.index(name) for name in known], "x", color="black", label="published")
        axis.set_title(partition)
        axis.set_xlabel("best test accuracy, %")
        axis.set_yticks(range(len(methods)), methods)
        axis.grid(alpha=0.3)
    axes[0].invert_yaxis()
    axes[0].legend(loc="best")
    return figure
