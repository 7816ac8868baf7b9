"""Unequal client sizes, for :func:`fedjax_sim.datasets.partition.sized` and others."""

from __future__ import annotations

import numpy as np

from fedjax_sim.core.values import check_count, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.checks import check_clients
from fedjax_sim.datasets.partition.dealing import apportioned


def power_law_sizes(num_examples: int, num_clients: int, exponent: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes in proportion to power-law variates: P(w > t) = t^(1 - exponent) for t >= 1, density ~ t^-exponent.

    n_i = min_size + (n - N min_size) w_i / sum_j w_j, rounded so that the sum is n.

    Args:
      num_examples: n, what the sizes add up to.
      num_clients: number of clients N.
      exponent: > 1; smaller is more unequal (at 2 and below the mean of w is infinite).
      seed: of the variates.
      min_size: fewest examples of a client.

    Returns:
      int64[N].

    Raises:
      ValueError: an exponent of at most one, or too few examples.

    Example:
      >>> int(power_law_sizes(1000, 5, 2.0, seed=0).sum())
      1000
    """
    check_real("power_law_sizes(exponent=...)", exponent, low=1.0, open_=True, host=True)
    check_clients("power_law_sizes", num_examples, num_clients, min_size)
    uniform = Draws("power_law_sizes", seed).uniform(num_clients)
    return _from_logs(-np.log(uniform) / (exponent - 1.0), num_examples, min_size)


def lognormal_sizes(num_examples: int, num_clients: int, sigma: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes in proportion to w = exp(sigma z), z ~ N(0, 1): n_i = min_size + (n - N min_size) w_i / sum_j w_j.

    Args:
      num_examples: n, what the sizes add up to.
      num_clients: number of clients N.
      sigma: >= 0; 0 gives equal sizes, up to one. FedLab's unbalanced partitions have 0.3.
      seed: of the variates.
      min_size: fewest examples of a client.

    Returns:
      int64[N].

    Raises:
      ValueError: a negative sigma, or too few examples.

    Example:
      >>> lognormal_sizes(1000, 5, 0.0, seed=0).tolist()
      [200, 200, 200, 200, 200]
    """
    check_real("lognormal_sizes(sigma=...)", sigma, low=0.0)
    check_clients("lognormal_sizes", num_examples, num_clients, min_size)
    return _from_logs(sigma * Draws("lognormal_sizes", seed).normal(num_clients), num_examples, min_size)


def dirichlet_sizes(num_examples: int, num_clients: int, alpha: float, seed: int, min_size: int = 1) -> np.ndarray:
    """Sizes in proportion to w ~ Dir(alpha 1_N): n_i = min_size + (n - N min_size) w_i.

    Args:
      num_examples: n, what the sizes add up to.
      num_clients: number of clients N.
      alpha: > 0; smaller is more unequal.
      seed: of the shares.
      min_size: fewest examples of a client.

    Returns:
      int64[N].

    Raises:
      ValueError: alpha not positive, or too few examples.

    Source: Li et al. 2022 (NIID-Bench), arXiv:2102.02079, quantity skew.

    Example:
      >>> int(dirichlet_sizes(1000, 5, 0.5, seed=0).sum())
      1000
    """
    check_real("dirichlet_sizes(alpha=...)", alpha, low=0.0, open_=True, host=True)
    check_clients("dirichlet_sizes", num_examples, num_clients, min_size)
    logs = Draws("dirichlet_sizes", seed).log_dirichlet(np.full(num_clients, float(alpha)))
    return _from_logs(logs, num_examples, min_size)


def lognormal_counts(num_clients: int, mean: float, sigma: float, seed: int, least: int = 0) -> np.ndarray:
    """Sizes that add up to nothing in particular: n_i = least + floor(exp(mean + sigma z_i)), at least 1.

    Args:
      num_clients: number of clients N.
      mean: of the logarithm.
      sigma: standard deviation of the logarithm, >= 0.
      seed: of the variates.
      least: added to each.

    Returns:
      int64[N].

    Raises:
      ValueError: a negative sigma or ``least``.

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
    sizes: np.ndarray = min_size + apportioned(weights[None], spare)[0]
    return sizes
