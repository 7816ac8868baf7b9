"""What a sweep recorded: labelled arrays, the best point, tables, plots, files."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.core.descriptions import build
from fedjax_sim.core.files import parsing
from fedjax_sim.core.tabular import in_notebook
from fedjax_sim.core.values import shown, suggest
from fedjax_sim.reporting.recorded import LOSSES, less_is_better, telling_of_divergence
from fedjax_sim.reporting.table import ACCURACIES, one_number
from fedjax_sim.run.history import History, is_sweep, read_record
from fedjax_sim.studies.sweeps import export
from fedjax_sim.studies.sweeps.program import described
from fedjax_sim.studies.sweeps.space import Space


class Ranked(NamedTuple):
    """A point (its number and its values by name) and how it did.

    The metric at the last evaluation, float[seeds], its mean, and its deviation of a sample (divided by seeds - 1), 0
    for one seed.
    """

    number: int
    point: dict[str, Any]
    values: np.ndarray
    mean: float
    std: float


def means(finals: np.ndarray, diverged: np.ndarray) -> np.ndarray:
    """Means over seeds of the values [P, seeds], NaN where a seed diverged: a point is as good as its worst habit."""
    whole = ~(diverged | ~np.isfinite(finals)).any(axis=1)
    return np.where(whole, np.where(whole[:, None], finals, 0.0).mean(axis=1), np.nan)


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """The record of one :func:`fedjax_sim.sweep` call.

    Arrays have the space's axes first, then the seeds: ``sweep["loss"]`` of a grid of 3 by 4 points with 5 seeds and
    11 evaluations is [3, 4, 5, 11]. A space that is a list has one axis, ``"point"``.

    Attributes:
      runs: everything recorded, as a history with one "seed" a run: point by point, seeds within. Its divergences have
        the numbers of runs, 0 to the last, in the place of seeds.
      space: the points.
      seeds: the seeds of every point.
    """

    runs: History
    space: Space
    seeds: list[int]

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of points along the space's axes, then the number of seeds."""
        return (*self.space.shape, len(self.seeds))

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the axes of ``shape``."""
        return (*self.space.dims, "seed")

    @property
    def coordinates(self) -> dict[str, np.ndarray]:
        """The values along the axes: of each hyper-parameter, of ``"seed"`` and of the evaluated ``"round"``."""
        names = {name: values for name, (_, values) in self.space.coordinates().items()}
        return {**names, "seed": np.asarray(self.seeds), "round": self.evaluated}

    @property
    def evaluated(self) -> np.ndarray:
        """int[E], numbers of finished rounds at the evaluations; starts with 0."""
        return self.runs.evaluated

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """[*shape, E, ...] arrays by name."""
        return {name: self._shaped(values) for name, values in self.runs.metrics.items()}

    @property
    def rounds(self) -> dict[str, np.ndarray]:
        """[*shape, R, ...] arrays by name."""
        return {name: self._shaped(values) for name, values in self.runs.rounds.items()}

    @property
    def params(self) -> Any:
        """The final global models, leaves [*shape, ...]; None unless the sweep was told to keep them."""
        return jax.tree.map(self._shaped, self.runs.params)

    @property
    def description(self) -> dict[str, Any]:
        """The resolved configuration (with the values of the first point), the space and where it ran."""
        return self.runs.description

    @property
    def seconds(self) -> float:
        """Wall time of all runs, after compilation."""
        return self.runs.seconds

    @property
    def compile_seconds(self) -> float:
        """Wall time of tracing and compiling."""
        return self.runs.compile_seconds

    @property
    def diverged(self) -> np.ndarray:
        """bool[*shape], whether a loss of the run (without any a metric) was NaN or infinite at the last evaluation.

        Losses of one number: those of every client are NaN for a client without examples.
        """
        metrics = {name: values for name, values in self.runs.metrics.items() if values.ndim == 2}
        finite = [np.isfinite(metrics[name][:, -1].astype(float)) for name in telling_of_divergence(metrics)]
        return self._shaped(~np.logical_and.reduce(finite))

    def __getitem__(self, name: str) -> np.ndarray:
        """The metric ``name``, [*shape, E, ...], or the record ``name`` of every round, [*shape, R, ...]."""
        return self._shaped(self.runs[name])

    def final(self, name: str) -> np.ndarray:
        """The last value of a metric or record, [*shape, ...]."""
        return self._shaped(self.runs.final(name))

    def at(self, point: int | Mapping[str, Any]) -> History:
        """The history of one point, with all its seeds, as :func:`fedjax_sim.simulate` would have returned it.

        Args:
          point: its number, 0 to P - 1, or its values by name (all names; the nearest float counts).

        Returns:
          A history; its ``seconds`` are an even share of the sweep's. :func:`fedjax_sim.verify` allows it round-off,
          since ``simulate`` is another program.

        Raises:
          IndexError, KeyError, ValueError: no such number, no such name (or one left out), no point has these values.
        """
        number = point if isinstance(point, (int, np.integer)) else self._number(point)
        count = self.space.num_points
        if not 0 <= number < count:
            raise IndexError(f"at({point}): points have the numbers 0 to {count - 1}")
        rows = slice(number * len(self.seeds), (number + 1) * len(self.seeds))
        # Bounds are of all points; and a program of many runs rounds otherwise than that of one.
        about = {key: value for key, value in self.description.items() if key not in ("space", "seeds", "bounds")}
        if isinstance(where := about.get("environment"), Mapping):
            about["environment"] = {**where, "program": "of a sweep"}

        def part(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[rows], tree)

        return dataclasses.replace(
            self.runs,
            metrics=part(self.runs.metrics),
            rounds=part(self.runs.rounds),
            params=part(self.runs.params),
            seeds=list(self.seeds),
            seconds=self.seconds / count,
            compile_seconds=self.compile_seconds / count,
            description=described(about, self.space.point(int(number))),
            divergences=[
                found._replace(seed=self.seeds[found.seed - rows.start])
                for found in self.runs.divergences
                if rows.start <= found.seed < rows.stop
            ],
        )

    def compared(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """A metric's last values, [P, seeds], and their means, NaN where a seed diverged, to compare points."""
        finals = self.final(metric)
        if finals.shape != self.shape:
            rest = finals.shape[len(self.shape) :]
            raise ValueError(f"{metric!r} has the shape {rest} at an evaluation: points are compared by one number")
        by_point = finals.reshape(-1, len(self.seeds)).astype(float)
        return by_point, means(by_point, self.diverged.reshape(by_point.shape))

    def ranked(self, metric: str = "loss", *, less: bool | None = None) -> list[Ranked]:
        """All points from the best to the worst by the mean over seeds of a metric's last value.

        Points of which a seed diverged (see ``diverged``) are left out.

        Args:
          metric: one number a run and evaluation.
          less: whether less is better; None judges by the name: it is for losses, errors and spreads.
        """
        finals, mean = self.compared(metric)
        less = less_is_better(metric) if less is None else less
        known = np.flatnonzero(np.isfinite(mean))
        order = known[np.argsort(mean[known] if less else -mean[known], kind="stable")].tolist()
        deviation = finals[order].std(axis=1, ddof=min(len(self.seeds) - 1, 1))  # of infinities numpy warns
        return [
            Ranked(number, self.space.point(number), finals[number], float(mean[number]), std)
            for number, std in zip(order, deviation.tolist(), strict=True)
        ]

    def best(self, metric: str = "loss", *, less: bool | None = None) -> Ranked:
        """The first of :meth:`ranked`; a ``ValueError`` where there is none."""
        ranked = self.ranked(metric, less=less)
        if not ranked:
            count = self.space.num_points
            if not self.diverged.reshape(count, -1).any(axis=1).all():
                raise ValueError(f"best({metric!r}): not defined at any of the {count} points: choose another metric")
            raise ValueError(
                f"best({metric!r}): all {count} points diverged for at least one seed: try smaller learning rates"
            )
        return ranked[0]

    table, to_csv, to_pandas, to_xarray = export.table, export.to_csv, export.to_pandas, export.to_xarray
    heatmap, profile, curves = export.heatmap, export.profile, export.curves

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one ``.npz`` file, atomically and without pickle; names with .csv, .json are refused."""
        self.runs.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sweep:
        """Reads what :meth:`save` wrote; parameters come back as nested dictionaries."""
        runs = read_record(path)
        if not is_sweep(runs):
            raise ValueError(f"{os.fspath(path)} has no sweep: read it with fedjax_sim.History.load")
        with parsing(Path(path), "is no sweep of fedjax_sim, or is damaged", "give a file that Sweep.save wrote"):
            space, seeds = build(runs.description["space"]), runs.description["seeds"]
            if not isinstance(space, Space):
                raise ValueError(f"its space is {shown(space)}")
            if len(runs.seeds) != space.num_points * len(seeds) or runs.seeds != seeds * space.num_points:
                raise ValueError(
                    f"its runs have the seeds {shown(runs.seeds)}, not {shown(seeds)} at {space.num_points} points"
                )
            if runs.stops:
                raise ValueError("it has the stops of single runs")
            described(runs.description, space.point(0))  # it has the leaves that the points change
            return cls(runs, space, seeds)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(*self.shape, *values.shape[1:])

    def _number(self, point: Mapping[str, Any]) -> int:
        if not isinstance(point, Mapping):
            raise TypeError(f"at({shown(point)}): give a point's number, or its values by name")
        for name in point:
            if name not in self.space.names:
                raise KeyError(f"at: the space has no {name!r}: {suggest(str(name), list(self.space.names))}")
        missing = [name for name in self.space.names if name not in point]
        if missing:
            raise KeyError(f"at({shown(dict(point))}): a value of {missing[0]!r} is missing")
        alike, away = np.ones(self.space.num_points, bool), np.zeros(self.space.num_points)
        for name, values in self.space.points().items():
            wanted = np.asarray(point[name], float)
            alike &= _by_point(np.isclose(values, wanted, rtol=1e-6, atol=0.0)).all(axis=1)
            with np.errstate(invalid="ignore"):  # infinities that are equal
                away += _by_point(np.where(values == wanted, 0.0, abs(values - wanted))).sum(axis=1)
        if not alike.any():
            raise ValueError(f"at({shown(dict(point))}): no point of the sweep has these values")
        return int(np.argmin(np.where(alike, away, np.inf)))  # in double precision several may be that close

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {size}" for name, size in zip(self.dims, self.shape, strict=True))
        bad = int(self.diverged.sum())
        ended = f", {bad} of {math.prod(self.shape)} runs diverged" if bad else ""
        return f"Sweep({self.runs.algorithm}, {axes}{ended})"

    def _repr_html_(self) -> str:
        """For notebooks: the best points."""
        metric = next((name for name in (*ACCURACIES, *LOSSES) if one_number(self.runs, name)), None)
        return in_notebook(self, self.table(metric, top=8, form="html"))

    def _ipython_key_completions_(self) -> list[str]:
        return self.runs._ipython_key_completions_()


def _by_point(values: np.ndarray) -> np.ndarray:
    """[P, all entries of a point], of numbers or arrays of points."""
    return values.reshape(len(values), -1)
