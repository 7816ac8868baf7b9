"""Clients that hold few classes: the sets of classes, and how each class is shared among those who hold it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, check_flag, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.dealing import (
    apportioned,
    check_clients,
    checked_client_sizes,
    checked_labels,
    checked_weights,
    dealt,
    within_bounds,
)
from fedjax_sim.datasets.parts import Partition


def classes(labels: Any, num_clients: int, classes_per_client: int, seed: int, min_size: int = 1) -> Partition:
    """c classes a client, drawn at random; each class is split evenly among the clients that hold it; c <= C <= N c.

    Client i holds class i mod C (and class k of those beyond N where there are fewer clients than classes: i = k
    mod N), so that every class is held by somebody; its other classes are random distinct ones. How many clients
    hold a class is therefore random, and so are the client sizes. Where examples are moved to keep ``min_size``, a
    client can get a further class.

    Source: Li et al. 2022 (NIID-Bench), arXiv:2102.02079, "#C = c".

    Example:
      >>> labels = np.arange(100) % 10
      >>> parts = classes(labels, num_clients=20, classes_per_client=3, seed=0)
      >>> {len(set(labels[rows])) for rows in parts}
      {3}
    """
    numbers, of_class = _labels("classes", labels, num_clients, classes_per_client, min_size)
    draws = Draws("classes", seed)
    held = _random_sets(draws, num_clients, of_class.size, classes_per_client)
    counts = apportioned(_table(held, of_class.size, np.ones(num_clients)), of_class)
    return dealt(draws, numbers, *within_bounds(draws, counts, min_size, None))


def even_classes(
    labels: Any,
    num_clients: int,
    classes_per_client: int,
    seed: int,
    min_size: int = 1,
    *,
    weights: Any = None,
    equal_sizes: bool = False,
) -> Partition:
    """c classes a client, and every class at the same number of clients (N c / C, up to one), in random combinations.

    By default a class is split evenly among its holders; with ``weights``, float[N], positive, in proportion to them
    (client sizes follow them only roughly, because the holders of a class share what there is of it). With
    ``equal_sizes`` all parts have the same size, floor(min_c n_c / holders of c), and the rest belongs to nobody: so
    Li et al. 2020 have their *balanced* MNIST, 542 images at each of 100 clients with 2 digits.

    Source: Li et al. 2020, arXiv:1907.02189, section 6, appendix D.1 and Table 2. The code published with it draws
      the digits one client after the other from the parts that are left, which can end with one digit left for the
      last client; here whole combinations are shuffled by random exchanges between pairs of clients.

    Example:
      >>> labels = np.arange(200) % 10
      >>> even_classes(labels, num_clients=10, classes_per_client=2, seed=0).sizes.tolist()
      [20, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    """
    check_flag("even_classes(equal_sizes=...)", equal_sizes)
    if equal_sizes and weights is not None:
        raise ValueError("even_classes: weights make sizes unequal; give either weights or equal_sizes=True")
    numbers, of_class = _labels("even_classes", labels, num_clients, classes_per_client, min_size)
    by_client = np.ones(num_clients) if weights is None else checked_weights("even_classes", weights, num_clients)
    draws = Draws("even_classes", seed)
    held = _even_sets(draws, num_clients, of_class.size, classes_per_client)
    table = _table(held, of_class.size, by_client)
    if equal_sizes:
        part = int((of_class // np.bincount(held.reshape(-1), minlength=of_class.size)).min())
        counts = np.where(table > 0, part, 0)
        check_clients("even_classes", int(counts.sum()), num_clients, min_size)
    else:
        counts = apportioned(table, of_class)
    return dealt(draws, numbers, *within_bounds(draws, counts, min_size, None))


def consecutive_classes(
    labels: Any,
    num_clients: int,
    classes_per_client: int,
    seed: int,
    min_size: int = 1,
    *,
    base: int = 5,
    sigma: float = 2.0,
    sizes: Any = None,
) -> Partition:
    """Client u holds the classes u, u + 1, ..., u + c - 1 (mod C), with unequal shares of each.

    Each client first gets ``base`` examples of each of its classes. What is then left of a class goes to its holders
    in proportion to independent LogNormal(0, sigma^2) variates, all of it, so the shares fit the data whatever their
    number. FedProx's MNIST is ``consecutive_classes(labels, 1000, 2, seed)``; its code draws shares of n_c - 1000
    examples and rounds each down.

    With ``sizes`` the clients ask for given numbers instead, split evenly over their classes and rounded down (of 59
    over 5 classes 11 each, 55 in all; at least 1 of each); where a class is asked for more than it has, every request
    for it is scaled down in proportion, and examples that nobody asks for belong to nobody. FedProx's FEMNIST (10
    classes, 200 devices, 5 classes each) is
    ``consecutive_classes(labels, 200, 5, seed, sizes=lognormal_counts(200, 4.0, 1.0, seed, least=5))``. Its code
    gives several devices the same images and, as published, 3 classes; here every image is used once.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, appendix C.1, and its published code.

    Example:
      >>> labels = np.arange(400) % 10
      >>> parts = consecutive_classes(labels, num_clients=20, classes_per_client=2, seed=0)
      >>> sorted(set(labels[parts[13]].tolist()))
      [3, 4]
    """
    what = "consecutive_classes"
    check_count(f"{what}(base=...)", base, low=0)
    check_real(f"{what}(sigma=...)", sigma, low=0.0)
    numbers, of_class = _labels(what, labels, num_clients, classes_per_client, min_size)
    draws = Draws(what, seed)
    held = (np.arange(num_clients)[:, None] + np.arange(classes_per_client)) % of_class.size
    holders = np.bincount(held.reshape(-1), minlength=of_class.size)
    if holders.min() == 0:
        raise ValueError(
            f"{what}: {num_clients} clients with {classes_per_client} consecutive classes reach "
            f"{num_clients + classes_per_client - 1} of the {of_class.size} classes: use more clients or classes a "
            "client"
        )
    each = base if sizes is None else 1
    for label in np.flatnonzero(of_class < each * holders)[:1]:
        raise ValueError(
            f"{what}: {holders[label]} clients hold the class numbered {label}, which has {of_class[label]} examples, "
            f"less than {each} for each: use fewer clients"
            + (f" or base={of_class[label] // holders[label]}" if sizes is None else "")
        )
    if sizes is None:
        logs = np.full((of_class.size, num_clients), -np.inf)
        logs[held.reshape(-1), np.repeat(np.arange(num_clients), classes_per_client)] = sigma * draws.normal(held.size)
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        least = _table(held, of_class.size, np.full(num_clients, base)).astype(np.int64)
        counts = least + apportioned(shares, of_class - base * holders)
    else:
        wanted = checked_client_sizes(what, sizes, numbers.size, num_clients)
        table = _table(held, of_class.size, np.maximum(wanted // classes_per_client, 1))
        asked = table.astype(np.int64)
        scaled = (asked > 0) + apportioned(table, of_class - holders)
        counts = np.where((asked.sum(axis=1) > of_class)[:, None], scaled, asked)
    return dealt(draws, numbers, *within_bounds(draws, counts, min_size, None))


def _labels(
    what: str, labels: Any, num_clients: int, classes_per_client: int, min_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The labels, 0 .. C-1, and how many there are of each, if the clients can hold all classes."""
    numbers = checked_labels(what, labels)
    check_clients(what, numbers.size, num_clients, min_size)
    of_class = np.bincount(numbers)
    num_classes = of_class.size
    check_count(f"{what}(classes_per_client=...)", classes_per_client, high=num_classes)
    if num_clients * classes_per_client < num_classes:
        raise ValueError(
            f"{what}: {num_clients} clients with {classes_per_client} classes each hold at most "
            f"{num_clients * classes_per_client} of the {num_classes} classes: use more clients or classes a client"
        )
    return numbers, of_class


