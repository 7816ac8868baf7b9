"""The directory of a run's checkpoints, with one writer at a time, and the signals that end a run at one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import secrets
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from fedjax_sim.core.files import Lock, Locked, write_atomically
from fedjax_sim.core.values import check_count
from fedjax_sim.run.checkpoints.files import Checkpoint, Damaged, encoded, read

_NAME = re.compile(r"round-(\d{8,})\.safetensors")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Handlers that end the process. Others were set by a program that has plans of its own, or the signal is ignored.
_ENDING = (signal.SIG_DFL, signal.default_int_handler)


class Store(Locked):
    """A directory of checkpoints, locked for this process until it is closed.

    One file a checkpoint, ``round-00000120.safetensors``, written whole or not at all. The directory is made where it
    does not exist, and temporary files that a killed process left in it are deleted; other files are left alone. A
    process that dies releases the lock.

    Args:
      directory: where.
      keep: how many checkpoints stay; the oldest go once a new one is on the disk.
      writes: whether this process may write; one that only reads locks nothing, and its ``save`` does nothing.

    Raises:
      TypeError, ValueError: ``keep`` is not an integer of at least 1.
      OSError: ``directory`` is a file, cannot be made or written, or another process writes checkpoints to it.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2, *, writes: bool = True) -> None:
        check_count("keep", keep)
        self._damaged: list[Path] = []
        if writes:
            self._lock = Lock(Path(directory), "checkpoints")
        self._directory, self._keep = Path(directory).absolute(), int(keep)

    def save(self, round: int, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Path:
        """Writes a checkpoint, then deletes the oldest beyond ``keep`` and those that :meth:`newest` found damaged.

        Args:
          round: number of finished rounds, no less than in the others of the directory.
          arrays: numbers and booleans of any type that jax has, by name; written from their own memory.
          about: plain JSON data.

        Returns:
          The path of its file.

        Raises:
          TypeError: an array of another type, or ``about`` is no JSON.
          ValueError: there is a checkpoint of a later round.
          OSError: it could not be written; nothing of it is left, and the checkpoints that were there still are.
        """
        check_count("round", round, low=0)
        path = self._directory / f"round-{round:08d}.safetensors"
        if self._lock is None:
            return path
        there = [path for path in self.paths() if path not in self._damaged]
        if there and round_of(there[-1]) > round:
            raise ValueError(f"{there[-1]} is of a later round than {round}: give another directory")
        pieces = encoded(round, arrays, about)
        try:
            if path in self._damaged:  # perhaps no file
                _discard(path)
            write_atomically(path, lambda file: file.writelines(pieces))
        except OSError as error:
            raise self._failed(error, path, sum(map(len, pieces)), there) from error
        kept = [*(old for old in there if old != path), path][-self._keep :]
        for old in {*there, *self._damaged} - {*kept}:
            _discard(old)
        self._damaged = []
        return path

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, with a warning of newer ones that are damaged; None where there is none.

        Raises:
          ValueError: all of them are damaged (a run must not begin again unnoticed), or the newest was written by a
            version of this package whose checkpoints this one cannot go on from.
          OSError: a file cannot be read.
        """
        reasons = []
        for path in reversed(self.paths()):
            try:
                found = self._read(path)
            except (Damaged, FileNotFoundError) as error:  # not found: a link that leads nowhere, or no file
                reasons.append(str(error))
                continue
            if reasons:
                self._damaged = [newer for newer in self.paths() if round_of(newer) > found.round]
                warnings.warn(
                    f"{'; '.join(reasons)}: using {path.name}, of round {found.round}, instead; what is damaged is "
                    "deleted with the next checkpoint",
                    stacklevel=2,
                )
            return found
        if reasons:
            raise ValueError(
                f"no checkpoint in {self._directory} can be read: {'; '.join(reasons)}; restore one from a copy, or "
                "give another directory (or delete these files) to begin again"
            )
        return None

    def paths(self) -> list[Path]:
        """The files of the directory's checkpoints, damaged or not, the oldest first."""
        return paths_in(self._directory)

    def _read(self, path: Path) -> Checkpoint:
        try:
            found = read(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Damaged(f"{path} is damaged (the disk cannot read it: {error.strerror})") from error
        if found.round != round_of(path):
            raise Damaged(f"{path} is of round {found.round}, not of the round in its name")
        return found

    def _failed(self, error: OSError, path: Path, size: int, there: list[Path]) -> OSError:
        try:
            room = f"{shutil.disk_usage(self._directory).free:,} are free"
        except OSError:
            room = "how many are free is unknown"
        last = f"{there[-1].name} is still there, and a run goes on from it" if there else "there is no earlier one"
        return OSError(
            error.errno,
            f"the checkpoint of round {round_of(path)} could not be written ({error.strerror}): it needs {size:,} "
            f"bytes, {room}; {last}",
            os.fspath(path),
        )


def paths_in(directory: Path) -> list[Path]:
    """The files of a directory's checkpoints, damaged or not, the oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=round_of)


def _discard(path: Path) -> None:
    """Deletes a checkpoint; a directory of such a name, which is none of ours, gets another one."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if not path.is_dir():
            raise
        path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}.aside"))


def round_of(path: Path) -> int:
    """The finished rounds that a checkpoint's name says."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


@dataclasses.dataclass
class Caught:
    """The first signal that asked to stop, or None."""

    signal: signal.Signals | None = None


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, has saved a checkpoint and can be resumed.

    It is a ``KeyboardInterrupt``, with what asked, the finished ``round`` of all ``rounds``, and the checkpoint's path.
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
    end; a signal that no exception has answered until then is delivered again. Elsewhere than in the main thread, where
    Python allows no handlers, nothing is caught.

    Yields:
      :class:`Caught`, to look at between pieces of work.

    Raises:
      KeyboardInterrupt: at the second SIGINT, or in the end at the first, if nothing else was raised.
    """
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    asked = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in asked:
            raise KeyboardInterrupt
        asked.append(number)
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
