"""What ``simulate(callbacks=...)`` calls while a run goes on: on the host, between compiled chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_sim.core.values import shown

if TYPE_CHECKING:
    from fedjax_sim.run.history import History


class Started(NamedTuple):
    """A run that is about to begin, or to go on from a checkpoint.

    Attributes:
      description: the resolved configuration and where it runs, as ``history.description``.
      seeds: one a run.
      rounds: R.
      finished: rounds that a checkpoint already had; they are not reported again.
    """

    description: dict[str, Any]
    seeds: list[int]
    rounds: int
    finished: int


class Reported(NamedTuple):
    """An evaluation, and the rounds since the one before.

    Attributes:
      round: rounds finished.
      metrics: [seeds, ...] by name: ``"loss"``, ``"test_accuracy"``, ...
      rounds: [seeds, rounds since the last evaluation, ...] by name: ``"cohort_size"``, diagnostics, ...; empty at the
        start.
    """

    round: int
    metrics: Mapping[str, np.ndarray]
    rounds: Mapping[str, np.ndarray]


class Callback:
    """Base of callbacks: override what you need. Whatever a method raises ends the run.

    Example:
      >>> class Printed(Callback):
      ...     def report(self, reported):
      ...         print(reported.round, sorted(reported.metrics))
      >>> Printed().report(Reported(5, {"loss": np.zeros(1)}, {}))
      5 ['loss']
    """

    def start(self, started: Started) -> None:
        """Called once, when the run is compiled."""

    def report(self, reported: Reported) -> None:
        """Called after every evaluation, that before the first round included."""

    def end(self, history: History | None) -> None:
        """Called once, whatever happens after :meth:`start`: with the history, or None if the run ended early."""


def check_callbacks(callbacks: Any) -> list[Callback]:
    """The callbacks as a list.

    Raises:
      TypeError: one is not a :class:`Callback`.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks is {shown(callbacks)}: give a list, [fedjax_sim.trackers.tensorboard('runs/a')]")
    found = list(callbacks)
    for callback in found:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"callbacks has {shown(callback)}: it must be an object of a class derived from "
                "fedjax_sim.callbacks.Callback, for instance fedjax_sim.trackers.tensorboard('runs/a')"
            )
    return found


class Calls:
    """The callbacks of one run, a context: those that were started are ended, in the reverse order.

    Args:
      callbacks: what is called.
    """

    def __init__(self, callbacks: list[Callback]) -> None:
        self._callbacks, self._started = callbacks, list[Callback]()
        self.any = bool(callbacks)

    def start(self, started: Started) -> None:
        for callback in self._callbacks:
            self._started.append(callback)
            callback.start(started)

    def report(self, round: int, metrics: Mapping[str, Any], rounds: Mapping[str, Any]) -> None:
        """Arrays may be the device's: they are fetched if there is anyone to see them."""
        if self._callbacks:
            reported = Reported(
                round,
                {name: np.asarray(values) for name, values in metrics.items()},
                {name: np.asarray(values) for name, values in rounds.items()},
            )
            for callback in self._callbacks:
                callback.report(reported)

    def end(self, history: History | None) -> None:
        """Ends those that have not been ended; each gets its call even if another one raises."""
        errors: list[BaseException] = []
        while self._started:
            try:
                self._started.pop().end(history)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
