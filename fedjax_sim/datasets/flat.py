"""Clients end to end in flat arrays: client i holds the rows ``offsets[i] : offsets[i] + sizes[i]``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ALIGNED = 64  # bytes


@dataclasses.dataclass(frozen=True)
class Flat:
    """Host arrays, client after client.

    Attributes:
      examples: pytree of arrays.
      sizes: rows of each client.
      rows: the row of the arrays that holds the j-th example, client after client; None where that is j.
    """

    examples: Any
    sizes: np.ndarray
    rows: np.ndarray | None = None

    def in_order(self, leaf: np.ndarray, which: slice = slice(None)) -> np.ndarray:
        """Rows of one of the arrays, client after client."""
        return leaf[which] if self.rows is None else leaf[self.rows[which]]

    def owner_of(self, row: int) -> int:
        """The position of the client that holds ``row``."""
        return int(np.searchsorted(np.cumsum(self.sizes), row, side="right"))


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """The first row of each client."""
    return np.cumsum(sizes) - sizes


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """start_0, start_0 + 1, ..., start_0 + size_0 - 1, start_1, ... as one array."""
    return np.repeat(starts - offsets_of(sizes), sizes) + np.arange(int(sizes.sum()))


def sorted_within(owner: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """``numpy.lexsort((draw, owner))`` for owners >= 0 and draws in [0, 1), much faster for millions of rows."""
    for_draw = np.uint64(64 - int(owner.max(initial=0)).bit_length())
    keys = np.ldexp(draw, 53).astype(np.uint64)  # 53 bits hold a draw of Generator.random exactly
    keys = keys >> (np.uint64(53) - for_draw) if for_draw < 53 else keys
    keys |= owner.astype(np.uint64) << for_draw
    order: np.ndarray = np.argsort(keys)
    ordered = keys[order]
    if np.any(ordered[1:] == ordered[:-1]):  # two draws that agree in all bits of their keys: once in a blue moon
        order = np.lexsort((draw, owner))
    return order


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin where a CPU's device can use the memory as it is: it would copy what begins elsewhere."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    held = np.zeros(size + _ALIGNED, np.uint8)
    first = -held.ctypes.data % _ALIGNED
    return held[first : first + size].view(dtype).reshape(shape)


def int32(values: np.ndarray) -> jax.Array:
    """A device array of int32; the values must fit."""
    return jax.device_put(values.astype(np.int32))  # not jnp.asarray, which compiles a copy


def default_float() -> Any:
    """float32, or float64 where x64 is enabled."""
    return jnp.result_type(float)
