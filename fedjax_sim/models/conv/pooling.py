"""Pooling whose derivative is fast on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.values import check_count
from fedjax_sim.models.conv.patches import Windows

_MOST_TAPS = 64  # slices in a program

# The values that pad are NumPy's: jax recognises a maximum or a sum, and its derivative, by a constant only.


def max_pool(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """y[b, o, c] = max over taps t of x[b, o * stride + t - low, c]: ``flax.linen.max_pool``, derivative included.

    Among equal largest values of a window the first in row-major order receives the whole derivative, as in
    ``jax.lax.reduce_window`` and PyTorch. NaN wins, as in both.

    Computed as a chain of selections between strided slices: the derivative of ``jax.lax.reduce_window`` is a
    select-and-scatter, which is slow on a CPU.

    Args:
      x: [*batch, *spatial, channels]; real.
      window: taps per spatial axis.
      strides: per spatial axis; **1 by default, as in flax**: give ``strides=window`` to halve an image.
      padding: ``"VALID"``, ``"SAME"``, ``"SAME_LOWER"`` or (low, high) per spatial axis, filled with the least value.

    Returns:
      [*batch, *outputs, channels], dtype of ``x``.

    Raises:
      ValueError: for a window or strides that are not positive or do not fit the input.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_sim.models.conv import max_pool
      >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), (2, 2), (2, 2))[0, :, :, 0]
      Array([[ 5.,  7.],
             [13., 15.]], dtype=float32)
    """
    windows = _windows("max_pool", x, window, strides, padding)
    real = jnp.issubdtype(x.dtype, jnp.floating)
    least = np.asarray(-np.inf if real else np.iinfo(x.dtype).min, x.dtype)
    if math.prod(windows.size) > _MOST_TAPS:
        return lax.reduce_window(x, least, lax.max, *_of_every_axis(x, windows))  # type: ignore[no-any-return]
    first, *others = windows.taps(windows.padded(x, least))
    for other in others:
        first = jnp.where((first < other) | jnp.isnan(other), other, first)
    return first


def avg_pool(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """y[b, o, c] = (1 / taps) sum over taps t of x[b, o * stride + t - low, c]: ``flax.linen.avg_pool``.

    Windows that tile the input are a reshape and a mean, whose derivative is a broadcast.

    Args:
      x: [*batch, *spatial, channels]; floating point.
      window: taps per spatial axis.
      strides: per spatial axis; **1 by default, as in flax**.
      padding: ``"VALID"``, ``"SAME"``, ``"SAME_LOWER"`` or (low, high) per spatial axis, filled with 0.
      count_include_pad: whether padding counts in the mean.

    Returns:
      [*batch, *outputs, channels], dtype of ``x``.

    Raises:
      ValueError: for a window or strides that are not positive or do not fit the input.
    """
    windows = _windows("avg_pool", x, window, strides, padding)
    spatial = x.shape[-1 - len(windows.size) : -1]
    zero = np.zeros((), x.dtype)
    unpadded = all(pad == (0, 0) for pad in windows.pads)
    taps = math.prod(windows.size)
    if unpadded and windows.strides == windows.size:
        counts = windows.outputs(spatial)
        batch = x.shape[: x.ndim - 1 - len(spatial)]
        used = [slice(0, n * k) for n, k in zip(counts, windows.size, strict=True)]
        split = [size for pair in zip(counts, windows.size, strict=True) for size in pair]
        tiles = x[(..., *used, slice(None))].reshape(*batch, *split, x.shape[-1])
        axes = tuple(range(len(batch) + 1, len(batch) + 2 * len(spatial), 2))
        return jnp.sum(tiles, axes) / jnp.asarray(taps, x.dtype)
    geometry = _of_every_axis(x, windows)
    total: jax.Array = lax.reduce_window(x, zero, lax.add, *geometry)
    if count_include_pad or unpadded:
        return total / jnp.asarray(taps, x.dtype)
    present: jax.Array = lax.reduce_window(jnp.ones(x.shape, x.dtype), zero, lax.add, *geometry)
    return total / present


def _windows(name: str, x: jax.Array, window: Any, strides: Any, padding: Any) -> Windows:
    window = tuple(window)
    strides = (1,) * len(window) if strides is None else tuple(strides)
    if x.ndim < len(window) + 1:
        raise ValueError(
            f"{name}(window={window}): the input {x.shape} needs {len(window)} spatial axes and channels last"
        )
    if len(strides) != len(window):
        raise ValueError(f"{name}(window={window}, strides={strides}): give a stride for each axis of the window")
    for what, values in (("window", window), ("strides", strides)):
        for value in values:
            check_count(f"{name}({what}=...)", value)
    if not isinstance(padding, str) and len(padding) != len(window):
        raise ValueError(f"{name}(padding={padding!r}): give (low, high) for each of the {len(window)} axes")
    shape = x.shape[-1 - len(window) : -1]
    windows = Windows.of(shape, window, strides, (1,) * len(window), padding)
    if 0 in windows.outputs(shape):
        raise ValueError(f"{name}(window={window}): no window fits into {shape} with padding {padding!r}")
    return windows


def _of_every_axis(x: jax.Array, windows: Windows) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Window, strides and padding of all axes, as ``jax.lax.reduce_window`` takes them."""
    outer = x.ndim - 1 - len(windows.size)
    ones = (1,) * outer
    return (*ones, *windows.size, 1), (*ones, *windows.strides, 1), (*((0, 0),) * outer, *windows.pads, (0, 0))
