"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedjax_sim.core.files import kind_of

_TEMPORARY = re.compile(r"\.fedjax_sim-[0-9a-f]{16}\.tmp")
#: what file systems without locks answer: some network mounts
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def write_atomically(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Writes a file so that a reader finds the old content or the new one, never a part.

    The content goes to a temporary file in the same directory, to the disk, and then under its name. Missing
    directories are made: a long run should not be lost for want of one. A file that is replaced keeps its permissions;
    a link is not followed, but gives way to the file.

    Args:
      path: the file.
      content: its bytes, or a function that writes them to the open binary file it is given.

    Raises:
      OSError: the directory cannot be written, or ``path`` is something else than a file: a directory, a device, a
        pipe, or a link to one. What the function raises is passed on. In all cases what was there is untouched and
        nothing is left behind, unless the process is killed: see :func:`remove_left_overs`.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp()) / "result.txt"
      >>> write_atomically(path, b"done")
      >>> path.read_text()
      'done'
    """
    target = Path(path)
    mode = check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _temporary(target.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(temporary, target)  # before it is closed, and no longer locked
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def check_replaceable(path: Path) -> int | None:
    """Checks that what is under a name may give way to a file: nothing, a file, or a link to one or to nowhere.

    Returns:
      The permissions of the file that is there; None for a link or nothing.

    Raises:
      OSError: something else is there.
    """
    try:
        own = path.lstat().st_mode
        mode = path.stat().st_mode if stat.S_ISLNK(own) else own
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(mode):
        said = f"{'this leads to' if stat.S_ISLNK(own) else 'this is'} {kind_of(mode)}, and no file is written over it"
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
        raise OSError(number, f"{said}: give another name", os.fspath(path))
    return None if stat.S_ISLNK(own) else stat.S_IMODE(own)


def check_writable(directory: Path) -> None:
    """Checks that files can be made in a directory, by making one; the directory is made where it is missing.

    Permissions alone do not say so: file systems are mounted to be read only, and fill up.

    Raises:
      OSError: they cannot.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "this is a file, and a directory is needed", os.fspath(directory))
    directory.mkdir(parents=True, exist_ok=True)
    temporary, descriptor = _temporary(directory)
    os.close(descriptor)
    temporary.unlink()


def remove_left_overs(directory: Path) -> None:
    """Deletes temporary files of :func:`write_atomically` whose process was killed.

    They are files of our name which nobody holds locked: who writes one does. Where the file system has no locks, all
    of them are taken for left over.
    """
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(directory)):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # it may be another's, or gone by now
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            os.unlink(path)
    else:
        os.unlink(path)
    finally:
        os.close(descriptor)


def _temporary(directory: Path) -> tuple[Path, int]:
    """A new file of a name that nobody foresees, opened and locked."""
    while True:
        path = directory / f".fedjax_sim-{secrets.token_hex(8)}.tmp"
        # The process's umask applies to a file opened like this, as it does not to those of `tempfile`.
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # else it was taken for left over before it was locked
            return path, descriptor
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    """Puts the new name on the disk as well, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
