"""Runs whose data and client states are on the device: chunks of rounds as one program."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.devices import available_cores, threads_for_programs
from fedjax_sim.core.loops import draw_alone
from fedjax_sim.core.programs import compiling
from fedjax_sim.datasets.placement import as_here
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.client_states import as_arrays
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import EachSeed, Record, chunk_of_rounds, initial_states
from fedjax_sim.models.evaluation import check_recorded
from fedjax_sim.run.training import measure

_PAUSE = 0.5  # seconds of rounds between two reports; a call of the program takes about a thousandth of it
_ONE_BY_ONE = ("cpu",)  # backends whose program is that of one seed
_LENGTHS = 32  # rounds from one evaluation to the next up to which one program does
_RECORDED = 65_536  # clients in all rows of a record beyond which rows are not spared

Told = Callable[[int], None] | None  # called from time to time with the number of rounds that are finished
Metrics = dict[str, jax.Array]


class ResidentDriver:
    """All data on the device: whole chunks of rounds, at most ``length``, are one program.

    On a CPU it is the program of one seed, called for each: it is compiled once for any number of seeds, and on one
    device as many seeds run at once as there are cores. Elsewhere it is that of all seeds, where their keys draw alone.
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
        self._num_clients, self._layout, seeds = plan.dataset.num_clients, plan.layout, len(plan.key)
        self._pace: float | None = None  # seconds a round, once it is known
        self._compiled = False
        keys = np.asarray(jax.random.key_data(plan.key))
        plan = plan.placed().shared(evaluate).everywhere()
        models, state = self._layout.everywhere((initial_params, initial_state))
        one_by_one = jax.default_backend() in _ONE_BY_ONE or not draw_alone(plan.key)
        self._groups = [slice(row, row + 1) for row in range(seeds)] if one_by_one else [slice(0, seeds)]
        self._plans: list[list[Any]] = []
        self._states: list[list[Any]] = []
        for rows in self._groups:
            own = plan._replace(key=self._layout.everywhere(jax.random.wrap_key_data(jax.device_put(keys[rows]))))
            model = jax.tree.map(lambda leaf, rows=rows: leaf[rows], models) if isinstance(models, EachSeed) else models
            first = jax.tree.map(lambda leaf, rows=rows: leaf[rows], state)
            leaves, of_plan = jax.tree.flatten(own)
            states, self._structure = jax.tree.flatten(self._settled(initial_states(own, model, first)))
            self._plans.append(leaves)
            self._states.append(states)
        alone = all(len(leaf.sharding.device_set) == 1 for leaf in self._states[0])
        self._workers = min(len(self._groups), available_cores()) if alone else 1  # several devices wait for each other
        self._threads = threads_for_programs(self._workers)
        self._program = _Program(of_plan, self._structure, _rows(length, plan.slots), evaluate, may_stop)

    @compiling()
    def start(self) -> Metrics:
        """Compiles the programs; what is recorded at the evaluation before the first round, leaves [seeds, ...]."""
        return self.advance(0, 0, np.ones(self._groups[-1].stop, bool))[1]

    def advance(self, start: int, count: int, running: np.ndarray, tell: Told = None) -> tuple[Record, Metrics]:
        """``count`` rounds from ``start``, then an evaluation: leaves [seeds, count or more, ...] and [seeds, ...].

        Rows of the record beyond the count are zero. Of the seeds that are not ``running`` (bool[seeds]) the state is
        kept, and all rows are zero.
        """
        if tell is not None and count > 1:
            return self._in_parts(start, count, running, tell)
        return self._called(start, count, running, last=True)

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

        def called(number: int) -> tuple[Record, Metrics]:
            given = np.int32(start), counts[self._groups[number]], np.bool_(last)
            self._states[number], record, metrics = _advance(
                self._program, self._plans[number], self._states[number], *given
            )
            return as_here((record, metrics))

        def share(first: int) -> list[tuple[Record, Metrics]]:
            said = [called(number) for number in range(first, len(self._groups), workers)]
            # Arrays of numpy: for JAX, each number of seeds would be another program.
            return jax.tree.map(np.asarray, said)

        if len(self._groups) == 1:
            return called(0)
        if self._threads is None or not self._compiled:
            workers, self._compiled = 1, True
            found = share(0)
        else:
            workers = self._workers
            shares = list(self._threads.map(share, range(workers)))
            found = [shares[number % workers][number // workers] for number in range(len(self._groups))]
        return jax.tree.map(lambda *of_seeds: np.concatenate(of_seeds), *found)

    def states(self) -> TrainState:
        """The state after the rounds so far, leaves [seeds, ...]."""
        if len(self._states) == 1:
            leaves = self._states[0]
        else:
            leaves = [_side_by_side(of_seeds) for of_seeds in zip(*self._states, strict=True)]
        return of_clients_alone(jax.tree.unflatten(self._structure, leaves), self._num_clients)

    def clients(self) -> Any:
        """The states of all clients, wherever they are: arrays of the host, leaves [seeds, N, ...]; ``()`` for none."""
        return as_arrays(self.states().clients)

    def stored(self) -> dict[str, np.ndarray]:
        """Client states that are no part of :meth:`states` because they are off the device; until the next call."""
        return {}

    def restore(self, states: TrainState, stored: Mapping[str, np.ndarray]) -> None:
        """Goes on from ``states`` (arrays of the host, leaves [seeds, ...]) and what :meth:`stored` gave, instead."""
        # A copy: the program is given its memory to write to.
        self._states = [
            jax.tree.leaves(
                self._settled(jax.tree.map(lambda leaf, rows=rows: jnp.array(leaf[rows], copy=True), states))
            )
            for rows in self._groups
        ]

    def close(self) -> None:
        """Gives back what does not go by itself; the driver is of no use afterwards."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _settled(self, states: TrainState) -> TrainState:
        """The states where the program leaves them, so that it is compiled for one place alone."""
        clients = self._layout.spread(states.clients, axis=1)
        return self._layout.everywhere(states._replace(clients=()))._replace(clients=clients)


def _rows(length: int, slots: int) -> int:
    """Rows of the record of a chunk of ``length`` rounds: those of other lengths too, that one program does for all."""
    return max(1 << (length - 1).bit_length(), min(_LENGTHS, _RECORDED // max(slots, 1)))


class _Program:
    """What a program is compiled for, arrays aside. Calls are many: it is hashed once, and lists go to them."""

    def __init__(self, plan: Any, states: Any, length: int, evaluate: Evaluate | None, may_stop: bool) -> None:
        self.plan, self.states, self.length, self.evaluate, self.may_stop = plan, states, length, evaluate, may_stop
        self._hash = hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.plan, self.states, self.length, self.evaluate, self.may_stop

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Program) and self._key == other._key


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _advance(
    program: _Program,
    of_plan: list[jax.Array],
    of_states: list[jax.Array],
    start: jax.Array,
    counts: jax.Array,
    last: jax.Array,
) -> tuple[list[jax.Array], Record, Metrics]:
    """``counts[s]`` <= ``length`` rounds of seed s from round ``start``; if ``last``, an evaluation, else zeros."""
    plan: Plan = jax.tree.unflatten(program.plan, of_plan)
    states: TrainState = jax.tree.unflatten(program.states, of_states)

    def rounds(key: jax.Array, state: TrainState, count: jax.Array) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=program.length)

    def evaluation(state: TrainState) -> Metrics:
        return measure(plan, state, evaluate=program.evaluate)

    def measured(state: TrainState) -> Metrics:
        nothing = trees.zeros_like(jax.eval_shape(evaluation, state))
        return lax.cond(last, evaluation, lambda state: nothing, state)

    if len(plan.key) == 1:
        key, state = jax.tree.map(lambda leaf: leaf[0], (plan.key, states))
        state, record = rounds(key, state, counts[0])
        after, records, metrics = jax.tree.map(lambda leaf: leaf[None], (state, record, measured(state)))
    else:
        # One count for all: a count of its own would make every step of every seed a choice.
        most = jnp.max(counts)
        after, records = jax.vmap(lambda key, state: rounds(key, state, most))(plan.key, states)
        if program.may_stop:  # seeds that have stopped keep what they had
            after, records = trees.select(counts == most, (after, records), (states, trees.zeros_like(records)))
        metrics = jax.vmap(measured)(after)
    check_recorded(metrics, records)
    return jax.tree.leaves(after), records, metrics


def _side_by_side(of_seeds: Sequence[jax.Array]) -> Any:
    """Leaves [1, ...] as one: by numpy where it can, for which no number of seeds is another program."""
    first = of_seeds[0]
    if len(first.sharding.device_set) > 1 or jnp.issubdtype(first.dtype, jax.dtypes.extended):
        return jnp.concatenate(of_seeds)
    return np.concatenate([np.asarray(leaf) for leaf in of_seeds])


def of_clients_alone(states: TrainState, num_clients: int) -> TrainState:
    """The states without rows of padding: of several devices, each has as many."""
    return states._replace(clients=jax.tree.map(lambda leaf: leaf[:, :num_clients], states.clients))
