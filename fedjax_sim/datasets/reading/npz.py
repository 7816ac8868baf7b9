"""npz and npy files, looked at before they are read."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_sim.core.files import open_regular, parsing
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.reading.archives import read_bounded

NUMBERS = "biuf"  # kinds of dtype
MAX_BYTES = 2**33
_WRONG, _FIX = "is not a readable npz file", "write it again"
_PACKING = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy's; others may ask for gigabytes to unpack anything
_MOST_PACKED = 1032  # what deflate can save: a byte stands for at most so many
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def npz_headers(path: Path, *, kinds: str = NUMBERS, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """Arrays of the shapes and types in the file, from a few bytes of each: without their values and without memory.

    Refused are arrays of Python objects (which only pickle could read) or of other kinds than ``kinds``
    (``dtype.kind``), sizes that are not those their headers announce, and more than ``max_bytes`` in all.
    """
    with _opened(path) as archive:
        return {name: like for name, _, like in _members(path, archive, kinds, max_bytes)}


def read_npz(path: Path, *, kinds: str = NUMBERS, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """All arrays of a file; nothing is allocated before the checks of :func:`npz_headers`, whose arguments it has."""
    arrays = {}
    with _opened(path) as archive:
        for name, info, _ in _members(path, archive, kinds, max_bytes):
            with parsing(path, _WRONG, _FIX), archive.open(info) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
                if stream.read(1):  # also where the archive's checksum is compared
                    raise ValueError(f"the array {name!r} goes on after its end")
    return arrays


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as raw:
        with parsing(path, _WRONG, _FIX):
            archive = zipfile.ZipFile(raw)
        with archive:
            yield archive


def _members(
    path: Path, archive: zipfile.ZipFile, kinds: str, max_bytes: int
) -> list[tuple[str, zipfile.ZipInfo, np.ndarray]]:
    """Name, entry and an array without values of each, all of them checked."""
    members: dict[str, tuple[str, zipfile.ZipInfo, np.ndarray]] = {}
    total = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"{path} has the array {shown(name)} twice: write it again")
        start, shape, dtype = _header(path, archive, info)
        what = f"{path}: the array {shown(name)}"
        announced = _announced(what, start, shape, dtype, kinds)
        if announced != info.file_size:
            raise ValueError(f"{what} has {info.file_size} bytes and its header says {announced}: damaged")
        if info.file_size > _MOST_PACKED * max(info.compress_size, 64):
            raise ValueError(f"{what} cannot be {info.file_size} bytes packed in {info.compress_size}: damaged")
        total += math.prod(max(size, 1) for size in shape) * dtype.itemsize  # no axis may be huge beside an empty one
        if total > max_bytes:
            raise ValueError(f"{path} unpacks to more than {max_bytes} bytes: give a larger max_bytes= if you trust it")
        members[name] = name, info, np.broadcast_to(np.zeros((), dtype), shape)
    return list(members.values())


def _header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Length of the header, shape and type of the array."""
    with parsing(path, _WRONG, _FIX):
        if not info.filename.endswith(".npy"):
            raise ValueError(f"it has the member {shown(info.filename)}, and all must be arrays, .npy")
        if info.compress_type not in _PACKING:
            raise ValueError(
                f"{shown(info.filename)} is packed with method {info.compress_type}, not stored or deflated"
            )
        with archive.open(info) as stream:
            return _header_of(stream, shown(info.filename))


def _header_of(stream: IO[bytes], name: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"{name} has the npy version {version}, known: (1, 0), (2, 0)")
    try:
        shape, _, dtype = _READERS[version](stream)
    except MemoryError as error:  # Python's parser, for an expression that is nested too deeply
        raise ValueError("its header is nested too deeply") from error
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}")
    return stream.tell(), shape, dtype


def _announced(what: str, start: int, shape: tuple[int, ...], dtype: np.dtype[Any], kinds: str) -> int:
    """The length that a header says, if it is one of numbers."""
    if dtype.hasobject:
        raise ValueError(
            f"{what} holds Python objects, which are not read (that could run code): save arrays of numbers, of "
            "one shape per example"
        )
    if dtype.kind not in kinds or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise ValueError(f"{what} has dtype {str(dtype)[:200]}: examples are numbers; encode it as integers")
    return start + math.prod(shape) * dtype.itemsize


def read_npy(path: Path, *, max_bytes: int = 2**31) -> np.ndarray:
    """The array of numbers in an npy file, plain or packed.

    Raises:
      ValueError: not such a file, another length than its header says, or more than ``max_bytes``.
    """
    content = read_bounded(path, max_bytes)
    opened = io.BytesIO(content)
    with parsing(path, "is not a readable npy file", "fetch it again"):
        announced = _announced(str(path), *_header_of(opened, "it"), NUMBERS)
    if announced != len(content):
        raise ValueError(f"{path} has {len(content)} bytes and its header says {announced}: damaged")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
