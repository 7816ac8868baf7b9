"""What a user gives to make a data set of, as flat parts: client after client, in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from fedjax_sim.core.values import INT32_MAX, check_count, check_real, shown
from fedjax_sim.datasets.calls import in_short
from fedjax_sim.datasets.columns import Seen, as_examples, leaf_of, names_of
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.flat import Flat, offsets_of, ranges, sorted_within
from fedjax_sim.datasets.validate import (
    Given,
    as_int64,
    check_room,
    check_same,
    checked_ids,
    checked_owner,
    checked_partition,
    common_length,
    integers_apart,
    shape_text,
    who,
)


def given_clients(
    clients: Sequence[Any],
    validation: Sequence[Any] | None,
    test: Sequence[Any] | None,
    client_ids: Any,
    test_fraction: float,
    seed: int,
) -> Given:
    """See :func:`fedjax_sim.datasets.from_clients`."""
    check_split(test, test_fraction, seed)
    _check_list(clients)
    if len(clients) == 0:
        raise ValueError("from_clients: no clients were given; a data set needs at least one")
    count = len(clients)
    ids = checked_ids(np.arange(count) if client_ids is None else client_ids, count)
    seen: Seen = {}
    train = _joined(clients, ids, None, seen)
    for position in np.flatnonzero(train.sizes == 0)[:1]:
        raise ValueError(f"{who(ids, position)} has no examples: drop this client or give it examples")
    held_out: dict[str, Flat | None] = {}
    for name, part in (("validation", validation), ("test", test)):
        if part is not None and len(part) != count:
            raise ValueError(f"{name} has {len(part)} clients but there are {count}: give one entry (or None) for each")
        held_out[name] = None if part is None else _joined(part, ids, train, seen, name)
    if test is None:
        train, held_out["test"] = _cut(
            train, held_by_id("held_out", ids, train.sizes, test_fraction, seed), test_fraction
        )
    return Given(train, held_out, ids, ids)


def given_ids(
    examples: Any,
    ids: Any,
    validation: Any,
    validation_ids: Any,
    test: Any,
    test_ids: Any,
    test_fraction: float,
    seed: int,
) -> Given:
    """See :func:`fedjax_sim.datasets.from_ids`."""
    check_split(test, test_fraction, seed)
    if isinstance(ids, tuple) and len(ids) == 2 and hasattr(ids[0], "shape") and ids[0].shape:
        raise TypeError(
            f"from_ids({in_short(examples)}, {in_short(ids)}): the examples come first, from_ids({in_short(ids)}, "
            f"{in_short(examples)})"
        )
    names, owner = np.unique(checked_owner(ids, "ids"), return_inverse=True)
    if names.size == 0:
        raise ValueError("from_ids: no examples were given; a data set needs at least one client with one example")
    numbered = names.dtype.kind in "iu" and int(names[0]) >= 0 and int(names[-1]) <= INT32_MAX
    client_ids = names if numbered else np.arange(names.size)
    seen: Seen = {}
    train = _grouped(_as_arrays("examples", examples, seen), owner, names.size, "ids")
    held_out = {
        "validation": _owned("validation", validation, validation_ids, names, seen),
        "test": _owned("test", test, test_ids, names, seen),
    }
    if test is None:
        # Drawn in the order of the rows, as they were given.
        held = held_in("held_out", owner, train.sizes, test_fraction, seed)
        train, held_out["test"] = _cut(train, held if train.rows is None else held[train.rows], test_fraction)
    return Given(train, held_out, client_ids, names)


def _owned(name: str, examples: Any, ids: Any, known: np.ndarray, seen: Seen) -> Flat | None:
    """A held-out part whose examples have the clients ``ids``, all of them ``known``."""
    if (examples is None) != (ids is None):
        raise ValueError(f"from_ids: {name} and {name}_ids come together; only one of them was given")
    if examples is None:
        return None
    owner = wanted = checked_owner(ids, f"{name}_ids")
    if owner.size and (owner.dtype.kind == "U") != (known.dtype.kind == "U"):
        raise TypeError(f"{name}_ids have dtype {owner.dtype} but ids have {known.dtype}: use the same kind")
    if known.dtype.kind != owner.dtype.kind:  # int64 beside uint64 would be compared as floats
        known, wanted = known.astype(object), owner.astype(object)
    position = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    for row in np.flatnonzero(known[position] != wanted)[:1]:
        raise ValueError(
            f"client {owner[row].item()!r} has {name} examples but no training examples: drop them or give the client "
            "training examples"
        )
    return _grouped(_as_arrays(f"{name} examples", examples, seen), position, known.size, f"{name}_ids")


def given_partition(examples: Any, partition: Sequence[Any], test_fraction: float, seed: int) -> Given:
    """See :func:`fedjax_sim.datasets.from_partition`."""
    if isinstance(partition, Mapping):
        raise TypeError("from_partition was given a mapping: give the rows of each client, list(partition.values())")
    if len(partition) == 0:
        raise ValueError("from_partition: the partition has no clients; a data set needs at least one")
    check_split(None, test_fraction, seed)
    flat = _as_arrays("examples", examples, {})
    total = common_length(flat, None)
    ids = np.arange(len(partition))
    rows, sizes = checked_partition(partition, total)
    held = held_in("held_out", np.repeat(ids, sizes), sizes, test_fraction, seed)
    train, test = _cut(Flat(flat, sizes, rows), held, test_fraction)
    return Given(train, {"test": test}, ids, ids)


def check_split(test: Any, test_fraction: Any, seed: Any) -> None:
    """Checks the arguments that say what is held out."""
    check_real("test_fraction", test_fraction, low=0.0, below=1.0, host=True)
    check_count("seed", seed, low=0)
    if test is not None and test_fraction != 0.0:
        raise ValueError(f"test_fraction is {test_fraction}, but test has the held-out examples: leave one of them out")


def _check_list(clients: Any) -> None:
    """Checks that there is one entry a client, and that no entry is a table."""
    if not hasattr(clients, "__len__"):
        raise TypeError(
            f"from_clients was given a {type(clients).__name__}: give a list with one entry for each client"
        )
    if isinstance(clients, Mapping):
        raise TypeError(
            f"from_clients was given a {type(clients).__name__} with the keys {shown(list(clients))}: give a list with "
            "one entry for each client, list(clients.values()); from_ids takes names, one for each row"
        )
    for position, client in enumerate(clients):
        if isinstance(client, tuple) and client and isinstance(client[0], str | int | np.integer):  # pandas' groupby
            raise TypeError(
                f"from_clients: client {position} is a tuple of {shown(client[0])} and more: give (x, y) of each "
                "client without its name, or the whole table to from_table(table, client=..., y=...)"
            )
        names = None if isinstance(client, tuple | dict) else names_of("from_clients", client)
        if names is not None and "x" not in names:
            raise TypeError(
                f"from_clients: client {position} is a {type(client).__name__}: put the tables into one "
                "(pandas.concat), with a column of clients, and give it to from_table(table, client=..., y=...)"
            )
    if hasattr(clients, "shape"):
        raise TypeError(
            f"from_clients was given one array, {in_short(clients)}: give a list with one entry for each client, "
            "list(array) if its first axis is the clients; from_ids((x, y), ids) takes flat arrays and their clients"
        )
    if len(clients) == 2 and all(hasattr(client, "shape") for client in clients):
        x, y = map(in_short, clients)
        if isinstance(clients, tuple) or len(clients[0].shape) != len(clients[1].shape):
            raise TypeError(
                f"from_clients was given two arrays, {x} and {y}: give from_clients([({x}, {y})]) for one client, "
                f"from_ids(({x}, {y}), ids) with the client of each row; two clients without labels are a list"
            )


def _cut(flat: Flat, held: np.ndarray, fraction: float) -> tuple[Flat, Flat | None]:
    """The part to train on and the part that is ``held`` out, bool[n] client after client; None for no such part."""
    if fraction == 0.0:
        return flat, None
    if not held.any():
        raise ValueError(
            f"test_fraction={fraction} holds no example out, the largest client has {flat.sizes.max()}: give "
            "test_fraction=0.0, or clients with two or more"
        )
    count = flat.sizes.size
    owner = np.repeat(np.arange(count), flat.sizes)
    rows = np.arange(owner.size) if flat.rows is None else flat.rows
    train, test = (Flat(flat.examples, np.bincount(owner[mask], minlength=count), rows[mask]) for mask in (~held, held))
    return train, test


def _as_arrays(what: str, examples: Any, seen: Seen, owner: str = "") -> Any:
    """Host arrays; a tuple (x, y) becomes a mapping; lists are arrays, not pytree nodes.

    ``seen`` has the columns of the tables before, which those of tables in their places must have.
    """
    suffix = f" of {owner}" if owner else ""
    examples = as_examples(f"{what}{suffix}", examples)
    if isinstance(examples, tuple) and not hasattr(examples, "_fields"):
        if len(examples) != 2:
            raise ValueError(f"a tuple of {len(examples)} was given: examples are (x, y), a mapping or another pytree")
        examples = {"x": examples[0], "y": examples[1]}
    leaves, structure = tree_flatten_with_path(examples, is_leaf=lambda node: isinstance(node, list))
    if not leaves:
        raise ValueError(f"the examples have no arrays: {examples!r}; give a pytree of arrays or (x, y)")
    arrays = [
        leaf
        if type(leaf) is np.ndarray and leaf.dtype.kind in "biuf"
        else leaf_of(f"{what}{keystr(path)}{suffix}", leaf, keystr(path), seen)
        for path, leaf in leaves
    ]
    return jax.tree.unflatten(structure, arrays)


def _joined(clients: Sequence[Any], ids: np.ndarray, like: Flat | None, seen: Seen, part: str = "") -> Flat:
    """Concatenates the clients' pytrees; ``like`` gives the structure where a client (of a held-out part) is empty."""
    what = f"{part} examples".lstrip()
    sizes = np.zeros(len(clients), np.int64)
    filled: list[tuple[str, Any]] = []
    tree = None if like is None else like.examples
    for i, client in enumerate(clients):
        if client is not None or like is None:
            owner = who(ids, i)
            tree = _as_arrays(what, client, seen, owner)
            sizes[i] = common_length(tree, owner)
            if sizes[i] > 0:
                filled.append((owner, tree))
    if not filled:
        return Flat(tree if like is None else like.examples, sizes)
    first, reference = filled[0]
    structure: Any = jax.tree.structure(reference)
    paths = [keystr(path) for path, _ in tree_flatten_with_path(reference)[0]]
    columns: list[list[np.ndarray]] = [[] for _ in paths]
    for owner, tree in filled:
        leaves, found = jax.tree.flatten(tree)
        if found != structure:
            raise ValueError(f"{owner} has examples {found} but {first} has {structure}")
        for path, column, leaf in zip(paths, columns, leaves, strict=True):
            check_same(f"examples{path} of {owner}", leaf, f"those of {first}", column[0] if column else leaf)
            column.append(leaf)
    owners = [owner for owner, _ in filled]
    row_bytes = sum(leaf[:1].nbytes for leaf in jax.tree.leaves(reference))
    check_room(f"from_clients: the clients' {what} in one array", int(sizes.sum()), row_bytes)
    joined = [_concatenated(f"{what}{path}", column, owners) for path, column in zip(paths, columns, strict=True)]
    return Flat(jax.tree.unflatten(structure, joined), sizes)


