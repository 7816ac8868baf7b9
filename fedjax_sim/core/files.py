"""Files that may hold anything: opened only where they are files, and what parsers raise for them in one type."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(path: Path) -> None:
    """Checks that a path leads to a regular file: opening a pipe may wait for ever, a device may never end.

    Raises:
      FileNotFoundError: nothing is there, a link that leads nowhere, or something else than a file.
    """
    try:
        mode = path.stat().st_mode
    except PermissionError:
        raise
    except OSError as error:  # among them links that lead in a circle
        raise FileNotFoundError(f"{path} is not there ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise FileNotFoundError(f"{path} is not a file but {kind_of(mode)}")


def kind_of(mode: int) -> str:
    """What something that is no file is, by its ``st_mode``: ``"a pipe"``."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading bytes.

    Raises:
      FileNotFoundError: as :func:`check_regular`.
    """
    check_regular(Path(path))
    return open(path, "rb")


@contextlib.contextmanager
def parsing(path: Path, wrong: str, fix: str = "fetch it again") -> Iterator[None]:
    """Around calls of other people's parsers: whatever they raise for bytes they do not expect becomes a ValueError.

    Errors that name the path already are passed on as they are, and so is a lack of memory.

    Args:
      path: the file.
      wrong: what is wrong with it then, ``"is no zip archive, or damaged"``.
      fix: what to do about it.

    Raises:
      ValueError: ``"<path> <wrong> (<what the parser said>): <fix>"``.
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
    """The whole text of a file; ``wrong`` and ``fix`` as in :func:`parsing`.

    Raises:
      FileNotFoundError: as :func:`check_regular`.
      ValueError: another encoding.
    """
    with open_regular(path) as raw, parsing(path, wrong, fix):
        return raw.read().decode(encoding)


def read_json(
    path: Path,
    *,
    wrong: str = "is not JSON",
    fix: str = "fetch it again",
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The content of a JSON file in UTF-8.

    Args:
      path: the file.
      wrong: as in :func:`parsing`.
      fix: as in :func:`parsing`.
      pairs: called for every object as soon as it is read, as ``json.loads``'s ``object_pairs_hook``.

    Raises:
      FileNotFoundError: as :func:`check_regular`.
      ValueError: not JSON, too deeply nested, or a number of thousands of digits.
    """
    text = read_text(path, encoding="utf-8-sig", wrong=wrong, fix=fix)
    with parsing(path, wrong, fix):
        return json.loads(text, object_pairs_hook=pairs)


def check_format(path: Path, found: Any, newest: int) -> None:
    """Checks the number of a file's format: 1 to ``newest``.

    Raises:
      ValueError: another one, which a later version of this package has written, or none.
    """
    if type(found) is int and found > newest:
        raise ValueError(
            f"{path} has format {found}, and this version of fedjax_sim knows formats up to {newest}: use the version "
            "that wrote it, or a later one"
        )
    if type(found) is not int or found < 1:
        from fedjax_sim.core.values import shown  # which imports JAX: reports are made without it

        raise ValueError(f"{path} has format {shown(found)}: it must be a number from 1 to {newest}")


def json_object(path: Path, content: Any) -> dict[str, Any]:
    """``content``, if it is a JSON object.

    Raises:
      ValueError: it is something else.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}: it must hold a JSON object")
    return content
