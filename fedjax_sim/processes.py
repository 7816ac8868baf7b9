"""Several processes that compute one run together: who speaks and writes, and what they must decide alike."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np


def is_first() -> bool:
    """Whether this process is the one that speaks and writes."""
    return jax.process_index() == 0


def all_said(numbers: Sequence[int]) -> np.ndarray:
    """What every process says, int[processes, len(numbers)]; all of them must call this at the same point."""
    if jax.process_count() == 1:
        return np.asarray([numbers], np.int64)
    from jax.experimental import multihost_utils

    gathered: np.ndarray = np.asarray(multihost_utils.process_allgather(np.asarray(numbers, np.int32)))
    return gathered.reshape(jax.process_count(), len(numbers))
