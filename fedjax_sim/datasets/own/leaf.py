"""Data sets from LEAF's json: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [], "y": []}}}``."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import read_json
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.array_checks import exact_floats, host_array
from fedjax_sim.datasets.construct import from_clients
from fedjax_sim.datasets.federated import FederatedDataset, named
from fedjax_sim.datasets.flat import default_float

Encode = Callable[[list[Any]], Any]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Pair = tuple[np.ndarray, np.ndarray]  # x and y of a user


def from_leaf(
    train: Source,
    test: Source | None = None,
    *,
    encode: Encode | None = None,
    encode_label: Encode | None = None,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from LEAF's json files (FEMNIST, Shakespeare, Sent140, synthetic, your own).

    The file's ``num_samples`` is not used, the lengths of the lists are: in the test halves of LEAF's Shakespeare it
    is 79 too large for every user, because LEAF drops the windows that overlap the training part and keeps the count.

    Args:
      train: a file, several files, or a folder whose ``*.json`` files are read (LEAF writes one file per some
        hundred users).
      test: the same for the held-out examples, as LEAF splits them with ``-t sample``. A user without test examples
        is not tested; one without training examples is refused.
      encode: makes an array with one row per example of one user's list ``x``. Needed where x is text:
        ``Characters().encode`` for Shakespeare, a function of your own for Sent140.
      encode_label: the same for the list ``y``. Shakespeare's labels are characters, Sent140's the texts "0" and "4".
      num_classes: as in :func:`from_clients`. When it is given, labels written as whole floats become integers.

    Returns:
      ``{"x": ..., "y": ...}``, users in sorted order and numbered 0 .. N-1; :func:`client_names` tells who is who.

    Raises:
      FileNotFoundError: no such file or folder, or a folder without json files.
      ValueError: not LEAF's format, a user who is there twice or has no training examples, ragged or unencoded values.

    Source: Caldas et al. 2018, arXiv:1812.01097, https://leaf.cmu.edu.

    Example:
      >>> import json, pathlib, tempfile
      >>> users = {"ann": {"x": [[0.5], [1.5]], "y": [0, 1]}, "rob": {"x": [[2.5]], "y": [1]}}
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "all_data_0.json"
      >>> _ = path.write_text(json.dumps({"users": list(users), "num_samples": [2, 1], "user_data": users}))
      >>> from_leaf(path)
      FederatedDataset(2 clients, 3 examples, 2 classes)
    """
    own = read_leaf(train, encode, encode_label)
    held = {} if test is None else read_leaf(test, encode, encode_label)
    held = {name: pair for name, pair in held.items() if len(pair[0])}
    for name in [name for name in (own | held) if name not in own or len(own[name][0]) == 0][:1]:
        raise ValueError(
            f"the user {name!r} has no training examples: remove such users from the file, as LEAF's preprocess.sh "
            "does with -k 1; split with its -t sample, or read test files as a data set of their own, from_leaf(test)"
        )
    parts = [*own.values(), *held.values()]
    # json writes the numbers of some users as integers and of others as floats
    mixed = [len({pair[position].dtype.kind == "f" for pair in parts}) == 2 for position in (0, 1)]

    def prepared(name: str, pair: Pair) -> dict[str, np.ndarray]:
        x, y = (
            exact_floats(f"{what} of the user {name!r}", array) if as_floats else array
            for what, array, as_floats in zip("xy", pair, mixed, strict=True)
        )
        whole = num_classes is not None and y.dtype.kind == "f" and bool(np.all(y == np.rint(y)))
        return {"x": x, "y": y.astype(np.int64) if whole else y}

    data = from_clients(
        [prepared(name, pair) for name, pair in own.items()],
        test=[prepared(name, held[name]) if name in held else None for name in own] if held else None,
        num_classes=num_classes,
    )
    return named(data, list(own))


