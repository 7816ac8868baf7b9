"""What a cell of a phase diagram runs: functions of the axes' values, and paths of real leaves."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import json
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.opaque import check_known
from fedjax_sim.core.values import check_real, shown, suggest
from fedjax_sim.datasets.fingerprints import digest, fingerprint
from fedjax_sim.engine.arguments import check_arguments
from fedjax_sim.engine.plan import Plan
from fedjax_sim.studies.phases.result import COLUMNS
from fedjax_sim.studies.subject import Subject
from fedjax_sim.studies.sweeps.program import in_words, of_most_steps, placed
from fedjax_sim.studies.sweeps.space import Space

SEED = "seed"  # what the data's factory gets beside values of the axes
_NOT = ("evaluate", "eval_every")  # arguments that are functions themselves, or no argument of a cell
_PARTS = ("algorithm", "task", "cohort", "work", "batches", "system", "asynchronous", "layout", "diagnostics")


class Axis(NamedTuple):
    """An axis: its name, and its values as they were given, in ascending order."""

    name: str
    values: tuple[Any, ...]


def axis(which: str, given: Any) -> Axis:
    """The axis of ``{"alpha": [0.0, 0.5, 1.0]}``: one name, and distinct numbers in ascending order."""
    if not isinstance(given, Mapping) or len(given) != 1 or not isinstance(next(iter(given)), str):
        raise TypeError(f"phase({which}={shown(given)}): give one name with its values, {{'alpha': [0.0, 0.5, 1.0]}}")
    (name, values), what = next(iter(given.items())), f"phase({which}={{{next(iter(given))!r}: ...}})"
    held = tuple(np.asarray(list(values)).tolist()) if isinstance(values, Iterable) else ()
    for value in held:
        check_real(what, value)
        if np.ndim(value) != 0:
            raise ValueError(f"{what} has the value {shown(value)}: an axis has numbers")
    if not held or any(a >= b for a, b in itertools.pairwise(held)):
        raise ValueError(f"{what} has the values {shown(held)}: give numbers in ascending order")
    if name in COLUMNS:
        raise ValueError(f"{what}: the diagram's records have a column of this name: call the axis otherwise")
    return Axis(name, held)


class Dependent(NamedTuple):
    """Something of a run: a value, or with ``names`` a function of the cell's values of these names."""

    value: Any
    names: tuple[str, ...] | None = None

    def at(self, cell: Mapping[str, Any]) -> Any:
        """What it is in a cell."""
        return self.value if self.names is None else self.value(**{name: cell[name] for name in self.names})

    def key(self, cell: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values that it depends on."""
        return tuple(cell[name] for name in self.names or ())


def dependent(what: str, given: Any, known: tuple[str, ...]) -> Dependent:
    """``given``, where it is a function one of the ``known`` names.

    Raises:
      TypeError: a function of another name, or of none of them.
    """
    if not (inspect.isroutine(given) or isinstance(given, functools.partial)):
        return Dependent(given)
    parameters = inspect.signature(given).parameters
    for name, one in parameters.items():
        if name not in known and one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise TypeError(f"phase: {what} is a function of {name!r}, which is no axis: {suggest(name, known)}")
    names = tuple(name for name in known if name in parameters)
    if not names:
        raise TypeError(f"phase: {what} is a function of none of {', '.join(map(repr, known))}: give what it returns")
    return Dependent(given, names)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """What one method is asked to do in a cell with one of the values to choose from, without data and key."""

    plan: Plan
    rounds: int

    @functools.cached_property
    def structure(self) -> Hashable:
        """What settings have in common whose runs are one program, but for the data's shapes."""
        leaves, structure = jax.tree.flatten(self.plan)
        return structure, tuple((np.shape(leaf), str(jax.numpy.result_type(leaf))) for leaf in leaves), self.rounds

    @functools.cached_property
    def checksum(self) -> str:
        """Of all that decides the results on given data; what cannot be known is refused."""
        parts = {name: getattr(self.plan, name) for name in _PARTS}
        described = {
            name: describe(part) if hasattr(part, "replace") else [*map(describe, part or ())]
            for name, part in parts.items()
        }
        check_known("a phase diagram that is stored", described)
        values = fingerprint([np.asarray(leaf) for leaf in jax.tree.leaves(self.plan)])
        rest = [described, values, self.rounds, self.plan.guard.skip, self.plan.measured.training]
        return digest(json.dumps(rest, sort_keys=True).encode())


class Grid:
    """All cells: what runs in them, and on which data.

    Attributes:
      axes: x and y.
      methods: by name, in their order.
      data: the data set, or its factory.
      points: of ``best_of``, the values to choose from by name; one without names where there is none.
    """

    def __init__(
        self, algorithms: Mapping[str, Any], data: Any, axes: tuple[Axis, Axis], best_of: Space | None,
        run: dict[str, Any],
    ) -> None:  # fmt: skip
        self.axes, names = axes, (axes[0].name, axes[1].name)
        if names[0] == names[1]:
            raise ValueError(f"phase: x and y are both {names[0]!r}: give two axes")
        self.methods = {
            name: dependent(f"the algorithm {name!r}", method, names) for name, method in algorithms.items()
        }
        self.data = dependent("data", data, (*names, SEED))
        self.points = [{}] if best_of is None else [best_of.point(number) for number in range(best_of.num_points)]
        self._run = {name: dependent(name, given, names) for name, given in run.items() if name not in _NOT}
        self._fixed = {name: run[name] for name in _NOT}
        parts = [*self.methods.values(), self.data, *self._run.values()]
        used = {name for part in parts for name in part.names or ()}
        self._paths = tuple(name for name in names if name not in used)
        self._made: dict[Hashable, Setting] = {}
        self._replaced: dict[tuple[str, str], Any] = {}

    def cell(self, place: tuple[int, int]) -> dict[str, Any]:
        """The values of the axes at (i, j), by name."""
        return {one.name: one.values[at] for one, at in zip(self.axes, place, strict=True)}

    def setting(self, method: str, place: tuple[int, int], candidate: int = 0) -> Setting:
        """What is asked for in a cell; one object for cells in which it is the same."""
        cell, of_method = self.cell(place), self.methods[method]
        key = (method, candidate, of_method.key(cell), *(part.key(cell) for part in self._run.values()))
        key += tuple(cell[name] for name in self._paths)
        if key not in self._made:
            given = {name: part.at(cell) for name, part in self._run.items()}
            try:
                plan = check_arguments(given | self._fixed | {"eval_every": given["rounds"]})  # type: ignore[arg-type]
                plan = placed(plan._replace(algorithm=of_method.at(cell)), {name: cell[name] for name in self._paths})
                self._check_replaced(method, plan)
                self._made[key] = Setting(self._candidate(plan, candidate), given["rounds"])
            except (TypeError, ValueError) as error:
                hint = "".join(f"; no function has the parameter {name!r}" for name in self._paths)
                raise type(error)(f"phase, {method} at {in_words(cell)}: {error}{hint}") from error
        return self._made[key]

    def _candidate(self, plan: Plan, number: int) -> Plan:
        """The plan with one of the values to choose from; all of them are one program."""
        chosen = placed(plan, self.points[number])
        if not any(name.startswith("work.") for name in self.points[0]):
            return chosen
        works = [placed(plan, point).work for point in self.points]
        return chosen._replace(work=of_most_steps(chosen.work, works))

    def _check_replaced(self, method: str, plan: Plan) -> None:
        """Refuses values to choose from in the place of what an axis sets, which would have no effect."""
        for name in self.points[0]:
            value = np.asarray(Subject.of(plan).get(name))
            if not np.array_equal(self._replaced.setdefault((method, name), value), value):
                raise ValueError(f"best_of= would replace {name!r}, which an axis sets: leave one of them out")
