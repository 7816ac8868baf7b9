"""Files that may hold anything, files that are whole or not there, and directories with one writer.

Nothing here needs JAX: reports are made without it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")
_TEMPORARY = re.compile(r"\.fedjax_sim-[0-9a-f]{16}\.tmp")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks answer: network mounts
LOCK_NAME = ".lock"
_LOCK_BEGIN = b"process "  # of the content


def cache_directory() -> Path | None:
    """Where the package keeps what it can compute again: compiled programs, measured layouts.

    ``$FEDJAX_SIM_CACHE``, None where that is ``off``; else ``$XDG_CACHE_HOME/fedjax_sim``, else ``~/.cache/fedjax_sim``
    (a RuntimeError for a user without a home directory). Nothing is made there: who writes makes the directory.
    """
    if own := os.environ.get("FEDJAX_SIM_CACHE"):
        return None if own == "off" else Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():  # the standard says to ignore relative ones
        return shared / "fedjax_sim"
    return Path.home() / ".cache" / "fedjax_sim"


def others_may_write(folder: Path) -> bool:
    """Whether another user than this one owns a folder, or may write to it."""
    about = folder.stat()
    return about.st_uid != os.getuid() or bool(about.st_mode & 0o022)


def shrink(folder: Path, most: int) -> None:
    """Deletes the files of a folder that were not used for longest, until the rest has at most ``most`` bytes.

    A file system notes when a file was read, as a rule once a day; where it does not, those written first go.
    """
    files = []
    for item in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process shrinks it too
            about = item.stat()
            files += [(max(about.st_atime, about.st_mtime), about.st_size, item)] if item.is_file() else []
    total = sum(size for _, size, _ in files)
    for _, size, item in sorted(files):
        if total <= most:
            break
        item.unlink(missing_ok=True)
        total -= size


def check_regular(path: Path) -> None:
    """Checks that a path leads to a regular file: opening a pipe may wait for ever, a device may never end.

    A FileNotFoundError where nothing is there, a link that leads nowhere, or something else than a file.
    """
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise
    except OSError as error:  # among them links that lead in a circle
        raise FileNotFoundError(f"{path} is not there ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise FileNotFoundError(f"{path} is not a file but {_KINDS[stat.S_IFMT(mode)]}")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading bytes, if it is one (:func:`check_regular`)."""
    check_regular(Path(path))
    return open(path, "rb")


@contextlib.contextmanager
def parsing(path: Path, wrong: str, fix: str = "fetch it again") -> Iterator[None]:
    """Around calls of other people's parsers: whatever they raise for bytes they do not expect becomes a ValueError.

    It says ``"<path> <wrong> (<what the parser said>): <fix>"``. Errors that name the path already are passed on, and
    so is a lack of memory.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if type(error) is ValueError and str(path) in str(error):
            raise
        said = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__
        raise ValueError(f"{path} {wrong} ({reason}): {fix}") from error


def read_text(path: Path, *, encoding: str = "utf-8", wrong: str = "is not text", fix: str = "fetch it again") -> str:
    """The whole text of a file; ``wrong`` and ``fix`` as in :func:`parsing`, which it raises for another encoding."""
    with open_regular(path) as raw, parsing(path, wrong, fix):
        return raw.read().decode(encoding)


def read_json(
    path: Path,
    *,
    wrong: str = "is not JSON",
    fix: str = "fetch it again",
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The content of a JSON file in UTF-8; ``pairs`` as ``object_pairs_hook``, the others as in :func:`parsing`."""
    text = read_text(path, encoding="utf-8-sig", wrong=wrong, fix=fix)
    with parsing(path, wrong, fix):
        return json.loads(text, object_pairs_hook=pairs)


def json_object(path: Path, content: Any) -> dict[str, Any]:
    """``content``, if it is a JSON object; else a ValueError."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}: it must hold a JSON object")
    return content


def check_format(path: Path, found: Any, newest: int) -> None:
    """Checks the number of a file's format: 1 to ``newest``."""
    if type(found) is int and found > newest:
        raise ValueError(
            f"{path} has format {found}, and this version of fedjax_sim knows formats up to {newest}: use the version "
            "that wrote it, or a later one"
        )
    if type(found) is not int or found < 1:
        raise ValueError(f"{path} has format {repr(found)[:200]}: it must be a number from 1 to {newest}")


