"""SIGINT and SIGTERM ask a run to stop where it can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Handlers that end the process. Others were set by a program that has plans of its own, or the signal is ignored.
_ENDING = (signal.SIG_DFL, signal.default_int_handler)


@dataclasses.dataclass
class Caught:
    """What arrived.

    Attributes:
      signal: the first signal that asked to stop, or None.
    """

    signal: signal.Signals | None = None


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, has saved a checkpoint and can be resumed.

    It is a ``KeyboardInterrupt``: ``except Exception`` does not stop it on its way out.

    Args:
      signal: what asked.
      round: number of finished rounds.
      rounds: of the whole run.
      path: the checkpoint.
    """

    def __init__(self, signal: signal.Signals, round: int, rounds: int, path: str | os.PathLike[str]) -> None:
        super().__init__(signal, round, rounds, path)
        self.signal, self.round, self.rounds, self.path = signal, round, rounds, path

    def __str__(self) -> str:
        return (
            f"stopped by {self.signal.name} after round {self.round} of {self.rounds}, which is saved in "
            f"{os.fspath(self.path)}: call simulate again with the same arguments to go on from there"
        )


@contextlib.contextmanager
def interruptions() -> Iterator[Caught]:
    """While it is open, the first SIGINT or SIGTERM is noted and the process goes on; a second SIGINT ends it at once.

    Handlers are taken over only where they would end the process (those that Python starts with), and put back in the
    end. A signal that was not answered by an exception until then is delivered again, so none is lost. Elsewhere than
    in the main thread, where Python allows no handlers, nothing is caught.

    Yields:
      :class:`Caught`, to look at between pieces of work.

    Raises:
      KeyboardInterrupt: at the second SIGINT, or in the end at the first, if nothing else was raised.

    Example:
      >>> import signal
      >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
      >>> with contextlib.suppress(KeyboardInterrupt), interruptions() as caught:
      ...     signal.raise_signal(signal.SIGINT)
      ...     print(f"{caught.signal.name} has arrived, this is done all the same")
      SIGINT has arrived, this is done all the same
    """
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGINT and asked:
            raise KeyboardInterrupt
        asked = asked or number == signal.SIGINT
        caught.signal = caught.signal or signal.Signals(number)

    old = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number in _SIGNALS if old[number] in _ENDING]
    try:
        for number in taken:
            signal.signal(number, note)
        yield caught
    finally:
        for number in taken:
            signal.signal(number, old[number])
    if caught.signal is not None:
        signal.raise_signal(caught.signal)
