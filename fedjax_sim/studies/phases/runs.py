"""The runs of a phase diagram: as many at once as there are cores, one program for each structure."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.devices import available_cores, threads_for_programs
from fedjax_sim.core.values import suggest
from fedjax_sim.datasets.fingerprints import dataset_fingerprint
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.optim.described import hoisted
from fedjax_sim.reporting.recorded import known_as, measured
from fedjax_sim.run.history import History
from fedjax_sim.studies.phases.result import PhaseDiagram
from fedjax_sim.studies.phases.settings import SEED, Grid, Setting
from fedjax_sim.studies.sweeps.program import Settings, each_run, in_words, takes_turns, whole_run
from fedjax_sim.studies.sweeps.running import check_one_device, check_overflow
from fedjax_sim.studies.sweeps.stored import Folder

Place = tuple[int, int]  # of a cell
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


class _Found(NamedTuple):
    """What a run gave: the metric, NaN where it diverged, and steps needed and computed, int[2]."""

    value: float
    steps: np.ndarray


class _Run(NamedTuple):
    """One run: method m at place (i, j), with the p-th of the values to choose from, of a seed."""

    method: str
    place: Place
    candidate: int
    seed: int


class _Shared(NamedTuple):
    """What runs of one structure share."""

    layout: Any
    size: int  # runs of a call


@functools.partial(jax.jit, static_argnames=("settings", "structure"))
def _compute(
    dataset: Any, key: Any, initial_params: Any, leaves: Any, counts: Any, structure: Any, settings: Any
) -> Any:
    """The runs of a call, leaves [C, ...] of their plans, on one data set with one key."""

    def one(leaves: Any, evaluations: jax.Array) -> Any:
        plan = jax.tree.unflatten(structure, leaves)._replace(dataset=dataset)
        found = whole_run(plan, initial_params, settings, {}, key, evaluations)
        return found.metrics, {name: record for name, record in found.records.items() if record.ndim == 2}

    return each_run(one, (leaves,), counts, in_turn=settings.in_turn)


class Diagram:
    """The runs of a diagram, as far as they are known."""

    def __init__(
        self, grid: Grid, metric: str, less: bool, seeds: list[int], choosing: list[int], evaluate: Any,
        initial_params: Any,
    ) -> None:  # fmt: skip
        self.grid, self._metric, self._seeds, self._choosing = grid, metric, seeds, choosing
        self.less, self._evaluate, self._initial = less, evaluate, initial_params
        self.shape = (len(grid.axes[0].values), len(grid.axes[1].values), len(grid.methods))
        self._values = np.full((*self.shape, len(seeds)), np.nan)
        self._steps = np.zeros((*self.shape, len(seeds), 2), np.int64)  # needed, computed
        self._chosen = np.zeros(self.shape, np.int64)
        self._computed = np.zeros(self.shape[:2], bool)
        self._known: dict[_Run, _Found] = {}
        self._stored: dict[int, tuple[_Found, str]] = {}
        self._shared: dict[Hashable, _Shared] = {}
        self._compiled: set[Hashable] = set()
        self._checked: set[Setting] = set()
        self.folder: Folder | None = None
        self.told: Callable[[int], None] = lambda runs: None

    def plan(self, most: int) -> Cost:
        """Checks every structure at its first and last cell, and fixes its layout and how many runs are a call."""
        groups: dict[Hashable, list[tuple[str, Place]]] = {}
        for method, place in itertools.product(self.grid.methods, np.ndindex(*self.shape[:2])):
            groups.setdefault(self.grid.setting(method, place).structure, []).append((method, place))
        per_cell = len(self.grid.points) * len(self._choosing) + len(self._seeds)
        rounds, steps, known = 0, 0, set[str]()
        for structure, members in groups.items():
            layout, bound = None, 0
            for method, place in dict.fromkeys((members[0], members[-1])):
                setting, data = self.grid.setting(method, place), self._data(place, self._seeds[0])
                check_one_device("phase", data, setting.plan.layout)
                plan = self._resolved(setting, data, jax.random.key(self._seeds[0]), layout)
                layout, number = plan.layout, setting.rounds
                bound = max(bound, sum(plan.bounds(phase).per_cohort for phase in plan.algorithm.phases()) * number)
            alike = Counter((method, self.grid.data.key(self.grid.cell(at) | {SEED: 0})) for method, at in members)
            size = min(_TOGETHER, max(alike.values()) * len(self.grid.points))
            self._shared[structure] = _Shared(layout, size)
            part = most * len(members) // (self.shape[0] * self.shape[1])
            rounds, steps = rounds + part * per_cell * number, steps + part * per_cell * bound
            if method not in known:
                known.add(method)
                self._metric = self._recorded(plan, number)
        return Cost(most, most * self.shape[2] * per_cell, rounds, steps, len(groups))

    def run(self, places: list[Place]) -> None:
        """All runs of some cells: those that choose, then those that count."""
        methods = list(self.grid.methods)
        if self._choosing:
            everything = itertools.product(methods, places, range(len(self.grid.points)), self._choosing)
            self._compute([_Run(*one) for one in everything])
            for (m, method), place in itertools.product(enumerate(methods), places):
                self._chosen[*place, m] = self._best(method, place)
        final = itertools.product(enumerate(methods), places, self._seeds)
        runs = [_Run(method, place, int(self._chosen[*place, m]), seed) for (m, method), place, seed in final]
        self._compute(runs)
        for run in runs:
            at = (*run.place, methods.index(run.method), self._seeds.index(run.seed))
            self._values[at], self._steps[at] = self._known[run].value, self._known[run].steps
        for place in places:
            self._computed[place] = True

    def result(self, description: dict[str, Any]) -> PhaseDiagram:
        """The diagram as far as it is computed."""
        x, y = self.grid.axes
        columns = {name: np.array([point[name] for point in self.grid.points]) for name in self.grid.points[0]}
        chosen = {
            name: np.where(self._computed[..., None], column[self._chosen], np.nan)
            for name, column in columns.items() if column.ndim == 1
        }  # fmt: skip
        return PhaseDiagram(
            x.name, np.array(x.values, float), y.name, np.array(y.values, float), tuple(self.grid.methods),
            list(self._seeds), self._metric, self.less, self._values.copy(), self._steps.copy(),
            self._computed.copy(), chosen, description,
        )  # fmt: skip

    def restore(self, folder: Folder) -> None:
        """Reads the runs in a folder; they count once what they were computed with is known to be the same."""
        self.folder = folder
        for numbers, history in folder.finished():
            found = _found(history.metrics["value"][:, -1], history.rounds)
            self._stored |= dict(zip(numbers, zip(found, history.description["checks"], strict=True), strict=True))

    def _best(self, method: str, place: Place) -> int:
        """The candidate with the best mean over the choosing seeds; one that diverged for a seed is the worst."""

        def cost(candidate: int) -> float:
            found = np.array([self._known[_Run(method, place, candidate, seed)].value for seed in self._choosing])
            return float(np.nan_to_num((found if self.less else -found).mean(), nan=np.inf))

        return min(range(len(self.grid.points)), key=cost)

    def _data(self, place: Place, seed: int) -> Any:
        return self.grid.data.at(self.grid.cell(place) | {SEED: seed})

    def _resolved(self, setting: Setting, data: Any, key: Any, layout: Any) -> Plan:
        asked = setting.plan._replace(dataset=data, key=key, layout=layout or setting.plan.layout)
        return resolve(asked, setting.rounds, self._initial)

    def _recorded(self, plan: Plan, rounds: int) -> str:
        """The metric by the name that runs record; refused before any is compiled where they do not."""
        settings = self._settings(rounds)
        found = jax.eval_shape(
            lambda plan: whole_run(plan, self._initial, settings, {}, plan.key, 2).metrics, plan.placed()
        )
        numbers = [name for name, value in found.items() if value.ndim == 1]
        name = known_as(self._metric, numbers)
        if name not in numbers:
            raise ValueError(
                f"phase(metric={self._metric!r}): runs record no such number: {suggest(self._metric, numbers)}"
            )
        return name

    def _settings(self, rounds: int) -> Settings:
        return Settings(rounds, rounds, self._evaluate, False, takes_turns(jax.local_devices()[0]), None)

    def _compute(self, runs: list[_Run]) -> None:
        """Runs what is not known yet, data set by data set: as many calls at once as there are cores."""
        groups: dict[Any, list[_Run]] = {}
        for run in runs:
            if run not in self._known:
                of_data = self.grid.data.key(self.grid.cell(run.place) | {SEED: run.seed})
                groups.setdefault((of_data, run.seed), []).append(run)
        cores = available_cores()
        threads, waiting = threads_for_programs(cores), deque[Any]()
        try:
            for call, first in self._calls(groups.values()):
                if first or threads is None:
                    self._record(*call())  # what compiles does so alone, or two threads would compile the same
                    continue
                if len(waiting) > 2 * cores:
                    self._record(*waiting.popleft().result())
                waiting.append(threads.submit(call))
            while waiting:
                self._record(*waiting.popleft().result())
        finally:
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def _calls(self, groups: Iterable[list[_Run]]) -> Iterator[tuple[Callable[[], Any], bool]]:
        """Calls of the program, and whether one is the first of its program."""
        for runs in groups:
            data, key = self._data(runs[0].place, runs[0].seed), jax.random.key(np.uint32(runs[0].seed))
            of_data = dataset_fingerprint(data) if self.folder is not None else ""
            likes: dict[Hashable, tuple[Plan, Any]] = {}  # resolved, and its parameters' shapes, by structure
            alike: dict[tuple[Hashable, Hashable], list[tuple[_Run, Plan, str]]] = {}
            for run in runs:
                setting = self.grid.setting(run.method, run.place, run.candidate)
                about = f"{setting.checksum} {of_data} {run.seed}" if self.folder is not None else ""
                if self._is_stored(run, about):
                    continue
                # Concrete values are checked once, where they are first met: what one candidate is, the others are.
                first = self.grid.setting(run.method, run.place)
                if setting.structure not in likes or first not in self._checked:
                    self._checked.add(first)
                    plan = self._resolved(setting, data, key, self._shared[setting.structure].layout)
                    plan = plan.placed().shared(self._evaluate)
                    likes[setting.structure] = plan, plan.params
                plan = _fitted(setting.plan, *likes[setting.structure])
                alike.setdefault((setting.structure, jax.tree.structure(plan)), []).append((run, plan, about))
            for (structure, fitted), members in alike.items():
                shared, size = likes[structure][0].dataset, self._shared[structure].size
                rounds = self.grid.setting(members[0][0].method, members[0][0].place).rounds
                shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(shared))
                program = (structure, fitted, jax.tree.structure(shared), shapes)
                for start in range(0, len(members), size):
                    call = functools.partial(self._called, members[start : start + size], size, shared, key, rounds)
                    yield call, program not in self._compiled
                    self._compiled.add(program)

    def _called(
        self, members: list[Any], size: int, data: Any, key: Any, rounds: int
    ) -> tuple[list[Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Some runs: what they are, final metrics [C, ...] and records of rounds [C, R].

        Places of the call that are left over repeat the last and do nothing.
        """
        plans = [plan for _, plan, _ in members]
        flat = [jax.tree.leaves(plan) for plan in [*plans, *[plans[-1]] * (size - len(plans))]]
        leaves = [
            np.stack([np.asarray(leaf, jnp.result_type(leaf)) for leaf in column]) for column in zip(*flat, strict=True)
        ]
        counts = np.asarray([2] * len(plans) + [0] * (size - len(plans)), np.int32)
        found = _compute(data, key, self._initial, leaves, counts, jax.tree.structure(plans[0]), self._settings(rounds))
        metrics, records = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(plans)], found)
        return members, metrics, {name: record[:, 1, :rounds] for name, record in records.items()}

    def _record(self, members: list[Any], metrics: dict[str, np.ndarray], rounds: dict[str, np.ndarray]) -> None:
        """Keeps what runs gave, in the folder too."""
        runs, checks = [run for run, *_ in members], [about for *_, about in members]
        numbers, seeds = [self._number(run) for run in runs], [run.seed for run in runs]
        last = np.array([0, next(iter(rounds.values())).shape[1]])
        history = History(last, metrics, rounds, None, seeds, 0.0, 0.0, {"checks": checks}, [])
        check_overflow(history, [self._named(run) for run in runs])
        values = measured(history, self._metric)[:, -1].astype(float)
        values = np.where(np.isfinite(values), values, np.nan)
        self._known |= dict(zip(runs, _found(values, rounds), strict=True))
        if self.folder is not None:
            value = {"value": np.stack([values, values], axis=1)}  # at both evaluations
            self.folder.add(numbers, dataclasses.replace(history, metrics=value))
        self.told(len(runs))

    def _is_stored(self, run: _Run, about: str) -> bool:
        found = self._stored.get(self._number(run))
        if found is None:
            return False
        if found[1] != about:
            raise ValueError(
                f"phase(resume=...): {self._named(run)}, seed {run.seed} ran with other data or settings: give the "
                "same, or another folder"
            )
        self._known[run] = found[0]
        self.told(1)
        return True

    def _named(self, run: _Run) -> str:
        return f"phase, {run.method} at {in_words(self.grid.cell(run.place))}"

    def _number(self, run: _Run) -> int:
        """The run's number in the whole diagram."""
        m, seeds = list(self.grid.methods).index(run.method), [*self._choosing, *self._seeds]
        place = np.ravel_multi_index((m, *run.place), (self.shape[2], *self.shape[:2]))
        return int((place * len(self.grid.points) + run.candidate) * len(seeds) + seeds.index(run.seed))


