"""Code that is not ours under the package's strict rules for dtypes and ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fedjax_sim.core.loops import with_static_derivative


@contextlib.contextmanager
def third_party() -> Iterator[None]:
    """Standard promotion for code that is not ours: optax's Adam family and flax's convolutions need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def lenient(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under :func:`third_party`, and its derivative too.

    The context alone is not enough: inside a loop JAX differentiates the loop's program, long after the function that
    it was traced from has returned, and some rules mix dtypes (that of a power with an integer exponent, as in the
    bias correction of optax's Adam and Yogi). Here the derivative is taken by a rule that enters the context again.

    Args:
      function: a function of pytrees; everything that may carry a derivative is an argument, not closed over.
    """

    def inside(*operands: Any) -> Any:
        with third_party():
            return function(*operands)

    return with_static_derivative(inside, inside)
