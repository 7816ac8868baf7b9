"""A dense layer whose derivative in the kernel is fast where the kernel is small, and models of such layers."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.fields import count
from fedjax_sim.models.base import Model, wide, widths

# Entries of the kernel up to which the other form of its derivative wins (measured for 1 to 784 inputs, 1 to 200
# outputs, batches of 10 to 64: 0.5 to 0.9 times the time below, up to twice above).
_SMALL = 1 << 13
_MATRICES = (((1,), (0,)), ((), ()))


def dot_general(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, *args: Any, **options: Any) -> jax.Array:
    """``jax.lax.dot_general``; for ``x @ W`` with a small W on a CPU, with a faster derivative in W.

    The derivative of y = x W in W is xᵀ dy. XLA on a CPU has no fast path for a product that contracts the first axes
    of both factors. Here it is computed as (dyᵀ x)ᵀ, whose product is an ordinary one and whose transpositions are
    those of small arrays, the last of them part of the optimiser's own kernel. Results are those of ``jax.lax``,
    derivatives of any order, forward and reverse, up to round-off.

    Taken for float32 matrices x [B, in] and W [in, out] of up to 8,192 entries when traced for a CPU; anything else is
    ``jax.lax``'s.
    """
    plain = not args and all(option is None for option in options.values())
    small = (
        jax.default_backend() == "cpu"
        and plain
        and dimension_numbers == _MATRICES
        and lhs.ndim == rhs.ndim == 2
        and lhs.dtype == rhs.dtype == jnp.float32
        and rhs.size <= _SMALL
    )
    if small:
        return _product(lhs, rhs)
    return lax.dot_general(lhs, rhs, dimension_numbers, *args, **options)


@jax.custom_jvp
def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    """x w."""
    return lax.dot_general(x, w, _MATRICES)


# The tangent x dw is written as (dwᵀ xᵀ)ᵀ, contracting the last axes, because what reverse mode makes of that is the
# product dyᵀ x that is wanted. The barriers keep XLA from folding the transpositions into the product again. It is a
# jvp and no vjp, so that forward mode and higher derivatives still work.
def _product_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (x, w), (dx, dw) = primals, tangents
    parts = []
    if not isinstance(dx, SymbolicZero):
        parts.append(_product(dx, w))
    if not isinstance(dw, SymbolicZero):
        tangent = lax.dot_general(_stored(dw.T), x, (((1,), (1,)), ((), ())))
        parts.append(_stored(tangent).T)
    return _product(x, w), sum(parts[1:], start=parts[0])


_product.defjvp(_product_jvp, symbolic_zeros=True)


def _stored(matrix: jax.Array) -> jax.Array:
    """The same matrix, for XLA an array in memory with rows one after another.

    Flat inside: the barrier alone leaves the order of the axes open, and of the batched products under a ``vmap`` jax
    0.10.2 compiles one order only.
    """
    flat: jax.Array = lax.optimization_barrier(matrix.reshape(-1))
    return flat.reshape(matrix.shape)


class Dense(nn.Dense):
    """``flax.linen.Dense`` that multiplies with :func:`dot_general`.

    Constructor, parameters and results are flax's, derivatives up to round-off. A step of logistic regression
    (20 x 60 -> 10) takes about two thirds of the time on a CPU.

    Attributes:
      dot_general: the product; flax's own hook.
    """

    dot_general: Any = dot_general


class LogisticRegression(Model):
    """Multinomial logistic regression: logits = x W + b, both zero at the start."""

    num_classes: int = count()
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1).astype(self.param_dtype)
        zeros = nn.initializers.zeros_init()
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=zeros)(x)


class MLP(Model):
    """A multilayer perceptron with ReLU: He-initialised kernels, zero biases; ``hidden`` are its layers' widths."""

    num_classes: int = count()
    hidden: tuple[int, ...] = widths(default=(200, 200))
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1).astype(self.param_dtype)
        for width in self.hidden:
            dense = Dense(width, param_dtype=self.param_dtype, kernel_init=wide(nn.initializers.he_normal()))
            x = nn.relu(dense(x))
        lecun = wide(nn.initializers.lecun_normal())
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=lecun)(x)


register("model.LogisticRegression", LogisticRegression)
register("model.MLP", MLP)
