"""What a table or a plot asks of a run's record; :class:`fedjax_sim.History` is one."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any, Protocol

import numpy as np


class Recorded(Protocol):
    """The record of one method, over one or several seeds."""

    @property
    def evaluated(self) -> np.ndarray:
        """int[E], numbers of finished rounds at the evaluations."""

    @property
    def metrics(self) -> Mapping[str, np.ndarray]:
        """[seeds, E, ...] arrays by name."""

    @property
    def seconds(self) -> float:
        """Wall time without compilation."""

    @property
    def useful_ratio(self) -> float:
        """Gradients the clients needed over gradients that were computed."""

    def __getitem__(self, name: str) -> np.ndarray:
        """The metric or record ``name``; a KeyError names those there are."""

    def rounds_to(self, name: str, target: float) -> np.ndarray:
        """float[seeds], evaluated rounds until the metric reaches the target; inf where it never does."""


# A loss is what is minimised, the mean over the data and the task's penalty. Where there is a penalty, the loss without
# it, which publications report, has a name of its own: "data_loss", "test_data_loss", "test_client_data_loss", ...
_OBJECTIVE, _DATA = "loss", "data_loss"
# One number a seed and evaluation; the first that a run has tells how it goes.
LOSSES = (_OBJECTIVE, "validation_loss", "test_loss")


def known_as(name: str, names: Container[str]) -> str:
    """``name`` as it is among ``names``: the data loss of a task without a penalty is its loss."""
    plain = name.replace(_DATA, _OBJECTIVE)
    return plain if name not in names and _DATA not in names and plain in names else name


def recorded_as(run: Recorded, name: str) -> str:
    """:func:`known_as` of what a run has recorded; TypeError for what is no name."""
    if not isinstance(name, str):
        from fedjax_sim.core.values import check_metric  # imports JAX, which tables and figures do without

        check_metric("metric", name)
    if name in getattr(run, "rounds", {}) or _tells_of_penalty(run):
        return name
    return known_as(name, run.metrics)


def telling_loss(names: Container[str]) -> str | None:
    """The metric that tells how a run goes: the training loss, or that of held-out examples where it has none."""
    return next((name for name in LOSSES if name in names), None)


def loss_of_data(runs: Iterable[Recorded], name: str | None = None) -> str:
    """The loss to show beside those of publications: without the penalty if one of the runs has a penalty.

    Without a name it is the training loss, or where no run has it that of held-out examples.
    """
    runs = list(runs)
    if name is None:
        name = telling_loss({one for run in runs for one in run.metrics}) or _OBJECTIVE
    data = name.replace(_OBJECTIVE, _DATA)
    return data if any(data in run.metrics for run in runs) else name


def described(run: Recorded, *path: str) -> Any:
    """What a run's description has there; None where it has nothing, or files hold anything else."""
    found = getattr(run, "description", None)
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _tells_of_penalty(run: Recorded) -> bool:
    """Whether a run's description has a penalty: runs of earlier versions did not record the loss without it."""
    given = ("weight_decay", "penalty_function")
    return any(described(run, "run", "task", "arguments", name) is not None for name in given)


def rounds_of(run: Recorded, name: str) -> np.ndarray:
    """Where the values of ``name`` belong: the evaluated rounds of a metric, 1 to R of a record of every round."""
    name = recorded_as(run, name)
    return run.evaluated if name in run.metrics else np.arange(1, run[name].shape[1] + 1)


def ran(run: Any, seeds: int, rounds: int) -> np.ndarray:
    """bool[seeds, R], which rounds a seed ran before it stopped."""
    stops = getattr(run, "stops", {})
    ends = [stops[seed].round if seed in stops else rounds for seed in getattr(run, "seeds", range(seeds))]
    return np.asarray(np.arange(rounds) < np.array(ends)[:, None])


# What a run can be drawn against: the records of every round whose running sums it is, and its words.
AXES: dict[str, tuple[tuple[str, ...], str]] = {
    "round": ((), "rounds"),
    "virtual_time": (("duration",), "virtual time (s)"),
    "bytes": (("bytes_down", "bytes_up"), "communication (bytes)"),
}


def clock(run: Recorded, axis: str) -> np.ndarray:
    """Where a run is on an axis of :data:`AXES` after each of its rounds, float64[seeds, R + 1]; 0 before the first."""
    if axis not in AXES:
        raise ValueError(f"against={axis!r}: it must be one of {', '.join(map(repr, AXES))}")
    recorded = getattr(run, "rounds", {})
    names = _summed(axis, recorded)
    if not all(name in recorded for name in names):
        what = "its bytes" if axis == "bytes" else "virtual time"
        raise ValueError(f"{axis!r}: the run did not record {what}; {to_record(axis)}")
    if not names:
        seeds, rounds = len(next(iter(run.metrics.values()))), int(run.evaluated[-1])
        return np.broadcast_to(np.arange(rounds + 1, dtype=float), (seeds, rounds + 1))
    return _sums(recorded, axis)


