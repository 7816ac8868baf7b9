"""When a run has gone on long enough: rules that ``simulate(stop=...)`` asks after every evaluation, for each seed.

A rule is a pure function of what one seed has recorded so far. A seed that stops keeps its model; the others go on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf, real, static
from fedjax_sim.core.values import check_metric, check_real, shown, suggest
from fedjax_sim.reporting.recorded import AXES, first_reached, known_as, less_is_better, of_finite_models, to_record


class Stopping(Described):
    """Base of the rules; one of your own defines :meth:`reason`."""

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        """Why the run should stop now, in words, or None to go on.

        Args:
          evaluated: int[E], rounds finished at the evaluations so far; starts with 0.
          metrics: [E, ...] by name, with ``"virtual_time"`` and ``"bytes"`` of runs that count them; arrays that are
            read only.
        """
        raise TypeError(f"{type(self).__name__} must define reason(evaluated, metrics)")

    def _check(self, started: Mapping[str, np.ndarray]) -> None:
        """Refuses, before the first round, what the run does not record; ``started``: [1, ...] at the start."""


class _OfOneMetric:
    """What the rules here have in common: one metric, or a clock."""

    metric: str

    def _check(self, started: Mapping[str, np.ndarray]) -> None:
        _measured(started, self.metric)


class Converged(_OfOneMetric, Stopping):
    """|f_t - f_s| < change, with s the evaluation before t.

    FedProx's experiments stop at 1e-4 (Li et al. 2020, appendix C.3.2), evaluated every round.

    Args:
      change: above 0.
      metric: f, a metric of one number an evaluation.
    """

    change: Any = leaf(functools.partial(check_real, above=0.0, host=True), default=1e-4)
    metric: str = static(check_metric, default="loss")

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        values = _values(metrics, self.metric)
        if len(values) < 2 or not abs(values[-1] - values[-2]) < float(self.change):
            return None
        return f"{self.metric} changed by less than {float(self.change):g}"


class Rising(_OfOneMetric, Stopping):
    """f_t - f_s > by, with s the last evaluation at least ``over`` rounds before t.

    FedProx's experiments call a run diverged that rises by more than 1 over 10 rounds (Li et al. 2020, appendix C.3.2).

    Args:
      by: at least 0.
      over: rounds, at least 1.
      metric: f, a metric of one number an evaluation.
    """

    by: Any = real(default=1.0, low=0.0)
    over: int = count(default=10)
    metric: str = static(check_metric, default="loss")

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        values = _values(metrics, self.metric)
        before = int(np.searchsorted(evaluated, evaluated[-1] - self.over, side="right")) - 1
        if before < 0 or not values[-1] - values[before] > float(self.by):
            return None
        return f"{self.metric} rose by more than {float(self.by):g} in {evaluated[-1] - evaluated[before]} rounds"


class Reached(_OfOneMetric, Stopping):
    """f_t <= target for losses, errors and spreads, f_t >= target for all other metrics.

    Args:
      metric: f, ``"test_accuracy"`` for instance; what ends in "loss", "nll", "cross_entropy",
        "mse", "mae", "mape", "error", "error_rate", "brier", "gap", "perplexity", "_std" or "_gini" must fall, and
        sizes of gradients; all else rise. ``"virtual_time"`` and
        ``"bytes"`` make a budget, passed at the evaluation at which the seed stops.
      target: its value.
    """

    metric: str = static(check_metric)
    target: Any = real()

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        values, falling = _measured(metrics, self.metric)[None, -1:], less_is_better(self.metric)
        if np.isinf(first_reached(values, evaluated[-1:], self.target, falling=falling)).all():
            return None
        return f"{self.metric} reached {float(self.target):g}"


class Patience(_OfOneMetric, Stopping):
    """Early stopping: for so many evaluations in a row nothing was better than the best before, by more than a change.

    What is better starts the count again. NaN is never better.
    The seed keeps its last model, and with ``simulate(..., keep_best=metric)`` its best; ``history.at_best`` has what
    was recorded there.

    Args:
      metric: ``"test_loss"`` for instance, better in the sense of :class:`Reached`.
      evaluations: at least 1.
      change: at least 0.
    """

    metric: str = static(check_metric)
    evaluations: int = count(default=5)
    change: Any = real(default=0.0, low=0.0)

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        values = _values(metrics, self.metric)
        values = values if less_is_better(self.metric) else -values
        best, at = np.inf, 0
        for number, value in enumerate(values):
            if value < best - float(self.change):
                best, at = value, number
        if len(values) - 1 - at < self.evaluations:
            return None
        return f"{self.metric} was not better than after round {evaluated[at]} at {self.evaluations} evaluations"


class AnyOf(Stopping):
    """The first of several rules, at least one, that holds."""

    rules: tuple[Stopping, ...]

    def checked(self) -> Self:
        rules = tuple(self.rules) if isinstance(self.rules, (list, tuple)) else (self.rules,)
        if not rules or not all(isinstance(rule, Stopping) for rule in rules):
            error = TypeError if rules else ValueError
            raise error(f"any_of({shown(self.rules)}): give a list of rules of fedjax_sim.stopping, at least one")
        return self.replace(rules=rules)

    def _check(self, started: Mapping[str, np.ndarray]) -> None:
        for rule in self.rules:
            rule._check(started)

    def reason(self, evaluated: np.ndarray, metrics: Mapping[str, np.ndarray]) -> str | None:
        reasons = (rule.reason(evaluated, metrics) for rule in self.rules)
        return next((reason for reason in reasons if reason is not None), None)


def fedprox() -> AnyOf:
    """Converged or diverged as in FedProx's experiments: ``any_of([converged(1e-4), rising(1.0, over=10)])``."""
    return any_of((converged(), rising()))


def _values(metrics: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return _measured(metrics, name).astype(float)


def _measured(metrics: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The values of one seed in their own precision, NaN where its model had diverged: that reaches nothing."""
    name = known_as(name, metrics)
    if name not in metrics:
        fix = to_record(name) if name in AXES and name != "round" else suggest(name, metrics)
        raise ValueError(f"stop asks for {name!r}, which this run does not record: {fix}")
    values = np.asarray(metrics[name])
    if values.ndim != 1:
        raise ValueError(f"stop asks for {name!r}, which is an array of shape {values.shape[1:]}: choose one number")
    one_seed = {other: np.asarray(of)[None] for other, of in metrics.items()}
    return of_finite_models(values[None], name, one_seed)[0]


converged = factory("stopping.converged", Converged)
rising = factory("stopping.rising", Rising)
reached = factory("stopping.reached", Reached)
patience = factory("stopping.patience", Patience)
any_of = factory("stopping.any_of", AnyOf)
