"""What a phase diagram found: values, who wins with which significance, a table, a file, a figure."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.files import parsing, write_atomically
from fedjax_sim.core.tabular import in_notebook, table
from fedjax_sim.core.values import check_choice, suggest
from fedjax_sim.datasets.reading.npz import read_npz
from fedjax_sim.reporting import frames, paired, sweep_plots
from fedjax_sim.reporting.recorded import in_words
from fedjax_sim.reporting.table import half_width

_ARRAYS = ("x", "y", "values", "steps", "computed")
COLUMNS = ("method", "seed", "diverged", "needed_steps", "computed_steps")  # of all records; no axis is called so


class Verdict(NamedTuple):
    """Who wins in each cell, [X, Y].

    Attributes:
      winner: the number of the method that is better than every other one, -1 where none is, -2 where nothing was
        computed.
      p: of the test; NaN where there was none: at most one method did not diverge, or differences are all equal.
      adjusted: corrected for all tested cells.
    """

    winner: np.ndarray
    p: np.ndarray
    adjusted: np.ndarray


class Difference(NamedTuple):
    """Paired differences of two methods: mean and Student's interval over seeds, [X, Y]; NaN where one diverged."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class PhaseDiagram:
    """The record of one :func:`fedjax_sim.phase` call: X by Y cells, M methods, S seeds.

    Attributes:
      x_name: the horizontal axis.
      x: its values, float[X].
      y_name: the vertical one.
      y: its values, float[Y].
      methods: their names.
      seeds: of all cells and methods.
      metric: what is compared.
      less: whether less of it is better.
      values: float[X, Y, M, S], the metric after the last round; NaN where the run diverged or was not computed, and
        where a score is not defined, as an area under the curve of examples of one class.
      steps: int[X, Y, M, S, 2], gradients that the clients needed, and that were computed.
      computed: bool[X, Y].
      chosen: of ``best_of``, the value of each method in each cell by name, float[X, Y, M]; NaN where not computed.
      description: what was run and where.
    """

    x_name: str
    x: np.ndarray
    y_name: str
    y: np.ndarray
    methods: tuple[str, ...]
    seeds: list[int]
    metric: str
    less: bool
    values: np.ndarray
    steps: np.ndarray
    computed: np.ndarray
    chosen: dict[str, np.ndarray]
    description: dict[str, Any]

    @property
    def diverged(self) -> np.ndarray:
        """bool[X, Y, M], whether the method has no value for a seed: it diverged, or its score is not defined."""
        return np.asarray(np.isnan(self.values).any(axis=3) & self.computed[..., None])

    def difference(self, a: str, b: str, *, level: float = 0.05) -> Difference:
        """a - b: mean d of the paired differences over S seeds, and d ± t s / sqrt(S), not corrected for the cells."""
        one, other = (self.values[:, :, self._index(name)] for name in (a, b))
        d = paired.differences(one, other, str(self.description["environment"]["float"]))
        mean, seeds = d.mean(axis=2), d.shape[2]
        half = np.full(mean.shape, np.nan)
        if seeds > 1:
            half = half_width(d, level)
        return Difference(mean, mean - half, mean + half)

    def verdict(self, *, level: float = 0.05, correction: str | None = "bh") -> Verdict:
        """Who wins where.

        In a cell the method of the best mean is tested against every other, two-sided, by Student's test on paired
        differences. It has to be better than all: p is the largest of these, times half the number of methods. A method
        that diverged for a seed cannot win, and loses to the others without a test. Differences of round-off are none;
        where they are all equal and not 0, as of accuracies of few examples, there is no test and no winner.

        Args:
          level: of significance.
          correction: over tested cells: ``"bh"``, Benjamini and Hochberg 1995: of the cells with a winner a share of at
            most ``level`` is wrong, in expectation; ``"holm"``, Holm 1979: none is, with probability 1 - ``level``;
            None.

        Raises:
          ValueError: fewer than two methods or seeds, or another correction.
        """
        if correction is not None:
            check_choice("verdict(correction=...)", correction, ("bh", "holm"))
        if len(self.methods) < 2 or len(self.seeds) < 2:
            raise ValueError("verdict: a paired test needs two methods and two seeds")
        cost, precision = self.values if self.less else -self.values, str(self.description["environment"]["float"])
        winner, p = np.where(self.computed, -1, -2), np.full(self.computed.shape, np.nan)
        for place in np.argwhere(self.computed):
            at = tuple(place)
            whole = np.flatnonzero(~self.diverged[at]).tolist()
            if not whole:
                continue
            best = min(whole, key=lambda m: cost[at][m].mean())
            winner[at] = best
            if len(whole) > 1:
                found = [_p_value(cost[at][best], cost[at][m], precision) for m in whole if m != best]
                p[at] = np.minimum(np.max(found) * len(whole) / 2, 1.0)  # NaN where one is: Python's max passes over it
                winner[at] = -1 if np.isnan(p[at]) else best
        adjusted = paired.adjusted(p, correction)
        winner[adjusted > level] = -1
        return Verdict(winner, p, adjusted)

    def records(self) -> list[dict[str, Any]]:
        """A dictionary for each run of a computed cell.

        What was chosen and is called as an axis is, as FedDyn's ``"alpha"`` beside that of a partition, becomes
        ``"alpha_chosen"``; a metric with the name of something else ``"..._recorded"``.
        """
        axes, rows = (self.x_name, self.y_name), []
        chosen = {f"{name}_chosen" if name in axes else name: of for name, of in self.chosen.items()}
        metric = f"{self.metric}_recorded" if self.metric in (*axes, *chosen, *COLUMNS) else self.metric
        for i, j in np.argwhere(self.computed):
            for (m, method), (s, seed) in itertools.product(enumerate(self.methods), enumerate(self.seeds)):
                value, (needed, done) = self.values[i, j, m, s], self.steps[i, j, m, s]
                row = {self.x_name: self.x[i], self.y_name: self.y[j], "method": method, "seed": seed}
                row |= {name: of[i, j, m] for name, of in chosen.items()}
                row |= {metric: value, "diverged": np.isnan(value), "needed_steps": needed, "computed_steps": done}
                rows.append({name: one.item() if isinstance(one, np.generic) else one for name, one in row.items()})
        return rows

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`records` to a file, atomically."""
        frames.write_csv(path, self._columns())

    def to_pandas(self) -> Any:
        """:meth:`records` as a ``pandas.DataFrame``; needs pandas."""
        return frames.data_frame(self._columns())

    def _columns(self) -> dict[str, np.ndarray]:
        rows = self.records()
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one ``.npz`` file, atomically and without pickle."""
        names = ("x_name", "y_name", "methods", "seeds", "metric", "less", "description")
        about = {name: getattr(self, name) for name in names} | {"chosen": list(self.chosen)}
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"chosen{number}": values for number, values in enumerate(self.chosen.values())}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PhaseDiagram:
        """Reads what :meth:`save` wrote."""
        arrays = read_npz(Path(path))
        with parsing(Path(path), "is no phase diagram, or is damaged", "give a file that PhaseDiagram.save wrote"):
            about = json.loads(arrays["about"].tobytes())
            there = arrays["computed"][..., None]  # older files have the first candidate elsewhere
            chosen = {
                name: np.where(there, arrays[f"chosen{number}"], np.nan)
                for number, name in enumerate(about.pop("chosen"))
            }
            about["methods"] = tuple(about["methods"])
            given: dict[str, Any] = about | {"chosen": chosen} | {name: arrays[name] for name in _ARRAYS}
            return cls(**given)

    def plot(self, what: str | None = None, ax: Any = None, **verdict: Any) -> Any:
        """Draws the diagram; needs matplotlib. What was not computed is white.

        Args:
          what: ``"winner"``, the default for two methods and seeds or more; ``"difference"`` of the first two methods'
            means; or a method, whose mean is drawn. Cells of the first two that do not separate are grey or hatched.
          ax: matplotlib axes to draw on, which are returned; None makes a figure of one column of a page.
          **verdict: arguments of :meth:`verdict`.
        """
        several = len(self.methods) > 1 and len(self.seeds) > 1
        what = ("winner" if several else self.methods[0]) if what is None else what
        if what not in ("winner", "difference"):
            self._index(what)
        winner = self.verdict(**verdict).winner if several or what == "winner" else None
        return sweep_plots.phase_map(self, what, winner, ax)

    def _index(self, name: str) -> int:
        if name not in self.methods:
            raise KeyError(f"the diagram has no method {name!r}: {suggest(name, self.methods)}")
        return self.methods.index(name)

    def __repr__(self) -> str:
        cells = f"{self.x_name}: {len(self.x)}, {self.y_name}: {len(self.y)}, seed: {len(self.seeds)}"
        left = "" if self.computed.all() else f", {int(self.computed.sum())} of {self.computed.size} cells"
        bad = int(self.diverged.sum())
        return (
            f"PhaseDiagram({', '.join(self.methods)}, {cells}{left}{f', {bad} cells with divergence' if bad else ''})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: in how many cells each method is best by its mean, and how many it diverged in."""
        means = np.where(self.diverged, np.nan, self.values.mean(axis=3)) * (1 if self.less else -1)
        best = np.where(np.isnan(means).all(axis=2), -1, np.argmin(np.where(np.isnan(means), np.inf, means), axis=2))
        of = f" of {int(self.computed.sum())} cells"
        columns = [
            ("method", list(self.methods)),
            (f"best by {in_words(self.metric)}", [f"{(best == m).sum()}{of}" for m in range(len(self.methods))]),
            ("diverged", [f"{self.diverged[..., m].sum()}{of}" for m in range(len(self.methods))]),
        ]
        return in_notebook(self, table(columns, "html"))


def _p_value(better: np.ndarray, other: np.ndarray, precision: str) -> float:
    """Two-sided p of the differences of costs [S]; 1 where there are none, NaN where all are equal."""
    d, _, p = paired.tested(better, other, precision)
    return 1.0 if d.mean() >= 0 else p
