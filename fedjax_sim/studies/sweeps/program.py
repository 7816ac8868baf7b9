"""The one program of a sweep: runs with values and seeds of their own, some at a time, on one device or several."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local.work import Work
from fedjax_sim.core.loops import counted, draw_alone
from fedjax_sim.core.programs import compiling
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.checks import resolved
from fedjax_sim.engine.plan import Plan, TrainState, layout_by_rule
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, init_state
from fedjax_sim.models.evaluation import check_recorded
from fedjax_sim.reporting.divergence import FACTOR, divergences
from fedjax_sim.run.history import History
from fedjax_sim.run.training import evaluation_rounds, measure
from fedjax_sim.studies.subject import PARTS, Subject, judging, of_any_run
from fedjax_sim.studies.sweeps.space import Space

_Part = TypeVar("_Part")

AXIS = "runs"  # of the mesh over which runs are spread
_IN_TURN = 16  # runs of a call for each device that takes them in turn: so often results are stored and shown
_SIDE_BY_SIDE = 64  # runs of a call for each device that holds them all at once


def placed(plan: Plan, values: Mapping[str, Any]) -> Plan:
    """The plan with other values at the names given; concrete values are checked as the factories would."""
    changed = Subject.of(plan).replace(values)
    algorithm, task = changed.algorithm, changed.run["task"]
    if task is not plan.task and plan.dataset is not None:  # FedDF keeps the run's, and has that of the plan
        algorithm = algorithm.fitted(task, plan.dataset)
    return plan._replace(algorithm=algorithm, **changed.run)


def stacked(plan: Plan, space: Space, who: str = "sweep") -> dict[str, np.ndarray]:
    """The values of all points, [P, ...] by name, in the dtypes of the leaves that they replace.

    ``who`` is what messages call the function, as below.
    """
    values = {}
    for name, column in space.points().items():
        part = _part(name)[0]
        if part in ("system", "asynchronous") and getattr(plan, part) is None:
            raise ValueError(f"{who}: {name!r} is a value of {part}=..., and the run has none: give it one")
        leaf = Subject.of(plan).get(name)
        if column.shape[1:] != np.shape(leaf):
            raise ValueError(
                f"{who}: the values of {name!r} have the shape {column.shape[1:]} and the leaf that they replace "
                f"{np.shape(leaf)}: they must be the same"
            )
        values[name] = held = column.astype(jnp.result_type(leaf))
        back = held.astype(np.float64)
        if held.dtype.itemsize < 4 and (back != column).any():  # the result would name other values than those that ran
            at = np.flatnonzero(back != column)[0]
            raise ValueError(
                f"{who}: the value {column.flat[at]:.9g} of {name!r} would be {back.flat[at]:.9g} in the leaf's "
                f"{held.dtype}: give numbers that {held.dtype} has, or make the object with a Python number there"
            )
    return values


def of_points(evaluate: Evaluate | None, names: Iterable[str], task: Any) -> Evaluate | None:
    """The evaluation of runs that differ in what is named: see :func:`fedjax_sim.studies.subject.of_any_run`."""
    varied = any(_part(name)[0] == "task" for name in names)
    return of_any_run(evaluate, task) if varied else evaluate


def of_all_points(base: Plan, asked: Plan, space: Space, rounds: int, initial_params: Any, who: str = "sweep") -> Plan:
    """Checks every point of the space; the plan of the first one, with static sizes that suffice for all points.

    ``base`` is the run with its own values, resolved; ``asked`` that before, with what the user left open.
    """
    of_run = any(_part(name)[0] != "algorithm" for name in space.names)
    settled: list[Plan] = []
    for number in range(space.num_points):
        point = space.point(number)
        try:
            at = resolved(placed(asked, point), rounds, initial_params) if of_run else placed(base, point)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{who}, point {number} ({in_words(point)}): {error}") from error
        if of_run or not settled:
            settled.append(at)
    # The slots of a cohort may follow from a concrete probability, and so do the most steps of a work scheme.
    first = settled[0]
    cohort = of_most_slots(first.cohort, (at.cohort for at in settled), first.dataset.num_clients)
    plan = first._replace(cohort=cohort, work=of_most_steps(first.work, (at.work for at in settled)))
    return plan if asked.layout is not None else plan._replace(layout=layout_by_rule(plan))


def of_most_slots(cohort: Participation, others: Iterable[Participation], num_clients: int) -> Participation:
    """``cohort`` with the slots of that one, of it and others with other real numbers, which has most of them.

    One program serves all of them.
    """
    return _bounded(cohort, others, lambda one: one.size(num_clients))


def of_most_steps(work: Work, others: Iterable[Work]) -> Work:
    """``work`` with the static bounds of that one, of it and others likewise, which allows most steps."""
    return _bounded(work, others, lambda one: one.most_steps(1))


def _bounded(part: _Part, others: Iterable[_Part], bound: Callable[[_Part], int]) -> _Part:
    widest = max((part, *others), key=bound)
    return jax.tree.unflatten(jax.tree.structure(widest), jax.tree.leaves(part))


def in_words(point: Mapping[str, Any]) -> str:
    """``mu = 0.1, client_optimizer.learning_rate = 0.02``."""
    return ", ".join(
        f"{name} = {value:.6g}" if np.ndim(value) == 0 else f"{name} = [...]" for name, value in point.items()
    )


def described(description: dict[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """A run's description with the values of a point in the place of those it has."""
    changed = dict(description)
    for name, value in point.items():
        part, rest = _part(name)
        plain = np.asarray(value).tolist()
        if part == "algorithm":
            changed["algorithm"] = _substituted(changed["algorithm"], rest.split("."), plain)
        else:
            run = changed["run"]
            new = {part: _substituted(run[part], rest.split("."), plain)}
            if part == "task":  # an evaluation of it is one of the point's, and so is a method that keeps it
                new["evaluate"] = _exchanged(run.get("evaluate"), run[part], new[part])
                changed["algorithm"] = _exchanged(changed["algorithm"], run[part], new[part])
            changed["run"] = {**run, **new}
    return changed


