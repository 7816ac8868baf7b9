"""The checks of a data set's values, made once, while they are concrete.

A message names the client (and its id, where that is another number), the value and the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.values import INT32_MAX, check_count
from fedjax_sim.datasets.array_checks import host_array, missing_values
from fedjax_sim.datasets.flat import Flat, default_float, offsets_of, owner_of
from fedjax_sim.datasets.parts import Partition

INT64_MAX = 2**63 - 1


def common_length(examples: Any, owner: str | None) -> int:
    """The common leading axis of all leaves."""
    suffix = "" if owner is None else f" of {owner}"
    leaves = jax.tree_util.tree_flatten_with_path(examples)[0]
    first_name, first = "examples" + jax.tree_util.keystr(leaves[0][0]), leaves[0][1]
    for path, leaf in leaves:
        name = "examples" + jax.tree_util.keystr(path)
        if leaf.ndim == 0:
            raise ValueError(f"{name}{suffix} is the scalar {leaf!r}: it needs a leading axis, one row per example")
        if leaf.shape[0] != first.shape[0]:
            raise ValueError(
                f"{name}{suffix} has {leaf.shape[0]} rows but {first_name} has {first.shape[0]}: all leaves need one "
                "row per example"
            )
    return int(first.shape[0])


def checked_ids(client_ids: Any, count: int) -> np.ndarray:
    """``client_ids`` as int64[count], unique, non-negative and small enough for int32."""
    ids = host_array("client_ids", client_ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"client_ids have dtype {ids.dtype}: they must be integers (see from_ids for other ids)")
    if ids.shape != (count,):
        raise ValueError(f"client_ids have shape {ids.shape}: there must be one for each of the {count} clients")
    for bad in ids[(ids < 0) | (ids > INT32_MAX)][:1]:
        raise ValueError(f"the client id {bad} is outside [0, {INT32_MAX}]: renumber the clients")
    values, uses = np.unique(ids, return_counts=True)
    for bad in values[uses > 1][:1]:
        raise ValueError(f"the client id {bad} is used by {uses[values == bad][0]} clients: ids must be unique")
    return ids.astype(np.int64)


def checked_owner(ids: Any, name: str) -> np.ndarray:
    """The client of each example, as integers or strings; ``name`` is the argument that a message blames."""
    owner = host_array(name, ids)
    if owner.ndim != 1:
        raise ValueError(f"{name} has shape {owner.shape}: it must be one-dimensional, one id per example")
    if owner.dtype.kind == "f" and np.isnan(owner).any():
        raise missing_values(name, np.isnan(owner))
    if owner.dtype.kind not in "iuU" and owner.size:
        raise TypeError(f"{name} has dtype {owner.dtype}, first {owner[0]}: client ids are integers or strings")
    return as_int64(owner)


def as_int64(array: np.ndarray) -> np.ndarray:
    """Integers of any type as int64, or as they are where one is beyond it; other arrays as they are."""
    fits = array.dtype.kind == "i" or (array.dtype.kind == "u" and int(array.max(initial=0)) <= INT64_MAX)
    return array.astype(np.int64, copy=False) if fits else array


def integers_apart(types: Iterable[np.dtype]) -> bool:
    """Whether these types, all of integers, have none in common: numpy would make floats of int64 and uint64."""
    found = set(types)
    return all(one.kind in "iu" for one in found) and np.result_type(*found).kind == "f"


def checked_partition(partition: Sequence[Any], total: int) -> tuple[np.ndarray, np.ndarray]:
    """All indices end to end, and how many each client has; without a loop over clients for a ``Partition``."""
    rows, sizes = (partition.rows, partition.sizes) if isinstance(partition, Partition) else _end_to_end(partition)
    for place in np.flatnonzero((rows < 0) | (rows >= total))[:1]:
        client = np.searchsorted(np.cumsum(sizes), place, side="right")
        raise ValueError(f"client {client} has index {rows[place]}: there are examples 0 to {total - 1} only")
    for row in np.flatnonzero(np.bincount(rows, minlength=total) > 1)[:1]:
        users = np.searchsorted(np.cumsum(sizes), np.flatnonzero(rows == row), side="right")
        raise ValueError(f"example {row} is used by client {users[0]} and by client {users[1]}: use each at most once")
    return rows, sizes


def _end_to_end(partition: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    parts = [host_array(f"the indices of client {client}", rows) for client, rows in enumerate(partition)]
    for client, part in enumerate(parts):
        if part.size == 0:
            raise ValueError(f"client {client} has no examples: drop this client or give it examples")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise TypeError(f"the indices of client {client} are {shape_text(part)}: a 1-d array of integers is needed")
    return np.concatenate(parts).astype(np.int64), np.array([part.size for part in parts])


def check_alike(train: Any, test: Any) -> None:
    """Checks that training and test examples have one structure, one shape per example and one kind of number."""
    wanted: Any = jax.tree.structure(train)
    found: Any = jax.tree.structure(test)
    if found != wanted:
        raise ValueError(f"the test examples are {found} but the training examples {wanted}")
    pairs = zip(jax.tree_util.tree_flatten_with_path(train)[0], jax.tree.leaves(test), strict=True)
    for (path, one), other in pairs:
        if one.shape[1:] != other.shape[1:] or kind_of(one) != kind_of(other):
            raise ValueError(
                f"test examples{jax.tree_util.keystr(path)} are {shape_text(other)} but the training examples are "
                f"{shape_text(one)}: one shape and kind of number for both"
            )
        if kind_of(one) == "float" and not _holds(stored_float(one), stored_float(other)):
            raise ValueError(
                f"test examples{jax.tree_util.keystr(path)} are {shape_text(other)} but the training examples are "
                f"{shape_text(one)}, whose type would round them: give both one type"
            )


def checked_classes(parts: list[tuple[str, Flat]], names: np.ndarray, num_classes: int | None) -> int | None:
    """The number of classes, after checking every label of every part against it."""
    train = parts[0][1].examples
    labels = train.get("y") if isinstance(train, Mapping) else None
    if not isinstance(labels, np.ndarray):
        if num_classes is not None:
            raise ValueError(f"num_classes={num_classes} was given but the examples are no mapping with an array 'y'")
        return None
    if labels.dtype.kind not in "iub":
        if num_classes is not None:
            raise TypeError(
                f"num_classes={num_classes} was given but the labels 'y' have dtype {labels.dtype}: labels must be "
                "integers, cast them with y.astype(int)"
            )
        return None
    if num_classes is not None:
        check_count("num_classes", num_classes)
    classes = num_classes
    if classes is None:
        classes = max(int(part.examples["y"].max(initial=0)) for _, part in parts) + 1
        classes = min(classes, INT32_MAX)
    for what, part in parts:
        values = part.examples["y"].reshape(part.examples["y"].shape[0], -1)
        wrong = (values < 0) | (values >= classes)
        for row in np.flatnonzero(wrong.any(axis=1))[:1]:
            raise ValueError(
                f"{who(names, owner_of(part, row))} has the {what}label {values[row][wrong[row]][0]}, outside "
                f"[0, {classes}): number the classes from 0, or give 'y' as floats if it is not a class"
            )
    return classes


def stored_leaf(
    name: str, leaf: np.ndarray, *, as_label: bool, like: Any, part: Flat, names: np.ndarray, first: int = 0
) -> np.ndarray:
    """The leaf, or its rows from ``first``, in the type it is kept in, after checking that its values fit."""
    kind = kind_of(leaf)
    if as_label:
        return leaf.astype(np.int32)
    if kind == "bool" or leaf.dtype == np.uint8:
        return leaf if like is None else leaf.astype(like)
    if kind == "integer":
        target = np.dtype(np.int32 if like is None else like)
        low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
        for row in _rows_where((leaf > high) | (leaf < low)):
            raise ValueError(
                f"{name} of {who(names, owner_of(part, first + row))} has a value outside {target}, [{low}, {high}]: "
                "use floats"
            )
        return leaf.astype(target)
    if kind != "float":
        raise TypeError(f"{name} has dtype {leaf.dtype}: examples must be arrays of numbers; encode them as integers")
    with np.errstate(over="ignore"):
        stored = leaf.astype(stored_float(leaf) if like is None else like)
    for row in _rows_where(~np.isfinite(stored)):
        client = owner_of(part, first + row)
        place = first + row - int(offsets_of(part.sizes)[client])
        raise ValueError(
            f"{name} has NaN or infinite values (as {stored.dtype}): {who(names, client)}, first in its row {place}; "
            "clean or drop these examples"
        )
    return stored


def stored_float(leaf: np.ndarray) -> np.dtype:
    """The type that floats are kept in: their own where the default float is not narrower."""
    default = np.dtype(default_float())
    return default if leaf.dtype.itemsize > default.itemsize else leaf.dtype.newbyteorder("=")


def _holds(kind: np.dtype, other: np.dtype) -> bool:
    """Whether floats of the type ``kind`` can be all that those of ``other`` are."""
    try:
        return np.promote_types(kind, other) == kind
    except TypeError:  # numpy knows no type for float16 and bfloat16
        return False


def kind_of(leaf: np.ndarray) -> str:
    """The kind of number, as coarse as clients may differ in."""
    if leaf.dtype.kind == "b":
        return "bool"
    if leaf.dtype.kind in "iu":
        return "integer"
    return "float" if jnp.issubdtype(leaf.dtype, jnp.floating) else str(leaf.dtype)


def who(names: np.ndarray, position: int) -> str:
    """How a message names a client: its position, and its id where that is another."""
    name = names[position].item()
    return f"client {position}" if name == position else f"client {position} (id {name!r})"


def shape_text(leaf: np.ndarray) -> str:
    """``float32[3, 2]``."""
    return f"{leaf.dtype}{list(leaf.shape)}"


def _rows_where(wrong: np.ndarray) -> list[int]:
    """The first row with a True, or nothing."""
    if not wrong.any():
        return []
    return [int(np.flatnonzero(wrong.reshape(wrong.shape[0], -1).any(axis=1))[0])]
