"""One writer a directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import warnings
from pathlib import Path

_NAME = ".lock"
# What file systems without locks answer: some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """Held from construction to :meth:`release`, or until the process ends, in whatever way.

    The file ``.lock`` stays in the directory; it says who held the lock last.

    Args:
      directory: to lock; it exists.

    Raises:
      BlockingIOError: another process (or another lock of this one) holds it.
      OSError: the directory cannot be written.

    Warns:
      UserWarning: the file system has no locks, so a second writer would go unnoticed.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / _NAME
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            self.release()
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"another run writes checkpoints to this directory ({holder or 'unknown process'}): wait for it or "
                "end it, or give another directory",
                os.fspath(directory),
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                self.release()
                raise
            warnings.warn(
                f"the file system of {directory} has no locks ({error.strerror}): make sure that no other run writes "
                "checkpoints to this directory",
                stacklevel=3,
            )
        with contextlib.suppress(OSError):  # only for the message: a full disk is no reason not to go on
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Lets others write; nothing where it was released before."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.release()
