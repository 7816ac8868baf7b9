"""Convolutions and pooling that stay fast under a client axis and inside loops.

:class:`Conv` is ``flax.linen.Conv`` with :func:`conv_general_dilated` inside, and :func:`max_pool` and :func:`avg_pool`
compute what flax's functions of these names do. See docs/convolutions.md for what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.models.windows import Windows, avg_pool, max_pool, patches

__all__ = ["Conv", "avg_pool", "conv_general_dilated", "matmul_conv", "max_pool"]

_MOST_TAPS = 128  # slices in a program: beyond, compiling costs more than the product saves
# Elements of the patches of one call that are kept for the derivative (64 MB in float32), and what a piece of a larger
# call has: large enough for a full-speed product, small enough to stay in the last caches.
_MOST_KEPT = 1 << 24
_PIECE = 1 << 22


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *args: Any,
    **options: Any,
) -> jax.Array:
    """``jax.lax.conv_general_dilated`` by the algorithm that suits the backend, chosen when it is traced.

    On a CPU :func:`matmul_conv`; on GPU and TPU ``jax.lax``, whose libraries are good at single convolutions. (Under a
    ``vmap`` over kernels ``jax.lax`` becomes a grouped convolution there: try :func:`matmul_conv`.)

    Arguments and errors are those of ``jax.lax.conv_general_dilated``, and the result up to round-off.
    """
    function: Any = matmul_conv if jax.default_backend() == "cpu" else lax.conv_general_dilated
    return function(lhs, rhs, window_strides, padding, *args, **options)  # type: ignore[no-any-return]


def matmul_conv(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    **options: Any,
) -> jax.Array:
    """``jax.lax.conv_general_dilated`` as one matrix product of the input's windows and the kernel (im2col).

    A plain composition of slices, concatenations and products: ``vmap`` over kernels makes it a batched product, and
    derivatives of any order, forward and reverse, are of the same kind. Depthwise kernels become a weighted sum of
    shifted inputs, 1 x 1 kernels need no windows, groups are a batched product.

    ``jax.lax`` computes what this does not: layouts other than channels last (``NHWC``, ``HWIO``), a dilated input
    (transposed convolutions), batch groups, kernels of more than 128 taps, empty results.

    Arguments, result and errors are those of :func:`conv_general_dilated`; ``precision`` and
    ``preferred_element_type`` are passed to the product.
    """
    product = {"precision": precision, "preferred_element_type": preferred_element_type}
    how: dict[str, Any] = product | options

    def by_lax(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, **how
        )

    shape = jax.eval_shape(by_lax, lhs, rhs).shape  # raises jax's own errors
    spatial = len(window_strides)
    ones = (1,) * spatial
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    last = (0, spatial + 1, *range(1, spatial + 1))
    ours = (
        numbers == lax.ConvDimensionNumbers(last, (spatial + 1, spatial, *range(spatial)), last)
        and tuple(lhs_dilation or ones) == ones
        and all(options[name] in (None, 1) for name in options)
        and spatial > 0
        and math.prod(rhs.shape[:-2]) <= _MOST_TAPS
        and math.prod(shape) > 0
    )
    if not ours:
        return by_lax(lhs, rhs)
    windows = Windows.of(lhs.shape[1:-1], rhs.shape[:-2], window_strides, rhs_dilation or ones, padding)
    return _convolve(lhs, rhs, windows, feature_group_count, product)


class Conv(nn.Conv):
    """``flax.linen.Conv`` that computes with :func:`conv_general_dilated`.

    Constructor, parameters, initial values and results (up to round-off) are flax's. Everything else goes through
    flax's own hook, the attribute ``conv_general_dilated``: give it another function of that signature to choose the
    algorithm.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedjax_sim.models.conv import Conv, matmul_conv
      >>> layer = Conv(features=4, kernel_size=(3, 3), padding="VALID")
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 8, 8, 2)))
      >>> layer.apply(variables, jnp.ones((5, 8, 8, 2))).shape
      (5, 6, 6, 4)
      >>> always_lax = Conv(features=4, kernel_size=(3, 3), conv_general_dilated=jax.lax.conv_general_dilated)
      >>> always_matmul = Conv(features=4, kernel_size=(3, 3), conv_general_dilated=matmul_conv)

    Attributes:
      conv_general_dilated: the convolution; by default the one that fits the backend.
    """

    conv_general_dilated: Any = conv_general_dilated


def _convolve(x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, product: dict[str, Any]) -> jax.Array:
    """y[b, o, f] = sum over taps t and channels c of x[b, o * stride + t * dilation - low, c] kernel[t, c, f].

    x [B, *spatial, C], kernel [*taps, C / groups, F]; group g sees channels and features g of the ``groups`` equal
    parts. Where the patches of the whole call would be larger than 64 MB (in float32), it is computed in pieces of the
    batch, whose patches are made again for the derivative: memory then does not grow with the batch (evaluation of
    thousands of examples, deep networks).
    """
    depthwise = groups > 1 and kernel.shape[-2] == 1

    def run(x: jax.Array, kernel: jax.Array) -> jax.Array:
        if depthwise:
            return _depthwise(x, kernel, windows, groups, product["preferred_element_type"] or x.dtype)
        return _product(patches(windows.padded(x, np.zeros((), x.dtype)), windows), kernel, groups, **product)

    batch = x.shape[0]
    copies = 1 if depthwise else math.prod(windows.size)
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


def _product(columns: jax.Array, kernel: jax.Array, groups: int, **options: Any) -> jax.Array:
    """One matrix product, or one for each group."""
    *outer, depth = columns.shape
    *_, channels, features = kernel.shape
    if groups == 1:  # a 2-D product: XLA on CPU takes its fast path for nothing else
        y = lax.dot_general(columns.reshape(-1, depth), kernel.reshape(depth, -1), (((1,), (0,)), ((), ())), **options)
        return y.reshape(*outer, -1)
    y = lax.dot_general(
        columns.reshape(math.prod(outer), -1, groups, channels),
        kernel.reshape(-1, channels, groups, features // groups),
        (((1, 3), (0, 1)), ((2,), (2,))),
        **options,
    )
    return jnp.moveaxis(y, 0, 1).reshape(*outer, features)


def _depthwise(x: jax.Array, kernel: jax.Array, windows: Windows, groups: int, result: Any) -> jax.Array:
    """Each channel by itself: as many products as there are taps and nothing to contract, so a fused sum."""
    # A product accumulates half precision in float32, and so does this sum.
    wide = jnp.float32 if jnp.issubdtype(result, jnp.floating) and jnp.finfo(result).bits < 32 else result
    weights = kernel.reshape(math.prod(kernel.shape[:-2]), groups, -1).astype(wide)
    total: Any = None
    for tap, weight in zip(windows.taps(windows.padded(x, np.zeros((), x.dtype))), weights, strict=True):
        term = tap.astype(wide)[..., None] * weight.reshape(*(1,) * (tap.ndim - 1), *weight.shape)
        total = term if total is None else total + term
    return total.reshape(*total.shape[:-2], -1).astype(result)  # type: ignore[no-any-return]
