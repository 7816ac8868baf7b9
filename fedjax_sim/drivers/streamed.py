"""Data on the host: each round runs on a window with its cohort's examples, sent while the round before computes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.drivers.base import loop_of_rounds
from fedjax_sim.evaluation.passes import streamed_mean_values
from fedjax_sim.prefetch import prefetched
from fedjax_sim.rounds import Record, init_state, keyed_phases, prepare
from fedjax_sim.setting import Setting, TrainState
from fedjax_sim.training import Evaluate, all_metrics

_PLANNED = 256  # rounds whose cohorts are drawn in one call


class Window(NamedTuple):
    """The examples of one round's cohort on the device.

    Attributes:
      examples: leaves [W, ...].
      weights: [W] example weights, or None.
      positions: int32[S], storage positions of the clients; N in void slots.
      starts: int32[S], where each begins in the window.
    """

    examples: Any
    weights: Any
    positions: Any
    starts: Any


class StreamedDriver:
    """See :class:`fedjax_sim.drivers.base.Driver`. The seeds run one after another, round by round.

    Cohorts are drawn ahead for the whole run, since their draws depend on the key and the round alone. The largest of
    them decides the window's length, which is part of the compiled program: rounded up to an eighth of a power of two,
    so that other seeds and rounds seldom compile it again.

    Args:
      setting: the run.
      algorithm: the method.
      keys: [seeds], one key a seed.
      initial_params: where all seeds start, or None.
      dataset: the data.
      rounds: number of rounds of the run.
      evaluate: ``evaluate(params, dataset)`` with the data set on the host, called as it is; or None.
    """

    def __init__(
        self,
        setting: Setting,
        algorithm: Method,
        keys: jax.Array,
        initial_params: Any,
        dataset: HostDataset,
        *,
        rounds: int,
        evaluate: Evaluate | None,
    ) -> None:
        self._setting, self._algorithm, self._dataset, self._evaluate = setting, algorithm, dataset, evaluate
        self._keys = list(keys)
        self._states = [_initialise(setting, algorithm, dataset.frame, key, initial_params) for key in self._keys]
        plans = [_plan(setting, algorithm, dataset.frame, key, rounds) for key in self._keys]
        self._plan = np.stack(plans, axis=1)  # [rounds, seeds, S]
        sizes = np.append(np.asarray(dataset.sizes), 0)
        most = int(sizes[self._plan].sum(axis=-1).max(initial=0))
        # A batch or a piece of a pass is read as a slice, never longer than the largest client.
        self.window_rows = _rounded_up(max(most, dataset.max_size))

    def start(self) -> dict[str, jax.Array]:
        self._run(0, 0, np.ones(len(self._keys), bool))
        return self._measure()

    def advance(self, start: int, count: int, running: np.ndarray) -> tuple[Record, dict[str, jax.Array]]:
        return self._run(start, count, running), self._measure()

    def states(self) -> TrainState:
        return _stacked(self._states)  # type: ignore[no-any-return]

    def restore(self, states: TrainState) -> None:
        for seed in range(len(self._keys)):
            self._states[seed] = jax.tree.map(lambda leaf, seed=seed: jnp.array(leaf[seed], copy=True), states)

    def _run(self, start: int, count: int, running: np.ndarray) -> Record:
        seeds = len(self._keys)
        records: list[list[Record]] = [[] for _ in range(seeds)]
        turns = max(count, 1) * seeds  # without rounds the program is compiled, and takes none

        def window(turn: int) -> Window:
            return self._window(self._plan[start + turn // seeds, turn % seeds])

        for turn, sent in enumerate(prefetched(window, turns)):
            seed, number = turn % seeds, start + turn // seeds
            self._states[seed], record = _one_round(
                self._setting, self._algorithm, self._dataset.frame, self._keys[seed], self._states[seed], sent,
                jnp.int32(number), jnp.int32(min(count, 1) if running[seed] else 0),
            )  # fmt: skip
            records[seed].append(record)
        return _stacked([_joined(of_seed) for of_seed in records]) if count else {}

    def _window(self, planned: np.ndarray) -> Window:
        positions = planned[planned < self._dataset.num_clients]
        examples, weights, starts = self._dataset.window(positions, self.window_rows)
        places = np.full(planned.size, self._dataset.num_clients, np.int32)
        begins = np.zeros(planned.size, np.int32)
        places[: positions.size], begins[: positions.size] = positions, starts
        return jax.device_put(Window(examples, weights, places, begins))  # type: ignore[no-any-return]

    def _measure(self) -> dict[str, jax.Array]:
        models = [self._algorithm.parameters(state.server) for state in self._states]
        train = streamed_mean_values(self._setting.task, models, self._dataset)
        held_out = self._dataset.test
        test = [None] * len(models) if held_out is None else streamed_mean_values(self._setting.task, models, held_out)
        given: list[Any] = [
            {} if self._evaluate is None else self._evaluate(params, self._dataset) for params in models
        ]
        return _stacked([all_metrics(*values) for values in zip(train, test, given, strict=True)])  # type: ignore[no-any-return]


@jax.jit
def _initialise(
    setting: Setting, algorithm: Method, frame: FederatedDataset, key: jax.Array, initial_params: Any
) -> TrainState:
    return init_state(setting, prepare(setting, algorithm, frame, key), frame, key, initial_params)


@functools.partial(jax.jit, donate_argnames="state")
def _one_round(
    setting: Setting,
    algorithm: Method,
    frame: FederatedDataset,
    key: jax.Array,
    state: TrainState,
    window: Window,
    number: jax.Array,
    count: jax.Array,
) -> tuple[TrainState, Record]:
    """Round ``number``, or nothing where ``count`` is 0."""
    dataset = frame.replace(
        examples=window.examples,
        offsets=frame.offsets.at[window.positions].set(window.starts, mode="drop"),
        example_weights=window.weights,
    )
    prepared = prepare(setting, algorithm, dataset, key)
    return loop_of_rounds(setting, prepared, dataset, key, state, number, count, length=1)


def _plan(setting: Setting, algorithm: Method, frame: FederatedDataset, key: jax.Array, rounds: int) -> np.ndarray:
    """int[rounds, S]: the distinct storage positions of every round's clients, in front; N elsewhere."""
    numbers = np.arange(-(-rounds // _PLANNED) * _PLANNED if rounds > _PLANNED else rounds, dtype=np.int32)
    chunks = numbers.reshape(-1, min(rounds, _PLANNED))
    drawn = np.concatenate([np.asarray(_positions(setting, algorithm, frame, key, chunk)) for chunk in chunks])[:rounds]
    drawn.sort(axis=1)
    repeated = np.zeros(drawn.shape, bool)
    repeated[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
    distinct: np.ndarray = np.sort(np.where(repeated, frame.num_clients, drawn), axis=1)
    return distinct


@jax.jit
def _positions(
    setting: Setting, algorithm: Method, frame: FederatedDataset, key: jax.Array, rounds: jax.Array
) -> jax.Array:
    """int32[rounds, S] storage positions of the clients of all phases; N in void slots."""

    def of_round(round_: jax.Array) -> jax.Array:
        found = []
        for _, _, phase_key in keyed_phases(algorithm, key):
            selection = setting.cohort.select(frame, phase_key, round_)
            position = frame.order.at[selection.indices].get(mode="clip")
            found.append(jnp.where(selection.present, position, frame.num_clients).astype(jnp.int32))
        return jnp.concatenate(found)

    return lax.map(of_round, jnp.asarray(rounds))  # type: ignore[no-any-return]


def _rounded_up(rows: int) -> int:
    unit = 1 << max(rows.bit_length() - 4, 0)
    return -(-rows // unit) * unit


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _joined(records: list[Record]) -> Record:
    return {name: jnp.concatenate([record[name] for record in records]) for name in records[0]}
