"""One writer a directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from fedjax_sim.core.atomic import NO_LOCKS, check_writable, remove_left_overs

NAME = ".lock"
_BEGIN = b"process "  # of the content


class Locked:
    """Something that may hold a :class:`Lock` until it is closed; a context."""

    _lock: Lock | None = None

    def close(self) -> None:
        """Releases the directory; nothing where it was released before."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lock:
    """A directory for this process to write to, until :meth:`release`, or until the process ends, in whatever way.

    The directory is made where it is missing, it is tried whether files can be made there, and what killed processes
    have not finished is deleted (:func:`fedjax_sim.core.atomic.remove_left_overs`).

    The lock is a file, which says who holds it, and which a process that is killed leaves there to no harm. Nothing but
    such a file is opened, so that no link leads the lock to a file that is somebody's.

    Args:
      directory: to lock.
      what: is written there, for messages: ``"checkpoints"``.
      name: of the file.

    Raises:
      BlockingIOError: another process (or another lock of this one) holds it.
      FileExistsError: something else has the lock's name.
      OSError: the directory cannot be made or written.

    Warns:
      UserWarning: the file system has no locks, so a second writer would go unnoticed.
    """

    def __init__(self, directory: Path, what: str, name: str = NAME) -> None:
        self._file: int | None = None
        self._path, self._process = directory / name, os.getpid()
        try:
            check_writable(directory)
            # One that was opened before its holder removed it is nobody's lock any more.
            while self._file is None or not self._is_there(self._file):
                self._close()
                self._file = self._locked(what)
        except (BlockingIOError, FileExistsError):
            raise
        except OSError as error:
            raise OSError(
                error.errno, f"{what} cannot be written here ({error.strerror})", os.fspath(directory)
            ) from error
        with contextlib.suppress(OSError):  # only for the message: a full disk is no reason not to go on
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, _BEGIN + f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        remove_left_overs(directory)

    def release(self) -> None:
        """Lets others write; nothing where it was released before."""
        if self._file is not None and os.getpid() == self._process:  # a process that was forked has a copy only
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.release()

    def _locked(self, what: str) -> int:
        """The file, opened and locked."""
        descriptor = self._opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"another run writes {what} to this directory ({holder or 'unknown process'}): wait for it or end it, "
                "or give another directory",
                os.fspath(self._path.parent),
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            warnings.warn(
                f"the file system of {self._path.parent} has no locks ({error.strerror}): make sure that no other run "
                f"writes {what} to this directory",
                stacklevel=4,
            )
        return descriptor

    def _opened(self) -> int:
        """The file, if it is ours: anything else is left as it is."""
        ours = False
        try:
            # A link is not followed; a pipe is not waited for.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            about = os.fstat(descriptor)
            if stat.S_ISREG(about.st_mode) and about.st_nlink < 2:
                content = os.pread(descriptor, len(_BEGIN), 0)
                ours = _BEGIN.startswith(content)
            if ours:
                return descriptor
            os.close(descriptor)
        raise FileExistsError(
            errno.EEXIST, f"{self._path.name} is no lock of ours: take it away, or give another directory",
            os.fspath(self._path.parent),
        )  # fmt: skip

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
