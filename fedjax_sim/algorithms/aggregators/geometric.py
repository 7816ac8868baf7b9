"""The geometric median."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.aggregators.base import Aggregator, Combined, Present, distances, number, weighted_sum
from fedjax_sim.algorithms.aggregators.coordinates import Median
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, check_scalar


class GeometricMedian(Aggregator):
    """The point with the smallest weighted sum of distances, by smoothed Weiszfeld steps (RFA).

    v = argmin_z g(z),  g(z) = sum_i w_i |z - v_i|
    z <- sum_i b_i v_i / sum_i b_i,   b_i = w_i / max(nu, |z - v_i|)

    The scheme's weights enter: vectors of less than half of the weight move the result a bounded way. The steps begin
    at the coordinate-wise median (the paper leaves it open, its code takes the mean, from where liars a million times
    as far away take many steps to leave). Recorded: ``"median_distance"``, g at the result, and ``"median_gap"``, a
    bound of how far that is above the minimum (the duality gap; see the notes below), which tells whether
    ``iterations`` were enough. Derivatives pass through the steps.

    The dual problem is the largest sum_i <u_i, v_i> with sum_i u_i = 0 and |u_i| <= w_i. With
    u_i = w_i (v_i - z) / max(nu, |v_i - z|) and their sum r, the vectors (u_i - w_i r) / (1 + |r|) are feasible.

    Args:
      nu: smoothing > 0, in units of the vectors: distances below it count as nu.
      iterations: Weiszfeld steps; the paper takes 3.

    Raises:
      ValueError: nu <= 0 or no iterations.

    Reference: Pillutla, Kakade and Harchaoui 2022, "Robust aggregation for federated learning", algorithm 2.
    """

    nu: Any = 1e-6
    iterations: int = static(default=10)

    weighted: ClassVar[bool] = True

    def checked(self) -> Self:
        check_real("geometric_median(nu=...)", self.nu, low=0.0, open_=True)
        check_count("geometric_median(iterations=...)", self.iterations, high=INT32_MAX)
        return self

    def unreported(self) -> dict[str, jax.Array]:
        return {"median_distance": number(0.0), "median_gap": number(0.0)}

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        check_scalar("geometric_median(nu=...)", self.nu)
        weights = who.weights.astype(jnp.result_type(float))

        def pulls(z: Any) -> tuple[jax.Array, jax.Array]:
            apart = distances(stack, z)
            return apart, weights / jnp.maximum(trees.as_dtype(self.nu, apart), apart)

        def step(z: Any, _: None) -> tuple[Any, None]:
            pull = pulls(z)[1]
            total = jnp.sum(pull)
            return weighted_sum(pull / jnp.where(total > 0, total, jnp.ones_like(total)), stack), None

        start = Median().combine(stack, who).value
        z = lax.scan(step, start, length=self.iterations)[0]
        apart, pull = pulls(z)
        value = jnp.sum(weights * apart)
        return Combined(z, (), {"median_distance": value, "median_gap": _gap(stack, z, weights, apart, pull, value)})


def _gap(stack: Any, z: Any, weights: jax.Array, apart: jax.Array, pull: jax.Array, value: jax.Array) -> jax.Array:
    """g(z) less the dual objective at the feasible point that z gives."""
    from_z = lax.stop_gradient(jax.tree.map(lambda leaf, at: leaf - at[None], stack, z))
    weights, apart, pull, value = lax.stop_gradient((weights, apart, pull, value))
    residual, offset = weighted_sum(pull, from_z), weighted_sum(weights, from_z)
    shift = trees.inner(residual, offset).astype(value.dtype)
    dual = (jnp.sum(pull * jnp.square(apart)) - shift) / (1 + trees.norm(residual).astype(value.dtype))
    return jnp.maximum(value - dual, 0)


geometric_median = factory("aggregator.geometric_median", GeometricMedian)
