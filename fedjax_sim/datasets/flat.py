"""Clients end to end in flat arrays: client i holds the rows ``offsets[i] : offsets[i] + sizes[i]``."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

INT32_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Flat:
    """Host arrays end to end, client after client."""

    examples: Any
    sizes: np.ndarray


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """The first row of each client."""
    starts: np.ndarray = np.cumsum(sizes) - sizes
    return starts


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """start_0, start_0 + 1, ..., start_0 + size_0 - 1, start_1, ... as one array."""
    return np.repeat(starts - offsets_of(sizes), sizes) + np.arange(int(sizes.sum()))


def owner_of(part: Flat, row: int) -> int:
    """The position of the client that holds ``row``."""
    return int(np.searchsorted(np.cumsum(part.sizes), row, side="right"))


def int32(values: np.ndarray) -> jax.Array:
    """A device array of int32; the values must fit."""
    return jnp.asarray(values.astype(np.int32))


def default_float() -> Any:
    """float32, or float64 where x64 is enabled."""
    return jnp.result_type(float)
