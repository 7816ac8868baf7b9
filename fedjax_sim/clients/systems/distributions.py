"""What differs from device to device or from round to round: distributions of one positive number.

Each draw is a function of one random word, so a distribution's parameters are real hyper-parameters: a device keeps its
place in the fleet while they change, and derivatives pass them (but for :class:`Zipf`'s exponent, whose values jump).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, demand, is_concrete


class Distribution(Described):
    """Base of the distributions; subclasses define :meth:`quantile`."""

    def quantile(self, u: jax.Array) -> jax.Array:
        """The inverse of the distribution function at ``u`` in (0, 1), of its shape and dtype."""
        raise TypeError(f"{type(self).__name__} must define quantile(u)")

    def draw(self, words: jax.Array) -> jax.Array:
        """One draw a random word.

        Args:
          words: uint32[S].

        Returns:
          float[S] in the default float type.
        """
        # The midpoints of (0, 1) in 2^23 parts: never 0 or 1, and exact in float32.
        u = ((words >> 9).astype(jnp.float32) + 0.5) * 2**-23
        return self.quantile(u.astype(jnp.result_type(float)))


class LogNormal(Distribution):
    """x = median exp(sigma z), z ~ N(0, 1): mean median exp(sigma^2 / 2).

    Args:
      median: > 0.
      sigma: standard deviation of log x, >= 0.
    """

    median: Any
    sigma: Any

    def checked(self) -> LogNormal:
        check_real("lognormal(median)", self.median, low=0.0, open_=True)
        check_real("lognormal(sigma)", self.sigma, low=0.0)
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        normal = 2**0.5 * lax.erf_inv(2 * u - 1)
        return _like(self.median, u) * jnp.exp(_like(self.sigma, u) * normal)


class Uniform(Distribution):
    """x ~ U(low, high).

    Args:
      low: >= 0.
      high: at least ``low``.
    """

    low: Any
    high: Any

    def checked(self) -> Uniform:
        check_real("uniform(low, ...)", self.low, low=0.0)
        check_real("uniform(..., high)", self.high, low=0.0)
        if not is_concrete((self.low, self.high)):
            demand(lambda: jnp.asarray(self.high) >= jnp.asarray(self.low))
        elif np.any(np.asarray(self.high) < np.asarray(self.low)):
            raise ValueError(f"uniform({self.low}, {self.high}): high must be at least low")
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        low = _like(self.low, u)
        return low + (_like(self.high, u) - low) * u


class Exponential(Distribution):
    """P(x > t) = exp(-t / mean).

    Args:
      mean: > 0.
    """

    mean: Any

    def checked(self) -> Exponential:
        check_real("exponential(mean)", self.mean, low=0.0, open_=True)
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        return -_like(self.mean, u) * jnp.log1p(-u)


class HalfNormal(Distribution):
    """x = scale |z|, z ~ N(0, 1): mean scale sqrt(2 / pi).

    The training times that Nguyen et al. 2022 (FedBuff) find in production are close to it.

    Args:
      scale: > 0.
    """

    scale: Any

    def checked(self) -> HalfNormal:
        check_real("half_normal(scale)", self.scale, low=0.0, open_=True)
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        return _like(self.scale, u) * 2**0.5 * lax.erf_inv(u)


class Pareto(Distribution):
    """P(x > t) = (scale / t)^shape for t >= scale: a few devices that are very slow.

    Args:
      scale: the smallest value, > 0.
      shape: > 0; the mean, scale shape / (shape - 1), is finite for shape > 1 alone.
    """

    scale: Any
    shape: Any

    def checked(self) -> Pareto:
        check_real("pareto(scale, ...)", self.scale, low=0.0, open_=True)
        check_real("pareto(..., shape)", self.shape, low=0.0, open_=True)
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        return _like(self.scale, u) * jnp.exp(-jnp.log1p(-u) / _like(self.shape, u))


class Zipf(Distribution):
    """x = scale k with P(k) proportional to k^-exponent, k = 1 .. most.

    Args:
      scale: the smallest value, > 0.
      exponent: >= 0; 0 makes all k equally likely.
      most: the largest k.
    """

    scale: Any
    exponent: Any
    most: int = static(default=100)

    def checked(self) -> Zipf:
        check_real("zipf(scale, ...)", self.scale, low=0.0, open_=True)
        check_real("zipf(..., exponent)", self.exponent, low=0.0)
        check_count("zipf(most=...)", self.most, high=INT32_MAX)
        return self

    def quantile(self, u: jax.Array) -> jax.Array:
        ranks = jnp.arange(1, self.most + 1).astype(u.dtype)
        mass = jnp.cumsum(jnp.exp(-_like(self.exponent, u) * jnp.log(ranks)))
        k = 1 + jnp.searchsorted(mass, u * mass[-1])
        return _like(self.scale, u) * jnp.minimum(k, self.most).astype(u.dtype)


class Empirical(Distribution):
    """One of the values given, all equally likely: a published table of measured devices.

    Args:
      values: at least one number, >= 0.
    """

    values: Any

    def checked(self) -> Empirical:
        values = jnp.asarray(self.values) if isinstance(self.values, (list, tuple)) else self.values
        check_real("empirical(values)", values, low=0.0)
        if np.ndim(values) != 1 or np.size(values) == 0:
            raise ValueError(f"empirical(values) has shape {np.shape(values)}: give a list of at least one number")
        return self.replace(values=values)

    def quantile(self, u: jax.Array) -> jax.Array:
        values = jnp.asarray(self.values).astype(u.dtype)
        return values[jnp.minimum((u * len(values)).astype(jnp.int32), len(values) - 1)]


def _like(value: Any, like: jax.Array) -> jax.Array:
    return jnp.asarray(value).astype(like.dtype)


lognormal = factory("quantity.lognormal", LogNormal)
uniform = factory("quantity.uniform", Uniform)
exponential = factory("quantity.exponential", Exponential)
half_normal = factory("quantity.half_normal", HalfNormal)
pareto = factory("quantity.pareto", Pareto)
zipf = factory("quantity.zipf", Zipf)
empirical = factory("quantity.empirical", Empirical)
