"""What a table or a plot asks of a run's record; :class:`fedjax_sim.History` is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Recorded(Protocol):
    """The record of one method, over one or several seeds."""

    @property
    def evaluated(self) -> np.ndarray:
        """int[E], numbers of finished rounds at the evaluations."""
        ...

    @property
    def metrics(self) -> Mapping[str, np.ndarray]:
        """[seeds, E, ...] arrays by name."""
        ...

    @property
    def seconds(self) -> float:
        """Wall time without compilation."""
        ...

    @property
    def useful_ratio(self) -> float:
        """Gradients the clients needed over gradients that were computed."""
        ...

    def __getitem__(self, name: str) -> np.ndarray:
        """The metric or record ``name``; a KeyError names those there are."""
        ...

    def rounds_to(self, name: str, target: float) -> np.ndarray:
        """float[seeds], evaluated rounds until the metric reaches the target; inf where it never does."""
        ...


def rounds_of(run: Recorded, name: str) -> np.ndarray:
    """Where the values of ``name`` belong: the evaluated rounds of a metric, 1 to R of a record of every round."""
    return run.evaluated if name in run.metrics else np.arange(1, run[name].shape[1] + 1)


def in_words(metric: str) -> str:
    """A metric's name for a reader: ``test_accuracy`` is the test accuracy, ``loss`` the training loss."""
    return {"loss": "training loss", "accuracy": "training accuracy", "e_lud": "e-LUD", "lud": "LUD"}.get(
        metric, metric.replace("_", " ")
    )
