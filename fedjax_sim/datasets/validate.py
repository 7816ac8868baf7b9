"""The checks of a data set's values, made once, while they are concrete, and the types that they are stored in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from fedjax_sim.core.devices import free_memory
from fedjax_sim.core.values import INT32_MAX, check_count
from fedjax_sim.datasets.array_checks import host_array, missing_values
from fedjax_sim.datasets.federated import FederatedDataset, named, packed
from fedjax_sim.datasets.flat import Flat, aligned_zeros, default_float, offsets_of
from fedjax_sim.datasets.parts import Partition

T = TypeVar("T")
_INT64_MAX = 2**63 - 1
_PIECE = 1 << 26  # bytes of examples that are looked at in one go
_REMEDY = (
    "give fewer or smaller examples, a narrower dtype (uint8, float16), or memory-mapped arrays to "
    "fjs.datasets.host.from_ids, which copies nothing"
)

# From the pieces of a leaf, client after client in the type they are stored in, and their shape: what is kept.
Keep = Callable[[Iterator[np.ndarray], tuple[int, ...]], np.ndarray]


class Given(NamedTuple):
    """The clients' examples before their values are looked at; all parts are of the same clients in this order."""

    train: Flat
    held_out: dict[str, Flat | None]
    client_ids: np.ndarray  # int64[N]
    names: np.ndarray  # [N], the ids as the user wrote them, for messages

    def remembered(self, data: T) -> T:
        """``data``, with the ids that could not be its ``client_ids`` as the names of its clients."""
        return data if self.names is self.client_ids else named(data, [str(name) for name in self.names.tolist()])


def common_length(examples: Any, owner: str | None) -> int:
    """The common leading axis of all leaves."""
    suffix = "" if owner is None else f" of {owner}"
    leaves = [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(examples)[0]]
    first_path, first = leaves[0]
    for path, leaf in leaves:
        if leaf.ndim == 0:
            raise ValueError(f"examples{path}{suffix} is the scalar {leaf!r}: it needs an axis, one row per example")
        if leaf.shape[0] != first.shape[0]:
            raise ValueError(
                f"examples{path}{suffix} has {leaf.shape[0]} rows but examples{first_path} has {first.shape[0]}: all "
                "leaves need one row per example"
            )
    return int(first.shape[0])


def checked_ids(client_ids: Any, count: int) -> np.ndarray:
    """``client_ids`` as int64[count], unique, non-negative and small enough for int32."""
    ids = host_array("client_ids", client_ids)
    if ids.dtype.kind not in "iu" or ids.shape != (count,):
        raise ValueError(
            f"client_ids are {shape_text(ids)}: give one integer for each of the {count} clients, or see from_ids"
        )
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
    fits = array.dtype.kind == "i" or (array.dtype.kind == "u" and int(array.max(initial=0)) <= _INT64_MAX)
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
            fix = "; of the client of each row from_ids((x, y), ids) makes a data set" if part.ndim == 0 else ""
            raise TypeError(
                f"the indices of client {client} are {shape_text(part)}: a 1-d array of integers is needed{fix}"
            )
    return np.concatenate(parts).astype(np.int64), np.array([part.size for part in parts])


def _check_alike(train: Any, part: str, held_out: Any) -> None:
    """Checks that held-out and training examples have one structure, one shape per example and one kind of number."""
    wanted: Any = jax.tree.structure(train)
    found: Any = jax.tree.structure(held_out)
    if found != wanted:
        raise ValueError(f"the {part} examples are {found} but the training examples {wanted}")
    pairs = zip(tree_flatten_with_path(train)[0], jax.tree.leaves(held_out), strict=True)
    for (path, one), other in pairs:
        name = f"{part} examples{keystr(path)}"
        check_same(name, other, "the training examples", one)
        if _kind_of(one) == "float" and not _holds(_stored_float(one), _stored_float(other)):
            raise ValueError(
                f"{name} are {shape_text(other)} but the training examples are {shape_text(one)}, whose type would "
                "round them: give both one type"
            )


def check_same(what: str, leaf: np.ndarray, reference: str, like: np.ndarray) -> None:
    """Checks that two arrays have one shape per example and one kind of number."""
    if leaf.shape[1:] != like.shape[1:] or _kind_of(leaf) != _kind_of(like):
        raise ValueError(
            f"{what} are {shape_text(leaf)} but {reference} are {shape_text(like)}: one shape per example and one kind "
            "of number for all"
        )


def _checked_classes(parts: list[tuple[str, Flat]], names: np.ndarray, num_classes: int | None) -> int | None:
    """The number of classes, after checking every label of every part against it."""
    train = parts[0][1].examples
    labels = train.get("y") if isinstance(train, Mapping) else None
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iub":
        if num_classes is not None:
            found = labels.dtype if isinstance(labels, np.ndarray) else type(train).__name__
            raise TypeError(
                f"num_classes={num_classes} was given but the examples have no integer labels 'y' ({found}): give "
                "(x, y), or a mapping, and cast labels with y.astype(int)"
            )
        return None
    every = [(what, part, part.in_order(part.examples["y"])) for what, part in parts]
    if num_classes is not None:
        check_count("num_classes", num_classes)
        classes = num_classes
    else:
        classes = min(max(int(values.max(initial=0)) for _, _, values in every) + 1, INT32_MAX)
    for what, part, values in every:
        wrong = (values < 0) | (values >= classes)
        for row in _rows_where(wrong):
            raise ValueError(
                f"{who(names, part.owner_of(row))} has the {what}label {values[row][wrong[row]].flat[0]}, outside "
                f"[0, {classes}): number the classes from 0, or give 'y' as floats if it is not a class"
            )
    return classes


