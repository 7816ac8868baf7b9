"""The runs of a phase diagram: as many at once as there are cores, one program for each structure."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.devices import available_cores, threads_for_programs
from fedjax_sim.core.values import suggest
from fedjax_sim.datasets.fingerprints import dataset_fingerprint, digest
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.optim.described import hoisted
from fedjax_sim.run.history import History
from fedjax_sim.studies.phases.refining import Place
from fedjax_sim.studies.phases.result import PhaseDiagram
from fedjax_sim.studies.phases.settings import Grid, described, structure_of
from fedjax_sim.studies.sweeps.program import Settings, in_words, placed, takes_turns, whole_run
from fedjax_sim.studies.sweeps.space import Space
from fedjax_sim.studies.sweeps.stored import Folder

_TOGETHER = 16  # runs of a call at most: so often results are stored and shown


class Cost(NamedTuple):
    """What a diagram costs, at most; cells that ``refine=`` leaves out are not counted.

    Attributes:
      cells: to compute.
      runs: of all methods, seeds and values to choose from.
      rounds: of all runs.
      local_steps: a bound of the gradients of all clients, by the sizes of the first seed's data.
      programs: structures, each compiled once for each shape of data.
    """

    cells: int
    runs: int
    rounds: int
    local_steps: int
    programs: int

    def __str__(self) -> str:
        said = f"{self.cells:,} cells, {self.runs:,} runs, {self.rounds:,} rounds, {self.programs} structures"
        return f"phase: {said}, at most {self.local_steps:.3g} local steps"


class _Run(NamedTuple):
    """One run: method m at place (i, j), with the p-th of the values to choose from, of a seed."""

    method: str
    place: Place
    candidate: int
    seed: int


class _Structure(NamedTuple):
    """What runs of one program share."""

    layout: Any
    size: int  # runs of a call
    steps: int  # most local steps of a run


@functools.partial(jax.jit, static_argnames=("settings", "structure"))
def _compute(
    dataset: Any, key: Any, initial_params: Any, leaves: Any, counts: Any, structure: Any, settings: Any
) -> Any:
    """The runs of a call, leaves [C, ...] of their plans, on one data set with one key."""

    def one(leaves: Any, evaluations: jax.Array) -> Any:
        plan = jax.tree.unflatten(structure, leaves)._replace(dataset=dataset)
        found = whole_run(plan, initial_params, settings, {}, key, evaluations)
        return found.metrics, {name: record for name, record in found.records.items() if record.ndim == 2}

    if settings.in_turn:
        return lax.map(lambda run: one(*run), (leaves, counts))
    return jax.vmap(one, (0, None))(leaves, jnp.max(counts))


class Diagram:
    """The runs of a diagram, as far as they are known."""

    def __init__(
        self, grid: Grid, metric: str, less: bool, seeds: list[int], space: Space | None, choosing: list[int],
        evaluate: Any, initial_params: Any,
    ) -> None:  # fmt: skip
        self.grid, self._metric, self._seeds, self._space, self._choosing = grid, metric, seeds, space, choosing
        self.less, self._evaluate, self._initial = less, evaluate, initial_params
        self._points = [{}] if space is None else [space.point(number) for number in range(space.num_points)]
        self.shape = (len(grid.axes[0].values), len(grid.axes[1].values), len(grid.methods))
        self.values = np.full((*self.shape, len(seeds)), np.nan)
        self.steps = np.zeros((*self.shape, len(seeds), 2), np.int64)  # needed, computed
        self.chosen = np.zeros(self.shape, np.int64)
        self.computed = np.zeros(self.shape[:2], bool)
        self._known: dict[_Run, tuple[float, np.ndarray]] = {}
        self._stored: dict[int, tuple[float, np.ndarray, str]] = {}
        self._structures: dict[Hashable, _Structure] = {}
        self._ready: set[Hashable] = set()
        self._checked: set[tuple[int, int]] = set()
        self.folder: Folder | None = None
        self.told: Callable[[int], None] = lambda runs: None

    def plan(self, most: int) -> Cost:
        """Checks every structure at its first and last cell, and fixes its layout and how many runs are a call."""
        groups: dict[Hashable, list[tuple[str, Place]]] = {}
        for method, place in itertools.product(self.grid.methods, np.ndindex(*self.shape[:2])):
            groups.setdefault(structure_of(*self.grid.asked(method, place)), []).append((method, place))
        per_cell = len(self._points) * len(self._choosing) + len(self._seeds)
        rounds = steps = 0
        for structure, members in groups.items():
            layout, bound = None, 0
            for method, place in dict.fromkeys((members[0], members[-1])):
                asked, number = self.grid.asked(method, place)
                data, key = self._data(place, self._seeds[0]), jax.random.key(self._seeds[0])
                plan = self._resolved(asked._replace(layout=layout or asked.layout), number, data, key)
                layout = plan.layout
                bound = max(bound, sum(plan.bounds(phase).per_cohort for phase in plan.algorithm.phases()) * number)
            sharing: dict[Any, int] = {}
            for method, place in members:
                of_data = (method, self.grid.data.key(self.grid.cell(place) | {"seed": 0}))
                sharing[of_data] = sharing.get(of_data, 0) + len(self._points)
            self._structures[structure] = _Structure(layout, min(_TOGETHER, max(sharing.values())), bound)
            part = most * len(members) // (self.shape[0] * self.shape[1])
            rounds, steps = rounds + part * per_cell * number, steps + part * per_cell * bound
            if members is next(iter(groups.values())):
                self._check_metric(plan, number)
        return Cost(most, most * self.shape[2] * per_cell, rounds, steps, len(groups))

    def run(self, places: list[Place]) -> None:
        """All runs of some cells: those that choose, then those that count."""
        methods = list(self.grid.methods)
        if self._space is not None:
            everything = itertools.product(methods, places, range(len(self._points)), self._choosing)
            self._compute([_Run(*one) for one in everything])
            for m, place in itertools.product(range(len(methods)), places):
                self.chosen[*place, m] = self._best(methods[m], place)
        final = itertools.product(enumerate(methods), places, self._seeds)
        runs = [_Run(method, place, int(self.chosen[*place, m]), seed) for (m, method), place, seed in final]
        self._compute(runs)
        for run in runs:
            at = (*run.place, methods.index(run.method), self._seeds.index(run.seed))
            self.values[at], self.steps[at] = self._known[run]
        for place in places:
            self.computed[place] = True

    def _best(self, method: str, place: Place) -> int:
        """The candidate with the best mean over the choosing seeds; one that diverged for a seed is the worst."""

        def cost(candidate: int) -> float:
            found = np.array([self._known[_Run(method, place, candidate, seed)][0] for seed in self._choosing])
            return float(np.nan_to_num((found if self.less else -found).mean(), nan=np.inf))

        return min(range(len(self._points)), key=cost)

    def _data(self, place: Place, seed: int) -> Any:
        data = self.grid.data.at(self.grid.cell(place) | {"seed": seed})
        return jax.block_until_ready(data)

    def _resolved(self, asked: Plan, rounds: int, data: Any, key: Any) -> Plan:
        return resolve(asked._replace(dataset=data, key=key), rounds, self._initial)

    def _check_metric(self, plan: Plan, rounds: int) -> None:
        """Refuses a metric that runs do not record, before any is compiled."""
        settings, placed_ = self._settings(rounds), plan.placed()
        found = jax.eval_shape(lambda plan: whole_run(plan, self._initial, settings, {}, plan.key, 2).metrics, placed_)
        numbers = [name for name, value in found.items() if value.ndim == 1]
        if self._metric not in numbers:
            raise ValueError(
                f"phase(metric={self._metric!r}): runs record no such number: {suggest(self._metric, numbers)}"
            )

    def _settings(self, rounds: int) -> Settings:
        turns = takes_turns(jax.local_devices()[0])
        return Settings(rounds, rounds, self._evaluate, False, turns, None)

    def _compute(self, runs: list[_Run]) -> None:
        """Runs what is not known yet, data set by data set: as many calls at once as there are cores."""
        groups: dict[Any, list[_Run]] = {}
        for run in runs:
            if run not in self._known:
                of_data = self.grid.data.key(self.grid.cell(run.place) | {"seed": run.seed})
                groups.setdefault((of_data, run.seed), []).append(run)
        cores = available_cores()
        threads, waiting = threads_for_programs(cores), deque[Any]()
        try:
            for call, first in self._calls(groups.values()):
                if first or threads is None:
                    self._record(call())  # what compiles does so alone, or two threads would compile the same
                    continue
                if len(waiting) > 2 * cores:
                    self._record(waiting.popleft().result())
                waiting.append(threads.submit(call))
            while waiting:
                self._record(waiting.popleft().result())
        finally:
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def _calls(self, groups: Iterable[list[_Run]]) -> Iterator[tuple[Callable[[], Any], bool]]:
        """Calls of the program, and whether one is the first of its program."""
        for runs in groups:
            data, key = self._data(runs[0].place, runs[0].seed), jax.random.key(np.uint32(runs[0].seed))
            checksum = dataset_fingerprint(data) if self.folder is not None else ""
            alike: dict[tuple[Hashable, int], list[tuple[_Run, Plan, str]]] = {}
            likes: dict[Hashable, Plan] = {}
            params: dict[Hashable, Any] = {}
            for run in runs:
                asked, rounds = self.grid.asked(run.method, run.place)
                structure = structure_of(asked, rounds)
                setting = id(asked.algorithm), id(asked.work)  # the grid keeps them
                asked = asked._replace(layout=self._structures[structure].layout)
                if structure not in likes or setting not in self._checked:
                    likes[structure] = self._resolved(asked, rounds, data, key).placed().shared(self._evaluate)
                    params[structure] = likes[structure].params
                    self._checked.add(setting)
                point = self._points[run.candidate]
                about = ""
                if self.folder is not None:
                    # What functions return decides, not their names: a change inside them is noticed.
                    about = digest(repr((described(asked, rounds), sorted(point.items()), checksum, run.seed)).encode())
                    if self._is_stored(run, about):
                        continue
                plan = placed(_fitted(asked, likes[structure], params[structure]), point)
                alike.setdefault((structure, rounds), []).append((run, plan, about))
            for (structure, rounds), members in alike.items():
                size, shared = self._structures[structure].size, likes[structure].dataset
                program = (
                    structure,
                    jax.tree.structure(shared),
                    tuple(np.shape(leaf) for leaf in jax.tree.leaves(shared)),
                )
                for start in range(0, len(members), size):
                    call = functools.partial(self._called, members[start : start + size], size, shared, key, rounds)
                    yield call, program not in self._ready
                    self._ready.add(program)

    def _called(self, members: list[Any], size: int, data: Any, key: Any, rounds: int) -> Any:
        """Some runs; places of the call that are left over repeat the last and do nothing."""
        plans = [plan for _, plan, _ in members]
        padded = [*plans, *[plans[-1]] * (size - len(plans))]
        flat = [jax.tree.leaves(plan) for plan in padded]
        leaves = [
            np.stack([np.asarray(leaf, jnp.result_type(leaf)) for leaf in column]) for column in zip(*flat, strict=True)
        ]
        counts = np.asarray([2] * len(plans) + [0] * (size - len(plans)), np.int32)
        structure = jax.tree.structure(padded[0])
        found = _compute(data, key, self._initial, leaves, counts, structure, self._settings(rounds))
        metrics, records = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(plans)], found)
        return members, metrics, dict(records.items()), rounds

    def _record(self, found: Any) -> None:
        """Keeps what runs gave, in the folder too."""
        members, metrics, records, rounds = found
        rows = {
            name: record[:, 1:].reshape(len(members), -1)[:, :rounds]
            for name, record in records.items()
            if record.ndim == 3
        }
        if "overflow" in rows and rows["overflow"].any():
            run = members[int(np.argwhere(rows["overflow"])[0][0])][0]
            where = f"{run.method} at {in_words(self.grid.cell(run.place))}, seed {run.seed}"
            raise RuntimeError(
                f"phase, {where}: a round drew more clients than the cohort scheme has slots: give a cap"
            )
        finite = np.logical_and.reduce([np.isfinite(v[:, -1].astype(float)) for v in metrics.values() if v.ndim == 2])
        values = np.where(finite, metrics[self._metric][:, -1].astype(float), np.nan)
        steps = np.stack(
            [rows[name].sum(axis=1, dtype=np.int64) for name in ("useful_steps", "computed_steps")], axis=1
        )
        for (run, *_), value, count in zip(members, values, steps, strict=True):
            self._known[run] = float(value), count
        if self.folder is not None:
            numbers, stored = [self._number(run) for run, *_ in members], {"value": np.stack([values, values], axis=1)}
            about = {"runs": numbers, "checks": [about for *_, about in members]}
            seeds = [run.seed for run, *_ in members]
            history = History(np.array([0, rounds]), stored, rows, None, seeds, 0.0, 0.0, about, [])
            self.folder.add(numbers, history)
        self.told(len(members))

    def result(self, description: dict[str, Any]) -> PhaseDiagram:
        """The diagram as far as it is computed."""
        x, y = self.grid.axes
        columns = {name: np.array([point[name] for point in self._points]) for name in self._points[0]}
        chosen = {name: column[self.chosen] for name, column in columns.items() if column.ndim == 1}
        return PhaseDiagram(
            x.name, np.array(x.values, float), y.name, np.array(y.values, float), tuple(self.grid.methods),
            list(self._seeds), self._metric, self.less, self.values.copy(), self.steps.copy(), self.computed.copy(),
            chosen, description,
        )  # fmt: skip

    def restore(self) -> None:
        """Reads the runs in the folder; they count once what they were computed with is known to be the same."""
        assert self.folder is not None
        for numbers, history in self.folder.finished():
            names = ("useful_steps", "computed_steps")
            steps = np.stack([history.rounds[name].sum(axis=1, dtype=np.int64) for name in names], axis=1)
            for row, number in enumerate(numbers):
                value = float(history.metrics["value"][row, -1])
                self._stored[number] = value, steps[row], history.description["checks"][row]

    def _is_stored(self, run: _Run, about: str) -> bool:
        found = self._stored.get(self._number(run))
        if found is None:
            return False
        if found[2] != about:
            where = f"{run.method} at {in_words(self.grid.cell(run.place))}, seed {run.seed}"
            raise ValueError(
                f"phase(resume=...): {where} ran with other data or settings: give the same, or another folder"
            )
        self._known[run] = found[0], found[1]
        self.told(1)
        return True

    def _number(self, run: _Run) -> int:
        """The run's number in the whole diagram."""
        m, seeds = list(self.grid.methods).index(run.method), [*self._choosing, *self._seeds]
        place = np.ravel_multi_index((m, *run.place), (self.shape[2], *self.shape[:2]))
        return int((place * len(self._points) + run.candidate) * len(seeds) + seeds.index(run.seed))


def _fitted(asked: Plan, like: Plan, params: Any) -> Plan:
    """The plan of other values than ``like``, which is resolved and of the same structure and data; without data."""
    algorithm = hoisted(asked.algorithm.fitted(asked.task, like.dataset), params)
    cohort = asked.cohort.fitted(like.dataset)
    changed = {"algorithm": algorithm, "cohort": cohort, "guard": like.guard, "layout": like.layout}
    return asked._replace(**changed, dataset=None, key=None)  # type: ignore[arg-type]
