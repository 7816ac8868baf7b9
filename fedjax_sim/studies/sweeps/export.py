"""A sweep for its reader, as a table, as figures, as a data frame: methods of :class:`fedjax_sim.sweeps.Sweep`."""
# ruff: noqa: D417 (the sweep is their self)

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.core import tabular
from fedjax_sim.core.values import check_count, suggest
from fedjax_sim.reporting import frames, plots, sweep_plots
from fedjax_sim.reporting.recorded import Recorded, in_words, less_is_better, loss_of_data, recorded_as
from fedjax_sim.reporting.table import cell, final_values, form_of, one_number
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps.space import POINT

_LOSSES, _ACCURACIES = (tuple(f"{part}{of}" for part in ("", "validation_", "test_")) for of in ("loss", "accuracy"))
Swept = Any  # a Sweep: its module imports this one


def table(sweep: Swept, metric: str | None = None, *, top: int | None = None, form: str = "text") -> str:
    """A table with a line for each point: final values, mean ± standard deviation over seeds; printable.

    Args:
      metric: sorts by it, the best first and those that diverged last; None keeps the order of the space.
      top: so many lines at most.
      form: ``"text"``, ``"markdown"``, ``"latex"``, ``"csv"`` or ``"html"``, as in ``fjs.reporting.results_table``.
    """
    numbers = list(range(sweep.space.num_points))
    if metric is not None:
        first = [ranked.number for ranked in sweep.ranked(metric)]
        numbers = first + [number for number in numbers if number not in set(first)]
    if top is not None:
        check_count("table(top=...)", top)
        numbers = numbers[:top]
    histories: list[Recorded] = [_marked(sweep, number) for number in numbers]
    points = [sweep.space.point(number) for number in numbers]
    short = short_names(sweep.space.names)
    columns = [(short[name], [_cell(point[name]) for point in points]) for name in sweep.space.names]
    losses = [loss_of_data([sweep.runs], name) for name in _LOSSES]
    names = [name for name in (*losses, *_ACCURACIES) if one_number(sweep.runs, name)]
    by = "" if metric is None else recorded_as(sweep.runs, metric)
    if by in sweep.runs.metrics and by not in names:
        names.append(by)
    decimals = {name: 4 for name in names if name.endswith("accuracy")}
    columns += [(in_words(name, [sweep.runs]), final_values(histories, name, decimals.get(name))) for name in names]
    if by in sweep.runs.rounds:  # a record of every round, which results have no column of
        last = np.where(sweep.diverged, np.nan, sweep.final(by)).reshape(-1, len(sweep.seeds))[numbers]
        plain = form_of(last, None)
        columns.append((in_words(by), [cell(of_point, plain) for of_point in last]))
    seeds = len(sweep.seeds)
    note = "one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    if len(numbers) < sweep.space.num_points:
        note += f"; {len(numbers)} of {sweep.space.num_points} points"
    return tabular.table(columns, form, notes=[note])


def heatmap(sweep: Swept, metric: str = "loss", x: str | None = None, y: str | None = None, ax: Any = None) -> Any:
    """Draws a metric's last value over two hyper-parameters of a grid; needs matplotlib.

    Each cell is the mean over seeds, at the best values of the other hyper-parameters. Points of which a seed
    diverged are crossed out; the best cell has a frame.

    Args:
      metric: one number a run and evaluation.
      x: the hyper-parameter along the horizontal axis; None for the last that is left.
      y: along the vertical axis; None for the first that is left.
      ax: matplotlib axes to draw on, which are returned; None makes a figure.

    Raises:
      ValueError: the space is no grid of two or more hyper-parameters, or has no such one.
    """
    dims = sweep.space.dims
    if dims == (POINT,) or len(dims) < 2:
        raise ValueError(
            f"heatmap: the space has the axes {dims}: it needs a grid of two hyper-parameters or more; use profile(x)"
        )
    for name in (x, y):
        if name is not None and name not in dims:
            raise ValueError(f"heatmap: the space has no {name!r}: {suggest(name, list(dims))}")
    if x is not None and x == y:
        raise ValueError(f"heatmap: x and y are both {x!r}: give two hyper-parameters")
    x = x if x is not None else [name for name in dims if name != y][-1]
    y = y if y is not None else next(name for name in dims if name != x)
    less, short, along = less_is_better(metric), short_names(sweep.space.names), sweep.coordinates
    # The table [y, x] of the best means over all other axes; NaN where all diverged.
    costs = _costs(sweep, sweep.compared(metric)[1], (y, x), less=less).min(axis=2)
    table = np.where(np.isfinite(costs), costs if less else -costs, np.nan)
    across, up = (sweep_plots.Axis(short[name], along[name]) for name in (x, y))
    others = [short[name] for name in dims if name not in (x, y)]
    label = in_words(metric, [sweep.runs])
    return sweep_plots.heat_map(table, across, up, label=label, less_is_better=less, others=others, ax=ax)


