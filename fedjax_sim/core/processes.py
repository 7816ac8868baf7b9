"""Several processes that compute one run together: who speaks and writes, and what they must decide alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process is the one that speaks and writes."""
    return jax.process_index() == 0


def all_said(numbers: Sequence[int]) -> np.ndarray:
    """What every process says, int[processes, len(numbers)]; all of them must call this at the same point."""
    own = np.asarray([numbers], np.int32)
    if jax.process_count() == 1:
        return own
    # One device a process: they may have different numbers of them.
    one_each = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.asarray([one_each[index] for index in sorted(one_each)]), ("processes",))
    shape = (jax.process_count(), len(numbers))
    said = jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec("processes")), lambda _: own)
    heard = jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))(said)
    return np.asarray(heard.addressable_data(0))


def together(action: Callable[[], T]) -> T:
    """Does something in every process, and fails in all where it failed in one, so that none waits for the others.

    Raises:
      RuntimeError: it failed in another process, which says why.
      Exception: what it raised in this one.
    """
    error = None
    try:
        done = action()
    except Exception as raised:
        error = raised
    failed = np.flatnonzero(all_said([error is not None])[:, 0])
    if error is not None:
        raise error
    if failed.size:
        raise RuntimeError(f"process {failed[0]} of this run has failed, and says why")
    return done
