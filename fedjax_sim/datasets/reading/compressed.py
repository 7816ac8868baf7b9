"""A compressed file as a stream of bytes that cannot exhaust the memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from fedjax_sim.core.files import open_regular

_CHUNK = 1 << 20
_XZ_MEMORY = 2**27  # what the highest preset of xz needs, and some more; a file may ask for 4 GiB
# What the standard library raises for damaged input; bz2 raises a bare OSError, which gzip's error is a kind of.
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


class _Xz(io.RawIOBase):
    """``lzma.open`` for reading, with a bound on the memory that the file may ask for."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._unpacker.eof:  # several streams may follow each other, with zeros between them
                rest = (self._unpacker.unused_data or self._raw.read(_CHUNK)).lstrip(b"\0")
                if not rest and not (rest := self._raw.read(_CHUNK)):
                    return b""
                self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
                found = self._unpacker.decompress(rest, size)
            else:
                packed = self._raw.read(_CHUNK) if self._unpacker.needs_input else b""
                if not packed and self._unpacker.needs_input:
                    raise EOFError("it ends before its end is marked")
                found = self._unpacker.decompress(packed, size)
            if found:
                return found


def _open_xz(raw: IO[bytes], mode: str) -> _Xz:
    return _Xz(raw)


_MAGIC: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": _open_xz, b"BZh": bz2.open}


class BoundedStream:
    """Unpacks as it is read, and refuses to unpack more than announced.

    Attributes:
      name: how messages call the file.
      closed: False; readers of file objects ask.
    """

    closed = False

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
      FileNotFoundError: no such file, or something else than a file.
      ValueError: from reading, see :meth:`BoundedStream.read`.
    """
    with open_regular(path) as raw:
        start = raw.read(6)
        raw.seek(0)
        opener = next((opener for magic, opener in _MAGIC.items() if start.startswith(magic)), None)
        if opener is None:
            yield BoundedStream(raw, str(path), max_bytes)
            return
        with opener(raw, "rb") as stream:
            yield BoundedStream(stream, str(path), max_bytes)
