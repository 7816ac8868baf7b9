"""Who computes the rounds of a run, some at a time, and holds their state: on the device, or from the host."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.devices import prefetched
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import as_here
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.client_states import Rows, as_arrays, moved
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import EachSeed, Record, chunk_of_rounds, init_state, initial_states
from fedjax_sim.engine.streaming import ClientWindows, ExampleWindows, Window, cohorts, drawn_ahead
from fedjax_sim.models.evaluation import all_metrics, check_recorded
from fedjax_sim.models.predictions import streamed_overall_values
from fedjax_sim.run.training import asks_for_clients, evaluated, measure

_PAUSE = 0.5  # seconds of rounds between two reports; a call of the program takes about a thousandth of it
_AHEAD = 2  # rounds that may be sent to the device before the oldest is told of

Told = Callable[[int], None] | None  # called from time to time with the number of rounds that are finished
Metrics = dict[str, jax.Array]


class ResidentDriver:
    """All data on the device: whole chunks of rounds, at most ``length``, and all seeds are one program.

    The plan has one key a seed; they start in one model, :class:`fedjax_sim.engine.rounds.EachSeed`, or a state, leaves
    [seeds, ...]. ``may_stop``: whether ``advance`` is ever told that a seed has stopped.
    """

    def __init__(
        self,
        plan: Plan,
        initial_params: Any,
        initial_state: TrainState | None,
        *,
        length: int,
        evaluate: Evaluate | None,
        may_stop: bool,
    ) -> None:
        self._seeds, self._num_clients, self._layout = len(plan.key), plan.dataset.num_clients, plan.layout
        self._length = length
        self._pace: float | None = None  # seconds a round, once it is known
        plan = plan.placed().everywhere()
        first = self._layout.everywhere((initial_params, initial_state))
        self._states = self._settled(initial_states(plan, *first))
        self._run = functools.partial(_advance, plan, length=length, evaluate=evaluate, may_stop=may_stop)

    def start(self) -> Metrics:
        """Compiles the programs; what is recorded at the evaluation before the first round, leaves [seeds, ...]."""
        return self._called(0, 0, np.ones(self._seeds, bool), last=True)[1]

    def advance(self, start: int, count: int, running: np.ndarray, tell: Told = None) -> tuple[Record, Metrics]:
        """``count`` rounds from ``start``, then an evaluation: leaves [seeds, count, ...] and [seeds, ...].

        Of the seeds that are not ``running`` (bool[seeds]) the state is kept, and the rows of the record are zero.
        """
        if tell is not None and count > 1:
            return self._in_parts(start, count, running, tell)
        record, metrics = self._called(start, count, running, last=True)
        if count == self._length:  # a slice is a program
            return record, metrics
        return jax.tree.map(lambda leaf: leaf[:, :count], record), metrics

    def _in_parts(
        self, start: int, count: int, running: np.ndarray, tell: Callable[[int], None]
    ) -> tuple[Record, Metrics]:
        """A chunk by several calls of the program, about ``_PAUSE`` apart, of which the last one evaluates.

        A callback from inside the program would keep it from being cached, and would count rounds of derivatives.
        """
        done, pace, records = 0, self._pace, []
        while done < count:
            part = min(max(1, int(_PAUSE / pace)) if pace else 1, count - done)
            began = time.perf_counter()
            record, metrics = self._called(start + done, part, running, last=done + part == count)
            # Sliced on the host: on the device each length would be a program of its own.
            records.append(jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[:, :part], record))  # waits for it
            pace = (time.perf_counter() - began) / part
            done += part
            tell(start + done)
        self._pace = pace
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records), metrics

    def _called(self, start: int, count: int, running: np.ndarray, *, last: bool) -> tuple[Record, Metrics]:
        counts = np.where(running, count, 0).astype(np.int32)
        self._states, record, metrics = self._run(self._states, np.int32(start), counts, np.bool_(last))
        return as_here(record), as_here(metrics)

    def states(self) -> TrainState:
        """The state after the rounds so far, leaves [seeds, ...]."""
        return _of_clients_alone(self._states, self._num_clients)

    def clients(self) -> Any:
        """The states of all clients, wherever they are: arrays of the host, leaves [seeds, N, ...]; ``()`` for none."""
        return as_arrays(self.states().clients)

    def stored(self) -> dict[str, np.ndarray]:
        """Client states that are no part of :meth:`states` because they are off the device; until the next call."""
        return {}

    def restore(self, states: TrainState, stored: Mapping[str, np.ndarray]) -> None:
        """Goes on from ``states`` (arrays of the host, leaves [seeds, ...]) and what :meth:`stored` gave, instead."""
        # A copy: the program is given its memory to write to.
        self._states = self._settled(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), states))

    def close(self) -> None:
        """Gives back what does not go by itself; the driver is of no use afterwards."""

    def _settled(self, states: TrainState) -> TrainState:
        """The states where the program leaves them, so that it is compiled for one place alone."""
        clients = self._layout.spread(states.clients, axis=1)
        return self._layout.everywhere(states._replace(clients=()))._replace(clients=clients)  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnames=("length", "evaluate", "may_stop"), donate_argnames="states")
def _advance(
    plan: Plan,
    states: TrainState,
    start: jax.Array,
    counts: jax.Array,
    last: jax.Array,
    *,
    length: int,
    evaluate: Evaluate | None,
    may_stop: bool,
) -> tuple[TrainState, Record, Metrics]:
    """``counts[s]`` <= ``length`` rounds of seed s from round ``start``; if ``last``, an evaluation, else zeros."""

    def rounds(key: jax.Array, state: TrainState, count: jax.Array) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=length)

    def evaluation(state: TrainState) -> Metrics:
        return measure(plan, state, evaluate=evaluate)

    def measured(state: TrainState) -> Metrics:
        nothing = trees.zeros_like(jax.eval_shape(evaluation, state))
        return lax.cond(last, evaluation, lambda state: nothing, state)  # type: ignore[no-any-return]

    if jax.default_backend() == "cpu":
        # Vmapped dynamic loops would make every seed wait for the slowest.
        def one(of_seed: tuple[jax.Array, TrainState, jax.Array]) -> Any:
            key, state, count = of_seed
            state, record = rounds(key, state, count)
            return state, record, measured(state)

        after, records, metrics = lax.map(one, (plan.key, states, counts))
        check_recorded(metrics, records)
        return after, records, metrics
    # One count for all: a count of its own would make every step of every seed a choice.
    most = jnp.max(counts)
    after, records = jax.vmap(lambda key, state: rounds(key, state, most))(plan.key, states)
    if may_stop:
        after, records = _kept(counts == most, (after, records), (states, trees.zeros_like(records)))
    metrics = jax.vmap(measured)(after)
    check_recorded(metrics, records)
    return after, records, metrics


def _kept(rows: jax.Array, new: Any, old: Any) -> Any:
    """The rows of ``new``, and of ``old`` where ``rows`` is false: seeds that have stopped keep what they had."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


