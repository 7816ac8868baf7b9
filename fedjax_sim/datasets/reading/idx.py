"""Arrays in the idx format of the MNIST family."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_sim.core.files import open_regular

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str], *, max_bytes: int = 2**31) -> np.ndarray:
    """Reads an array in the idx format, gzipped or not.

    The header is checked before anything is read, and no more is read than it announces: a damaged or hostile file
    ends in an error, not in an exhausted memory.

    Args:
      path: the file.
      max_bytes: largest array to read.

    Returns:
      The array, in the machine's byte order.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: not an idx file, truncated, longer than its header says, damaged, or larger than ``max_bytes``.

    Source: the format is described on the MNIST database's page.
    """
    place = Path(path)
    with open_regular(place) as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not zipped:
            return _parse_idx(raw, place, max_bytes)
        try:
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                return _parse_idx(unzipped, place, max_bytes)  # type: ignore[arg-type]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{place} is a damaged gzip file ({error}): fetch it again") from error


def _parse_idx(stream: BinaryIO, place: Path, max_bytes: int) -> np.ndarray:
    magic = _read_exactly(stream, 4, place)
    if magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
        known = ", ".join(f"0x{code:02x}" for code in _IDX_TYPES)
        raise ValueError(f"{place} starts with {magic.hex()}: an idx file starts with 0000 and a type among {known}")
    if not 1 <= magic[3] <= 8:
        raise ValueError(f"{place} announces {magic[3]} dimensions: 1 to 8 are supported")
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    header = _read_exactly(stream, 4 * magic[3], place)
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    size = math.prod(shape) * dtype.itemsize
    if size > max_bytes:
        raise ValueError(f"{place} announces {list(shape)} {dtype.name}, {size} bytes: at most {max_bytes} are read")
    body = _read_exactly(stream, size, place)
    if stream.read(1):
        raise ValueError(f"{place} is longer than its header {list(shape)} {dtype.name} says: fetch it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_exactly(stream: BinaryIO, size: int, place: Path) -> bytearray:
    # in chunks: a read of the announced size would reserve that much before a short file shows itself
    body = bytearray()
    while len(body) < size:
        chunk = stream.read(min(_CHUNK, size - len(body)))
        if not chunk:
            raise ValueError(f"{place} is truncated: {size} bytes are announced and {len(body)} are there")
        body += chunk
    return body
