"""Which examples are held out for testing."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, check_real
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.flat import offsets_of, sorted_within
from fedjax_sim.datasets.validate import checked_owner


def held_out(owner: Any, fraction: float, seed: int) -> np.ndarray:
    """Draws part of each client's examples for testing.

    A client with n_i examples trains on max(1, floor((1 - fraction) n_i)) of them, drawn uniformly, and is tested on
    the others.

    Args:
      owner: [n], the client of each example: integers or strings.
      fraction: share to hold out, in [0, 1).
      seed: of the draw.

    Returns:
      bool[n], True where an example is held out.

    Raises:
      ValueError: a fraction outside [0, 1), a negative seed.

    Example:
      >>> held_out(["a", "b", "a", "a", "b"], 0.5, seed=0)
      array([ True, False,  True, False,  True])
    """
    check_real("test_fraction", fraction, low=0.0, below=1.0, host=True)
    check_count("seed", seed, low=0)
    _, number, sizes = np.unique(checked_owner(owner, "owner"), return_inverse=True, return_counts=True)
    return held_out_of(number, sizes, fraction, seed)


def held_out_of(owner: np.ndarray, sizes: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """:func:`held_out` for clients numbered 0 .. N-1 that have ``sizes`` examples."""
    if fraction == 0.0 or sizes.size == 0:
        return np.zeros(owner.size, bool)
    kept = np.maximum(1, np.floor((1.0 - fraction) * sizes + 1e-9).astype(np.int64))
    draw = Draws("held_out", seed).uniform(owner.size)
    order = sorted_within(owner, draw)  # client after client, each in random order
    mask = np.zeros(owner.size, bool)
    mask[order] = np.arange(owner.size) - offsets_of(sizes)[owner[order]] >= kept[owner[order]]
    return mask
