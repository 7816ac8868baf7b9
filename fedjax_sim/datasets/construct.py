"""Data sets from arrays: one pytree per client, flat arrays with ids, or flat arrays with a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.flat import INT32_MAX, Flat, int32, offsets_of
from fedjax_sim.datasets.validate import (
    check_alike,
    checked_classes,
    checked_ids,
    checked_owner,
    checked_partition,
    common_length,
    kind_of,
    shape_text,
    stored_leaf,
    who,
)
from fedjax_sim.values import check_count, check_real


def from_clients(
    clients: Sequence[Any],
    *,
    test: Sequence[Any] | None = None,
    client_ids: Sequence[int] | np.ndarray | None = None,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from one pytree of arrays (or one ``(x, y)``) per client.

    Args:
      clients: for each client its examples: a pytree of arrays with a common leading axis n_i >= 1 (Python lists
        count as arrays), or a tuple ``(x, y)``, which becomes ``{"x": x, "y": y}``.
      test: held-out examples of the same clients in the same order; an entry may be None or have no rows.
      client_ids: unique non-negative integers; 0 .. N-1 by default.
      num_classes: number of classes; by default the largest label + 1, over training and test examples, where the
        examples are a mapping with integer ``"y"``, and None otherwise.

    Returns:
      The data set; floats in the default float type unless they are narrower, integers as int32 (uint8 is kept,
      except for labels). ``test`` is None if it has no rows at all.

    Raises:
      ValueError: no clients, an empty client, leaves of unequal length, structure or shapes that differ between
        clients, NaN or infinite features, labels outside [0, num_classes), repeated or negative ids.
      TypeError: leaves that are not numbers, labels that are not integers though ``num_classes`` is given.

    Example:
      >>> import numpy as np
      >>> from_clients([(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [2])])
      FederatedDataset(2 clients, 4 examples, 3 classes)
    """
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
    return _assembled(train, held_out, ids, ids, num_classes)


def from_ids(
    examples: Any,
    ids: Any,
    *,
    test: Any = None,
    test_ids: Any = None,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from flat arrays and the client each example belongs to.

    Args:
      examples: pytree of arrays with the common leading axis n, or a tuple ``(x, y)``.
      ids: integer or string [n], the client of each example. Clients are stored in sorted order of their id and
        keep the order of their examples. Integers that are non-negative and fit int32 become the ``client_ids``;
        other ids are numbered 0 .. N-1.
      test: held-out examples, like ``examples``.
      test_ids: the client of each held-out example; each must have training examples too.
      num_classes: as in :func:`from_clients`.

    Raises:
      ValueError: lengths that differ, no examples, test clients without training examples, bad values.
      TypeError: ids that are neither integers nor strings.

    Example:
      >>> import numpy as np
      >>> data = from_ids({"x": np.arange(4.0)}, ["rob", "ann", "rob", "ann"])
      >>> data.client(0)["x"]
      array([1., 3.], dtype=float32)
    """
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
    return _assembled(train, held_out, client_ids, names, num_classes)


def from_partition(
    examples: Any,
    partition: Sequence[Any],
    *,
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from flat arrays and the rows each client takes (see :mod:`fedjax_sim.datasets.partition`).

    Args:
      examples: pytree of arrays with the common leading axis, or a tuple ``(x, y)``.
      partition: for each client the indices of its examples; no index twice, not every index need be used.
      test_fraction: share of each client's examples to hold out, in [0, 1). A client with n_i examples trains on
        max(1, floor((1 - test_fraction) n_i)) of them, drawn uniformly, and is tested on the others.
      seed: of the draw of the held-out examples.
      num_classes: as in :func:`from_clients`.

    Raises:
      ValueError: no clients, an empty client, an index out of range or used twice, bad values.
      TypeError: indices that are not integers.

    Example:
      >>> import numpy as np
      >>> from fedjax_sim.datasets import partition
      >>> labels = np.arange(100) % 10
      >>> rows = partition.shards(labels, num_clients=5, shards_per_client=2, seed=0)
      >>> from_partition((np.zeros((100, 3)), labels), rows, test_fraction=0.25)
      FederatedDataset(5 clients, 75 examples, 25 test examples, 10 classes)
    """
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
    kept = np.maximum(1, np.floor((1.0 - test_fraction) * sizes + 1e-9).astype(np.int64))
    held = np.zeros(rows.size, bool)
    if test_fraction > 0.0:
        draw = np.random.Generator(np.random.PCG64(seed)).random(rows.size)
        rank = np.arange(rows.size) - offsets_of(sizes)[owner]
        held[np.lexsort((draw, owner))] = rank >= kept[owner]

    def part(mask: np.ndarray) -> Flat:
        chosen = rows[mask]
        return Flat(jax.tree.map(lambda leaf: leaf[chosen], flat), np.bincount(owner[mask], minlength=ids.size))

    return _assembled(part(~held), part(held) if held.any() else None, ids, ids, num_classes)


def _assembled(
    train: Flat, test: Flat | None, client_ids: np.ndarray, names: np.ndarray, num_classes: int | None
) -> FederatedDataset:
    """Checks the values and packs the arrays; ``names`` are the ids as the user wrote them, for messages."""
    if test is not None and test.sizes.sum() == 0:
        test = None
    if test is not None:
        check_alike(train.examples, test.examples)
    parts = [("", train)] + ([("test ", test)] if test is not None else [])
    classes = checked_classes(parts, names, num_classes)
    packed: FederatedDataset | None = None
    stored_types: list[Any] | None = None
    for what, part in parts:
        leaves, structure = jax.tree_util.tree_flatten_with_path(part.examples)
        stored = [
            stored_leaf(
                f"{what}examples{jax.tree_util.keystr(path)}",
                leaf,
                as_label=classes is not None and leaf is part.examples["y"],
                like=None if stored_types is None else stored_types[index],
                part=part,
                names=names,
            )
            for index, (path, leaf) in enumerate(leaves)
        ]
        stored_types = [leaf.dtype for leaf in stored]
        made = _packed(jax.tree.unflatten(structure, stored), part.sizes, client_ids, classes)
        packed = made if packed is None else packed.replace(test=made)
    assert packed is not None
    return packed


def _packed(examples: Any, sizes: np.ndarray, client_ids: np.ndarray, num_classes: int | None) -> FederatedDataset:
    total = int(sizes.sum())
    if total > INT32_MAX:
        raise ValueError(f"{total} examples: at most {INT32_MAX} can be indexed; use fewer clients or cap their sizes")
    decreasing = np.sort(sizes)[::-1]
    totals = np.cumsum(decreasing)
    counts = sorted({2**power for power in range(sizes.size.bit_length()) if 2**power <= sizes.size} | {sizes.size})
    return FederatedDataset(
        examples=jax.tree.map(jnp.asarray, examples),
        offsets=int32(offsets_of(sizes)),
        sizes=int32(sizes),
        client_ids=int32(client_ids),
        order=int32(np.argsort(client_ids)),
        num_clients=int(sizes.size),
        num_examples=total,
        max_size=int(decreasing[0]),
        num_classes=num_classes,
        largest=tuple((count, int(totals[count - 1]), int(decreasing[count - 1])) for count in counts),
    )


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
    rows = np.argsort(owner, kind="stable")
    return Flat(jax.tree.map(lambda leaf: leaf[rows], examples), np.bincount(owner, minlength=count))