def profile(sweep: Swept, metric: str = "loss", x: str | None = None, ax: Any = None) -> Any:
    """Draws a metric's last value against one hyper-parameter; needs matplotlib.

    Of a grid, a line at the best values of the other hyper-parameters, with the range of the seeds as a band; of
    a list, a dot for each point.

    Args:
      metric: one number a run and evaluation.
      x: the hyper-parameter; None for the first.
      ax: matplotlib axes to draw on, which are returned; None makes a figure.

    Raises:
      ValueError: the space has no such hyper-parameter.
    """
    names = list(sweep.space.names)
    x = names[0] if x is None else x
    if x not in names:
        raise ValueError(f"profile: the space has no {x!r}: {suggest(x, names)}")
    finals, means = sweep.compared(metric)
    less, label, short = less_is_better(metric), in_words(metric, [sweep.runs]), short_names(sweep.space.names)
    axis = sweep_plots.Axis(short[x], sweep.coordinates[x])
    if axis.values.ndim != 1:
        raise ValueError(f"profile: {x!r} is an array at every point: it is no coordinate of a plot")
    if sweep.space.dims == (POINT,):
        return sweep_plots.scatter(axis, means, label=label, less_is_better=less, ax=ax)
    best = _costs(sweep, means, (x,), less=less).argmin(axis=1)
    chosen = _by(sweep, np.arange(means.size), (x,))[np.arange(len(best)), best]
    lines = np.where(np.isfinite(means[chosen])[:, None], finals[chosen], np.nan)
    others = [short[name] for name in names if name != x]
    return sweep_plots.line(axis, lines, label=label, others=others, ax=ax)


def curves(sweep: Swept, metric: str = "loss", ax: Any = None, *, top: int = 7) -> Any:
    """Draws a metric against rounds for the best points; needs matplotlib.

    Args:
      metric: one number a run and evaluation; it also says which points are best.
      ax: matplotlib axes to draw on, which are returned; None makes a figure.
      top: so many points at most.

    Raises:
      ValueError: every point diverged.
    """
    check_count("curves(top=...)", top)
    sweep.best(metric)  # raises where there is none
    chosen = [ranked.number for ranked in sweep.ranked(metric)[:top]]
    return plots.curves(dict(zip(labels(sweep, chosen), map(sweep.at, chosen), strict=True)), metric, ax=ax)


def to_pandas(sweep: Swept) -> Any:
    """A ``pandas.DataFrame`` with a line for each run and evaluation; needs pandas.

    Columns: the hyper-parameters (of arrays, nothing), ``"seed"``, ``"round"``, ``"diverged"`` and every metric
    that is one number; one that is called as a hyper-parameter is, ``"mu"``, becomes ``"mu_recorded"``.
    """
    return frames.data_frame(_columns(sweep))


def to_csv(sweep: Swept, path: str | os.PathLike[str]) -> None:
    """Writes the lines of :meth:`to_pandas` to a csv file, atomically; needs no pandas."""
    frames.write_csv(path, _columns(sweep))


