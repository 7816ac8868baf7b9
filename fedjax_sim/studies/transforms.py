"""Coordinates in which a hyper-parameter can take any step and stays where it has a meaning.

An optimiser moves u without bounds; the run gets the value f(u). Gradients with respect to u follow by the chain rule.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import real
from fedjax_sim.core.values import check_real


class Transform(Described):
    """A smooth one-to-one map from all real numbers u to the values that a hyper-parameter may have."""

    def value(self, u: jax.Array) -> jax.Array:
        """f(u)."""
        raise TypeError(f"{type(self).__name__} must define value(u)")

    def coordinate(self, value: jax.Array) -> jax.Array:
        """u with f(u) = value."""
        raise TypeError(f"{type(self).__name__} must define coordinate(value)")

    def check(self, what: str, value: Any) -> None:
        """Checks that a concrete ``value``, which messages call ``what``, has a coordinate."""
        check_real(what, value)


class Identity(Transform):
    """f(u) = u: for values that may be anything, such as logits."""

    def value(self, u: jax.Array) -> jax.Array:
        return u

    def coordinate(self, value: jax.Array) -> jax.Array:
        return value


class Positive(Transform):
    """f(u) = exp(u): steps are factors, as suits learning rates and mu."""

    def value(self, u: jax.Array) -> jax.Array:
        return jnp.exp(u)

    def coordinate(self, value: jax.Array) -> jax.Array:
        return jnp.log(value)

    def check(self, what: str, value: Any) -> None:
        check_real(what, value, low=0.0, open_=True)


class Softplus(Positive):
    """f(u) = log(1 + exp(u)): positive, with steps that are factors near 0 and sums far from it."""

    def value(self, u: jax.Array) -> jax.Array:
        return jnp.logaddexp(u, jnp.zeros_like(u))

    def coordinate(self, value: jax.Array) -> jax.Array:
        # log(exp(v) - 1), written so that it neither overflows nor cancels
        return value + jnp.log(-jnp.expm1(-value))


class Interval(Transform):
    """f(u) = low + (high - low) sigmoid(u): inside the open interval.

    Args:
      low: its lower end.
      high: its upper end, > low.
    """

    low: Any = real()
    high: Any = real()

    def checked(self) -> Self:
        super().checked()
        if np.shape(self.low) != () or np.shape(self.high) != () or float(self.low) >= float(self.high):
            raise ValueError(f"interval(low={self.low}, high={self.high}): give two numbers, low < high")
        return self

    def value(self, u: jax.Array) -> jax.Array:
        low, width = self._ends(u)
        limits = jnp.finfo(u.dtype)
        # A sigmoid rounds to 0 and 1; many hyper-parameters (a momentum) must stay below their end.
        return low + width * jnp.clip(jax.nn.sigmoid(u), limits.tiny, 1 - limits.epsneg)

    def coordinate(self, value: jax.Array) -> jax.Array:
        low, width = self._ends(value)
        return jnp.log(value - low) - jnp.log(low + width - value)

    def check(self, what: str, value: Any) -> None:
        check_real(what, value, low=float(self.low), high=float(self.high), open_=True)

    def _ends(self, like: jax.Array) -> tuple[jax.Array, jax.Array]:
        low = jnp.asarray(self.low, like.dtype)
        return low, jnp.asarray(self.high, like.dtype) - low


class Simplex(Positive):
    """f(u) = softmax(u) along the last axis: positive weights that sum to 1."""

    def value(self, u: jax.Array) -> jax.Array:
        return jax.nn.softmax(u, axis=-1)

    def check(self, what: str, value: Any) -> None:
        super().check(what, value)
        array = np.asarray(value, np.float64)
        if array.ndim == 0 or not np.allclose(array.sum(axis=-1), 1.0, rtol=0.0, atol=1e-4):
            total = "is one number" if array.ndim == 0 else f"sums to {np.ravel(array.sum(axis=-1))[0]:g}"
            raise ValueError(
                f"{what} {total}: on the simplex weights sum to 1 along the last axis; divide by their sum"
            )


identity = factory("transform.identity", Identity)
positive = factory("transform.positive", Positive)
softplus = factory("transform.softplus", Softplus)
interval = factory("transform.interval", Interval)
simplex = factory("transform.simplex", Simplex)


def unit_interval() -> Transform:
    """``interval(0, 1)``: for momenta, decays and mixing weights."""
    return interval(0.0, 1.0)
