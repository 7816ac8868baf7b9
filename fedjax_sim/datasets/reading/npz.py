"""npz files, looked at before they are read."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Header = tuple[tuple[int, ...], np.dtype[Any]]

# What a damaged or hostile archive makes zipfile, zlib and numpy raise.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def npz_headers(path: Path) -> dict[str, Header]:
    """Shape and type of every array in the file, from a few bytes of each: no array is read.

    Args:
      path: the file.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not an npz file, damaged, arrays of Python objects (which only pickle could read) or of something
        else than numbers, or a size that is not the one its header announces.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there or is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            found = [(info.filename, info.file_size, *_header(archive, info)) for info in members]
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a readable npz file ({error}): write it again with numpy.savez") from error
    headers: dict[str, Header] = {}
    for member, stored, start, shape, dtype in found:
        name = member.removesuffix(".npy")
        if name in headers:
            raise ValueError(f"{path} has the array {name!r} twice: write it again with numpy.savez")
        if dtype.hasobject:
            raise ValueError(
                f"{path}: the array {name!r} holds Python objects, which are not read (that could run code): save "
                "arrays of numbers, of one shape per example"
            )
        if dtype.kind not in "biuf":
            raise ValueError(
                f"{path}: the array {name!r} has dtype {dtype}: examples are numbers; encode it as integers"
            )
        announced = start + math.prod(shape) * dtype.itemsize
        if announced != stored:
            raise ValueError(f"{path}: the array {name!r} has {stored} bytes and its header says {announced}: damaged")
        headers[name] = (shape, dtype)
    return headers


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file that :func:`npz_headers` has accepted.

    Raises:
      ValueError: damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except _DAMAGE as error:
        raise ValueError(f"{path} is not a readable npz file ({error}): write it again with numpy.savez") from error


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Length of the header, shape and type of the array."""
    if not info.filename.endswith(".npy"):
        raise ValueError(f"it has the member {info.filename!r}, and all must be arrays, .npy")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"{info.filename!r} has the npy version {version}, known: (1, 0), (2, 0)")
        shape, _, dtype = readers[version](stream)
        return stream.tell(), shape, dtype
