"""Data sets from a directory with one npz file for each client."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.values import INT32_MAX, check_count
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import HELD_OUT, FederatedDataset, named
from fedjax_sim.datasets.from_arrays import check_split
from fedjax_sim.datasets.reading.npz import MAX_BYTES, npz_headers, read_npz
from fedjax_sim.datasets.validate import as_int64, check_same, common_length, integers_apart

_LISTED = 10  # of the files that a warning names
Headers = dict[str, dict[str, np.ndarray]]  # file to its arrays, without their values
_WRITE = (
    "write one for each client, numpy.savez(f'{client}.npz', x=x, y=y); from_table reads csv and parquet, in one table "
    "with a column for the client, and from_leaf LEAF's json"
)


def from_directory(
    folder: str | os.PathLike[str],
    *,
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> FederatedDataset:
    """A data set from a directory with one npz file for each client, ``<client>.npz``.

    Each file holds arrays with a common leading axis, under the same names in all files; these become the examples.
    Everything but values is checked from a few bytes of each file, before any array is read; nothing is unpickled.
    Memory: the arrays once more than the data set itself.

    Args:
      folder: the directory. Where it has a subdirectory ``train``, the files are read from there, and held-out
        examples of the same clients from ``validation`` and ``test`` where these exist. A warning names what else is
        there.
      test_fraction: share of each client's examples to hold out, in [0, 1), where there is no ``test``.
      seed: of that draw.
      num_classes: as in :func:`from_clients`.
      max_bytes: most bytes of all arrays together, unpacked; 8 GiB by default.

    Returns:
      Clients in sorted order. Where all file names are plain integers (``7.npz``, not ``07.npz``) these are the client
      ids; else clients are numbered 0 .. N-1 and :func:`client_names` tells who is who.

    Raises:
      FileNotFoundError: no such directory, or no npz file in it.
      ValueError: a damaged file, arrays of objects, names, shapes or kinds of number that differ between clients, a
        client without examples or with held-out examples only, NaN, more than ``max_bytes``.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> for name, count in (("ann", 3), ("rob", 2)):
      ...     np.savez(folder / f"{name}.npz", x=np.zeros((count, 4)), y=np.arange(count))
      >>> from_directory(folder)
      FederatedDataset(2 clients, 5 examples, 3 classes)
    """
    check_count("from_directory(max_bytes=...)", max_bytes)
    root = Path(folder)
    split, held = (root / "train").is_dir(), [part for part in HELD_OUT if (root / part).is_dir()]
    if held and not split:
        raise ValueError(
            f"{root} has a subdirectory {held[0]!r} but no 'train': put the clients' files into {root / 'train'}"
        )
    train = _headers(root / "train" if split else root, max_bytes)
    parts = {part: _headers(root / part, max_bytes) for part in held}
    kept = {path: arrays for files in parts.values() for path, arrays in files.items()}
    check_split(parts.get("test"), test_fraction, seed)  # before anything is read
    _check_alike({**train, **kept}, max_bytes)
    for path, arrays in train.items():
        if _rows(arrays) == 0:
            raise ValueError(f"{path} has no examples: drop the file or give the client examples")
    for path in kept:
        if str(root / "train" / Path(path).name) not in train:
            raise ValueError(f"{path} has no counterpart in {root / 'train'}: a client that is tested must train too")
    _warn_of_others(root, {"train", *HELD_OUT} if split else set(), [*train, *kept])
    ids = _ids([Path(path).stem for path in train])
    examples, owner = _joined(train, ids, max_bytes)
    given: dict[str, Any] = {}
    for part, files in parts.items():
        given[part], given[f"{part}_ids"] = _joined(files, ids, max_bytes)
    data = from_ids(examples, owner, **given, test_fraction=test_fraction, seed=seed, num_classes=num_classes)
    return named(data, [str(name) for name in sorted(ids.values())])


def _headers(folder: Path, max_bytes: int) -> Headers:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a directory: give one with a file <client>.npz for each client")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.npz files: {_WRITE}")
    return {str(path): npz_headers(path, max_bytes=max_bytes) for path in files}


def _warn_of_others(root: Path, folders: set[str], read: Collection[str]) -> None:
    """Names what is beside the files that are read, which may be a client's examples; hidden files are nobody's."""
    places = [root, *(root / name for name in sorted(folders) if (root / name).is_dir())]
    beside = [path for place in places for path in sorted(place.iterdir()) if path not in places]
    others = [path for path in beside if str(path) not in read and not path.name.startswith(".")]
    if others:
        names = [f"{path.relative_to(root)}{'/' if path.is_dir() else ''}" for path in others[:_LISTED]]
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        where = "the folders train, validation and test" if folders else "the folder itself"
        warnings.warn(
            f"from_directory: not read in {root}: {', '.join(names)}{more}; only *.npz in {where} is: move them there, "
            "or elsewhere",
            stacklevel=3,  # past from_directory, to who called it
        )


def _ids(names: list[str]) -> dict[str, int | str]:
    """The client id of each file name: the integer that it is, where all are integers, or the name itself."""
    plain = all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names)
    if plain and max(int(name) for name in names) <= INT32_MAX:
        return {name: int(name) for name in names}
    return {name: name for name in names}


def _rows(arrays: dict[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values())))


def _check_alike(files: Headers, max_bytes: int) -> None:
    """Checks names, leading axes, shapes per example and kinds of number against the first file's, and the size."""
    reference, wanted = next(iter(files.items()))
    total = 0
    for path, arrays in files.items():
        total += sum(array.nbytes for array in arrays.values())
        if total > max_bytes:
            raise ValueError(
                f"{path}: with it the arrays have {total} bytes, and from_directory reads {max_bytes}: give a larger "
                "max_bytes=, or keep them on disk (fedjax_sim.datasets.host)"
            )
        if arrays.keys() != wanted.keys() or not arrays:
            raise ValueError(
                f"{path} has the arrays {sorted(arrays)} but {reference} has {sorted(wanted)}: the same names are "
                "needed in all files, one or more"
            )
        common_length(arrays, path)
        for name, array in arrays.items():
            check_same(f"{path}: the arrays {name!r}", array, f"those of {reference}", wanted[name])


def _joined(files: Headers, ids: Mapping[str, int | str], max_bytes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of all files end to end, and the client of each row."""
    sizes = [_rows(arrays) for arrays in files.values()]
    wanted = next(iter(files.values()))
    types = {name: [arrays[name].dtype for arrays in files.values()] for name in wanted}
    kinds = {name: np.int64 if integers_apart(found) else np.result_type(*found) for name, found in types.items()}
    joined = {name: np.empty((sum(sizes), *like.shape[1:]), kinds[name]) for name, like in wanted.items()}
    start = 0
    for path, size in zip(files, sizes, strict=True):
        for name, array in read_npz(Path(path), max_bytes=max_bytes).items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.flatnonzero(~np.isfinite(array).reshape(size, -1).all(axis=1))[0])
                raise ValueError(f"{path}: the array {name!r} has NaN or infinite values, first in row {row}: clean it")
            if kinds[name] is np.int64 and as_int64(array).dtype != np.int64:
                raise ValueError(f"{path}: the array {name!r} has {array.max()}: integers must fit int32")
            joined[name][start : start + size] = array
        start += size
    return joined, np.repeat([ids[Path(path).stem] for path in files], sizes)