def clocks(rounds: Mapping[str, np.ndarray], evaluated: np.ndarray) -> dict[str, np.ndarray]:
    """``"virtual_time"`` and ``"bytes"`` at the evaluations, float64[seeds, E], where the rounds' records have them."""
    return {axis: _sums(rounds, axis)[:, evaluated] for axis in clocks_of(rounds)}


def clocks_of(recorded: Collection[str]) -> list[str]:
    """The clocks of a run that records these of every round."""
    return [axis for axis in AXES if axis != "round" and set(_summed(axis, recorded)) <= set(recorded)]


def to_record(axis: str) -> str:
    """What a run needs for a clock, in words."""
    name = "communication" if axis == "bytes" else axis
    return f"give it system=fedjax_sim.systems.devices(...), or diagnostics=[{name!r}]"


def _summed(axis: str, recorded: Container[str]) -> tuple[str, ...]:
    """The records whose running sums an axis is; of a run without a system, the diagnostic's seconds of every round."""
    return ("virtual_time",) if axis == "virtual_time" and "duration" not in recorded else AXES[axis][0]


def _sums(recorded: Mapping[str, np.ndarray], axis: str) -> np.ndarray:
    each: Any = sum(np.asarray(recorded[name], dtype=float) for name in _summed(axis, recorded))
    return np.concatenate([np.zeros((len(each), 1)), np.cumsum(each, axis=1)], axis=1)


def positions(run: Recorded, name: str, axis: str) -> np.ndarray:
    """Where the values of ``name`` belong on ``axis``, float64[seeds, values]."""
    return clock(run, axis)[:, np.asarray(rounds_of(run, name))]


# The losses of a model: where one of them is not finite, no other metric says anything about the model.
_LOSSES = tuple(f"{part}{loss}" for loss in ("loss", "data_loss") for part in ("", "test_", "validation_"))
# The models that per_client compares, as its records begin, and in words.
MODELS = {"shared": "shared", "tuned": "fine-tuned", "personal": "personal"}


def measured(run: Recorded, name: str) -> np.ndarray:
    """A copy of the values of ``name``, floats, NaN at the evaluations of a seed at which its model had diverged.

    A model that is not finite still has an accuracy: the argmax of NaN is class 0. So a metric counts as not finite
    where a loss of the seed, of training or held-out examples, is not. What is recorded of fine-tuned and of personal
    models counts as not finite where their loss is not either: a client's where the client's is not, a number for all
    clients where one of theirs is not. The losses themselves, and records of rounds, stay as they are.
    """
    name = recorded_as(run, name)
    return of_finite_models(run[name], name, run.metrics)


def telling_of_divergence(names: Iterable[str]) -> list[str]:
    """Of metrics those that are not finite where a model has diverged: the losses, without any of them all.

    A score may be NaN of a sound model: of examples of one class there is no area under a curve.
    """
    names = list(names)
    return [name for name in names if name.endswith(_OBJECTIVE)] or names


