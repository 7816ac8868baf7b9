"""Packed files and archives, read as streams of bytes that cannot exhaust the memory and without a file on disk."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fedjax_sim.core.files import open_regular, parsing

CHUNK = 1 << 20
_XZ_MEMORY = 2**27  # what the highest preset of xz needs, and some more; a file may ask for 4 GiB
# What the standard library raises for damaged input; bz2 raises a bare OSError, which gzip's error is a kind of.
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


class _Xz(io.RawIOBase):
    """``lzma.open`` for reading, with a bound on the memory that the file may ask for."""

    def __init__(self, raw: IO[bytes], mode: str) -> None:
        self._raw = raw
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._unpacker.eof:  # several streams may follow each other, with zeros between them
                rest = (self._unpacker.unused_data or self._raw.read(CHUNK)).lstrip(b"\0")
                if not rest and not (rest := self._raw.read(CHUNK)):
                    return b""
                self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
                found = self._unpacker.decompress(rest, size)
            else:
                packed = self._raw.read(CHUNK) if self._unpacker.needs_input else b""
                if not packed and self._unpacker.needs_input:
                    raise EOFError("it ends before its end is marked")
                found = self._unpacker.decompress(packed, size)
            if found:
                return found


_MAGIC: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": _Xz, b"BZh": bz2.open}


class BoundedStream:
    """Unpacks as it is read, and refuses to unpack more than ``max_bytes``; messages call it ``name``."""

    def __init__(self, stream: IO[bytes], name: str, max_bytes: int) -> None:
        self.name = name
        self._stream = stream
        self._max_bytes = max_bytes
        self._left = max_bytes

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; fewer, and in the end none, where the file ends."""
        try:
            # one byte more than is left: that it exists is how a file that is too long shows itself
            found = self._stream.read(min(size, self._left + 1))
        except _DAMAGED as error:
            raise ValueError(f"{self.name} is damaged ({error}): fetch it again") from error
        if len(found) > self._left:
            raise ValueError(f"{self.name} unpacks to more than {self._max_bytes} bytes: that much is not read")
        self._left -= len(found)
        return found


@contextlib.contextmanager
def open_bounded(path: Path, max_bytes: int) -> Iterator[BoundedStream]:
    """Opens a file that is plain or packed with gzip, xz or bzip2 (told by its first bytes, not by its name).

    A bomb of a few kilobytes that unpacks to terabytes ends in an error at ``max_bytes``.

    Reading raises a ValueError for what is damaged, or longer than ``max_bytes`` when unpacked.
    """
    with open_regular(path) as raw:
        start = raw.read(6)
        raw.seek(0)
        opener = next((opener for magic, opener in _MAGIC.items() if start.startswith(magic)), None)
        with contextlib.nullcontext(raw) if opener is None else opener(raw, "rb") as stream:
            yield BoundedStream(stream, str(path), max_bytes)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The unpacked content of a file, read piece by piece; errors as in :func:`open_bounded`."""
    with open_bounded(path, max_bytes) as stream:
        return b"".join(iter(lambda: stream.read(CHUNK), b""))


def read_members(path: Path, names: Sequence[str], *, max_bytes: int = 2**29) -> dict[str, bytes]:
    """The contents of some files in a tar archive (plain, or packed with gzip, xz or bzip2), in the order of ``names``.

    Nothing is written to disk: neither a path nor a link in the archive can lead anywhere.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: not an archive, damaged, larger than ``max_bytes`` when unpacked, or without a wanted file.
    """
    found: dict[str, bytes] = {}
    with open_bounded(path, max_bytes) as stream, parsing(path, "is no tar archive, or damaged"):
        unpacked: Any = stream  # tarfile asks for a file, and in its "|" mode uses nothing but read
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            while member := archive.next():
                archive.members = []  # type: ignore[attr-defined]  # it keeps them all, and there may be a million
                if member.name in names and member.isreg() and not member.issparse():
                    source = archive.extractfile(member)
                    assert source is not None  # a file's never is
                    found[member.name] = source.read()
        while stream.read(CHUNK):  # a checksum of the packed stream stands at its end
            pass
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no member {', '.join(missing)}: it is another archive, or incomplete")
    return {name: found[name] for name in names}
