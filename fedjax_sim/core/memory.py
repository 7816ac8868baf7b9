"""How many examples to take at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

# Bytes of the largest intermediate array. 128 MB leave room for a few of them in 2 GB. On a CPU what leaves the cache
# is slow: an evaluation of a small CNN took 502 ms with 128 MB, 363 with 16, 233 with 8, 201 with 4 and 207 with 2
# (of FemnistCNN 1,247, 1,081, 976, 859, 872; of logistic regression the same with all).
_BUDGETS = {"cpu": 1 << 22}
_BUDGET = 1 << 27
_PROBE = (
    64  # rows of the program that is looked at: enough for what has no rows (a cast of the weights) to count little
)


def rows_within(function: Callable[[Any, Any], Any], params: Any, examples: Any, *, most: int) -> int:
    """How many examples ``function`` can take at once within bounded memory: at least 1, at most ``most``.

    The function is traced, not run: the largest array in it, of all its inner programs, decides.

    Args:
      function: ``function(params, examples)``.
      params: arrays or their shapes.
      examples: pytree of arrays or their shapes with a leading axis of examples; its length does not matter.
      most: upper bound, what keeps the hardware busy.
    """
    rows = min(most, _PROBE)

    def as_shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), examples)
    program = jax.make_jaxpr(function)(jax.tree.map(as_shape, params), some)
    largest = max((_bytes(variable.aval) for variable in _results(program.jaxpr)), default=1)
    return max(1, min(most, _BUDGETS.get(jax.default_backend(), _BUDGET) * rows // max(largest, 1)))


def _results(program: Any) -> Iterator[Any]:
    """What every instruction of a program, and of the programs inside it, computes."""
    for instruction in program.eqns:
        yield from instruction.outvars
        for parameter in instruction.params.values():
            for inner in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _results(inner)


def _bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return 0 if shape is None or dtype is None else math.prod(shape) * dtype.itemsize
