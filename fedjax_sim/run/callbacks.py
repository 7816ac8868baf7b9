"""What ``simulate(callbacks=...)`` calls while a run goes on: on the host, between compiled chunks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_sim.core.devices import is_first, together
from fedjax_sim.core.values import shown
from fedjax_sim.run.records import unwritable

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
    """An evaluation, and the rounds since the one before; arrays that are read only.

    Attributes:
      round: rounds finished.
      metrics: [seeds, ...] by name: ``"loss"``, ``"test_accuracy"``, ...
      rounds: [seeds, rounds since the last evaluation, ...] by name: ``"cohort_size"``, diagnostics, ...; empty at the
        start.
      running: bool[seeds], False of those that had stopped before these rounds: their records of them are zero. None
        where none had.
    """

    round: int
    metrics: Mapping[str, np.ndarray]
    rounds: Mapping[str, np.ndarray]
    running: np.ndarray | None = None


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


class Calls:
    """The callbacks of one run: those that were started are ended, in the reverse order.

    Of several processes the first one calls them, and what they raise ends the run in all.
    """

    def __init__(self, callbacks: Any) -> None:
        self._callbacks: list[Callback] = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        self._started: list[Callback] = []
        if isinstance(callbacks, Callback) or not all(isinstance(one, Callback) for one in self._callbacks):
            raise TypeError(
                f"callbacks is {shown(callbacks)}: give a list of objects of classes derived from "
                "fedjax_sim.callbacks.Callback, for instance [fedjax_sim.trackers.tensorboard('runs/a')]"
            )
        for one in self._callbacks:
            called = ("start", "report", "end")
            if all(
                name not in vars(one) and getattr(type(one), name, None) is getattr(Callback, name) for name in called
            ):
                raise TypeError(
                    f"callbacks: {type(one).__name__} has none of start(started), report(reported) and end(history), "
                    "which are what a run calls"
                )
        if not is_first():
            self._callbacks = []

    def start(self, started: Started) -> None:
        def begin() -> None:
            for callback in self._callbacks:
                self._started.append(callback)
                callback.start(copy.deepcopy(started))  # what it takes away from the description stays in the history's

        together(begin)

    def report(
        self, round: int, metrics: Mapping[str, Any], rounds: Mapping[str, Any], count: int, running: np.ndarray
    ) -> None:
        """Arrays may be the device's, those of rounds have ``count`` rows or more: fetched if anyone is to see them."""

        def tell() -> None:
            if self._callbacks:
                measured = {name: unwritable(values) for name, values in metrics.items()}
                recorded = {name: unwritable(of)[:, :count] for name, of in rounds.items()}
                reported = Reported(round, measured, recorded, None if running.all() else unwritable(running))
                for callback in self._callbacks:
                    callback.report(reported)

        together(tell)

    def finish(self, history: History) -> None:
        """Ends them with the history of the whole run."""
        together(lambda: self.end(history))

    def end(self, history: History | None) -> None:
        """Ends those that have not been ended; each gets its call even if another one raises."""
        with contextlib.ExitStack() as ending:
            for callback in self._started:
                ending.callback(callback.end, history)
            self._started = []