def _stored_leaf(
    name: str, leaf: np.ndarray, *, as_label: bool, like: Any, part: Flat, names: np.ndarray, first: int
) -> np.ndarray:
    """Rows of a leaf from ``first`` in the type they are kept in, after checking that their values fit."""
    kind = _kind_of(leaf)
    if as_label:
        return leaf.astype(np.int32)
    if kind == "bool" or leaf.dtype == np.uint8:
        return leaf if like is None else leaf.astype(like)
    if kind == "integer":
        target = np.dtype(np.int32 if like is None else like)
        low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
        for row in _rows_where((leaf > high) | (leaf < low)):
            raise ValueError(
                f"{name} of {who(names, part.owner_of(first + row))} has a value outside {target}, [{low}, {high}]: "
                "use floats"
            )
        return leaf.astype(target)
    if kind != "float":
        fix = ", names, codes = numpy.unique(values, return_inverse=True)" if leaf.dtype.kind == "U" else ""
        raise TypeError(
            f"{name} has dtype {leaf.dtype}: examples must be arrays of numbers; encode them as integers{fix}"
        )
    with np.errstate(over="ignore"):
        stored = leaf.astype(_stored_float(leaf) if like is None else like)
    for row in _rows_where(~np.isfinite(stored)):
        client = part.owner_of(first + row)
        place = first + row - int(offsets_of(part.sizes)[client])
        raise ValueError(
            f"{name} has NaN or infinite values (as {stored.dtype}): {who(names, client)}, first in its row {place}; "
            "clean or drop these examples"
        )
    return stored


def _stored_float(leaf: np.ndarray) -> np.dtype:
    """The type that floats are kept in: their own where the default float is not narrower."""
    default = np.dtype(default_float())
    return default if leaf.dtype.itemsize > default.itemsize else leaf.dtype.newbyteorder("=")


def _holds(kind: np.dtype, other: np.dtype) -> bool:
    """Whether floats of the type ``kind`` can be all that those of ``other`` are."""
    one, two = jnp.finfo(kind), jnp.finfo(other)
    return bool(one.nmant >= two.nmant and one.maxexp >= two.maxexp)


def _kind_of(leaf: np.ndarray) -> str:
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


def check_room(what: str, rows: int, row_bytes: int, remedy: str = _REMEDY, *, device: bool = False) -> None:
    """MemoryError, with all sizes, where ``rows`` of so many bytes do not fit in memory, or that of a ``device``."""
    places = {"the machine": free_memory(device=False)} | ({"the device": free_memory()} if device else {})
    where, free = min(places.items(), key=lambda place: place[1])
    needed = rows * row_bytes
    if needed > free:
        raise MemoryError(
            f"{what}: {rows:,} rows of {row_bytes:,} bytes are {needed / 1e9:,.2f} GB, and {where} has "
            f"{max(free, 0) / 1e9:,.2f} GB free: {remedy}"
        )


def checked_parts(given: Given, num_classes: int | None, keep: Keep) -> dict[str, tuple[Flat, FederatedDataset]]:
    """``"train"`` and the held-out parts that have rows: each as given, and as the data set of what is kept of it.

    All values are checked, and all parts kept in the same types.
    """
    parts = [("", given.train)]
    for name, part in given.held_out.items():
        if part is not None and part.sizes.sum() > 0:
            _check_alike(given.train.examples, name, part.examples)
            parts.append((f"{name} ", part))
    classes = _checked_classes(parts, given.names, num_classes)
    found: dict[str, tuple[Flat, Any]] = {}
    types: dict[Any, Any] = {}
    for what, part in parts:
        leaves, structure = tree_flatten_with_path(part.examples)
        kept = []
        for path, leaf in leaves:
            name, as_label = f"{what}examples{keystr(path)}", classes is not None and leaf is part.examples["y"]
            pieces = _pieces(name, leaf, part, as_label, types.get(path), given.names)
            kept.append(keep(pieces, (int(part.sizes.sum()), *leaf.shape[1:])))
            types[path] = kept[-1].dtype
        found[what.rstrip() or "train"] = part, jax.tree.unflatten(structure, kept)
    return {
        name: (part, packed(examples, part.sizes, given.client_ids, classes))
        for name, (part, examples) in found.items()
    }


def _pieces(
    name: str, leaf: np.ndarray, part: Flat, as_label: bool, like: Any, names: np.ndarray
) -> Iterator[np.ndarray]:
    total, step = int(part.sizes.sum()), max(1, _PIECE // max(1, leaf[:1].nbytes))
    for first in range(0, max(total, 1), step):
        piece = part.in_order(leaf, slice(first, min(first + step, total)))
        stored = _stored_leaf(name, piece, as_label=as_label, like=like, part=part, names=names, first=first)
        like = stored.dtype
        yield stored


def in_memory(pieces: Iterator[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """All pieces in one array of their own, which JAX can use on a CPU without another copy."""
    first = next(pieces)
    whole = aligned_zeros(shape, first.dtype)
    row = 0
    for piece in itertools.chain([first], pieces):
        whole[row : row + len(piece)] = piece
        row += len(piece)
    return whole


def type_alone(pieces: Iterator[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """One row of zeros in the stored type, for data whose arrays stay where they are."""
    *_, last = pieces
    return np.zeros((1, *shape[1:]), last.dtype)