def _exchanged(node: Any, old: Any, new: Any) -> Any:
    """``node`` with ``new`` in the place of every ``old`` in it."""
    if node == old:
        return new
    if isinstance(node, Mapping):
        return {key: _exchanged(item, old, new) for key, item in node.items()}
    return [_exchanged(item, old, new) for item in node] if isinstance(node, list) else node


def _substituted(node: Any, path: list[str], value: Any) -> Any:
    if not path:
        array = isinstance(node, Mapping) and ("array" in node or "opaque" in node)
        return {"array": value, "dtype": node.get("dtype", "float32")} if array else value
    if isinstance(node, list):
        at = int(path[0])
        return [_substituted(item, path[1:], value) if i == at else item for i, item in enumerate(node)]
    for inner in ("arguments", "mapping"):
        if inner in node:
            content = node[inner]
            return {**node, inner: {**content, path[0]: _substituted(content.get(path[0]), path[1:], value)}}
    # Opaque: the values that it is known by are those of another point.
    return {"opaque": node["opaque"], "unknown": "a sweep has changed it"} if "known" in node else node


def _part(name: str) -> tuple[str, str]:
    part, dot, rest = name.partition(".")
    return (part, rest) if dot and part in PARTS else ("algorithm", name)


class Settings(NamedTuple):
    """What all runs of a sweep have in common, fixed at compile time; the first four as :func:`sweep` takes them."""

    rounds: int
    eval_every: int
    evaluate: Evaluate | None
    keep_params: bool
    in_turn: bool  # whether a device takes its runs one after another, or all at once
    mesh: Mesh | None  # devices that share the runs evenly, each with a copy of the data; None for one device


