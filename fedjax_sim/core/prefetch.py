"""Work ahead: the next items are made in a thread while the current one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp

from fedjax_sim.core.devices import double_precision

T = TypeVar("T")

_AHEAD = 2  # one being used by the device, one ready, one being made


def prefetched(make: Callable[[int], T], count: int) -> Iterator[T]:
    """Yields ``make(0)``, ..., ``make(count - 1)``, each made in a background thread before it is asked for.

    An error in ``make`` is raised where its item is asked for. What was begun is finished or dropped when the iterator
    is closed. ``make`` sees the caller's precision and default device, which contexts set for one thread alone: float64
    examples would arrive as float32 without them.

    Args:
      make: makes one item; called in order, never twice at a time.
      count: number of items.
    """
    double, device = jnp.result_type(float) == jnp.float64, jax.config.jax_default_device  # type: ignore[attr-defined]

    def made(item: int) -> T:
        with double_precision(double), jax.default_device(device):
            return make(item)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fedjax_sim-prefetch") as thread:
        waiting: deque[Future[T]] = deque()
        try:
            for item in range(count):
                while len(waiting) <= _AHEAD and item + len(waiting) < count:
                    waiting.append(thread.submit(made, item + len(waiting)))
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
