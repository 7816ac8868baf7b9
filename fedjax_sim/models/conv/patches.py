"""The windows of a convolution as the rows of a matrix (im2col), from slices and concatenations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Windows(NamedTuple):
    """Where the windows of a convolution or a pooling lie; one entry of each field per spatial axis.

    Attributes:
      size: taps of the window.
      strides: steps between windows.
      dilation: steps between the taps of a window.
      pads: (low, high) padding of the input; negative values crop.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        size: Sequence[int],
        strides: Sequence[int],
        dilation: Sequence[int],
        padding: str | Sequence[tuple[int, int]],
    ) -> Windows:
        """The same with ``padding`` in any form that jax takes, for an input of the spatial ``shape``."""
        if isinstance(padding, str):
            extent = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
            padding = lax.padtype_to_pads(shape, extent, strides, padding)
        pads = tuple((int(low), int(high)) for low, high in padding)
        return cls(tuple(size), tuple(strides), tuple(dilation), pads)

    def outputs(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Number of windows along each spatial axis of an input of the spatial ``shape``."""
        counts = []
        for n, k, s, d, (low, high) in zip(shape, *self, strict=True):
            counts.append(max(0, (n + low + high - (k - 1) * d - 1) // s + 1))
        return tuple(counts)

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
            yield lax.slice(
                x,
                (*(0,) * batch, *start, 0),
                (*x.shape[:batch], *stop, x.shape[-1]),
                (*(1,) * batch, *self.strides, 1),
            )


def patches(x: jax.Array, windows: Windows) -> jax.Array:
    """The windows of padded images side by side: [B, *outputs, taps * channels], taps in row-major order.

    Taps of one row are joined first, then the rows: XLA on CPU fuses a short concatenation with what makes its parts.
    The transposed program is a sum of padded slices, which is one fused loop; a gather's would be a scatter.

    Args:
      x: [B, *spatial, channels].
      windows: the windows; its padding must have been applied.
    """
    taps = list(windows.taps(x))
    width = windows.size[-1]
    rows = [_joined(taps[i : i + width]) for i in range(0, len(taps), width)]
    return _joined(rows)


def _joined(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