def _concatenated(what: str, column: list[np.ndarray], owners: list[str]) -> np.ndarray:
    """Arrays of one kind of number end to end, in a type that holds all of them."""
    if integers_apart(leaf.dtype for leaf in column):
        column = [as_int64(leaf) for leaf in column]
    kind = column[0].dtype
    for leaf, owner in zip(column, owners, strict=True):
        try:
            found = np.promote_types(kind, leaf.dtype)
        except TypeError:
            found = None
        if found is None or integers_apart((kind, leaf.dtype)):
            raise ValueError(
                f"{what} of {owner} are {shape_text(leaf)} but those of {owners[0]} are {shape_text(column[0])}: no "
                "type holds the numbers of both; give all clients one"
            )
        kind = found
    return np.concatenate(column, dtype=kind)


def _grouped(examples: Any, owner: np.ndarray, count: int, ids_name: str) -> Flat:
    length = common_length(examples, None)
    if length != owner.size:
        raise ValueError(f"the examples have {length} rows but {ids_name} has {owner.size}: give one id for each row")
    in_order = bool(np.all(owner[1:] >= owner[:-1]))
    rows = None if in_order else np.argsort(owner, kind="stable")
    return Flat(examples, np.bincount(owner, minlength=count), rows)


def held_out(owner: Any, fraction: float, seed: int) -> np.ndarray:
    """bool[n], True where an example is held out for testing; ``owner``, [n], has the client of each, integer or text.

    A client with n_i examples trains on max(1, floor((1 - fraction) n_i)) of them, drawn uniformly.

    Example:
      >>> held_out(["a", "b", "a", "a", "b"], 0.5, seed=0)
      array([ True, False,  True, False,  True])
    """
    check_split(None, fraction, seed)
    _, number, sizes = np.unique(checked_owner(owner, "owner"), return_inverse=True, return_counts=True)
    return held_in("held_out", number, sizes, fraction, seed)


