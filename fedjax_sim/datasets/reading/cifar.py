"""Images in CIFAR's binary format, from its files or from the published archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from fedjax_sim.datasets.reading.archives import read_members
from fedjax_sim.datasets.reading.compressed import open_bounded

_PIXELS = 3 * 32 * 32
_FILE_LIMIT = 2**28  # the largest published file, CIFAR-100's train.bin, has 153,700,000 bytes
_ARCHIVE_LIMIT = 2**29


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
    place = Path(path)
    return decode_cifar(file_content(place), str(place), classes=classes, label_bytes=label_bytes)


def file_content(path: Path) -> bytes:
    """The unpacked content of a file that holds CIFAR records.

    Raises:
      ValueError: damaged, or larger than any of CIFAR's files.
    """
    with open_bounded(path, _FILE_LIMIT) as stream:
        return stream.read_all()


def archive_contents(path: Path, names: list[str]) -> dict[str, bytes]:
    """The contents of members of the published archive, see :func:`fedjax_sim.datasets.reading.archives.read_members`.

    Raises:
      ValueError: damaged, unsafe, or without a wanted member.
    """
    return read_members(path, names, max_bytes=_ARCHIVE_LIMIT)


def check_content(content: bytes, where: str, published: str) -> None:
    """Checks unpacked bytes against the published SHA-256, whichever way they were packed.

    Raises:
      ValueError: another content.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != published:
        raise ValueError(
            f"{where} is not the published file: the SHA-256 of its unpacked content is {found}, not {published}; "
            "fetch it again, or give verify=False for a file of your own"
        )


def decode_cifar(content: bytes, where: str, *, classes: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Records to images and labels; arguments, result and errors as in :func:`read_cifar`.

    Args:
      content: the records.
      where: the file's name, for messages.
      classes: number of classes C.
      label_bytes: bytes of labels in a record.
    """
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
