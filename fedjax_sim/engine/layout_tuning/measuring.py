"""A contest of layouts on a run's own rounds."""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.engine.client_states import Rows
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.stacked import Stacked
from fedjax_sim.engine.layout_tuning.report import Timing, label
from fedjax_sim.engine.limits import check_counts
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, initial_states

Say = Callable[[int, str], None]

_LENGTH = 32  # rounds of one timed call, at most
_TARGET = 0.02  # seconds of the fastest candidate's timed call: many times the clock's and a call's own
_SHORT = 0.2  # seconds
_HOPELESS = 4.0  # times the best: the first round of a candidate that is given up
_BEHIND = 1.5  # times the best: the fastest call of one that is given up later


class Subject(NamedTuple):
    """The run whose rounds are measured.

    Attributes:
      plan: the run, with one key a seed; its layout does not count.
      initial_params: where all seeds start, or None.
      rounds: those that may be measured are 0 to ``rounds`` - 1.
      clients: int32[W] ascending, the clients whose states are on the device; None for all.
      together: whether the seeds run side by side, not in turn.
    """

    plan: Plan
    initial_params: Any
    rounds: int
    clients: np.ndarray | None = None
    together: bool = False


def measure(
    subject: Subject,
    candidates: Sequence[Layout],
    *,
    limit: float,
    repeats: int,
    give_up: bool = True,
    say: Say | None = None,
) -> list[Timing]:
    """Times rounds of a run in each of some layouts.

    The program is that of ``simulate`` without evaluations. Every candidate computes the same rounds; they take turns
    inside every repeat, so that a drift of the machine meets all alike. One whose first round takes four times as long
    as the best candidate's, or a timed call more than 1.5 times, is timed no more. Nothing of the run is changed: the
    states are copies of their own.

    Args:
      subject: the run.
      candidates: the most promising first, so that hopeless ones are known early.
      limit: seconds of one candidate's rounds after which it is timed no more.
      repeats: timed calls of a candidate, at most.
      give_up: whether hopeless candidates are left out or timed no more.
      say: told how many candidates are compiled, and in words what was found.

    Raises:
      jax.errors.JaxRuntimeError: a candidate failed for another reason than a lack of memory.
    """
    contest = _Contest(subject, give_up)
    found = []
    for number, layout in enumerate(candidates):
        found.append(contest.enter(layout, limit))
        if say is not None:
            say(number + 1, f"{label(layout)}: {found[-1].note or f'{found[-1].first * 1e3:.3g} ms a round at first'}")
    contest.run(limit, repeats)
    return [one.timing() for one in found]


class _Entrant:
    """A candidate in the contest."""

    def __init__(self, layout: Layout, note: str = "") -> None:
        self.layout, self.note = layout, note
        self.ground: _Ground | None = None
        self.program: Any = None
        self.compile_seconds: float | None = None
        self.spent = 0.0  # seconds of all its calls
        self.first = math.inf  # seconds of its first round
        self.each: list[float] = []  # seconds a round, of every timed call
        self.rounds = 0
        self.needed = self.computed = 0

    def time(self) -> float:
        """Seconds of a round."""
        return statistics.median(self.each) if self.each else self.first

    def timing(self) -> Timing:
        measured = self.first < math.inf
        return Timing(
            layout=self.layout,
            milliseconds=self.time() * 1e3 if measured else None,
            rounds=self.rounds,
            compile_seconds=self.compile_seconds,
            computed=self.computed / self.needed if self.needed else None,
            note=self.note,
        )


