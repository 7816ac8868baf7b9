"""A progress bar for the driver: rich on a terminal, plain lines elsewhere, nothing where it is switched off."""

from __future__ import annotations

import datetime
import importlib.util
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, Self


class Progress:
    """Shows how far a run is. This class itself is silent; :func:`progress_bar` returns the one that suits.

    Attributes:
      enabled: whether anything is shown. Where it is False there is no need to fetch a loss for :meth:`update`.
    """

    enabled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def compiling(self) -> None:
        """Says that the program is being compiled, until the first :meth:`update`."""

    def update(self, rounds_done: int, metrics: Mapping[str, Any] | None = None, clients: int | None = None) -> None:
        """Shows the state after ``rounds_done`` rounds.

        The speed is measured from the first update, so that it leaves compilation out; ``update(0)`` before the first
        round makes it known from the next one on.

        Args:
          rounds_done: how many.
          metrics: the newest evaluation, of which the loss (of a study its objective) and the accuracy, on the test
            data if that is there, are shown until there is another one: means over all seeds. None or empty where there
            is none.
          clients: that have taken part in all rounds so far, of all seeds; None where it is not known yet.
        """

    def show(self, done: int, text: str) -> None:
        """Shows ``text`` once ``done`` parts of the whole, which are no rounds, are done."""


def progress_bar(
    total_rounds: int,
    enabled: bool | Literal["auto"] | None = None,
    description: str = "rounds",
    *,
    unit: str = "round",
) -> Progress:
    """A context manager that shows progress on stderr.

    Args:
      total_rounds: how many rounds the run has.
      enabled: True shows it: as a bar if rich is installed and stderr is a terminal or a notebook, otherwise as a
        line every tenth of the run. None or "auto" shows it on a terminal only, of the first process; False never.
      description: what is being run.
      unit: what is counted where that is not rounds.

    Raises:
      TypeError: another value of ``enabled``.

    Example:
      >>> with progress_bar(200, False) as bar:
      ...     bar.compiling()
      ...     bar.update(200, {"loss": 0.5})
    """
    if not isinstance(enabled, bool) and enabled not in (None, "auto"):
        raise TypeError(f"progress is {enabled!r}: it must be True, False, or None (on a terminal only)")
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if sys.stderr is None or not (terminal if enabled in (None, "auto") else enabled):
        return Progress()
    if enabled is not True:
        from fedjax_sim.core.devices import is_first  # runs have loaded JAX; who only reads reports need not

        if not is_first():
            return Progress()
    console = _rich_console(terminal)
    if console is None:
        return _Lines(total_rounds, description, unit)
    return _Bar(total_rounds, description, unit, console)


class _Shown(Progress):
    """What both kinds of progress know: speed and time left, from the first update on."""

    enabled = True

    def __init__(self, total: int, description: str, unit: str):
        self.total, self.description, self.unit = total, description, unit
        self.start: tuple[int, float] | None = None
        self.metrics: dict[str, float] = {}
        self.a_round: float | None = None  # clients

    def status(self, done: int, metrics: Mapping[str, Any] | None, clients: int | None) -> str:
        """``12.5 rounds/s, 125 clients/s, loss 0.1234, test accuracy 0.8, 0:00:08 left``."""
        now = time.perf_counter()
        if self.start is None:
            self.start = (done, now)
        first, since = self.start
        self.metrics.update(_means(metrics or {}))
        if clients is not None and done:
            self.a_round = clients / done
        parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.metrics.items()]
        if done > first and now > since:
            speed = (done - first) / (now - since)
            clients_too = [] if self.a_round is None else [f"{_rounded(speed * self.a_round)} clients/s"]
            parts = [f"{_rounded(speed)} {self.unit}s/s", *clients_too, *parts]
            if done < self.total:
                parts.append(f"{datetime.timedelta(seconds=round((self.total - done) / speed))} left")
        return ", ".join(parts)


def _means(metrics: Mapping[str, Any]) -> dict[str, float]:
    import numpy as np  # who only asks the command for help need not wait for it

    from fedjax_sim.reporting.recorded import telling_loss

    accuracy = "test_accuracy" if "test_accuracy" in metrics else "accuracy"
    names = (telling_loss(metrics), "objective", accuracy)
    return {name: float(np.mean(np.asarray(metrics[name]))) for name in names if name is not None and name in metrics}


def _rounded(speed: float) -> str:
    return f"{speed:.3g}" if speed < 100 else f"{speed:,.0f}"


class _Lines(_Shown):
    """A line while compiling and one every tenth of the rounds."""

    tenths = 0  # shown

    def compiling(self) -> None:
        self.show(0, "compiling")

    def update(self, rounds_done: int, metrics: Mapping[str, Any] | None = None, clients: int | None = None) -> None:
        status = self.status(rounds_done, metrics, clients)
        tenths = 10 * rounds_done // max(self.total, 1)
        if tenths > self.tenths:
            self.tenths = tenths
            self.show(rounds_done, f"{self.unit} {rounds_done}/{self.total}, {status}")

    def show(self, done: int, text: str) -> None:
        print(f"{self.description}: {text}", file=sys.stderr, flush=True)


class _Bar(_Shown):
    """A bar that rich draws; its own thread keeps it moving while XLA compiles."""

    def __init__(self, total: int, description: str, unit: str, console: Any):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__(total, description, unit)
        before, after = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[status]"))
        columns = (before, BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), after)
        self._bar = RichProgress(*columns, console=console)
        self._task = self._bar.add_task(description, total=total, status="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def compiling(self) -> None:
        self._bar.update(self._task, total=None, status="compiling")  # without a total the bar pulses

    def update(self, rounds_done: int, metrics: Mapping[str, Any] | None = None, clients: int | None = None) -> None:
        self.show(rounds_done, self.status(rounds_done, metrics, clients))

    def show(self, done: int, text: str) -> None:
        self._bar.update(self._task, total=self.total, completed=done, status=text)


def _rich_console(terminal: bool) -> Any:
    """A rich console on stderr if it can redraw a line there, else None."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(file=sys.stderr)
    if console.is_jupyter:
        return console if importlib.util.find_spec("ipywidgets") is not None else None  # rich needs it to redraw there
    return console if terminal and not console.is_dumb_terminal else None