class StreamedDriver:
    """Data or client states off the device: a round runs on what its cohort needs, sent while the one before computes.

    The methods are those of :class:`ResidentDriver`. The seeds run one after another, round by round. Cohorts are drawn
    ahead for the whole run, since their draws depend on the key and the round alone. Of the data of ``host`` the plan
    has the frame, and ``evaluate`` is called as it is with it.
    """

    def __init__(
        self,
        plan: Plan,
        initial_params: Any,
        initial_state: TrainState | None,
        host: HostDataset | None,
        *,
        rounds: int,
        evaluate: Evaluate | None,
    ) -> None:
        where, self._layout = plan.client_states, plan.layout
        plan = plan._replace(client_states=where.in_program())
        plan = (plan if host is not None else plan.placed()).everywhere()
        initial_params, initial_state = self._layout.everywhere((initial_params, initial_state))
        self._evaluate, self._host, self._frame = evaluate, host, plan.dataset
        self._plans = [plan._replace(key=key) for key in plan.key]  # one a seed
        states = []
        for row, own in enumerate(self._plans):
            model = initial_params.of(row) if isinstance(initial_params, EachSeed) else initial_params
            first = jax.tree.map(lambda leaf, row=row: leaf[row], initial_state)
            states.append(_initialise(own, model, first))
        drawn = [drawn_ahead(of_seed, rounds) for of_seed in self._plans]
        self._drawn = np.stack(drawn, axis=1)  # [rounds, seeds, S]
        self._examples = None if host is None else ExampleWindows(host, self._drawn)
        self._clients: list[ClientWindows] = []
        self._thread: ThreadPoolExecutor | None = None
        if where.apart:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fedjax_sim-client-states")
            for state, of_seed in zip(states, drawn, strict=True):
                indices = cohorts(of_seed, plan.dataset)
                kept = (plan.dataset.num_clients, where.allocate(), self._thread)
                self._clients.append(ClientWindows(state.clients, indices, *kept))
            states = [state._replace(clients=()) for state in states]
        self._states = states
        self._nothing: Record = {}

    def start(self) -> Metrics:
        self._nothing = self._round(0, 0, self._window(0, 0) if self._examples else None, compute=False)
        metrics = self._measure()
        check_recorded(metrics, self._nothing)
        return metrics

    def advance(self, start: int, count: int, running: np.ndarray, tell: Told = None) -> tuple[Record, Metrics]:
        turns = list(itertools.product(range(start, start + count), np.flatnonzero(running).tolist()))
        windows = prefetched(lambda turn: self._window(*turns[turn]), len(turns)) if self._examples else None
        records: list[list[Record]] = [[] for _ in self._plans]
        for number, seed in turns:
            window = None if windows is None else next(windows)
            records[seed].append(self._round(number, seed, window, compute=True))
            if tell is not None:
                jax.block_until_ready(records[seed][-_AHEAD:][0])
                tell(number)  # the rounds of all seeds before this one
        metrics = self._measure()
        return _joined([of_seed or [self._nothing] * count for of_seed in records]), metrics

    def states(self) -> TrainState:
        return _of_clients_alone(_stacked(self._states), self._frame.num_clients)

    def clients(self) -> Any:
        if not self._clients:
            return as_arrays(self.states().clients)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[as_arrays(of.everyone()) for of in self._clients])

    def stored(self) -> dict[str, np.ndarray]:
        return {
            f"{seed}/{name}": array
            for seed, windows in enumerate(self._clients)
            for name, array in windows.stored().items()
        }

    def restore(self, states: TrainState, stored: Mapping[str, np.ndarray]) -> None:
        for seed in range(len(self._plans)):
            own = jax.tree.map(lambda leaf, seed=seed: jnp.array(leaf[seed], copy=True), states)
            clients = self._layout.spread(own.clients)
            self._states[seed] = self._layout.everywhere(own._replace(clients=()))._replace(clients=clients)
        for seed, windows in enumerate(self._clients):
            start = f"{seed}/"
            windows.restore({name.removeprefix(start): stored[name] for name in stored if name.startswith(start)})

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._clients = []

    def _round(self, number: int, seed: int, window: Window | None, *, compute: bool) -> Record:
        """Round ``number`` of a seed; or nothing, only that its program is compiled."""
        clients = self._clients[seed] if self._clients else None
        before, sent = None, None
        if clients is not None:
            before, sent = self._layout.everywhere((clients.on_device, clients.window(number)))
        self._states[seed], rows, record = _one_round(
            self._plans[seed], self._states[seed], before, sent, window, np.int32(number), np.int32(compute)
        )  # fmt: skip
        if clients is not None and compute:
            clients.computed(number, rows)
        record = as_here(record)
        for leaf in record.values():
            leaf.copy_to_host_async()
        return record  # type: ignore[no-any-return]

    def _window(self, number: int, seed: int) -> Window:
        assert self._examples is not None
        return self._layout.everywhere(self._examples.window(self._drawn[number, seed]))  # type: ignore[no-any-return]

    def _measure(self) -> Metrics:
        if self._host is not None:
            return self._measure_from_host(self._host)
        pairs = zip(self._plans, self._asked_for(), strict=True)
        return _stacked([as_here(_measured(plan, state, evaluate=self._evaluate)) for plan, state in pairs])  # type: ignore[no-any-return]

    def _asked_for(self) -> list[TrainState]:
        """What an evaluation needs of the states."""
        if asks_for_clients(self._evaluate, self._plans[0].algorithm):
            return self._states
        return [TrainState(state.server, ()) for state in self._states]

    def _measure_from_host(self, dataset: HostDataset) -> Metrics:
        task, algorithm = self._plans[0].task, self._plans[0].algorithm
        models = [as_here(algorithm.evaluated(state.server)) for state in self._states]
        train = streamed_overall_values(task, models, dataset)
        held_out = dataset.test
        test = [None] * len(models) if held_out is None else streamed_overall_values(task, models, held_out)
        given: list[Any] = [{}] * len(models)
        if self._evaluate is not None:
            of_seeds = zip(self._plans, self._asked_for(), models, strict=True)
            given = [evaluated(self._evaluate, *of_seed, dataset) for of_seed in of_seeds]
        return _stacked([all_metrics(*values) for values in zip(train, test, given, strict=True)])  # type: ignore[no-any-return]


