"""A compressed file as a stream of bytes that cannot exhaust the memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_CHUNK = 1 << 20
# What the standard library raises for damaged input; bz2 raises a bare OSError, which gzip's error is a kind of.
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)
_MAGIC: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


class BoundedStream:
    """Unpacks as it is read, and refuses to unpack more than announced.

    Attributes:
      name: how messages call the file.
    """

    def __init__(self, stream: IO[bytes], name: str, max_bytes: int) -> None:
        self.name = name
        self._stream = stream
        self._max_bytes = max_bytes
        self._left = max_bytes

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; fewer, and in the end none, where the file ends.

        Raises:
          ValueError: damaged, or longer than ``max_bytes`` when unpacked.
        """
        try:
            # one byte more than is left: that it exists is how a file that is too long shows itself
            found = self._stream.read(min(size, self._left + 1))
        except DAMAGED as error:
            raise ValueError(f"{self.name} is damaged ({error}): fetch it again") from error
        if len(found) > self._left:
            raise ValueError(f"{self.name} unpacks to more than {self._max_bytes} bytes: that much is not read")
        self._left -= len(found)
        return found

    def read_all(self) -> bytes:
        """All that is left, read piece by piece."""
        return b"".join(iter(lambda: self.read(_CHUNK), b""))


@contextlib.contextmanager
def open_bounded(path: Path, max_bytes: int) -> Iterator[BoundedStream]:
    """Opens a file that is plain or packed with gzip, xz or bzip2 (told by its first bytes, not by its name).

    Args:
      path: the file.
      max_bytes: most bytes to unpack. A bomb of a few kilobytes that unpacks to terabytes ends in an error there.

    Yields:
      The stream of unpacked bytes.

    Raises:
      FileNotFoundError: no such file.
      ValueError: from reading, see :meth:`BoundedStream.read`.
    """
    with path.open("rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        opener = next((opener for magic, opener in _MAGIC.items() if start.startswith(magic)), None)
        if opener is None:
            yield BoundedStream(raw, str(path), max_bytes)
            return
        with opener(raw, "rb") as stream:
            yield BoundedStream(stream, str(path), max_bytes)
