"""What a machine can do: how fast it multiplies matrices and moves memory, seen through XLA.

A rate belongs to a shape: a product of 20 x 60 by 60 x 10 is far from the rate of a large square one. So products are
timed at the very shapes that a step has, inside a loop as a step is, and memory at the size of what is moved.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

_SECONDS = 0.02  # about what one timed call takes


class Product(NamedTuple):
    """The shapes of a ``dot_general``.

    Attributes:
      left: shape of the left factor.
      right: of the right factor.
      numbers: ``dimension_numbers``.
      dtype: name of the factors' dtype.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    numbers: Any
    dtype: str = "float32"

    def flops(self) -> float:
        """Two operations a multiplication and addition."""
        (_, contracted), (_, batch) = self.numbers
        free = [n for axis, n in enumerate(self.right) if axis not in (*contracted, *batch)]
        return 2.0 * math.prod(self.left) * math.prod(free)


def products(function: Callable[..., Any], *arguments: Any) -> Counter[Product]:
    """The matrix products of a function, with how often each is computed; loops count once."""
    found: Counter[Product] = Counter()

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            if name == "dot_general":
                left, right = (variable.aval for variable in equation.invars)
                found[Product(left.shape, right.shape, params["dimension_numbers"], left.dtype.name)] += 1
                continue
            if name.startswith("custom_"):  # the function itself; its rules are there only where they are applied
                params = {key: params[key] for key in ("call_jaxpr", "fun_jaxpr") if key in params}
            for value in params.values():
                for one in value if isinstance(value, (tuple, list)) else (value,):
                    if hasattr(one, "jaxpr") or hasattr(one, "eqns"):
                        walk(getattr(one, "jaxpr", one))

    walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    return found


def product_seconds(product: Product, repeats: int = 5) -> float:
    """Median seconds of one product inside a loop whose factors change from turn to turn."""
    dtype = jnp.dtype(product.dtype)
    left = jnp.full(product.left, 0.01, dtype)
    right = jnp.full(product.right, 0.01, dtype)

    def body(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        left, right = carry
        out = lax.dot_general(left, right, product.numbers)
        # One number of the result goes into a factor: no turn can be left out or moved out of the loop.
        one = lax.slice(out.reshape(-1), (0,), (1,)).reshape((1,) * left.ndim)
        return lax.dynamic_update_slice(left, one * jnp.asarray(1e-3, dtype), (jnp.int32(0),) * left.ndim), right

    return loop_seconds(body, (left, right), repeats)


def gemm_flops(size: int, dtype: Any = jnp.float32, repeats: int = 5) -> float:
    """Operations a second of a product of two ``size`` x ``size`` matrices."""
    product = Product((size, size), (size, size), (((1,), (0,)), ((), ())), jnp.dtype(dtype).name)
    return product.flops() / product_seconds(product, repeats)


def bytes_per_second(size: int, repeats: int = 5) -> float:
    """Bytes read and written a second by a pass over an array of ``size`` bytes, over and over."""
    array = jnp.zeros((max(1, size // 4),), jnp.float32)
    seconds = loop_seconds(lambda _, x: x * jnp.float32(0.5) + jnp.float32(1), array, repeats)
    return 2 * array.nbytes / seconds


def loop_seconds(body: Callable[[Any, Any], Any], start: Any, repeats: int) -> float:
    """Median seconds of one turn of a loop, over calls of about 20 milliseconds each."""
    # A dynamic number of turns: one program, and nothing is unrolled.
    program = jax.jit(lambda turns, carry: lax.fori_loop(0, turns, body, carry))

    def call(turns: int) -> float:
        return seconds_of(lambda: program(jnp.int32(turns), start), 1)

    call(1)  # compiles
    turns, spent = 1, call(1)
    while spent < _SECONDS / 2 and turns < 1 << 22:
        turns *= 4
        spent = call(turns)
    few = max(1, turns // 4)
    slopes = []
    for _ in range(repeats):
        slopes.append((call(turns + few) - call(few)) / turns)  # what a call costs beside its turns drops out
    return max(statistics.median(slopes), 1e-12)


def seconds_of(function: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, the first one left out if there are several."""
    taken = []
    for _ in range(repeats + (repeats > 1)):
        started = time.perf_counter()
        jax.block_until_ready(function())
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:] or taken)
