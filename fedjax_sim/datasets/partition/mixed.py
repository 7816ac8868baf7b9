"""Partitions that do not look at labels: IID, IID with given sizes, natural ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.checks import check_clients, checked_client_sizes, renumbered
from fedjax_sim.datasets.partition.dealing import hands
from fedjax_sim.datasets.parts import Partition
from fedjax_sim.datasets.validate import checked_owner


def iid(num_examples: int, num_clients: int, seed: int, min_size: int = 1) -> Partition:
    """A uniformly random partition; sizes differ by at most one.

    Args:
      num_examples: number of rows n.
      num_clients: number of clients N <= n.
      seed: of the shuffle.
      min_size: fewest examples of a client; equal sizes keep it wherever it can be kept.

    Raises:
      ValueError: more clients than examples, or a count below one.

    Example:
      >>> [len(rows) for rows in iid(10, 4, seed=0)]
      [3, 2, 3, 2]
    """
    check_clients("iid", num_examples, num_clients, min_size)
    deck = Draws("iid", seed).shuffled(num_examples)
    return hands(deck, np.arange(num_examples) * num_clients // num_examples, num_clients)


def sized(examples: Any, sizes: Any, seed: int) -> Partition:
    """A uniformly random partition with the given client sizes.

    Args:
      examples: number of rows n, or any array with n rows (the labels, say).
      sizes: int[N], each at least 1; what they leave over belongs to nobody. See
        :func:`fedjax_sim.datasets.partition.power_law_sizes` and its neighbours.
      seed: of the shuffle.

    Raises:
      ValueError: a size below one, or sizes that add up to more than n.
      TypeError: sizes that are not integers.

    Example:
      >>> [len(rows) for rows in sized(10, [7, 1, 2], seed=0)]
      [7, 1, 2]
    """
    total = examples if isinstance(examples, (bool, int, float, np.number)) else len(examples)
    check_count("sized(num_examples)", total)
    of_client = checked_client_sizes("sized", sizes, int(total))
    deck = Draws("sized", seed).shuffled(int(total))[: int(of_client.sum())]
    return hands(deck, np.repeat(np.arange(of_client.size), of_client), of_client.size)


def natural(ids: Any) -> Partition:
    """The partition that the data came with: one client for each distinct id, in sorted order of the ids.

    Args:
      ids: integers or strings [n], the client (writer, account, role) of each row. To keep integer ids as
        ``client_ids``, use :func:`fedjax_sim.datasets.from_ids`.

    Raises:
      ValueError: no rows, or ids that are not one-dimensional.
      TypeError: ids that are neither integers nor strings.

    Example:
      >>> [rows.tolist() for rows in natural(["rob", "ann", "rob"])]
      [[1], [0, 2]]
    """
    owner = checked_owner(ids, "natural(ids)")
    if owner.size == 0:
        raise ValueError("natural: there are no ids; a partition needs at least one client with one example")
    places = renumbered(owner)
    return hands(np.arange(owner.size), places, int(places.max()) + 1)
