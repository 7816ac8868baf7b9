"""What a user gives to make a data set of, as flat parts: client after client, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.datasets.flat import INT32_MAX, Flat
from fedjax_sim.datasets.split import held_out_of
from fedjax_sim.datasets.validate import (
    checked_ids,
    checked_owner,
    checked_partition,
    common_length,
    kind_of,
    shape_text,
    who,
)
from fedjax_sim.values import check_count, check_real


class Given(NamedTuple):
    """The clients' examples before their values are looked at.

    Attributes:
      train: training examples.
      test: held-out examples of the same clients in the same order, or None.
      client_ids: int64[N].
      names: [N], the ids as the user wrote them, for messages.
    """

    train: Flat
    test: Flat | None
    client_ids: np.ndarray
    names: np.ndarray


def given_clients(clients: Sequence[Any], test: Sequence[Any] | None, client_ids: Any) -> Given:
    """See :func:`fedjax_sim.datasets.from_clients`."""
    if len(clients) == 0:
        raise ValueError("from_clients: no clients were given; a data set needs at least one")
    count = len(clients)
    ids = checked_ids(np.arange(count) if client_ids is None else client_ids, count)
    train = _joined(clients, ids, None)
    for position in np.flatnonzero(train.sizes == 0)[:1]:
        raise ValueError(f"{who(ids, position)} has no examples: drop this client or give it examples")
    held_out = None
    if test is not None:
        if len(test) != count:
            raise ValueError(f"test has {len(test)} clients but there are {count}: give one entry (or None) for each")
        held_out = _joined(test, ids, train)
    return Given(train, held_out, ids, ids)


def given_ids(examples: Any, ids: Any, test: Any, test_ids: Any) -> Given:
    """See :func:`fedjax_sim.datasets.from_ids`."""
    names, owner = np.unique(checked_owner(ids, "ids"), return_inverse=True)
    if names.size == 0:
        raise ValueError("from_ids: no examples were given; a data set needs at least one client with one example")
    numbered = names.dtype.kind in "iu" and int(names[0]) >= 0 and int(names[-1]) <= INT32_MAX
    client_ids = names.astype(np.int64) if numbered else np.arange(names.size)
    train = _grouped(_as_arrays(examples), owner, names.size, "ids")
    if (test is None) != (test_ids is None):
        raise ValueError("from_ids: test and test_ids come together; only one of them was given")
    held_out = None
    if test is not None:
        test_owner = checked_owner(test_ids, "test_ids")
        if test_owner.size and (test_owner.dtype.kind == "U") != (names.dtype.kind == "U"):
            raise TypeError(f"test_ids have dtype {test_owner.dtype} but ids have {names.dtype}: use the same kind")
        position = np.minimum(np.searchsorted(names, test_owner), names.size - 1)
        for row in np.flatnonzero(names[position] != test_owner)[:1]:
            raise ValueError(
                f"client {test_owner[row].item()!r} has test examples but no training examples: drop them or give the "
                "client training examples"
            )
        held_out = _grouped(_as_arrays(test), position, names.size, "test_ids")
    return Given(train, held_out, client_ids, names)


def given_partition(examples: Any, partition: Sequence[Any], test_fraction: float, seed: int) -> Given:
    """See :func:`fedjax_sim.datasets.from_partition`."""
    if len(partition) == 0:
        raise ValueError("from_partition: the partition has no clients; a data set needs at least one")
    check_real("from_partition(test_fraction=...)", test_fraction, low=0.0, high=1.0)
    if test_fraction == 1.0:
        raise ValueError("from_partition(test_fraction=1.0): it must be below 1, or nothing is left to train on")
    check_count("from_partition(seed=...)", seed, low=0)
    flat = _as_arrays(examples)
    total = common_length(flat, None)
    ids = np.arange(len(partition))
    rows, sizes = checked_partition(partition, total)
    owner = np.repeat(ids, sizes)
    held = held_out_of(owner, sizes, test_fraction, seed)

    def part(mask: np.ndarray) -> Flat:
        return Flat(flat, np.bincount(owner[mask], minlength=ids.size), rows[mask])

    return Given(part(~held), part(held) if held.any() else None, ids, ids)


def _as_arrays(examples: Any) -> Any:
    """Host arrays; a tuple (x, y) becomes a mapping; lists are arrays, not pytree nodes."""
    if isinstance(examples, tuple) and not hasattr(examples, "_fields"):
        if len(examples) != 2:
            raise ValueError(f"a tuple of {len(examples)} was given: examples are (x, y), a mapping or another pytree")
        examples = {"x": examples[0], "y": examples[1]}
    arrays = jax.tree.map(np.asarray, examples, is_leaf=lambda node: isinstance(node, list))
    if not jax.tree.leaves(arrays):
        raise ValueError(f"the examples have no arrays: {examples!r}; give a pytree of arrays or (x, y)")
    return arrays


def _joined(clients: Sequence[Any], ids: np.ndarray, like: Flat | None) -> Flat:
    """Concatenates the clients' pytrees; ``like`` gives the structure where a client (of the test part) is empty."""
    trees = [None if client is None and like is not None else _as_arrays(client) for client in clients]
    sizes = np.array([0 if tree is None else common_length(tree, who(ids, i)) for i, tree in enumerate(trees)])
    filled = [(i, tree) for i, tree in enumerate(trees) if sizes[i] > 0]
    if not filled:
        return Flat(trees[0] if like is None else like.examples, sizes)
    first, reference = filled[0]
    structure: Any = jax.tree.structure(reference)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(reference)[0]]
    columns: list[list[np.ndarray]] = [[] for _ in paths]
    for i, tree in filled:
        leaves, found = jax.tree.flatten(tree)
        if found != structure:
            raise ValueError(f"{who(ids, i)} has examples {found} but {who(ids, first)} has {structure}")
        for path, column, leaf in zip(paths, columns, leaves, strict=True):
            if column and (leaf.shape[1:] != column[0].shape[1:] or kind_of(leaf) != kind_of(column[0])):
                raise ValueError(
                    f"examples{path} of {who(ids, i)} are {shape_text(leaf)} but those of {who(ids, first)} are "
                    f"{shape_text(column[0])}: one shape and kind of number for all clients"
                )
            column.append(leaf)
    return Flat(jax.tree.unflatten(structure, [np.concatenate(column) for column in columns]), sizes)


def _grouped(examples: Any, owner: np.ndarray, count: int, ids_name: str) -> Flat:
    length = common_length(examples, None)
    if length != owner.size:
        raise ValueError(f"the examples have {length} rows but {ids_name} has {owner.size}: give one id for each row")
    in_order = bool(np.all(owner[1:] >= owner[:-1]))
    rows = None if in_order else np.argsort(owner, kind="stable")
    return Flat(examples, np.bincount(owner, minlength=count), rows)