def _found(values: np.ndarray, rounds: dict[str, np.ndarray]) -> list[_Found]:
    """What runs gave, by their values and their records of rounds [C, R]."""
    steps = np.stack([rounds[name].sum(axis=1, dtype=np.int64) for name in ("useful_steps", "computed_steps")], axis=1)
    return [_Found(*one) for one in zip(values.tolist(), steps, strict=True)]


def _fitted(asked: Plan, like: Plan, params: Any) -> Plan:
    """The plan of other values than ``like``, which is resolved and of the same structure and data; without data."""
    return asked._replace(
        algorithm=hoisted(asked.algorithm.fitted(asked.task, like.dataset), params),
        cohort=asked.cohort.fitted(like.dataset),
        guard=like.guard,
        layout=like.layout,
    )


def refined(
    nx: int, ny: int, budget: int, run: Callable[[list[Place]], None], winners: Callable[[], np.ndarray]
) -> None:
    """Computes at most ``budget`` cells: coarse ones, then the halves of what lies between unlike corners.

    Coarse are about five to nine an axis, fewer where these would be more than half of the budget. Corners are unlike
    that have different winners, which come first, or of which one has none (-1).
    """
    lines, done = _coarse((nx, ny), budget), set[Place]()
    batch = list(itertools.product(*lines))[:budget]
    while batch:
        run(batch)
        done.update(batch)
        winner, finer = winners(), (_halved(lines[0]), _halved(lines[1]))
        wanted: dict[Place, int] = {}
        for (a, b), (c, d) in itertools.product(itertools.pairwise(lines[0]), itertools.pairwise(lines[1])):
            corners = set(itertools.product((a, b), (c, d)))
            found = {int(winner[place]) for place in corners}
            if corners <= done and (len(found) > 1 or -1 in found):
                rank = 0 if len(found - {-1}) > 1 else 1
                for place in itertools.product((a, (a + b) // 2, b), (c, (c + d) // 2, d)):
                    if place not in done:
                        wanted[place] = min(rank, wanted.get(place, rank))
        lines = finer
        batch = sorted(wanted, key=lambda place: (wanted[place], place))[: budget - len(done)]


def _coarse(shape: tuple[int, int], budget: int) -> tuple[list[int], list[int]]:
    """Every 2^k-th of an axis, and its last."""
    steps = [1, 1]
    for axis, n in enumerate(shape):
        while (n - 1) // (2 * steps[axis]) >= 4:
            steps[axis] *= 2
    while True:
        x, y = (sorted({*range(0, n, step), n - 1}) for n, step in zip(shape, steps, strict=True))
        if len(x) * len(y) <= max(budget // 2, 4):
            return x, y
        steps[int(len(y) > len(x))] *= 2


def _halved(line: list[int]) -> list[int]:
    return sorted({*line, *((a + b) // 2 for a, b in itertools.pairwise(line))})