class _Ground:
    """The run's arrays as a kind of layouts wants them, on one device or on several, and its state so far.

    The state goes from call to call and from candidate to candidate, so that there is one for each kind.
    """

    def __init__(self, subject: Subject, layout: Layout) -> None:
        self._plan = subject.plan._replace(layout=layout).placed().everywhere()
        self._initial_params = layout.everywhere(subject.initial_params)
        self._clients, self._together = subject.clients, subject.together
        self._states = self._first(layout)
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, self._states)

    def compiled(self, layout: Layout, length: int) -> Any:
        arguments = self._arguments(layout, self._states, 0, 0)
        return _rounds.lower(*arguments, length=length, together=self._together).compile()

    def run(self, program: Any, layout: Layout, start: int, count: int) -> tuple[float, Record]:
        """``(seconds, record)`` of some rounds."""
        states = jax.block_until_ready(jax.device_put(self._states, self._shardings))
        arguments = self._arguments(layout, states, start, count)
        begun = time.perf_counter()
        self._states, record = jax.block_until_ready(program(*arguments))
        return time.perf_counter() - begun, record

    def restart(self, layout: Layout) -> None:
        """Begins anew, where a program that failed has taken the state with it."""
        self._states = self._first(layout)

    def _first(self, layout: Layout) -> TrainState:
        states: TrainState = initial_states(self._plan._replace(layout=layout), self._initial_params)
        if self._clients is None:
            clients = layout.spread(states.clients, axis=1)
        else:
            clients = layout.everywhere(_rows(states.clients, self._clients))
        rest: TrainState = layout.everywhere(states._replace(clients=()))
        return rest._replace(clients=clients)

    def _arguments(self, layout: Layout, states: TrainState, start: int, count: int) -> tuple[Any, ...]:
        return self._plan._replace(layout=layout), states, np.int32(start), np.int32(count)


class _Contest:
    def __init__(self, subject: Subject, give_up: bool) -> None:
        self._give_up = give_up
        # Of seeds that take turns, one says it all.
        plan = subject.plan
        self._subject = subject if subject.together else subject._replace(plan=plan._replace(key=plan.key[:1]))
        self._length = min(subject.rounds, _LENGTH)
        self._entrants: list[_Entrant] = []
        self._grounds: dict[Any, _Ground] = {}

    def enter(self, layout: Layout, limit: float) -> _Entrant:
        """Compiles a candidate and has it compute a first round."""
        subject, entrant = self._subject, _Entrant(layout)
        try:
            check_counts(subject.plan._replace(layout=layout), subject.rounds)
        except ValueError:
            entrant.note = "computes more steps than 32 bits can count"
            return entrant
        expected = self._expected(layout)
        if self._give_up and expected > limit and expected > _HOPELESS * self._best():
            entrant.note = f"left out: would take some {expected:.0f} s a round"
            return entrant
        with self._out_of_memory(entrant):
            entrant.ground = self._ground(layout)
            started = time.perf_counter()
            entrant.program = entrant.ground.compiled(layout, self._length)
            entrant.compile_seconds = time.perf_counter() - started
            needs, free = _temporary_memory(entrant.program), _free_memory()
            if needs > free:
                entrant.note = f"left out: needs {needs / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
                return entrant
            self._call(entrant, 0, 0)  # the program's own memory and threads come with its first call
            entrant.first = self._call(entrant, 0, 1)
            if entrant.first < _SHORT:  # so short that a hiccup of the machine would end its chances
                entrant.first = min(entrant.first, *(self._call(entrant, 0, 1) for _ in range(2)))
            self._entrants.append(entrant)
        return entrant

    def run(self, limit: float, repeats: int) -> None:
        """Times all that have entered, in turns."""
        best = self._best()
        live = []
        for entrant in self._entrants:
            if self._give_up and entrant.first > _HOPELESS * best:
                entrant.note = "given up after its first round"
            else:
                live.append(entrant)
        count = max(1, min(self._length, math.ceil(_TARGET / max(best, 1e-9)))) if live else 0
        for repeat in range(repeats):
            start = repeat * count % (self._subject.rounds - count + 1)
            for place in range(len(live)):
                entrant = live[(place + repeat) % len(live)]
                if entrant.spent < limit or not entrant.each:
                    with self._out_of_memory(entrant):
                        entrant.each.append(self._call(entrant, start, count) / count)
            live = [entrant for entrant in live if not entrant.note]
            best = min((entrant.time() for entrant in live), default=0.0)
            for entrant in live:
                if self._give_up and min(entrant.each) > _BEHIND * best:
                    entrant.note = "given up early"
            live = [entrant for entrant in live if not entrant.note]
            if self._give_up and len(live) <= 1:
                break

    def _call(self, entrant: _Entrant, start: int, count: int) -> float:
        """Seconds of some rounds in the candidate's layout."""
        assert entrant.ground is not None
        seconds, record = entrant.ground.run(entrant.program, entrant.layout, start, count)
        entrant.spent += seconds
        entrant.rounds += count
        entrant.needed += int(np.asarray(record["useful_steps"]).sum(dtype=np.int64))
        entrant.computed += int(np.asarray(record["computed_steps"]).sum(dtype=np.int64))
        return seconds

    @contextlib.contextmanager
    def _out_of_memory(self, entrant: _Entrant) -> Iterator[None]:
        """Notes it of a candidate that has no room, with which its times are void."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            entrant.note, entrant.first, entrant.each = "out of memory", math.inf, []
            if entrant.ground is not None:
                entrant.ground.restart(entrant.layout)

    def _ground(self, layout: Layout) -> _Ground:
        kind = layout.placement if isinstance(layout, OnMesh) else None
        if kind not in self._grounds:
            self._grounds[kind] = _Ground(self._subject, layout)
        return self._grounds[kind]

    def _best(self) -> float:
        return min((entrant.first for entrant in self._entrants), default=math.inf)

    def _expected(self, layout: Layout) -> float:
        """Seconds of a round of the stacked layout if a step took as long as the fastest candidate's; else 0."""
        entrants = [one for one in self._entrants if one.computed]
        devices = 1
        if isinstance(layout, OnMesh):
            devices = layout.placement.parts
            layout = layout.inner or layout
        if not isinstance(layout, Stacked) or not entrants:
            return 0.0
        plan = self._subject.plan
        steps = plan.slots * sum(plan.bounds(method).per_client for method in plan.algorithm.phases())
        each = min(one.first * one.rounds / one.computed for one in entrants)
        return steps * len(plan.key) * each / devices


