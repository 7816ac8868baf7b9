"""Centred clipping."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.algorithms.aggregators.base import Aggregator, Combined, Present, distances, weighted_sum
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, check_scalar


class CenteredClipping(Aggregator):
    """Centred clipping: from the last aggregate, a step along the mean of differences that are no longer than tau.

    v <- v + (1/|S|) sum_i (v_i - v) min(1, tau / |v_i - v|),   ``iterations`` times, from the last round's v (v_0 = 0)

    A liar moves v by at most tau / |S| a step. Weights do not enter. Recorded: ``"centered_clipped"``, how many vectors
    were clipped in the last step. Memory on the server: one model.

    Args:
      tau: radius > 0, in units of the vectors.
      iterations: steps a round; the paper takes 1.

    Raises:
      ValueError: tau <= 0 or no iterations.

    Reference: Karimireddy, He and Jaggi 2021, "Learning from history for Byzantine robust optimization", section 4.
    """

    tau: Any = 10.0
    iterations: int = static(default=1)

    def checked(self) -> Self:
        check_real("centered_clipping(tau=...)", self.tau, low=0.0, open_=True)
        check_count("centered_clipping(iterations=...)", self.iterations, high=INT32_MAX)
        return self

    def init(self, params: Any) -> Any:
        return trees.zeros_like(jax.tree.map(jnp.asarray, params))

    def unreported(self) -> dict[str, jax.Array]:
        return {"centered_clipped": jnp.int32(0)}

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        check_scalar("centered_clipping(tau=...)", self.tau)
        count = jnp.maximum(who.size, 1)

        def step(v: Any, _: None) -> tuple[Any, jax.Array]:
            apart = distances(stack, v)
            tau = trees.as_dtype(self.tau, apart)
            beyond = who.valid & (apart > tau)
            factor = jnp.where(beyond, tau / jnp.where(beyond, apart, jnp.ones_like(apart)), jnp.ones_like(apart))
            share = jnp.where(who.valid, factor, jnp.zeros_like(factor)) / count.astype(factor.dtype)
            moved = weighted_sum(share, jax.tree.map(lambda leaf, at: leaf - at[None], stack, v))
            return trees.add(v, moved), jnp.sum(beyond, dtype=jnp.int32)

        v, clipped = lax.scan(step, state, length=self.iterations)
        return Combined(v, v, {"centered_clipped": clipped[-1]})


centered_clipping = factory("aggregator.centered_clipping", CenteredClipping)