_initialise = jax.jit(init_state)
_measured = jax.jit(measure, static_argnames="evaluate")


# The rows before the round are still being written to the host or the disk.
@functools.partial(jax.jit, donate_argnames="state")
def _one_round(
    plan: Plan,
    state: TrainState,
    before: Rows | None,
    sent: Rows | None,
    window: Window | None,
    number: jax.Array,
    count: jax.Array,
) -> tuple[TrainState, Any, Record]:
    """Round ``number``, or nothing where ``count`` is 0: ``(state, its cohort's client states, record)``."""
    if window is not None:
        plan = plan._replace(dataset=window.on(plan.dataset))
    if before is not None and sent is not None:
        state = state._replace(clients=moved(before, sent))
    state, record = chunk_of_rounds(plan, state, number, count, length=1)
    if sent is None:
        return state, (), record
    return state._replace(clients=()), state.clients, record


def _of_clients_alone(states: TrainState, num_clients: int) -> TrainState:
    """The states without rows of padding: of several devices, each has as many."""
    return states._replace(clients=jax.tree.map(lambda leaf: leaf[:, :num_clients], states.clients))


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _joined(records: list[list[Record]]) -> Any:
    """The rounds' records [1, ...] of each seed as [seeds, rounds, ...].

    By numpy: for JAX, each number of rounds would be another program.
    """
    names = records[0][0]
    return {
        name: np.stack([np.concatenate([np.asarray(record[name]) for record in of_seed]) for of_seed in records])
        for name in names
    }


Driver = ResidentDriver | StreamedDriver
