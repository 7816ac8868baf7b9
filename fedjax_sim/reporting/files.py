"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Writes a file so that a reader finds the old content or the new one, never a part.

    The content goes to a temporary file in the same directory, to the disk, and then under its name. Missing
    directories are made: a long run should not be lost for want of one. A link is followed, and a file that is
    replaced keeps its permissions.

    Args:
      path: the file.
      content: its bytes, or a function that writes them to the open binary file it is given.

    Raises:
      OSError: the directory cannot be written, or ``path`` is a directory. What the function raises is passed on.
        In both cases the old file is untouched and nothing is left behind.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp()) / "result.txt"
      >>> write_atomically(path, b"done")
      >>> path.read_text()
      'done'
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    # The process's umask applies to a file opened like this, as it does not to those of `tempfile`.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Puts the new name on the disk as well, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
