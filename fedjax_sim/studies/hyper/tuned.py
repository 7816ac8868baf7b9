"""What a tuning varies, what it found, and all that it tried."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Self

import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.tabular import text_rows
from fedjax_sim.core.values import as_plain
from fedjax_sim.reporting.figures import grid_of_axes, whole_numbers
from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, cross, plain
from fedjax_sim.studies.subject import Subject


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """The record of one :func:`fedjax_sim.hyper.tune` call. E = steps + 1 evaluations, the first at the start.

    Attributes:
      algorithm: the method with the best hyper-parameters.
      run: the arguments of the run, with the best hyper-parameters where they belong to it:
        ``simulate(tuned.algorithm, data, **tuned.run)``.
      best: restart and evaluation of the lowest objective among the accepted.
      by_seed: float[restarts, E, S], the objective of every run.
      hyper: the hyper-parameters by path, [restarts, E, ...].
      gradients: of the mean objective with respect to them, by path, [restarts, E, ...]; found by an estimator, with
        respect to their coordinates u.
      accepted: bool[restarts, E], whether objective and gradient were finite.
      scales: float[restarts, E], the part of the optimiser's step that led there: 1, or less after a rejection.
      seeds: of the runs.
      seconds: wall time of all evaluations, after compilation.
      compile_seconds: wall time of tracing and compiling.
      description: the study as JSON.
    """

    algorithm: Method
    run: dict[str, Any]
    best: tuple[int, int]
    by_seed: np.ndarray
    hyper: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    accepted: np.ndarray
    scales: np.ndarray
    seeds: list[int]
    seconds: float
    compile_seconds: float
    description: dict[str, Any]

    @classmethod
    def of(cls, subject: Subject, **record: Any) -> Self:
        """The result of a study of ``subject``: the best accepted evaluation that the factories accept too.

        Only a transform chosen by the caller can leave what a factory accepts (``identity()`` of a learning rate).

        Raises:
          ValueError: they accept none.
        """
        values = np.where(record["accepted"], record["by_seed"].mean(axis=2), np.inf)
        refusal = None
        for flat in np.argsort(values, axis=None, kind="stable"):
            restart, evaluation = (int(i) for i in np.unravel_index(flat, values.shape))
            if not record["accepted"][restart, evaluation]:
                break
            found = {path: _number(leaf[restart, evaluation]) for path, leaf in record["hyper"].items()}
            try:
                best = subject.replace(found)
            except ValueError as error:
                refusal = refusal or error
                continue
            return cls(algorithm=best.algorithm, run=best.run, best=(restart, evaluation), **record)
        raise ValueError(f"no accepted evaluation has hyper-parameters that their factories accept: {refusal}")

    @property
    def values(self) -> np.ndarray:
        """float[restarts, E], the mean objective over seeds; not finite where the run diverged."""
        return np.asarray(self.by_seed.mean(axis=2))

    @property
    def value(self) -> float:
        """The lowest accepted objective."""
        return float(self.values[self.best])

    @property
    def found(self) -> dict[str, Any]:
        """The best hyper-parameters by path: numbers and arrays."""
        return {path: _number(leaf[self.best]) for path, leaf in self.hyper.items()}

    @property
    def rejected(self) -> int:
        """How many evaluations were rejected, over all restarts."""
        return int((~self.accepted).sum())

    @property
    def runs(self) -> int:
        """How many federated runs were differentiated: restarts x E x seeds."""
        return int(self.by_seed.size)

    def table(self) -> str:
        """Start, best value and the gradient there of every hyper-parameter; of arrays their range. Printable."""
        columns = [
            ("hyper-parameter", list(self.hyper)),
            ("start", [_cell(leaf[0, 0]) for leaf in self.hyper.values()]),
            ("best", [_cell(leaf[self.best]) for leaf in self.hyper.values()]),
            ("gradient at best", [_cell(leaf[self.best]) for leaf in self.gradients.values()]),
        ]
        restart, evaluation = self.best
        lines = [
            *text_rows(columns),
            "",
            f"objective {self.values[0, 0]:.6g} -> {self.value:.6g} (restart {restart}, step {evaluation}); "
            f"{self.runs} differentiated runs, {self.rejected} steps rejected, {self.seconds:.1f} s "
            f"and {self.compile_seconds:.1f} s to compile",
        ]
        return "\n".join(lines)

    def plot(self) -> Any:
        """Draws the objective and every hyper-parameter against the steps; needs matplotlib. Returns the figure.

        The restart that found the best value is drawn in colour, the others in grey; a dot marks the best step, crosses
        at the upper edge the rejected ones. An array is drawn as it was at the start and at the best step.
        """
        check_matplotlib()
        figure, axes = grid_of_axes(1 + len(self.hyper), 3.6, 2.9)
        for ax, (path, leaf) in zip(axes, {"objective": self.values, **self.hyper}.items(), strict=True):
            if leaf.ndim == 2:
                _draw_trace(ax, self, leaf)
            else:
                ax.plot(leaf[0, 0].ravel(), color="0.75", linewidth=1.2, label="start")
                ax.plot(leaf[self.best].ravel(), color=COLOURS[0], linewidth=1.8, label="best")
                ax.set_xlabel("entry")
                ax.legend(**LEGEND)
            ax.set_title(path, fontsize="medium", pad=9 if leaf.ndim == 2 else None)
            plain(ax)
        return figure

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data; numbers that are not finite become None."""
        found: dict[str, Any] = as_plain({
            "best": {"restart": self.best[0], "step": self.best[1], "value": self.value, "found": self.found},
            "algorithm": describe(self.algorithm),
            "accepted": self.accepted.tolist(),
            **{name: getattr(self, name) for name in ("by_seed", "hyper", "gradients", "scales")},
            **{name: getattr(self, name) for name in ("rejected", "runs", "seconds", "compile_seconds", "description")},
        })  # fmt: skip
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`as_json` to a file, atomically."""
        write_atomically(path, json.dumps(self.as_json(), allow_nan=False).encode())


def _draw_trace(ax: Any, tuned: Tuned, lines: np.ndarray) -> None:
    """[restarts, E] against the steps."""
    best, at = tuned.best
    steps = np.arange(lines.shape[1])
    for restart, (line, accepted) in enumerate(zip(lines, tuned.accepted, strict=True)):
        style = {"color": COLOURS[0], "linewidth": 1.8, "zorder": 3} if restart == best else {"color": "0.75"}
        ax.plot(steps[accepted], line[accepted], **style)
    ax.plot(at, lines[best, at], color=COLOURS[1], marker="o", markersize=5, linestyle="", zorder=4)
    rejected = np.flatnonzero((~tuned.accepted).any(axis=0))
    if rejected.size:
        cross(ax, rejected, y=1.01, markersize=4, color="0.3")
    known = lines[tuned.accepted]
    if known.min() > 0 and known.max() > 5 * known.min():
        ax.set_yscale("log")
    ax.set_xlabel("step")
    whole_numbers(ax.xaxis)


def _number(leaf: np.ndarray) -> Any:
    return float(leaf) if np.ndim(leaf) == 0 else leaf


def _cell(leaf: np.ndarray) -> str:
    if np.ndim(leaf) == 0:
        return f"{float(leaf):.4g}"
    return f"{np.min(leaf):.3g} to {np.max(leaf):.3g}"
