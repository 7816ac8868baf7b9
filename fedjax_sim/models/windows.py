"""The windows of convolutions and poolings, by slices; pooling whose derivative is fast on a CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.values import check_count

Ints = Sequence[int]

_MOST_TAPS = 64  # slices in a program

# The values that pad are NumPy's: jax recognises a maximum or a sum, and its derivative, by a constant only.


class Windows(NamedTuple):
    """Where the windows of a convolution or a pooling lie; one entry of each field per spatial axis."""

    size: tuple[int, ...]  # taps of the window
    strides: tuple[int, ...]  # steps between windows
    dilation: tuple[int, ...]  # steps between the taps of a window
    pads: tuple[tuple[int, int], ...]  # (low, high) padding of the input; negative values crop

    @classmethod
    def of(
        cls, shape: Ints, size: Ints, strides: Ints, dilation: Ints, padding: str | Sequence[tuple[int, int]]
    ) -> Windows:
        """The same with ``padding`` in any form that jax takes, for an input of the spatial ``shape``."""
        if isinstance(padding, str):
            extent = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
            padding = lax.padtype_to_pads(shape, extent, strides, padding)
        pads = tuple((int(low), int(high)) for low, high in padding)
        return cls(tuple(size), tuple(strides), tuple(dilation), pads)

    def outputs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Number of windows along each spatial axis of an input of the spatial ``shape``."""
        axes = zip(shape, *self, strict=True)
        return tuple(max(0, (n + low + high - (k - 1) * d - 1) // s + 1) for n, k, s, d, (low, high) in axes)

    def padded(self, x: jax.Array, value: jax.typing.ArrayLike) -> jax.Array:
        """``x`` [*batch, *spatial, channels] with its padding."""
        if all(p == (0, 0) for p in self.pads):
            return x
        ends = [(0, 0, 0)] * (x.ndim - 1 - len(self.pads))
        return lax.pad(x, value, [*ends, *((low, high, 0) for low, high in self.pads), (0, 0, 0)])

    def taps(self, x: jax.Array) -> Iterator[jax.Array]:
        """For each tap, in row-major order, what it sees: [*batch, *outputs, channels]; ``x`` is padded already."""
        spatial, batch = len(self.size), x.ndim - 1 - len(self.size)
        without = self._replace(pads=((0, 0),) * spatial)
        counts = without.outputs(x.shape[batch:-1])
        for tap in itertools.product(*map(range, self.size)):
            start = [t * d for t, d in zip(tap, self.dilation, strict=True)]
            stop = [a + (n - 1) * s + 1 for a, n, s in zip(start, counts, self.strides, strict=True)]
            first, last = (*(0,) * batch, *start, 0), (*x.shape[:batch], *stop, x.shape[-1])
            yield lax.slice(x, first, last, (*(1,) * batch, *self.strides, 1))


def patches(x: jax.Array, windows: Windows) -> jax.Array:
    """The windows of padded images side by side: [B, *outputs, taps * channels], taps in row-major order.

    Taps of one row are joined first, then the rows: XLA on CPU fuses a short concatenation with what makes its parts.
    The transposed program is a sum of padded slices, which is one fused loop; a gather's would be a scatter.

    ``x`` [B, *spatial, channels] is padded already.
    """
    taps = list(windows.taps(x))
    width = windows.size[-1]
    rows = [_joined(taps[i : i + width]) for i in range(0, len(taps), width)]
    return _joined(rows)


def _joined(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


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

    Windows that tile the input are a reshape and a mean, whose derivative is a broadcast. Arguments, result and errors
    are those of :func:`max_pool`, of floating-point ``x``; padding is 0, and counts in the mean or does not.
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