class Runs(NamedTuple):
    """The runs of one call, leaves [C, ...]."""

    values: dict[str, Any]
    keys: Any  # their type says by which generator they draw: made inside, the program of one would run for another
    evaluations: Any  # int32, that before the first round included; 0 for places left over, whose results mean nothing


class Outcome(NamedTuple):
    """What runs leave, leaves [C, ...]."""

    metrics: dict[str, jax.Array]  # [C, E, ...]
    records: Record  # [C, E, L, ...], L = eval_every: rounds before each evaluation; zero where there are fewer
    params: Any  # the final global models, or ()


@functools.partial(jax.jit, static_argnames="settings")
def compute(plan: Plan, initial_params: Any, runs: Runs, settings: Settings) -> Outcome:
    """All runs of a call, placed in the plan; ``initial_params`` is where they start, or None."""

    def on_one_device(plan: Plan, initial_params: Any, runs: Runs) -> Outcome:
        one = functools.partial(whole_run, plan, initial_params, settings)
        return each_run(one, runs[:-1], runs.evaluations, in_turn=settings.in_turn)

    if settings.mesh is None:
        return on_one_device(plan, initial_params, runs)
    places = (PartitionSpec(), PartitionSpec(), PartitionSpec(AXIS))
    sharded = jax.shard_map(on_one_device, mesh=settings.mesh, in_specs=places, out_specs=places[-1], check_vma=False)
    return sharded(plan, initial_params, runs)


def each_run(one: Callable[..., Any], runs: tuple[Any, ...], evaluations: jax.Array, *, in_turn: bool) -> Any:
    """``one(*run, evaluations)`` of all runs of a call, leaves [C, ...]."""
    if in_turn or not draw_alone(runs):
        return lax.map(lambda run: one(*run), (*runs, evaluations))
    # One count for all: a count of its own would make every step of every run a choice.
    return jax.vmap(one, (*[0] * len(runs), None))(*runs, jnp.max(evaluations))


def whole_run(
    plan: Plan, initial_params: Any, settings: Settings, values: dict[str, jax.Array], key: jax.Array, evaluations: Any
) -> Outcome:
    """One run; the first ``evaluations`` evaluations of it and the rounds before them."""
    plan = placed(plan, values)._replace(key=key)
    rounds, eval_every = settings.rounds, settings.eval_every
    # traced once, for the shapes and for the loop
    block = jax.jit(functools.partial(up_to, plan, rounds, eval_every, settings.evaluate))
    numbers = jnp.arange(len(evaluation_rounds(rounds, eval_every)), dtype=jnp.int32)
    state, (metrics, records) = counted(evaluations)(block, init_state(plan, initial_params), numbers)
    return Outcome(metrics, records, plan.algorithm.evaluated(state.server) if settings.keep_params else ())


def up_to(
    plan: Plan, rounds: int, eval_every: int, evaluate: Evaluate | None, state: TrainState, number: jax.Array
) -> tuple[TrainState, tuple[dict[str, jax.Array], Record]]:
    """A run from one evaluation up to the next, ``number``: its state, and metrics and records of rounds."""
    length = min(eval_every, rounds)
    start = jnp.maximum(number - 1, 0) * length
    count = jnp.where(number > 0, jnp.minimum(length, rounds - start), 0)
    state, record = chunk_of_rounds(plan, state, start, count, length=length)
    metrics = measure(plan, state, evaluate=judging(evaluate, plan.task))
    check_recorded(metrics, record)
    return state, (metrics, record)