def _rows(one: Rows, clients: np.ndarray) -> Rows:
    """The states of these clients before their first visit, each as ``one``, leaves [1, ...]."""
    leaves = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], len(clients), axis=1), one.leaves)
    return one.replace(leaves=leaves, indices=jnp.asarray(clients, jnp.int32)[None])


@functools.partial(jax.jit, static_argnames=("length", "together"), donate_argnames="states")
def _rounds(
    plan: Plan, states: TrainState, start: jax.Array, count: jax.Array, *, length: int, together: bool
) -> tuple[TrainState, Record]:
    """``count`` <= ``length`` rounds of every seed from round ``start``, and all that they record."""

    def of_seed(key: jax.Array, state: TrainState) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=length)

    if together:
        return jax.vmap(of_seed)(plan.key, states)
    alone = of_seed(plan.key[0], jax.tree.map(lambda leaf: leaf[0], states))
    return jax.tree.map(lambda leaf: leaf[None], alone)  # type: ignore[no-any-return]


def _temporary_memory(program: Any) -> int:
    """Bytes that a program needs besides its arguments and results; 0 where the back end does not say."""
    analysis = program.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)


def _free_memory() -> float:
    """Bytes that a program may still take; infinity where nobody says."""
    device = jax.local_devices()[0]
    statistics_ = device.memory_stats() or {}
    if "bytes_limit" in statistics_:
        return float(statistics_["bytes_limit"] - statistics_.get("bytes_in_use", 0))
    meminfo = Path("/proc/meminfo")
    if device.platform == "cpu" and meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return math.inf