def write_atomically(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], object]) -> None:
    """Writes a file so that a reader finds the old content or the new one, never a part.

    The content (bytes, or a function that writes them to the open file it is given) goes to a temporary file in the
    same directory, to the disk, and then under its name. Missing directories are made: a long run should not be lost
    for want of one. A file that is replaced keeps its permissions; a link is not followed, but gives way to the file.

    Raises:
      OSError: the directory cannot be written, or ``path`` is something else than a file: a directory, a device, a
        pipe, or a link to one. What the function raises is passed on. In all cases what was there is untouched and
        nothing is left behind, unless the process is killed: see :func:`remove_left_overs`.
    """
    target = Path(path)
    mode = check_replaceable(target)
    make_directory(target.parent)
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
    with contextlib.suppress(OSError):  # the new name on the disk as well, where the file system can
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Makes a directory where it is missing, and those around it.

    None called ``~`` or ``~name``, a home directory to a shell alone: who asks for it would not look for results there.
    """
    first = directory.parts[0] if directory.parts else ""
    if first.startswith("~") and not os.path.lexists(first):
        said = f"{first} is no home directory to Python: write it out, or give Path(...).expanduser()"
        raise FileNotFoundError(errno.ENOENT, said, os.fspath(directory))
    directory.mkdir(parents=True, exist_ok=True)


def check_replaceable(path: Path) -> int | None:
    """The permissions of the file under a name, None for a link or nothing; an OSError where no file may be written."""
    try:
        own = path.lstat().st_mode
        mode = path.stat().st_mode if stat.S_ISLNK(own) else own
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(mode):
        said = f"{'this leads to' if stat.S_ISLNK(own) else 'this is'} {_KINDS[stat.S_IFMT(mode)]}"
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
        raise OSError(number, f"{said}, and no file is written over it: give another name", os.fspath(path))
    return None if stat.S_ISLNK(own) else stat.S_IMODE(own)


def check_writable(directory: Path) -> None:
    """Checks that files can be made in a directory, by making one; the directory is made where it is missing.

    Permissions alone do not say so: file systems are mounted to be read only, and fill up.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "this is a file, and a directory is needed", os.fspath(directory))
    make_directory(directory)
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
    with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW)) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                return
        os.unlink(path)


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


class Lock(contextlib.AbstractContextManager["Lock"]):
    """A directory for this process to write to, until :meth:`release`, or until the process ends, in whatever way.

    It is tried whether files can be made there, and what killed processes have not finished is deleted. The lock is a
    file ``name``, which says who holds it, and which a process that is killed leaves there to no harm. Nothing but such
    a file is opened, so that no link leads the lock to a file that is somebody's. Messages call what is written
    ``what``, ``"checkpoints"``.

    Raises:
      BlockingIOError: another process (or another lock of this one) holds it.
      FileExistsError: something else has the lock's name.
      OSError: the directory cannot be made or written.

    Warns:
      UserWarning: the file system has no locks, so a second writer would go unnoticed.
    """

    def __init__(self, directory: Path, what: str, name: str = LOCK_NAME) -> None:
        self._file: int | None = None
        self._path, self._process = directory / name, os.getpid()
        try:
            self._path = self._path.absolute()  # whatever the working directory is at the end
            self._made = [one for one in self._path.parents if not one.exists()]
            # One that was opened before its holder removed it, and the directory, is nobody's lock any more.
            while self._file is None or not self._is_there(self._file):
                self._close()
                check_writable(directory)
                with contextlib.suppress(FileNotFoundError):
                    self._file = self._locked(what)
        except (BlockingIOError, FileExistsError):
            raise
        except OSError as error:
            raise OSError(
                error.errno, f"{what} cannot be written here ({error.strerror})", os.fspath(directory)
            ) from error
        with contextlib.suppress(OSError):  # only for the message: a full disk is no reason not to go on
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, _LOCK_BEGIN + f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        remove_left_overs(directory)

    def release(self) -> None:
        """Lets others write, and leaves no directory that it has made for nothing; nothing where it was released."""
        if self._file is not None and os.getpid() == self._process:  # a process that was forked has a copy only
            with contextlib.suppress(OSError):
                self._path.unlink()
                for made in self._made:
                    made.rmdir()
        self._close()

    def __exit__(self, *error: object) -> None:
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
            if error.errno not in _NO_LOCKS:
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
        try:
            # A link is not followed; a pipe is not waited for.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            about = os.fstat(descriptor)
            alone = stat.S_ISREG(about.st_mode) and about.st_nlink < 2
            if alone and _LOCK_BEGIN.startswith(os.pread(descriptor, len(_LOCK_BEGIN), 0)):
                return descriptor
            os.close(descriptor)
        said = f"{self._path.name} is no lock of ours: take it away, or give another directory"
        raise FileExistsError(errno.EEXIST, said, os.fspath(self._path.parent))

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Locked:
    """Something that may hold a :class:`Lock` until it is closed; a context."""

    _lock: Lock | None = None

    def close(self) -> None:
        """Releases the directory; nothing where it was released before."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
