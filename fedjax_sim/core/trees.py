"""Arithmetic on pytrees of parameters, keeping each leaf's dtype whatever the scalars are.

optax.tree has the same operations; these differ in one thing: a scalar (a weight, a learning rate) is cast to the
leaf it meets, so a float32 hyper-parameter works with bfloat16 or float64 parameters under strict promotion.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def add(a: Any, b: Any) -> Any:
    """a + b."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Any, b: Any) -> Any:
    """a - b."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(scalar: Any, tree: Any) -> Any:
    """scalar * tree."""
    return jax.tree.map(lambda leaf: _times(scalar, leaf), tree)


def add_scaled(a: Any, scalar: Any, b: Any) -> Any:
    """a + scalar * b."""
    return jax.tree.map(lambda x, y: x + _times(scalar, y), a, b)


def _times(scalar: Any, leaf: jax.Array) -> jax.Array:
    """scalar * leaf in the dtype of the leaf, and by way of single precision, where the product of two halves is exact.

    The derivative in the scalar is a sum over the leaf: in half precision it would stop growing.
    """
    value: jax.Array = unhalved(as_dtype(scalar, leaf)) * unhalved(leaf)
    return value.astype(leaf.dtype)


def mix(weight: Any, a: Any, b: Any) -> Any:
    """weight * a + (1 - weight) * b, computed in single precision at least: a weight of 0.999 is 1 in bfloat16.

    Leaves are real, and those of ``b`` have the dtypes of those of ``a``.
    """

    def mixed(x: jax.Array, y: jax.Array) -> jax.Array:
        share = as_dtype(weight, wide(x))
        value: jax.Array = share * wide(x) + (1 - share) * wide(y)
        return value.astype(x.dtype)

    return jax.tree.map(mixed, a, b)


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b to the last digit: by default accelerators round the factors (to TF32, bfloat16), as is usual in models."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def weighted_sum(weights: jax.Array, stack: Any) -> Any:
    """sum_i weights_i v_i of leaves [S, ...], computed in single precision at least; 0 times infinity is NaN.

    A product: for the sum of the multiples XLA takes up to 80 times as long on a CPU (jaxlib 0.12).
    """

    def of_leaf(leaf: jax.Array) -> jax.Array:
        leaf = real(leaf) if jnp.issubdtype(weights.dtype, jnp.inexact) else leaf
        held = wide(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf  # weights of half precision sum to less
        return jnp.tensordot(weights.astype(held.dtype), held, 1, precision=lax.Precision.HIGHEST).astype(leaf.dtype)

    return jax.tree.map(of_leaf, stack)


def inner(a: Any, b: Any) -> jax.Array:
    """<a, b> over all leaves, a scalar of single precision at least: in float16 the square of 1e-4 is 0."""

    def product(x: Any, y: Any) -> jax.Array:
        x, y = jnp.asarray(x), jnp.asarray(y)
        wide = widest((x, y), jnp.float32)
        return jnp.sum(x.astype(wide) * y.astype(wide))

    products = jax.tree.map(product, a, b)
    return jax.tree.reduce(jnp.add, products)


def square(tree: Any) -> jax.Array:
    """|tree|^2 over all leaves, a scalar."""
    return inner(tree, tree)


def norm(tree: Any) -> jax.Array:
    """|tree| over all leaves, with derivative zero (not NaN) at zero; NaN of what holds one."""
    return root(square(tree))


def root(square: jax.Array) -> jax.Array:
    """sqrt(square), with derivative zero (not NaN) at zero; NaN stays."""
    zero = square == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))


def all_finite(tree: Any) -> jax.Array:
    """Whether no real number in the tree is NaN or infinite, a bool scalar; true for a tree without any."""
    reals = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jax.tree.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in reals], jnp.bool_(True))


def divide(tree: Any, divisors: Any) -> Any:
    """tree / divisors, leaf by leaf; a divisor of zero (nothing was done) divides by one instead.

    It is computed in single precision at least: in float16 a weight of 2e-8 is 0.
    """

    def quotient(leaf: jax.Array, divisor: jax.Array) -> jax.Array:
        leaf = real(leaf)
        held: jax.Array = wide(leaf)
        divisor = as_dtype(divisor, held)
        return (held / jnp.where(divisor == 0, jnp.ones_like(divisor), divisor)).astype(leaf.dtype)

    return jax.tree.map(quotient, tree, divisors)


def multiply(tree: Any, factors: Any) -> Any:
    """tree * factors, leaf by leaf."""
    return jax.tree.map(lambda leaf, factor: _times(factor, leaf), tree, factors)


def zeros_like(tree: Any) -> Any:
    """Zeros of the shapes and dtypes of ``tree`` (arrays or ``jax.ShapeDtypeStruct``)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def select(condition: jax.Array, a: Any, b: Any) -> Any:
    """``a`` where ``condition`` holds, else ``b``: a scalar, or bool[S] of leaves [S, ...]."""
    return jax.tree.map(lambda x, y: jnp.where(column(condition, x), x, y), a, b)


def column(values: jax.Array, leaf: Any) -> jax.Array:
    """``values``, [S], in the shape [S, 1, ...] of a ``leaf``; a scalar as it is."""
    return values.reshape(*values.shape, *[1] * (jnp.ndim(leaf) - values.ndim)) if jnp.ndim(values) else values


def as_dtype(scalar: Any, leaf: jax.Array) -> jax.Array:
    """``scalar`` in the dtype of ``leaf``."""
    return jnp.asarray(scalar).astype(leaf.dtype)


def real(leaf: Any) -> jax.Array:
    """The array; one of integers or truths as real numbers, since averages of them are no integers."""
    array: jax.Array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(jnp.result_type(float))


def of_types(tree: Any, like: Any) -> Any:
    """The leaves in the types of those of another tree; as integers the nearest ones."""

    def of_leaf(leaf: jax.Array, other: jax.Array) -> jax.Array:
        rounds = jnp.issubdtype(other.dtype, jnp.integer) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return (jnp.round(leaf) if rounds else leaf).astype(other.dtype)

    return jax.tree.map(of_leaf, tree, like)


def widest(tree: Any, *others: Any) -> Any:
    """The dtype of most bytes among those of the leaves and ``others``."""
    dtypes = [jnp.dtype(other) for other in others] + [leaf.dtype for leaf in jax.tree.leaves(tree)]
    return max(dtypes, key=lambda dtype: dtype.itemsize)


def wide(tree: Any) -> Any:
    """The leaves, which are real, in single precision at least."""
    return jax.tree.map(lambda leaf: leaf.astype(widest(leaf, jnp.float32)), tree)


def unhalved(tree: Any) -> Any:
    """The leaves of half precision in single; others, which may be anything, as they are."""

    def of_leaf(leaf: Any) -> Any:
        dtype = jnp.result_type(leaf)
        half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
        return leaf.astype(jnp.float32) if half else leaf

    return jax.tree.map(of_leaf, tree)


def size_in_bytes(tree: Any) -> int:
    """Bytes of all leaves (arrays or ``jax.ShapeDtypeStruct``)."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def path_names(path: Any) -> list[str]:
    """The names of fields, keys and places of a path of ``jax.tree_util``."""
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def by_path(tree: Any, separator: str = "/") -> dict[str, Any]:
    """The leaves by the names of fields, keys and places that lead to them."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator=separator): leaf for path, leaf in flat}
