"""Convolutions and pooling that stay fast under a client axis and inside loops.

:class:`Conv` is ``flax.linen.Conv`` with :func:`conv_general_dilated` inside, :func:`max_pool` computes what flax's
does. See docs/convolutions.md for what was measured.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["Conv", "conv_general_dilated", "matmul_conv", "max_pool", "side_by_side"]

_MOST_TAPS = 128  # slices in a program: beyond, compiling costs more than the product saves
_MOST_POOLED = 64  # likewise of a pooling
# Elements of the patches of one call that are kept for the derivative (64 MB in float32), and what a piece of a larger
# call has: large enough for a full-speed product, small enough to stay in the last caches.
_MOST_KEPT = 1 << 24
_PIECE = 1 << 22
# The values that pad are NumPy's: jax recognises a maximum or a sum, and its derivative, by a constant only.


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *args: Any,
    **options: Any,
) -> jax.Array:
    """``jax.lax.conv_general_dilated``, up to round-off, by the algorithm that suits the backend when it is traced.

    On a CPU, and on a GPU within :func:`side_by_side`, :func:`matmul_conv`; else ``jax.lax``: on a GPU its library is
    good at single convolutions, and a TPU's compiler at those in groups, while windows waste the memory of a TPU, which
    pads rows to 128 numbers.
    """
    products = jax.default_backend() == "cpu" or (_SIDE_BY_SIDE.get() and jax.default_backend() != "tpu")
    function: Any = matmul_conv if products else lax.conv_general_dilated
    return function(lhs, rhs, window_strides, padding, *args, **options)


_SIDE_BY_SIDE = contextvars.ContextVar("side_by_side", default=False)


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Within it :func:`conv_general_dilated` expects a ``vmap`` over kernels: models of several clients.

    A convolution whose kernels have a batch axis is a grouped one to ``jax.lax``, which is slow on GPUs, forward and
    still more backward; products become one batched product. On a TPU it stays the grouped one.
    """
    token = _SIDE_BY_SIDE.set(True)
    try:
        yield
    finally:
        _SIDE_BY_SIDE.reset(token)


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
    (transposed convolutions), batch groups, kernels of more than 128 taps, empty results. Arguments, result and errors
    are its own.
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

    Constructor, parameters, initial values and results (up to round-off) are flax's.

    Attributes:
      conv_general_dilated: the convolution, flax's own hook; by default the one that fits the backend. Give
        ``jax.lax.conv_general_dilated`` or :func:`matmul_conv` to choose the algorithm.
    """

    conv_general_dilated: Any = conv_general_dilated

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """The convolution, bias included."""
        made: jax.Array = super().__call__(inputs)
        # XLA on a GPU sums the bias's derivative in one kernel with what makes it, of few blocks: both at half speed.
        return lax.optimization_barrier(made) if _SIDE_BY_SIDE.get() and jax.default_backend() == "gpu" else made


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
    return total.reshape(*total.shape[:-2], -1).astype(result)


def max_pool(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """y[b, o, c] = max over taps t of x[b, o * stride + t - low, c]: ``flax.linen.max_pool``, derivative included.

    Among equal largest values of a window the first in row-major order receives the whole derivative, as in
    ``jax.lax.reduce_window`` and PyTorch. NaN wins, as in both. Computed as a chain of selections between strided
    slices: the derivative of ``jax.lax.reduce_window`` is a select-and-scatter, slow on a CPU. A TPU's compiler expects
    fewer cycles of it, so it is what is taken there.

    Args:
      x: [*batch, *spatial, channels]; real.
      window: taps per spatial axis.
      strides: per spatial axis; **1 by default, as in flax**: give ``strides=window`` to halve an image.
      padding: ``"VALID"``, ``"SAME"``, ``"SAME_LOWER"`` or (low, high) per spatial axis, filled with the least value.

    Returns:
      [*batch, *outputs, channels], dtype of ``x``.

    Raises:
      ValueError: for a window or strides that are not positive or do not fit the input.
    """
    window, strides = tuple(window), (1,) * len(window) if strides is None else tuple(strides)
    padded = len(window) if isinstance(padding, str) else len(padding)
    if not (len(strides) == padded == len(window) < x.ndim and min(*window, *strides) >= 1):
        raise ValueError(
            f"max_pool(window={window}, strides={strides}, padding={padding!r}) of an input {x.shape}: give taps and a "
            "stride of at least 1, and (low, high), for each of its spatial axes; channels are last"
        )
    shape = x.shape[-1 - len(window) : -1]
    windows = Windows.of(shape, window, strides, (1,) * len(window), padding)
    if 0 in windows.outputs(shape):
        raise ValueError(f"max_pool(window={window}): no window fits into {shape} with padding {padding!r}")
    real = jnp.issubdtype(x.dtype, jnp.floating)
    least = np.asarray(-np.inf if real else np.iinfo(x.dtype).min, x.dtype)
    if math.prod(windows.size) > _MOST_POOLED or jax.default_backend() == "tpu":
        ones = (1,) * (x.ndim - 1 - len(windows.size))
        pads = (*((0, 0) for _ in ones), *windows.pads, (0, 0))
        size, steps = (*ones, *windows.size, 1), (*ones, *windows.strides, 1)
        return lax.reduce_window(x, least, lax.max, size, steps, pads)
    first, *others = windows.taps(windows.padded(x, least))
    for other in others:
        first = jnp.where((first < other) | jnp.isnan(other), other, first)
    return first


class Windows(NamedTuple):
    """Where the windows of a convolution or a pooling lie; one entry of each field per spatial axis."""

    size: tuple[int, ...]  # taps of the window
    strides: tuple[int, ...]  # steps between windows
    dilation: tuple[int, ...]  # steps between the taps of a window
    pads: tuple[tuple[int, int], ...]  # (low, high) padding of the input; negative values crop

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
    The transposed program is a sum of padded slices, one fused loop; a gather's would be a scatter. ``x`` is padded.
    """
    taps, width = list(windows.taps(x)), windows.size[-1]
    rows = [jnp.concatenate(taps[i : i + width], axis=-1) for i in range(0, len(taps), width)]
    return jnp.concatenate(rows, axis=-1)
