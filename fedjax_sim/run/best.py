"""The state of each seed at its best evaluation, kept while the run goes on."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedjax_sim.core.values import check_metric, suggest
from fedjax_sim.engine.client_states import as_arrays
from fedjax_sim.engine.plan import TrainState
from fedjax_sim.reporting.recorded import best_evaluations, known_as
from fedjax_sim.run.drivers import Driver
from fedjax_sim.run.recording import Recording


class Best:
    """One state a seed: that of the evaluation which ``history.at_best`` finds by the same metric.

    Args:
      metric: one number an evaluation.
      clients: whether what is kept for the clients is kept too.
    """

    def __init__(self, metric: str, *, clients: bool) -> None:
        check_metric("keep_best", metric)
        self._metric, self.clients = metric, clients
        self.states: Any = None

    def follow(self, driver: Driver, recording: Recording) -> None:
        """Called after every evaluation: takes the states of the seeds that were never better."""
        metrics = recording.metrics()
        name = known_as(self._metric, metrics)
        if name not in metrics:
            raise ValueError(f"keep_best={self._metric!r}, which this run does not record: {suggest(name, metrics)}")
        if metrics[name].ndim != 2:
            raise ValueError(
                f"keep_best={self._metric!r} is an array of shape {metrics[name].shape[2:]} at each evaluation: choose "
                "one number"
            )
        rows = best_evaluations(metrics, name) == len(recording.evaluated) - 1
        if not rows.any():
            return
        now = ended(driver, clients=self.clients)
        if self.states is None:  # the evaluation before the first round
            self.states = jax.tree.map(np.array, now)
            return
        for kept, leaf in zip(jax.tree.leaves(self.states), jax.tree.leaves(now), strict=True):
            kept[rows] = leaf[rows]


def ended(driver: Driver, *, clients: bool) -> TrainState:
    """The state after the rounds so far, arrays of the host, leaves [seeds, ...].

    Without who is in flight, which means nothing once the run is over, and what is kept for the clients only if asked.
    """
    states = jax.block_until_ready(driver.states())
    kept = driver.clients() if clients else ()
    return TrainState(as_arrays(states.server), kept, None, as_arrays(states.visited))
