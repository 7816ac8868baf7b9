"""Ways to deal the rows of one array out to clients.

Every function returns one sorted int64 array of row numbers per client; the arrays are disjoint, none is empty and
together they hold every row. The draws come from numpy's PCG64, so a seed means the same partition on every
platform. Feed the result to :func:`fedjax_sim.datasets.from_partition`.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from fedjax_sim.values import check_count, check_real

_REDRAWS = 50  # after so many draws with a client below min_size, examples are moved instead


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
    """A uniformly random partition; sizes differ by at most one.

    Args:
      num_examples: number of rows n.
      num_clients: number of clients N <= n.
      seed: of the shuffle.

    Raises:
      ValueError: more clients than examples, or a count below one.

    Example:
      >>> [len(rows) for rows in iid(10, 4, seed=0)]
      [3, 2, 3, 2]
    """
    _check_sizes("iid", num_examples, num_clients, 1)
    deck = _generator("iid", seed).permutation(num_examples)
    return _hands(deck, np.arange(num_examples) * num_clients // num_examples, num_clients)


def dirichlet(
    labels: Any, num_clients: int, alpha: float, seed: int, min_size: int = 1, *, balanced: bool = False
) -> list[np.ndarray]:
    """Label skew: the examples of each class are shared out in proportions q_c ~ Dir(alpha 1_N), c = 1 .. C.

    Client i receives the rows floor(n_c sum_{j<i} q_cj) to floor(n_c sum_{j<=i} q_cj) of the shuffled class c. The
    proportions are drawn again, up to 50 times, while a client has fewer than ``min_size`` examples; if that does
    not help, examples of the clients with most are moved to those short of them.

    Args:
      labels: integer [n].
      num_clients: number of clients N.
      alpha: concentration > 0; small values give each client few classes.
      seed: of the proportions and of the shuffles.
      min_size: fewest examples of a client.
      balanced: whether a client that already holds n/N examples or more gets none of the later classes, as in the
        code published with FedMA and FedNova (their texts describe the plain rule).

    Raises:
      ValueError: alpha not positive, or too few examples for ``min_size`` each.
      TypeError: labels that are not integers.

    Source: Hsu et al. 2019, arXiv:1909.06335; Wang et al. 2020 (FedMA), arXiv:2002.06440.

    Example:
      >>> labels = [0] * 50 + [1] * 50
      >>> sum(len(rows) for rows in dirichlet(labels, num_clients=5, alpha=0.1, seed=0))
      100
    """
    check_real("dirichlet(alpha=...)", alpha, low=0.0, open_=True)
    check_count("dirichlet(min_size=...)", min_size)
    classes = _classes("dirichlet", labels)
    _check_sizes("dirichlet", classes.size, num_clients, min_size)
    rng = _generator("dirichlet", seed)
    of_class = np.bincount(classes)
    for _ in range(_REDRAWS):
        counts = _dirichlet_counts(rng, of_class, num_clients, float(alpha), balanced)
        if counts.sum(axis=0).min() >= min_size:
            break
    else:
        _move_to_the_short(counts, min_size)
    deck = _by_class(rng, classes)
    return _hands(deck, np.repeat(np.tile(np.arange(num_clients), of_class.size), counts.reshape(-1)), num_clients)


def shards(labels: Any, num_clients: int, shards_per_client: int, seed: int) -> list[np.ndarray]:
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
      >>> [rows.tolist() for rows in shards(labels, num_clients=2, shards_per_client=1, seed=0)]
      [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    classes = _classes("shards", labels)
    check_count("shards(shards_per_client=...)", shards_per_client)
    _check_sizes("shards", classes.size, num_clients, shards_per_client)
    rng = _generator("shards", seed)
    deck = _by_class(rng, classes)
    count = num_clients * shards_per_client
    dealt_to = rng.permutation(np.repeat(np.arange(num_clients), shards_per_client))
    return _hands(deck, dealt_to[np.arange(classes.size) * count // classes.size], num_clients)


def _dirichlet_counts(
    rng: np.random.Generator, of_class: np.ndarray, num_clients: int, alpha: float, balanced: bool
) -> np.ndarray:
    """Examples of each class for each client, int[C, N]."""
    counts = np.zeros((of_class.size, num_clients), np.int64)
    held = np.zeros(num_clients, np.int64)
    for label, size in enumerate(of_class):
        shares = rng.dirichlet(np.full(num_clients, alpha))
        if balanced:
            open_ = held < of_class.sum() / num_clients
            shares = np.where(open_, shares, 0.0)
            # with a small alpha all the mass may lie on clients that are full already
            shares = shares / shares.sum() if shares.sum() > 0 else open_ / open_.sum()
        cuts = np.concatenate([[0], (np.cumsum(shares)[:-1] * size).astype(np.int64), [size]])
        counts[label] = np.diff(np.minimum(cuts, size))
        held += counts[label]
    return counts


def _move_to_the_short(counts: np.ndarray, min_size: int) -> None:
    """Moves single examples, of the donor's commonest class, from the largest clients to those below ``min_size``."""
    sizes = counts.sum(axis=0)
    donors = [(-int(size), client) for client, size in enumerate(sizes) if size > min_size]
    heapq.heapify(donors)
    for client in np.flatnonzero(sizes < min_size):
        for _ in range(min_size - int(sizes[client])):
            size, donor = donors[0]
            label = int(np.argmax(counts[:, donor]))
            counts[label, donor] -= 1
            counts[label, client] += 1
            if -size - 1 > min_size:
                heapq.heapreplace(donors, (size + 1, donor))
            else:
                heapq.heappop(donors)


def _by_class(rng: np.random.Generator, classes: np.ndarray) -> np.ndarray:
    """Row numbers sorted by class, in random order within a class."""
    shuffled = rng.permutation(classes.size)
    return shuffled[np.argsort(classes[shuffled], kind="stable")]


def _hands(deck: np.ndarray, dealt_to: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Sorted rows of each client, where row ``deck[j]`` goes to client ``dealt_to[j]``."""
    owner = np.empty(deck.size, np.int64)
    owner[deck] = dealt_to
    rows = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(rows, np.cumsum(np.bincount(owner, minlength=num_clients))[:-1])


def _classes(what: str, labels: Any) -> np.ndarray:
    """Labels renumbered 0 .. C-1 without gaps."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"{what}: the labels have shape {array.shape}; they must be one-dimensional, one per example")
    if array.dtype.kind not in "iub":
        raise TypeError(f"{what}: the labels have dtype {array.dtype}; they must be integers, cast with .astype(int)")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _check_sizes(what: str, num_examples: int, num_clients: int, each: int) -> None:
    check_count(f"{what}(num_examples)", num_examples)
    check_count(f"{what}(num_clients)", num_clients)
    if num_clients * each > num_examples:
        raise ValueError(
            f"{what}: {num_clients} clients with at least {each} each need {num_clients * each} examples but there are "
            f"{num_examples}: use fewer clients"
        )


def _generator(what: str, seed: int) -> np.random.Generator:
    check_count(f"{what}(seed=...)", seed, low=0)
    return np.random.Generator(np.random.PCG64(seed))
