"""Rules that look at every coordinate by itself: mean, median, trimmed mean."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.aggregators.base import Aggregator, Combined, Present, column, slots_of, weighted_sum
from fedjax_sim.algorithms.aggregators.order import sorted_rows
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_real


class Mean(Aggregator):
    """The weighted mean, which one vector can move anywhere: what the others are compared with."""

    weighted: ClassVar[bool] = True

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        return Combined(weighted_sum(who.weights, stack), (), {})


class Median(Aggregator):
    """Coordinate-wise median; the mean of the two middle values where the number is even.

    It stays between the honest values in every coordinate while fewer than half of the vectors lie. Weights do not
    enter: a vote by size would let one large client be half of all.

    Reference: Yin, Chen, Ramchandran and Bartlett 2018, "Byzantine-robust distributed learning: towards optimal
    statistical rates", definition 1.
    """

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        return Combined(_middle(stack, who, (who.size - 1) // 2), (), {})


class TrimmedMean(Aggregator):
    """Coordinate-wise mean without the floor(beta |S|) largest and as many smallest values.

    In every coordinate the vectors that are left out are others. Up to beta |S| liars move the result no further than
    the honest values reach. Weights do not enter. The number cut on each side is recorded as ``"trimmed"``.

    Args:
      beta: fraction cut on each side, in [0, 1/2); 0 is the plain mean.

    Raises:
      ValueError: outside of that range.

    Reference: Yin et al. 2018 (see Median), definition 2.
    """

    beta: float = static(default=0.1)

    def checked(self) -> Self:
        check_real("trimmed_mean(beta=...)", self.beta, low=0.0, below=0.5)
        return self.replace(beta=float(self.beta))

    def unreported(self) -> dict[str, jax.Array]:
        return {"trimmed": jnp.int32(0)}

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        counts = np.arange(slots_of(stack) + 1)
        # The product is rounded first: 0.29 * 100 is 28.999... in floating point.
        cuts = np.floor(np.round(self.beta * counts, 9)).astype(np.int32)
        cut = jnp.asarray(np.minimum(cuts, np.maximum(counts - 1, 0) // 2), jnp.int32)[who.size]
        return Combined(_middle(stack, who, cut), (), {"trimmed": cut})


def _middle(stack: Any, who: Present, cut: jax.Array) -> Any:
    """The mean of what is left when ``cut`` values are cut on each side, coordinate by coordinate.

    Written as a sum over the values with weights that are constant near them, which is its derivative: equal values
    share what of them is kept.
    """
    last = jnp.maximum(who.size - 1 - cut, 0)
    kept = jnp.maximum(who.size - 2 * cut, 1)

    def of_leaf(leaf: jax.Array) -> jax.Array:
        rows = leaf.reshape(len(leaf), -1)
        here = column(who.valid, rows)
        ordered = sorted_rows(jnp.where(here, rows, jnp.full_like(rows, jnp.inf)))  # void slots behind all others
        low, high = ordered[cut][None], ordered[last][None]
        at_low, at_high = here & (rows == low), here & (rows == high)
        inside = here & (rows > low) & (rows < high)

        def count(of: jax.Array) -> jax.Array:
            return jnp.sum(of, axis=0, dtype=jnp.int32)[None]

        def share(of: jax.Array, beyond: jax.Array) -> jax.Array:
            """What is kept of each of ``of``, of whom those ``beyond`` cut are kept."""
            equal = count(of)
            part = (count(beyond) - cut).astype(leaf.dtype) / jnp.maximum(equal, 1).astype(leaf.dtype)
            return jnp.where(of, part, jnp.zeros_like(rows))

        ends = share(at_low, here & (rows <= low)) + share(at_high, here & (rows >= high))
        all_equal = jnp.where(at_low, kept.astype(leaf.dtype) / jnp.maximum(count(at_low), 1).astype(leaf.dtype), 0)
        weights = jnp.where(low == high, all_equal, jnp.where(inside, jnp.ones_like(rows), ends))
        total = jnp.sum(weights * rows, axis=0) / kept.astype(leaf.dtype)
        return total.reshape(leaf.shape[1:])

    return jax.tree.map(of_leaf, stack)


mean = factory("aggregator.mean", Mean)
median = factory("aggregator.median", Median)
trimmed_mean = factory("aggregator.trimmed_mean", TrimmedMean)
