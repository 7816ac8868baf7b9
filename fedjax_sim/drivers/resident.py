"""All data on the device: whole chunks of rounds, and all seeds, are one program."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.drivers.base import loop_of_rounds
from fedjax_sim.rounds import Record, init_state, prepare
from fedjax_sim.setting import Setting, TrainState
from fedjax_sim.training import Evaluate, measure


class ResidentDriver:
    """See :class:`fedjax_sim.drivers.base.Driver`.

    Args:
      setting: the run.
      algorithm: the method.
      keys: [seeds], one key a seed.
      initial_params: where all seeds start, or None.
      dataset: the data.
      length: the most rounds of one call.
      evaluate: more to record at every evaluation, or None.
    """

    def __init__(
        self,
        setting: Setting,
        algorithm: Method,
        keys: jax.Array,
        initial_params: Any,
        dataset: FederatedDataset,
        *,
        length: int,
        evaluate: Evaluate | None,
    ) -> None:
        self._states: TrainState = _initialise(setting, algorithm, dataset, keys, initial_params)
        self._run = functools.partial(_advance, setting, algorithm, dataset, keys, length=length, evaluate=evaluate)

    def start(self) -> dict[str, jax.Array]:
        return self.advance(0, 0)[1]

    def advance(self, start: int, count: int) -> tuple[Record, dict[str, jax.Array]]:
        self._states, record, metrics = self._run(self._states, jnp.int32(start), jnp.int32(count))
        return jax.tree.map(lambda leaf: leaf[:, :count], record), metrics

    def states(self) -> TrainState:
        return self._states


@jax.jit
def _initialise(
    setting: Setting, algorithm: Method, dataset: FederatedDataset, keys: jax.Array, initial_params: Any
) -> TrainState:
    def one(key: jax.Array) -> TrainState:
        return init_state(setting, prepare(setting, algorithm, dataset, key), dataset, key, initial_params)

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnames=("length", "evaluate"), donate_argnames="states")
def _advance(
    setting: Setting,
    algorithm: Method,
    dataset: FederatedDataset,
    keys: jax.Array,
    states: TrainState,
    start: jax.Array,
    count: jax.Array,
    *,
    length: int,
    evaluate: Evaluate | None,
) -> tuple[TrainState, Record, dict[str, jax.Array]]:
    """``count`` <= ``length`` rounds from round ``start``, then an evaluation; for every seed."""

    def one(key_and_state: tuple[jax.Array, TrainState]) -> tuple[TrainState, Record, dict[str, jax.Array]]:
        key, state = key_and_state
        prepared = prepare(setting, algorithm, dataset, key)
        state, records = loop_of_rounds(setting, prepared, dataset, key, state, start, count, length=length)
        return state, records, measure(setting, prepared, dataset, state, evaluate)

    if jax.default_backend() == "cpu":
        # Vmapped dynamic loops would make every seed wait for the slowest.
        return lax.map(one, (keys, states))  # type: ignore[no-any-return]
    return jax.vmap(lambda key, state: one((key, state)))(keys, states)
