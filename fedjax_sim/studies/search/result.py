"""What a search recorded: members by evaluation, who came from whom, the best model."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.tabular import in_notebook, table
from fedjax_sim.core.values import as_plain


@dataclasses.dataclass(frozen=True, eq=False)
class Searched:
    """The record of one :func:`fedjax_sim.search` call. P members, S seeds, E evaluations, that of the start first.

    Attributes:
      evaluated: int[E], numbers of finished rounds at the evaluations.
      metrics: [P, S, E, ...] arrays by name; NaN, or 0 where they are not real, of members that are out.
      values: the hyper-parameters by name, [P, E, ...]: those of the rounds before an evaluation; NaN likewise.
      scores: float[P, E], by which members are compared: the objective's mean over seeds, its negative where more is
        better; inf of members that diverged, NaN of those that are out.
      source: int[P, E]: from whose state a member goes on after an evaluation, its own number unless it is a copy.
      params: the final models of the best member, leaves [S, ...].
      seeds: of every member.
      seconds: wall time of all rounds, after compilation.
      compile_seconds: wall time of tracing and compiling.
      description: the search as JSON.
    """

    evaluated: np.ndarray
    metrics: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    scores: np.ndarray
    source: np.ndarray
    params: Any
    seeds: list[int]
    seconds: float
    compile_seconds: float
    description: dict[str, Any]

    @property
    def best(self) -> int:
        """The member with the least score at the end, the first of equals."""
        return int(np.nanargmin(self.scores[:, -1]))

    @property
    def found(self) -> dict[str, Any]:
        """The hyper-parameters with which the best member ended, by name; :meth:`schedule` has those before."""
        return {name: leaf[self.best, -1] for name, leaf in self.values.items()}

    @property
    def member_rounds(self) -> int:
        """The rounds of all members and seeds together: what the search cost."""
        at_work = (~np.isnan(self.scores)).sum(axis=0)
        return int(at_work @ np.diff(self.evaluated, prepend=0)) * len(self.seeds)

    def lineage(self, member: int | None = None) -> np.ndarray:
        """int[E], whose state the final model of a ``member`` was at each evaluation; None for the best member."""
        path = [self.best if member is None else member]
        for source in self.source.T[-2::-1]:
            path.append(int(source[path[-1]]))
        return np.array(path[::-1])

    def schedule(self, member: int | None = None) -> dict[str, np.ndarray]:
        """The hyper-parameters of every round on the way to a member's final model, [R, ...] by name."""
        path, rounds = self.lineage(member), np.diff(self.evaluated, prepend=0)
        ran = {name: leaf[path, np.arange(len(path))] for name, leaf in self.values.items()}
        return {name: np.repeat(leaf, rounds, axis=0) for name, leaf in ran.items()}

    def history(self, member: int | None = None) -> dict[str, np.ndarray]:
        """The metrics on the way to a member's final model, [E, S, ...] by name."""
        path = self.lineage(member)
        return {name: leaf[path, :, np.arange(len(path))] for name, leaf in self.metrics.items()}

    def as_json(self) -> dict[str, Any]:
        """Everything but the models as plain data; numbers that are not finite become None."""
        fields = {name: leaf for name, leaf in vars(self).items() if name not in ("params", "evaluated", "source")}
        numbers = {"evaluated": self.evaluated.tolist(), "source": self.source.tolist()}
        return as_plain({"best": self.best, "found": self.found, **fields, **numbers})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`as_json` to a file, atomically."""
        write_atomically(path, json.dumps(self.as_json(), allow_nan=False).encode())

    def __repr__(self) -> str:
        algorithm, strategy = (self.description[of].get("name", "run") for of in ("algorithm", "strategy"))
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return (
            f"Searched({algorithm.rpartition('.')[2]}, {strategy.rpartition('.')[2]}, {len(self.scores)} members, "
            f"{seeds}, {self.evaluated[-1]} rounds; best: member {self.best}, score {self.scores[self.best, -1]:.6g})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: what the best member ended with."""
        found = self.found
        values = [f"{one:.6g}" if np.ndim(one) == 0 else f"[{len(one)} numbers]" for one in found.values()]
        return in_notebook(self, table([("hyper-parameter", list(found)), ("found", values)], "html"))
