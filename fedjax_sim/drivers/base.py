"""What a driver is, and the loop of rounds that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.rounds import Record, run_round
from fedjax_sim.setting import Setting, TrainState


class Driver(Protocol):
    """Computes the rounds of all seeds of a run, some at a time; it holds their state."""

    def start(self) -> dict[str, jax.Array]:
        """Compiles the programs; what is recorded at the evaluation before the first round, leaves [seeds, ...]."""
        ...

    def advance(
        self, start: int, count: int, running: np.ndarray, tell: Callable[[int], None] | None = None
    ) -> tuple[Record, dict[str, jax.Array]]:
        """Rounds ``start`` to ``start + count - 1``, then an evaluation.

        Args:
          start: number of the first round.
          count: of rounds.
          running: bool[seeds]; the others keep their state, and their rows of the record are zero.
          tell: called from time to time with the number of rounds that are finished.

        Returns:
          ``(record, metrics)``: leaves [seeds, count, ...] and [seeds, ...].
        """
        ...

    def states(self) -> TrainState:
        """The state after the rounds so far, leaves [seeds, ...]."""
        ...

    def stored(self) -> dict[str, np.ndarray]:
        """Client states that are no part of :meth:`states` because they are off the device; until the next call."""
        ...

    def restore(self, states: TrainState, stored: Mapping[str, np.ndarray]) -> None:
        """Goes on from ``states`` (arrays of the host, leaves [seeds, ...]) and what :meth:`stored` gave, instead."""
        ...

    def close(self) -> None:
        """Gives back what does not go by itself; the driver is of no use afterwards."""
        ...


# Jitted so that it is traced once, for the shapes of its record and for the loop.
_round = jax.jit(run_round)


def loop_of_rounds(
    setting: Setting,
    prepared: Method,
    dataset: FederatedDataset,
    key: jax.Array,
    state: TrainState,
    start: jax.Array,
    count: jax.Array,
    *,
    length: int,
) -> tuple[TrainState, Record]:
    """``count`` <= ``length`` rounds from round ``start``; the record has ``length`` rows, zero beyond ``count``.

    The count is dynamic, so that no round at all, a whole chunk and a shorter last one are one compiled program.
    """

    def body(i: jax.Array, carry: tuple[TrainState, Record]) -> tuple[TrainState, Record]:
        state, records = carry
        state, record = _round(setting, prepared, dataset, key, state, start + i)
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), records, record)

    one: Any = jax.eval_shape(_round, setting, prepared, dataset, key, state, start)[1]
    empty = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), one)
    return lax.fori_loop(jnp.int32(0), count, body, (state, empty))  # type: ignore[no-any-return]