def of_finite_models(given: np.ndarray, name: str, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """:func:`measured` of values [seeds, E, ...] among metrics of these seeds."""
    values = np.array(given)
    values = values if values.dtype.kind == "f" else values.astype(float)
    if name in _LOSSES or name in AXES or name not in metrics:  # a clock goes on whatever the model is
        return values
    for loss in (np.asarray(metrics[one], dtype=float) for one in _LOSSES if one in metrics):
        if loss.shape[:2] == values.shape[:2]:
            values[~np.isfinite(loss).all(axis=tuple(range(2, loss.ndim)))] = np.nan
    for own in _losses_of_own(name):
        if own in metrics and np.shape(metrics[own]) == values.shape:
            values[~np.isfinite(np.asarray(metrics[own], dtype=float))] = np.nan
    return values


def _losses_of_own(name: str) -> list[str]:
    """The losses, of all clients and of each, of the fine-tuned and personal models that a metric is of."""
    part, model = _part_and_model(name)
    if model not in ("tuned", "personal") or name.endswith("_before"):  # before fine-tuning it is the shared one
        return []
    models = {model, "tuned"} if name.endswith("_tuned") else {model}  # "..._gain_over_tuned", "..._losing_to_tuned"
    return [f"{part}{one}_{entries}loss" for one in sorted(models) for entries in ("", "client_")]


def _part_and_model(name: str) -> tuple[str, str]:
    """How a record begins: ``("validation_", "tuned")``, or ``("", "tuned")`` of test examples."""
    part = "validation_" if name.startswith("validation_") else ""
    return part, name.removeprefix(part).partition("_")[0]


def is_of_models(name: str) -> bool:
    """Whether a metric is of one of the :data:`MODELS` that are compared at each client."""
    return _part_and_model(name)[1] in MODELS


def best_evaluations(metrics: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """int[seeds], each seed's best evaluation by a metric [seeds, E]: the lowest or the highest value.

    Of equals the first. Never one of NaN or of a model that has diverged; where there is no other, the first.
    """
    values = of_finite_models(metrics[name], name, metrics)
    return np.asarray(np.where(np.isnan(values), np.inf, values if less_is_better(name) else -values).argmin(axis=1))


# Beyond it differences of two numbers may be infinite: no axis could hold them.
_LARGEST = 1e300


def drawable(values: np.ndarray) -> np.ndarray:
    """Which values an axis can hold: finite ones, and not next to the largest of all."""
    return np.asarray(np.abs(values) < _LARGEST)  # False for NaN


def part_of(metric: str) -> str:
    """Of which examples a metric is, judged by its name: ``"training"``, ``"validation"`` or ``"test"`` ones."""
    if metric.startswith("validation_"):
        return "validation"
    return "test" if metric.startswith(("test_", *(f"{model}_" for model in MODELS))) else "training"


def among_visited(run: Recorded, values: np.ndarray, at: int = -1) -> np.ndarray:
    """Clients' values [seeds, N] of evaluation ``at``, NaN for those whom no mean over the clients counts.

    These are the clients that were never visited, in seeds in which anybody with a value was.
    """
    if "client_visited" not in run.metrics:
        return values
    seen = ~np.isnan(values) & np.asarray(run.metrics["client_visited"])[:, at].astype(bool)
    return np.where(seen | ~seen.any(axis=1, keepdims=True), values, np.nan)


def counted(run: Recorded, name: str, values: np.ndarray, at: int = -1) -> np.ndarray:
    """Clients' values [seeds, N] of a metric, :func:`among_visited` where it is of :data:`MODELS`."""
    return among_visited(run, values, at) if is_of_models(name) else values


def held(run: Recorded, name: str) -> tuple[np.ndarray, np.ndarray]:
    """What was :func:`measured`, and which seeds stopped early, bool[seeds]: these hold their last value."""
    name = recorded_as(run, name)
    values = measured(run, name)
    stops, seeds = getattr(run, "stops", {}), getattr(run, "seeds", range(len(values)))
    stopped = np.asarray([seed in stops for seed in seeds], bool)
    if values.ndim > 1 and name not in run.metrics:
        for row in np.flatnonzero(stopped):
            last = stops[list(seeds)[row]].round
            values[row, last:] = values[row, last - 1]
    return values, stopped


_SMALL = (
    "loss", "nll", "cross_entropy", "mse", "mae", "mape", "error", "error_rate", "brier", "gap", "perplexity",
    "_losing", "_losing_to_tuned", "_std", "_gini", "dissimilarity", "gradient_variance", "gradient_mean_square",
    "gradient_square_of_mean", "inexactness_mean", "inexactness_max",
)  # fmt: skip
# How names go on: of the clients served worst, of the model before fine-tuning, each client by its examples, or alike.
_OF_SOME = ("_worst", "_before", "_by_examples", "_uniform")


def less_is_better(name: str) -> bool:
    """Whether a metric is one to make small, judged by its name.

    Losses, errors, spreads over the clients and sizes of gradients are, accuracies and all others are not.
    """
    for end in reversed(_OF_SOME):
        name = name.removesuffix(end)
    return name.endswith(_SMALL)


def more_is_better(name: str) -> bool:
    """Whether the name says that a metric is one to make large; of many it says neither."""
    return not less_is_better(name) and any(word in name for word in ("accuracy", "roc_auc", "f1", "concordance"))


def first_reached(values: np.ndarray, at: np.ndarray, target: float, *, falling: bool) -> np.ndarray:
    """The first of the places ``at`` at which ``values`` reach the target, float[seeds]; inf where they never do.

    The places are one for each column of the values, or one for each value. A target is compared in the values' own
    precision: 90 of 100 reach 0.9, which float32 rounds down.
    """
    target = float(target)  # a number of numpy's would have the values compared in its own
    if values.ndim != 2:
        raise ValueError(f"a target: the values have the shape {values.shape}: give one number a seed and place")
    reached = values <= target if falling else values >= target
    places = np.broadcast_to(at, values.shape)[np.arange(len(values)), reached.argmax(axis=1)]
    return np.where(reached.any(axis=1), places, np.inf)


def in_words(metric: str, runs: Iterable[Recorded] = ()) -> str:
    """A metric's name for a reader: ``test_accuracy`` is the test accuracy, ``loss`` the training loss.

    Where one of the ``runs`` of which it is shown has a penalty, a loss says that it is in it.
    """
    plain, data = metric.replace(_DATA, _OBJECTIVE), metric.replace(_OBJECTIVE, _DATA)
    named = {"loss": "training loss", "accuracy": "training accuracy", "e_lud": "e-LUD", "lud": "LUD"}
    words = named.get(plain, plain.replace("_", " "))
    if plain != metric:
        return f"{words} without penalty"
    known = metric in _LOSSES
    penalty = data != metric and any(data in run.metrics or (known and _tells_of_penalty(run)) for run in runs)
    return f"{words} with penalty" if penalty else words


def check_runs(what: str, histories: Any) -> None:
    """Checks that ``histories`` is ``{name: history}`` with at least one; messages call it ``what``."""
    rule = "it takes {name: history}"
    if not isinstance(histories, Mapping):
        raise TypeError(f"{what} is {_shown(histories)}: {rule}{_instead(histories)}")
    if not histories:
        raise ValueError(f"{what.partition(':')[0]}: no histories were given; {rule}")
    for name, run in histories.items():
        if not _is_run(run):
            raise TypeError(f"{what}[{name!r}] is {_shown(run)}: {rule}{_instead(run)}")


def check_problems(problems: Any) -> None:
    """Checks that ``problems`` is ``{problem: {method: history}}``."""
    rule = "it takes {problem: {method: history}}"
    if not isinstance(problems, Mapping):
        raise TypeError(f"comparison: problems is {_shown(problems)}: {rule}")
    if not problems:
        raise ValueError(f"comparison: no problems were given; {rule}")
    for name, runs in problems.items():
        what = f"comparison: problems[{name!r}]"
        if _is_run(runs):
            raise TypeError(f"{what} is {_shown(runs)}: {rule}; for one problem give {{'its name': histories}}")
        check_runs(what, runs)


def check_rows(rows: Any, panel: type) -> None:
    """Checks that ``rows`` is ``[[Panel, ...], ...]``: equally many panels or None in each row, with runs."""
    rule = "it takes rows of panels, [[Panel(histories, 'loss'), Panel(histories, 'test_accuracy')]]"
    found: list[Any] = []

    def check(what: str, value: Any, right: bool, fix: str = "") -> None:
        if not right:
            raise TypeError(f"panels: {what} is {_shown(value)}: {rule}{fix if isinstance(value, panel) else ''}")

    check("rows", rows, type(rows) in (list, tuple), "; give [[panel]]")
    for number, row in enumerate(rows):
        check(f"rows[{number}]", row, type(row) in (list, tuple), "; for one row give [panels], not panels")
        for column, one in enumerate(row):
            check(f"rows[{number}][{column}]", one, one is None or isinstance(one, panel))
            found += [one] if one is not None else []
    if not found or len({len(row) for row in rows}) != 1:
        raise ValueError("panels: it takes rows of equally many panels, at least one")
    for one in found:
        check_runs("panels: Panel(runs)", one.runs)


def _is_run(value: Any) -> bool:
    members = ("evaluated", "metrics", "rounds_to")
    return not isinstance(value, Mapping) and all(hasattr(value, member) for member in members)


def _instead(value: Any) -> str:
    """The end of a message about something that is no run, or one where several belong: what may have been meant."""
    if _is_run(value):
        return f"; give {{{getattr(value, 'algorithm', 'run')!r}: history}}"
    if isinstance(value, (list, tuple)) and value and all(map(_is_run, value)):
        return "; give dict(zip(names, histories))"
    if isinstance(value, Mapping) and value and all(map(_is_run, value.values())):
        return "; for several problems use comparison, or a Panel for each"
    if isinstance(value, (str, os.PathLike)):
        return "; give fedjax_sim.History.load(path)"
    return "; give sweep.at(number), a point of it" if hasattr(value, "space") and hasattr(value, "at") else ""


def _shown(value: Any) -> str:
    """What a message calls a value: its kind, and itself where that is short."""
    kind, text = type(value).__name__, repr(value)
    if isinstance(value, (Mapping, list, set)):
        return f"a {kind} of {len(value)}"
    return text if len(text) <= 40 and "\n" not in text else f"a {kind}"
