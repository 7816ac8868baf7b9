"""A drop-in for ``jax.lax.conv_general_dilated``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from fedjax_sim.models.conv.patches import Windows
from fedjax_sim.models.conv.products import convolve

_MOST_TAPS = 128  # slices in a program: beyond, compiling costs more than the product saves


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **options: Any,
) -> jax.Array:
    """``jax.lax.conv_general_dilated`` by the algorithm that suits the backend, chosen when it is traced.

    On a CPU :func:`matmul_conv`; on GPU and TPU ``jax.lax``, whose libraries are good at single convolutions. (Under a
    ``vmap`` over kernels ``jax.lax`` becomes a grouped convolution there: try :func:`matmul_conv`.)

    Args:
      lhs: input; [B, *spatial, C] for the fast path.
      rhs: kernel; [*taps, C / feature_group_count, F] for the fast path.
      window_strides: a stride per spatial axis.
      padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"`` or (low, high) per spatial axis.
      lhs_dilation: as in ``jax.lax``.
      rhs_dilation: distance of a kernel's taps, per spatial axis.
      dimension_numbers: as in ``jax.lax``.
      feature_group_count: as in ``jax.lax``.
      **options: the further arguments of ``jax.lax.conv_general_dilated`` by name.

    Returns:
      What ``jax.lax.conv_general_dilated`` returns, up to round-off.

    Raises:
      TypeError: for dtypes that differ, as ``jax.lax``.
      ValueError: for shapes that do not fit, as ``jax.lax``.
    """
    function: Any = matmul_conv if jax.default_backend() == "cpu" else lax.conv_general_dilated
    return function(  # type: ignore[no-any-return]
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        **options,
    )


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
    every: dict[str, Any] = dict(
        options,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )

    def by_lax(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **every)

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
    return convolve(lhs, rhs, windows, feature_group_count, precision, preferred_element_type)