def read_leaf(source: Source, encode: Encode | None = None, encode_label: Encode | None = None) -> dict[str, Pair]:
    """The examples (x, y) of every user, users in sorted order; beside them one file's text is in memory."""
    users: dict[str, Pair] = {}
    origin: dict[str, Path] = {}
    for path in _files(source):
        for name, pair in _users(path, encode, encode_label):
            if name in users:
                where = f"{origin[name]} and in {path}"
                raise ValueError(f"the user {shown(name)} is twice in {where}: a user's examples must stand together")
            users[name], origin[name] = pair, path
    return {name: users[name] for name in sorted(users)}


def _files(source: Source) -> list[Path]:
    paths = [Path(source)] if isinstance(source, (str, os.PathLike)) else [Path(item) for item in source]
    if not paths:
        raise ValueError("no LEAF files were given: name a json file, several, or a folder of them")
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not found:
            raise FileNotFoundError(
                f"{path} has no *.json files: name LEAF's folder data/train or data/test, or the files"
            )
        files.extend(found)
    return files


def _users(path: Path, encode: Encode | None, encode_label: Encode | None) -> Iterator[tuple[str, Pair]]:
    def convert(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"{path} has {shown(twice)} twice in one object: merge the two or drop one")
        if isinstance(made.get("x"), list) and isinstance(made.get("y"), list):
            try:
                return _converted(made["x"], made["y"], encode, encode_label)
            except (TypeError, ValueError) as error:  # raised below: the parser does not yet know whose lists they are
                return error
        return made

    content = read_json(path, wrong="is not a json file", fix="is it complete? Fetch or make it again", pairs=convert)
    if not isinstance(content, dict) or not isinstance(content.get("user_data"), dict):
        keys = f"the keys {shown(sorted(content))}" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ValueError(f"{path} is not a LEAF file: it has {keys}, and needs 'users' and a mapping 'user_data'")
    data, names = content["user_data"], content.get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{path} is not a LEAF file: 'users' must be the list of the users' names, it is {shown(names)}"
        )
    if sorted(names) != sorted(data):
        wrong = collections.Counter(names)
        wrong.subtract(list(data))
        name = next(name for name, count in wrong.items() if count)
        raise ValueError(f"{path}: the user {shown(name)} must be once in 'users' and once in 'user_data'")
    for name, lists in data.items():
        if isinstance(lists, Exception):
            raise ValueError(f"{path}: the user {shown(name)}: {lists}") from lists.__cause__ or lists
        if not isinstance(lists, tuple):
            keys = shown(sorted(lists)) if isinstance(lists, dict) else type(lists).__name__
            raise ValueError(f"{path}: the user {shown(name)} must have two lists, 'x' and 'y'; it has {keys}")
        yield name, lists


def _converted(x: list[Any], y: list[Any], encode: Encode | None, encode_label: Encode | None) -> Pair:
    """A user's lists as arrays."""
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} entries but y has {len(y)}: every example needs both")
    arrays = []
    for what, values, function, argument in (("x", x, encode, "encode"), ("y", y, encode_label, "encode_label")):
        try:
            made = function(values) if function is not None and values else values
        except Exception as error:  # whatever a user's function raises belongs to this user of the file
            raise ValueError(f"{argument} failed: {type(error).__name__}: {error}") from error
        array = host_array(what if function is None else f"what {argument} returned", made)
        if values and array.dtype.kind not in "biuf":
            fix = f"turn it into numbers with {argument}=" if function is None else f"{argument} must return numbers"
            raise ValueError(f"{what} is no array of numbers but {array.dtype}, first {shown(values[0])}: {fix}")
        if values and (array.ndim == 0 or array.shape[0] != len(values)):
            raise ValueError(f"{argument} returned shape {array.shape} for {len(values)} examples: one row for each")
        arrays.append(array.astype(default_float()) if array.dtype.kind == "f" else array)
    return arrays[0], arrays[1]
