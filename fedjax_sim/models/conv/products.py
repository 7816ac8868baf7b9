"""Convolutions as products: one matrix product, one per group, or a weighted sum of taps (depthwise)."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.models.conv.patches import Windows, patches

# Elements of the patches of one call that are kept for the derivative (64 MB in float32), and what a piece of a larger
# call has: large enough for a full-speed product, small enough to stay in the last caches.
_MOST_KEPT = 1 << 24
_PIECE = 1 << 22


def convolve(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, precision: Any, preferred: Any
) -> jax.Array:
    """y[b, o, f] = sum over taps t and channels c of x[b, o * stride + t * dilation - low, c] kernel[t, c, f].

    Where the patches of the whole call would be larger than 64 MB (in float32), it is computed in pieces of the batch,
    whose patches are made again for the derivative: memory then does not grow with the batch (evaluation of thousands
    of examples, deep networks).

    Args:
      x: [B, *spatial, C].
      kernel: [*taps, C / groups, F].
      windows: the windows.
      groups: number of groups of channels; group g sees channels and features g of the ``groups`` equal parts.
      precision: of the products.
      preferred: dtype of the result, or None for that of ``x``.
    """
    product = _depthwise if groups > 1 and kernel.shape[-2] == 1 else _grouped if groups > 1 else _dense
    run = functools.partial(product, windows=windows, groups=groups, precision=precision, preferred=preferred)
    batch = x.shape[0]
    copies = 1 if product is _depthwise or math.prod(windows.size) == 1 else math.prod(windows.size)
    per_example = math.prod(windows.outputs(x.shape[1:-1])) * copies * x.shape[-1]
    if copies == 1 or batch * per_example <= _MOST_KEPT:
        return run(x, kernel)
    most = max(1, _PIECE // per_example)
    rows = max(rows for rows in range(1, most + 1) if batch % rows == 0)  # no rest: joining it would copy the result
    if 2 * rows < most:
        rows = -(-batch // -(-batch // most))
    whole = batch // rows * rows
    again = jax.checkpoint(run, prevent_cse=False)
    pieces = lax.map(lambda part: again(part, kernel), x[:whole].reshape(-1, rows, *x.shape[1:]))
    done = pieces.reshape(whole, *pieces.shape[2:])
    return done if whole == batch else jnp.concatenate([done, jax.checkpoint(run)(x[whole:], kernel)])


def _dense(x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, precision: Any, preferred: Any) -> jax.Array:
    columns = patches(windows.padded(x, np.zeros((), x.dtype)), windows)
    *outer, depth = columns.shape
    y = lax.dot_general(
        columns.reshape(-1, depth),  # a 2-D product: XLA on CPU takes its fast path for nothing else
        kernel.reshape(depth, -1),
        (((1,), (0,)), ((), ())),
        precision=precision,
        preferred_element_type=preferred,
    )
    return y.reshape(*outer, -1)


def _grouped(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, precision: Any, preferred: Any
) -> jax.Array:
    columns = patches(windows.padded(x, np.zeros((), x.dtype)), windows)
    *outer, _ = columns.shape
    *_, channels, features = kernel.shape
    y = lax.dot_general(
        columns.reshape(math.prod(outer), -1, groups, channels),
        kernel.reshape(-1, channels, groups, features // groups),
        (((1, 3), (0, 1)), ((2,), (2,))),
        precision=precision,
        preferred_element_type=preferred,
    )
    return jnp.moveaxis(y, 0, 1).reshape(*outer, features)


def _depthwise(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, precision: Any, preferred: Any
) -> jax.Array:
    """Each channel by itself: as many products as there are taps and nothing to contract, so a fused sum."""
    result = x.dtype if preferred is None else preferred
    # A product accumulates half precision in float32, and so does this sum.
    wide = jnp.float32 if jnp.issubdtype(result, jnp.floating) and jnp.finfo(result).bits < 32 else result
    weights = kernel.reshape(math.prod(windows.size), groups, -1).astype(wide)
    total: Any = None
    for tap, weight in zip(windows.taps(windows.padded(x, np.zeros((), x.dtype))), weights, strict=True):
        term = tap.astype(wide)[..., None] * weight.reshape(*(1,) * (tap.ndim - 1), *weight.shape)
        total = term if total is None else total + term
    return total.reshape(*total.shape[:-2], -1).astype(result)  # type: ignore[no-any-return]