def _columns(sweep: Swept) -> dict[str, Any]:
    evaluations, seeds = len(sweep.evaluated), len(sweep.seeds)
    points = {name: values for name, values in sweep.space.points().items() if values.ndim == 1}
    columns: dict[str, Any] = {name: np.repeat(values, seeds * evaluations) for name, values in points.items()}
    columns["seed"] = np.tile(np.repeat(sweep.seeds, evaluations), sweep.space.num_points)
    columns["round"] = np.tile(sweep.evaluated, sweep.space.num_points * seeds)
    columns["diverged"] = np.repeat(sweep.diverged.ravel(), evaluations)
    metrics = {name: values.ravel() for name, values in sweep.runs.metrics.items() if values.ndim == 2}
    return columns | _recorded(sweep, metrics)


def to_xarray(sweep: Swept) -> Any:
    """An ``xarray.Dataset`` with the labelled axes; needs xarray.

    Metrics have the dimensions of ``dims`` and ``"evaluation"`` (with the coordinate ``"round"``), records those
    and ``"t"``, the rounds 0 to R - 1; further axes are called after the array. What is called as a hyper-parameter is,
    as ``"mu"`` of FedProx that adapts it, becomes ``"mu_recorded"``.
    """
    coordinates: dict[str, Any] = {
        name: (dim, values) for name, (dim, values) in sweep.space.coordinates().items() if values.ndim == 1
    }
    coordinates |= {"seed": ("seed", sweep.seeds), "round": ("evaluation", sweep.evaluated)}
    attributes = {"algorithm": sweep.runs.algorithm, "seconds": sweep.seconds}
    recorded = _recorded(sweep, sweep.metrics), _recorded(sweep, sweep.rounds)
    return frames.data_set(sweep.dims, *recorded, coordinates, attributes)


def _recorded(sweep: Swept, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What runs recorded, by names that no hyper-parameter and no axis has."""
    taken = {*sweep.space.names, *sweep.dims, "round", "diverged"}
    return {f"{name}_recorded" if name in taken else name: values for name, values in arrays.items()}


def short_names(names: tuple[str, ...]) -> dict[str, str]:
    """The last part of each path where that is enough to tell them apart, else all of it."""
    last = [name.rpartition(".")[2] for name in names]
    return {name: end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)}


def labels(sweep: Swept, numbers: Sequence[int], sign: str = " = ") -> list[str]:
    """Points in words, ``mu = 0.1``; with their numbers where values alone do not tell them apart."""
    short, points = short_names(sweep.space.names), map(sweep.space.point, numbers)
    found = [", ".join(f"{short[name]}{sign}{_cell(value)}" for name, value in point.items()) for point in points]
    if len(set(found)) == len(found):
        return found
    return [f"point {number}: {label}" for number, label in zip(numbers, found, strict=True)]


def _marked(sweep: Swept, number: int) -> History:
    """The history of a point, with NaN at the end of every metric of a seed that diverged: no mean hides it."""
    history: History = sweep.at(number)
    bad = sweep.diverged.reshape(-1, len(sweep.seeds))[number]
    if not bad.any():
        return history
    metrics = {}
    for name, values in history.metrics.items():
        changed = values.astype(float)
        changed[bad, -1] = np.nan
        metrics[name] = changed
    return dataclasses.replace(history, metrics=metrics)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if np.ndim(value) == 0 else "[...]"


def _by(sweep: Swept, values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """The values of all points, [P], along the axes of some hyper-parameters, and all others as the last axis."""
    places = [sweep.space.dims.index(name) for name in names]
    moved = np.moveaxis(values.reshape(sweep.space.shape), places, range(len(places)))
    return moved.reshape(*moved.shape[: len(places)], -1)


def _costs(sweep: Swept, means: np.ndarray, names: tuple[str, ...], *, less: bool) -> np.ndarray:
    """As :func:`_by`, the lower the better; infinite where a point diverged."""
    return _by(sweep, np.where(np.isfinite(means), means if less else -means, np.inf), names)