def _table(held: np.ndarray, num_classes: int, values: np.ndarray) -> np.ndarray:
    """float[C, N] with each client's value at the classes that it holds, int[N, c], and 0 elsewhere."""
    table = np.zeros((num_classes, held.shape[0]))
    table[held.reshape(-1), np.repeat(np.arange(held.shape[0]), held.shape[1])] = np.repeat(values, held.shape[1])
    return table


def _random_sets(draws: Draws, num_clients: int, num_classes: int, per_client: int) -> np.ndarray:
    """Distinct classes of each client, int64[N, c]; class k is among those of client k mod N."""
    order = draws.uniform(num_clients * num_classes).reshape(num_clients, num_classes)
    clients, classes = np.ogrid[:num_clients, :num_classes]
    order[(classes % num_clients == clients) | (clients % num_classes == classes)] = -1.0
    return np.argsort(order, axis=1, kind="stable")[:, :per_client]


def _even_sets(draws: Draws, num_clients: int, num_classes: int, per_client: int) -> np.ndarray:
    """Distinct classes of each client, int64[N, c], every class at N c / C clients, up to one.

    Cards of the classes in sorted order are dealt round the table, which gives nobody a class twice. Then random pairs
    of clients exchange random cards where both stay without doubles: a symmetric chain, so that all deals become
    equally likely.
    """
    cards = np.sort(np.arange(num_clients * per_client) % num_classes)
    names = draws.shuffled(num_classes)  # which classes have the one more
    held = names[cards].reshape(per_client, num_clients).T.copy()
    pairs = num_clients // 2
    if pairs == 0:
        return held
    slots = np.arange(per_client)
    for _ in range(40 + 10 * per_client):
        left, right = draws.shuffled(num_clients)[: 2 * pairs].reshape(2, pairs)
        words = draws.words(2 * pairs) >> np.uint64(33)
        one, other = (words % np.uint64(per_client)).astype(np.int64).reshape(2, pairs)
        a, b = held[left, one], held[right, other]
        apart = ((held[right] != a[:, None]) | (slots == other[:, None])).all(axis=1)
        apart &= ((held[left] != b[:, None]) | (slots == one[:, None])).all(axis=1)
        held[left[apart], one[apart]] = b[apart]
        held[right[apart], other[apart]] = a[apart]
    return held
