"""Data sets from arrays: one pytree per client, flat arrays with ids, or flat arrays with a partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.datasets.calls import MEANT_BY_CLIENTS, MEANT_BY_IDS, MEANT_BY_PARTITION, answers
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.flat import default_float
from fedjax_sim.datasets.from_arrays import given_clients, given_ids, given_partition
from fedjax_sim.datasets.validate import Given, check_room, checked_parts, in_memory


@answers(MEANT_BY_CLIENTS)
def from_clients(
    clients: Sequence[Any],
    *,
    validation: Sequence[Any] | None = None,
    test: Sequence[Any] | None = None,
    client_ids: Sequence[int] | np.ndarray | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from one pytree of arrays (or one ``(x, y)``) per client.

    Args:
      clients: for each client its examples: a pytree of arrays with a common leading axis n_i >= 1 (Python lists
        count as arrays), or a tuple ``(x, y)``, which becomes ``{"x": x, "y": y}``, or a table with these columns, or
        a data set of torch of such pairs. Arrays are numpy's, JAX's, torch's or columns of any table.
      validation: held-out examples of the same clients in the same order, to choose by; an entry may be None or have
        no rows. :func:`with_validation` takes some of the training examples.
      test: held-out examples, to report on, likewise.
      client_ids: unique non-negative integers; 0 .. N-1 by default.
      test_fraction: in the place of ``test``: the share to hold out, as in :func:`from_partition`.
      seed: of the draw of the held-out examples.
      num_classes: by default the largest label + 1, over training and test examples, where the examples are a mapping
        with integer ``"y"``, and None otherwise.

    Returns:
      The data set; floats in the default float type unless they are narrower, integers as int32 (uint8 is kept,
      except for labels). ``validation`` and ``test`` are None if they have no rows at all.

    Raises:
      ValueError: no clients, an empty client, lengths, structures, columns or shapes that do not agree, NaN or infinite
        features, labels outside [0, num_classes), repeated or negative ids, both ``test`` and ``test_fraction``,
        a ``test_fraction`` that holds nothing out.
      TypeError: a mapping, an array or ``(x, y)`` instead of a list of clients, leaves that are not numbers, labels
        that are not integers though ``num_classes`` is given.
      MemoryError: more than there is room for, before any of it is made.

    Example:
      >>> import numpy as np
      >>> from_clients([(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [2])])
      FederatedDataset(2 clients, 4 examples, 3 classes)
    """
    return _assembled(given_clients(clients, validation, test, client_ids, test_fraction, seed), num_classes)


@answers(MEANT_BY_IDS)
def from_ids(
    examples: Any,
    ids: Any,
    *,
    validation: Any = None,
    validation_ids: Any = None,
    test: Any = None,
    test_ids: Any = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from flat arrays and the client each example belongs to.

    Args:
      examples: pytree of arrays with the common leading axis n, or a tuple ``(x, y)``, or what may stand for them in
        :func:`from_clients`.
      ids: integer or string [n], the client of each example. Clients are stored in sorted order of their id and
        keep the order of their examples. Integers that are non-negative and fit int32 become the ``client_ids``;
        other ids are numbered 0 .. N-1, and :func:`fedjax_sim.datasets.client_names` has them as strings.
      validation: held-out examples to choose by, like ``examples``.
      validation_ids: the client of each of them; each must have training examples too.
      test: held-out examples to report on, like ``examples``.
      test_ids: the client of each of them, likewise.
      test_fraction: in the place of the last two: the share to hold out, as in :func:`from_partition`.
      seed: of the draw of the held-out examples.
      num_classes: as in :func:`from_clients`.

    Raises:
      ValueError: lengths that differ, missing ids, test clients without training examples, bad values, a
        ``test_fraction`` that holds nothing out.
      TypeError: ids that are neither all integers nor all strings.

    Example:
      >>> import numpy as np
      >>> data = from_ids({"x": np.arange(4.0)}, ["rob", "ann", "rob", "ann"])
      >>> data.client(0)["x"]
      array([1., 3.], dtype=float32)
    """
    given = given_ids(examples, ids, validation, validation_ids, test, test_ids, test_fraction, seed)
    return _assembled(given, num_classes)


@answers(MEANT_BY_PARTITION)
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
      examples: pytree of arrays with the common leading axis, or a tuple ``(x, y)``, or what may stand for them in
        :func:`from_clients`.
      partition: for each client the indices of its examples; no index twice, not every index need be used.
      test_fraction: share of each client's examples to hold out, in [0, 1). A client with n_i examples trains on
        max(1, floor((1 - test_fraction) n_i)) of them, drawn uniformly, and is tested on the others.
      seed: of the draw of the held-out examples.
      num_classes: as in :func:`from_clients`.

    Raises:
      ValueError: no clients, an empty client, an index out of range or used twice, bad values, a ``test_fraction`` that
        holds nothing out: no client has two examples.
      TypeError: indices that are not integers.

    Example:
      >>> import numpy as np
      >>> from fedjax_sim.datasets import partition
      >>> labels = np.arange(100) % 10
      >>> rows = partition.shards(labels, num_clients=5, shards_per_client=2, seed=0)
      >>> from_partition((np.zeros((100, 3)), labels), rows, test_fraction=0.25)
      FederatedDataset(5 clients, 75 examples, 25 test examples, 10 classes)
    """
    return _assembled(given_partition(examples, partition, test_fraction, seed), num_classes)


def _assembled(given: Given, num_classes: int | None) -> FederatedDataset:
    """Checks the values and packs the arrays."""
    parts = [given.train, *(part for part in given.held_out.values() if part is not None)]
    rows = sum(int(part.sizes.sum()) for part in parts)
    check_room("the data set", rows, sum(map(_stored_bytes, jax.tree.leaves(given.train.examples))), device=True)
    made = {name: data for name, (_, data) in checked_parts(given, num_classes, in_memory).items()}
    return given.remembered(made.pop("train").replace(**made))


def _stored_bytes(leaf: np.ndarray) -> int:
    """Bytes of a row in the type that it is kept in, or a little less."""
    widest = 4 if leaf.dtype.kind in "iu" else np.dtype(default_float()).itemsize
    return math.prod(leaf.shape[1:]) * min(leaf.dtype.itemsize, widest)
