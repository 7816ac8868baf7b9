"""Images as the MNIST family (idx) and CIFAR (binary records) are published."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from fedjax_sim.datasets.reading.archives import CHUNK, BoundedStream, open_bounded, read_bounded

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIXELS = 3 * 32 * 32
CIFAR_LIMIT = 2**28  # the largest published file of CIFAR, CIFAR-100's train.bin, has 153,700,000 bytes


def read_idx(path: str | os.PathLike[str], *, max_bytes: int = 2**31) -> np.ndarray:
    """Reads an array in the idx format, packed with gzip (or xz or bzip2) or not.

    The header is checked before anything is read, and no more is read than it announces, and than ``max_bytes``.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: not an idx file, truncated, longer than its header says, damaged, or larger than ``max_bytes``.

    Source: the format is described on the MNIST database's page.
    """
    place = Path(path)
    with open_bounded(place, max_bytes + 64) as stream:
        magic = _read_exactly(stream, 4)
        if magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
            known = ", ".join(f"0x{code:02x}" for code in _IDX_TYPES)
            raise ValueError(
                f"{place} starts with {magic.hex()}: an idx file starts with 0000 and a type among {known}"
            )
        if not 1 <= magic[3] <= 8:
            raise ValueError(f"{place} announces {magic[3]} dimensions: 1 to 8 are supported")
        dtype = np.dtype(_IDX_TYPES[magic[2]])
        shape = tuple(int(size) for size in np.frombuffer(_read_exactly(stream, 4 * magic[3]), ">u4"))
        size = math.prod(shape) * dtype.itemsize
        if size > max_bytes:
            raise ValueError(
                f"{place} announces {list(shape)} {dtype.name}, {size} bytes: at most {max_bytes} are read"
            )
        body = _read_exactly(stream, size)
        if stream.read(1):
            raise ValueError(f"{place} is longer than its header {list(shape)} {dtype.name} says: fetch it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_exactly(stream: BoundedStream, size: int) -> bytearray:
    # in chunks: a read of the announced size would reserve that much before a short file shows itself
    body = bytearray()
    while len(body) < size:
        chunk = stream.read(min(CHUNK, size - len(body)))
        if not chunk:
            raise ValueError(f"{stream.name} is truncated: {size} bytes are announced and {len(body)} are there")
        body += chunk
    return body


def read_cifar(
    path: str | os.PathLike[str], *, classes: int = 10, label_bytes: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file of the binary version of CIFAR-10 or CIFAR-100, packed with xz or gzip or not.

    A record has ``label_bytes`` bytes of labels (CIFAR-10: the class; CIFAR-100: the superclass, then the class) and
    3,072 bytes of pixels: 1,024 red, 1,024 green, 1,024 blue, each row by row.

    Args:
      path: the file.
      classes: number of classes C.
      label_bytes: 1 for CIFAR-10, 2 for CIFAR-100; the last one is the class.

    Returns:
      Images uint8[n, 32, 32, 3] and labels uint8[n].

    Raises:
      FileNotFoundError: no such file.
      ValueError: damaged, not a whole number of records, no records, or a label outside [0, C).

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images; the format is described on the
    data sets' page.
    """
    return decode_cifar(read_bounded(Path(path), CIFAR_LIMIT), str(path), classes, label_bytes)


def decode_cifar(content: bytes, where: str, classes: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Records to images and labels, as :func:`read_cifar`."""
    length = label_bytes + _PIXELS
    if not content or len(content) % length:
        raise ValueError(
            f"{where} has {len(content)} bytes: it must be a whole number of records of {length} bytes ({label_bytes} "
            "of labels, 3072 of pixels), at least one; fetch it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    labels = records[:, label_bytes - 1]
    for row in np.flatnonzero(labels >= classes)[:1]:
        raise ValueError(f"{where}: record {row} has the label {labels[row]}, outside [0, {classes}): fetch it again")
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.copy()