class Executor:
    """Computes any of ``count`` runs of a sweep with one compiled program.

    The ``values`` of all points are [P, ...] by name; run k is that of point k // S with the k % S-th of the S
    ``seeds``. ``chunk`` is the most runs of one call, or None for the rule; ``settings`` the others of
    :class:`Settings`.
    """

    def __init__(
        self,
        plan: Plan,
        initial_params: Any,
        values: dict[str, np.ndarray],
        seeds: list[int],
        *,
        count: int,
        chunk: int | None,
        devices: Sequence[jax.Device],
        **settings: Any,
    ) -> None:
        used = list(devices)[: max(min(count, chunk or count), 1)]
        mesh = Mesh(np.array(used), (AXIS,)) if len(used) > 1 else None
        self._spread: Any = used[0] if mesh is None else NamedSharding(mesh, PartitionSpec(AXIS))
        everywhere: Any = used[0] if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._plan = plan
        self._given = jax.device_put((plan, initial_params), everywhere)
        self._values, self._seeds = values, np.asarray(seeds, np.uint32)
        self._keys = jax.vmap(jax.random.key)(jnp.asarray(self._seeds))
        self._settings = Settings(in_turn=takes_turns(used[0]), mesh=mesh, **settings)
        self.size = chunk_size(count, chunk, len(used), in_turn=self._settings.in_turn)

    @compiling()
    def compile(self) -> float:
        """Makes the program ready, without a round; returns the seconds it took."""
        started = time.perf_counter()
        self._call([0], 0)
        return time.perf_counter() - started

    def run(self, numbers: Sequence[int]) -> History:
        """What the runs of these numbers, at most ``size``, recorded: a history with one "seed" a run.

        Its divergences have the runs' numbers in the place of seeds, which several runs share.
        """
        started = time.perf_counter()
        total = self._settings.rounds
        evaluated = evaluation_rounds(total, self._settings.eval_every)
        outcome = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(numbers)], self._call(numbers, len(evaluated)))
        algorithm = self._plan.algorithm

        def by_round(record: np.ndarray) -> np.ndarray:
            after_start = record[:, 1:]
            return after_start.reshape(len(record), -1, *record.shape[3:])[:, :total]

        rounds = {name: by_round(record) for name, record in outcome.records.items()}
        name, skipped = type(algorithm).__name__, self._plan.guard.skip or algorithm.requires.excludes_nonfinite
        signs = divergences(
            name, list(numbers), np.asarray(evaluated), outcome.metrics, rounds, skipped=skipped, factor=FACTOR
        )
        return History(
            evaluated=np.asarray(evaluated),
            metrics=outcome.metrics,
            rounds=rounds,
            params=outcome.params if self._settings.keep_params else None,
            seeds=[int(self._seeds[number % len(self._seeds)]) for number in numbers],
            seconds=time.perf_counter() - started,
            compile_seconds=0.0,
            description={},
            divergences=signs,
        )

    def _call(self, numbers: Sequence[int], evaluations: int) -> Outcome:
        """The first evaluations of some runs; places of the call that are left over repeat the last and do nothing."""
        left = self.size - len(numbers)
        padded = np.asarray([*numbers, *[numbers[-1]] * left])
        points, seeds = np.divmod(padded, len(self._seeds))
        runs = Runs(
            values={name: column[points] for name, column in self._values.items()},
            keys=self._keys[seeds],
            evaluations=np.asarray([evaluations] * len(numbers) + [0] * left, np.int32),
        )
        outcome = compute(*self._given, jax.device_put(runs, self._spread), self._settings)
        return jax.block_until_ready(outcome)


def takes_turns(device: jax.Device) -> bool:
    """Whether a device takes runs in turn: on a CPU vmapped dynamic loops would make every run wait for the slowest."""
    return bool(device.platform == "cpu")


def chunk_size(count: int, chunk: int | None, num_devices: int, *, in_turn: bool) -> int:
    """Runs of one call: a multiple of the devices, as few calls as ``chunk`` (or the rule) allows, all equally long."""
    most = num_devices * (_IN_TURN if in_turn else _SIDE_BY_SIDE) if chunk is None else chunk
    most -= most % num_devices
    calls = max(-(-count // most), 1)
    even = max(-(-count // calls), 1)
    return -(-even // num_devices) * num_devices
