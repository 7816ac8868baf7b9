"""Partitions that do not look at labels (IID, given sizes, natural ids), and draws of unequal client sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.dealing import apportioned, check_clients, checked_client_sizes, hands, renumbered
from fedjax_sim.datasets.parts import Partition
from fedjax_sim.datasets.validate import checked_owner


def iid(num_examples: int, num_clients: int, seed: int, min_size: int = 1) -> Partition:
    """A uniformly random partition of n rows over N clients; sizes differ by at most one.

    Example:
      >>> [len(rows) for rows in iid(10, 4, seed=0)]
      [3, 2, 3, 2]
    """
    check_clients("iid", num_examples, num_clients, min_size)
    deck = Draws("iid", seed).shuffled(num_examples)
    return hands(deck, np.arange(num_examples) * num_clients // num_examples, num_clients)


def sized(examples: Any, sizes: Any, seed: int) -> Partition:
    """A uniformly random partition with the given client ``sizes``, int[N], each at least 1.

    ``examples`` is the number of rows or an array with as many (the labels, say); what the sizes leave over belongs to
    nobody. See :func:`fedjax_sim.datasets.partition.power_law_sizes` and its neighbours.

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

    ``ids`` are integers or strings [n]: the client (writer, account, role) of each row. To keep integer ids as
    ``client_ids``, use :func:`fedjax_sim.datasets.from_ids`.

    Example:
      >>> [rows.tolist() for rows in natural(["rob", "ann", "rob"])]
      [[1], [0, 2]]
    """
    owner = checked_owner(ids, "natural(ids)")
    if owner.size == 0:
        raise ValueError("natural: there are no ids; a partition needs at least one client with one example")
    places = renumbered(owner)
    return hands(np.arange(owner.size), places, int(places.max()) + 1)


def power_law_sizes(num_examples: int, num_clients: int, exponent: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes int[N] in proportion to power-law variates: P(w > t) = t^(1 - exponent) for t >= 1, density ~ t^-exponent.

    n_i = min_size + (n - N min_size) w_i / sum_j w_j, rounded so that the sum is n. A smaller exponent is more unequal;
    at 2 and below the mean of w is infinite.

    Example:
      >>> int(power_law_sizes(1000, 5, 2.0, seed=0).sum())
      1000
    """
    check_real("power_law_sizes(exponent=...)", exponent, above=1.0, host=True)
    check_clients("power_law_sizes", num_examples, num_clients, min_size)
    uniform = Draws("power_law_sizes", seed).uniform(num_clients)
    return _from_logs(-np.log(uniform) / (exponent - 1.0), num_examples, min_size)


def lognormal_sizes(num_examples: int, num_clients: int, sigma: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes int[N] from w = exp(sigma z), z ~ N(0, 1): n_i = min_size + (n - N min_size) w_i / sum_j w_j.

    sigma = 0 gives equal sizes, up to one. FedLab's unbalanced partitions have 0.3.

    Example:
      >>> lognormal_sizes(1000, 5, 0.0, seed=0).tolist()
      [200, 200, 200, 200, 200]
    """
    check_real("lognormal_sizes(sigma=...)", sigma, low=0.0)
    check_clients("lognormal_sizes", num_examples, num_clients, min_size)
    return _from_logs(sigma * Draws("lognormal_sizes", seed).normal(num_clients), num_examples, min_size)


def dirichlet_sizes(num_examples: int, num_clients: int, alpha: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes int[N] in proportion to w ~ Dir(alpha 1_N): n_i = min_size + (n - N min_size) w_i.

    Source: Li et al. 2022 (NIID-Bench), arXiv:2102.02079, quantity skew.

    Example:
      >>> int(dirichlet_sizes(1000, 5, 0.5, seed=0).sum())
      1000
    """
    check_real("dirichlet_sizes(alpha=...)", alpha, above=0.0, host=True)
    check_clients("dirichlet_sizes", num_examples, num_clients, min_size)
    logs = Draws("dirichlet_sizes", seed).log_dirichlet(np.full(num_clients, float(alpha)))
    return _from_logs(logs, num_examples, min_size)


def lognormal_counts(num_clients: int, mean: float, sigma: float, seed: int, least: int = 0) -> np.ndarray:
    """Sizes int[N] that add up to nothing in particular: n_i = least + floor(exp(mean + sigma z_i)), at least 1.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, published code: 50 + LogNormal(4, 2) for its synthetic data,
      5 + LogNormal(4, 1) for FEMNIST.

    Example:
      >>> lognormal_counts(3, 4.0, 0.0, seed=0, least=5).tolist()
      [59, 59, 59]
    """
    check_count("lognormal_counts(num_clients)", num_clients)
    check_real("lognormal_counts(mean=...)", mean, low=-50.0, high=30.0)
    check_real("lognormal_counts(sigma=...)", sigma, low=0.0, high=5.0)
    check_count("lognormal_counts(least=...)", least, low=0)
    drawn = np.exp(mean + sigma * Draws("lognormal_counts", seed).normal(num_clients))
    return np.maximum(least + np.floor(drawn + 1e-9).astype(np.int64), 1)


def _from_logs(logs: np.ndarray, num_examples: int, min_size: int) -> np.ndarray:
    weights = np.exp(logs - logs.max())
    spare = np.array([num_examples - logs.size * min_size])
    return min_size + apportioned(weights[None], spare)[0]
