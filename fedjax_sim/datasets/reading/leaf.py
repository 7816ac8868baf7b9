"""LEAF's json files: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import read_json
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.flat import default_float

Encode = Callable[[list[Any]], Any]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def read_leaf(
    source: Source, encode: Encode | None = None, encode_label: Encode | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The examples (x, y) of every user, users in sorted order.

    A user's lists become arrays as soon as the parser has read them: besides the arrays, the text of one file and
    the lists of one user are in memory.

    Args:
      source: a file, several files, or a folder whose ``*.json`` files are read.
      encode: makes an array with one row per example of a user's list ``x``; by default the list must hold numbers.
      encode_label: the same for ``y``.

    Raises:
      FileNotFoundError: no such file or folder, or a folder without json files.
      ValueError: not LEAF's format; the message names the file and the user.
    """
    users: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    origin: dict[str, Path] = {}
    for path in _files(source):
        for name, pair in _users(path, encode, encode_label):
            if name in users:
                where = f"{path}" if origin[name] == path else f"{origin[name]} and in {path}"
                raise ValueError(f"the user {shown(name)} is twice in {where}: a user's examples must stand together")
            users[name], origin[name] = pair, path
    return {name: users[name] for name in sorted(users)}


@dataclasses.dataclass(frozen=True)
class _Lists:
    """A user's lists after conversion, or what was wrong with them: the parser does not yet know whose they are."""

    pair: tuple[np.ndarray, np.ndarray] | None
    problem: str = ""
    cause: Exception | None = None


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


def _users(
    path: Path, encode: Encode | None, encode_label: Encode | None
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    def convert(pairs: list[tuple[str, Any]]) -> Any:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = _repeated([key for key, _ in pairs])
            raise ValueError(f"{path} has {shown(twice)} twice in one object: merge the two or drop one")
        if isinstance(made.get("x"), list) and isinstance(made.get("y"), list):
            return _converted(made["x"], made["y"], encode, encode_label)
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
    for name in sorted(set(names) ^ data.keys())[:1]:
        has, lacks = ("users", "user_data") if name in names else ("user_data", "users")
        raise ValueError(f"{path}: the user {shown(name)} is in {has!r} but not in {lacks!r}: drop it or add it there")
    if len(set(names)) != len(names):
        twice = _repeated(names)
        raise ValueError(
            f"the user {shown(twice)} is twice in 'users' of {path}: a user's examples must stand together"
        )
    for name, lists in data.items():
        if not isinstance(lists, _Lists):
            keys = shown(sorted(lists)) if isinstance(lists, dict) else type(lists).__name__
            raise ValueError(f"{path}: the user {shown(name)} must have two lists, 'x' and 'y'; it has {keys}")
        if lists.pair is None:
            raise ValueError(f"{path}: the user {shown(name)}: {lists.problem}") from lists.cause
        yield name, lists.pair


def _repeated(names: list[str]) -> str:
    return collections.Counter(names).most_common(1)[0][0]


def _converted(x: list[Any], y: list[Any], encode: Encode | None, encode_label: Encode | None) -> _Lists:
    if len(x) != len(y):
        return _Lists(None, f"x has {len(x)} entries but y has {len(y)}: every example needs both")
    arrays = []
    for what, values, function, argument in (("x", x, encode, "encode"), ("y", y, encode_label, "encode_label")):
        if function is None and _has_text(values):  # numpy would give every entry the length of the longest
            return _Lists(None, f"{what} has text, first {shown(values[0])}: turn it into numbers with {argument}=")
        try:
            made = values if function is None else function(values)
        except Exception as error:  # whatever a user's function raises belongs to this user of the file
            return _Lists(None, f"{argument} failed: {type(error).__name__}: {error}", error)
        try:
            array = host_array(what if function is None else f"what {argument} returned", made)
        except (TypeError, ValueError) as error:
            return _Lists(None, str(error), error)
        if values and array.dtype.kind not in "biuf":
            fix = "give numbers" if function is None else f"{argument} must return numbers"
            return _Lists(None, f"{what} is no array of numbers but {array.dtype}, first {shown(values[0])}: {fix}")
        if values and (array.ndim == 0 or array.shape[0] != len(values)):
            return _Lists(None, f"{argument} returned shape {array.shape} for {len(values)} examples: one row for each")
        arrays.append(array.astype(default_float()) if array.dtype.kind == "f" else array)
    return _Lists((arrays[0], arrays[1]))


def _has_text(values: list[Any]) -> bool:
    """Whether a string is somewhere in nested lists; over numbers at the speed of ``set``."""
    kinds = set(map(type, values))
    return str in kinds or (list in kinds and any(isinstance(value, list) and _has_text(value) for value in values))
