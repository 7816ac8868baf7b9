"""Partitions cut from the rows sorted by label: shards, and s % similarity."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.checks import check_clients, checked_labels
from fedjax_sim.datasets.partition.dealing import even_sizes, hands
from fedjax_sim.datasets.parts import Partition


def shards(labels: Any, num_clients: int, shards_per_client: int, seed: int) -> Partition:
    """Label shards: rows sorted by label are cut into N s equal shards and each client is dealt s of them.

    Args:
      labels: integer [n].
      num_clients: number of clients N.
      shards_per_client: s; where the classes are equally large, a client sees s classes or few more.
      seed: of the order within a class and of the deal.

    Raises:
      ValueError: fewer examples than shards.
      TypeError: labels that are not integers.

    Source: McMahan et al. 2017, arXiv:1602.05629 (200 shards, two for each of 100 clients).

    Example:
      >>> labels = [0] * 4 + [1] * 4
      >>> sorted(rows.tolist() for rows in shards(labels, num_clients=2, shards_per_client=1, seed=0))
      [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    classes = checked_labels("shards", labels)
    check_count("shards(shards_per_client=...)", shards_per_client)
    check_clients("shards", classes.size, num_clients, shards_per_client)
    draws = Draws("shards", seed)
    deck = draws.shuffled_by(classes)
    count = num_clients * shards_per_client
    dealt_to = draws.shuffled(count) // shards_per_client
    return hands(deck, dealt_to[np.arange(classes.size) * count // classes.size], num_clients)


def similarity(labels: Any, num_clients: int, percent: float, seed: int) -> Partition:
    """s % similarity: s % of each client's examples are IID, the others come from the rows sorted by label.

    A random s % of all rows are dealt out evenly. The others, sorted by label, are cut into N consecutive blocks and
    client i gets block i. All clients have equally many examples, up to one; with s = 0 the data are sorted, with
    s = 100 IID.

    Args:
      labels: integer [n].
      num_clients: number of clients N.
      percent: s, in [0, 100].
      seed: of the IID part, its deal and the order within a class.

    Raises:
      ValueError: ``percent`` outside [0, 100], or more clients than examples.
      TypeError: labels that are not integers.

    Source: Karimireddy et al. 2020 (SCAFFOLD), arXiv:1910.06378, section 7.1, which does not say which block a
      client gets nor how sizes are rounded.

    Example:
      >>> labels = [0] * 4 + [1] * 4
      >>> [rows.tolist() for rows in similarity(labels, num_clients=2, percent=0, seed=0)]
      [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    check_real("similarity(percent=...)", percent, low=0.0, high=100.0)
    classes = checked_labels("similarity", labels)
    check_clients("similarity", classes.size, num_clients, 1)
    draws = Draws("similarity", seed)
    # the larger ones come first in both, so that no client's IID part exceeds its size
    sizes = even_sizes(classes.size, num_clients)
    mixed = even_sizes(int(np.floor(classes.size * percent / 100.0 + 0.5)), num_clients)
    first, rest = np.split(draws.shuffled(classes.size), [int(mixed.sum())])
    rest = rest[draws.shuffled_by(classes[rest])]
    clients = np.arange(num_clients)
    owner = np.concatenate([np.repeat(clients, mixed), np.repeat(clients, sizes - mixed)])
    return hands(np.concatenate([first, rest]), owner, num_clients)