def held_in(stream: str, owner: np.ndarray, sizes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """:func:`held_out` for clients numbered 0 .. N-1 that have ``sizes`` examples, by draws of this ``stream``."""
    if fraction == 0.0 or sizes.size == 0:
        return np.zeros(owner.size, bool)
    kept = kept_of(sizes, fraction)
    draw = Draws(stream, seed).uniform(owner.size)
    order = sorted_within(owner, draw)  # client after client, each in random order
    mask = np.zeros(owner.size, bool)
    mask[order] = np.arange(owner.size) - offsets_of(sizes)[owner[order]] >= kept[owner[order]]
    return mask


def held_by_id(stream: str, ids: np.ndarray, sizes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """:func:`held_in` of clients that lie one after another, in the order of their ids: storage does not matter."""
    by_id = np.argsort(ids)
    held = np.zeros(sizes.sum(), bool)
    rows = ranges(offsets_of(sizes)[by_id], sizes[by_id])
    held[rows] = held_in(stream, np.repeat(np.arange(sizes.size), sizes[by_id]), sizes[by_id], fraction, seed)
    return held


def kept_of(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """How many examples clients with these ``sizes`` train on: max(1, floor((1 - fraction) n_i)), int64[N]."""
    return np.maximum(1, np.floor((1.0 - fraction) * sizes + 1e-9).astype(np.int64))
