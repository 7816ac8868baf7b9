"""Who computes the rounds of a run, some at a time, and holds their state: from the host, or on the device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.devices import prefetched
from fedjax_sim.core.programs import compiling
from fedjax_sim.datasets.federated import held_out_parts
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import as_here
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.client_states import Rows, as_arrays, moved
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import EachSeed, Record, chunk_of_rounds, init_state
from fedjax_sim.engine.streaming import ClientWindows, ExampleWindows, Window, cohorts, drawn_ahead
from fedjax_sim.models.evaluation import all_metrics, check_recorded, reads_the_same
from fedjax_sim.models.predictions import streamed_readings
from fedjax_sim.run.resident import Metrics, ResidentDriver, Told, of_clients_alone
from fedjax_sim.run.training import asks_for_clients, evaluated, measure, with_everybody

_AHEAD = 2  # rounds that may be sent to the device before the oldest is told of


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
        self._here = plan  # what an evaluation of data on the host is computed from, on one device
        plan = (plan if host is not None else plan.placed().shared(evaluate)).everywhere()
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

    @compiling()
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
        return of_clients_alone(_stacked(self._states), self._frame.num_clients)

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
        return record

    def _window(self, number: int, seed: int) -> Window:
        assert self._examples is not None
        return self._layout.everywhere(self._examples.window(self._drawn[number, seed]))

    def _measure(self) -> Metrics:
        if self._host is not None:
            return self._measure_from_host(self._host)
        pairs = zip(self._plans, self._asked_for(), strict=True)
        return _stacked([as_here(_measured(plan, state, evaluate=self._evaluate)) for plan, state in pairs])

    def _asked_for(self) -> list[TrainState]:
        """What an evaluation needs of the states."""
        if asks_for_clients(self._evaluate, self._plans[0].algorithm):
            return self._states
        return [TrainState(state.server, ()) for state in self._states]

    def _measure_from_host(self, dataset: HostDataset) -> Metrics:
        plan, evaluate = self._here, self._evaluate
        task, algorithm = plan.task, plan.algorithm
        # Examples come to one device, whatever the layout of the rounds.
        models = [algorithm.evaluated(as_here(state.server)) for state in self._states]
        parts = {**({"": dataset} if plan.measured.training else {}), **held_out_parts(dataset)}
        clients = reads_the_same(evaluate, task)
        found = {name: streamed_readings(task, models, part, clients=clients) for name, part in parts.items()}
        metrics = []
        for number, (own, state, params) in enumerate(zip(self._plans, self._asked_for(), models, strict=True)):
            readings = {name: of[number] for name, of in found.items()}
            given = {}
            if evaluate is not None:
                state = as_here(_with_everybody(own, state))
                given = evaluated(evaluate, plan, state, params, dataset, readings)
            metrics.append(all_metrics({name: reading.overall for name, reading in readings.items()}, given))
        return _stacked(metrics)


_initialise = jax.jit(init_state)
_measured = jax.jit(measure, static_argnames="evaluate")
_with_everybody = jax.jit(with_everybody)


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
