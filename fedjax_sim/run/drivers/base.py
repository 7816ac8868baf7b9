"""What a driver is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from fedjax_sim.engine.plan import TrainState
from fedjax_sim.engine.rounds import Record


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

    def clients(self) -> Any:
        """The states of all clients, wherever they are: arrays of the host, leaves [seeds, N, ...]; ``()`` for none."""
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
