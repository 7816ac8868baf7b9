"""Attacks by clients that know all messages of the round and agree on one."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import jax.scipy

from fedjax_sim.algorithms.aggregators.base import column, weighted_sum
from fedjax_sim.algorithms.attacks.base import Collusion
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.values import check_real, check_scalar


class LittleIsEnough(Collusion):
    """A little is enough: the honest mean less z honest standard deviations, in every coordinate.

    m = mean - z std;   z = Phi^-1((n - f - s) / (n - f)),  s = floor(n/2 + 1) - f

    Small enough that s honest clients are expected to lie further out, so that a median takes the attackers' side.
    The paper lets the attackers estimate mean and std from what they would have sent themselves; here they know the
    honest messages (which later work assumes, too). n counts those of the round, f the attackers among them.

    Args:
      z: >= 0; None for the paper's rule, with 0 where that has no answer (attackers who are more than half need no
        supporters) or a negative one (too few attackers).

    Reference: Baruch, Baruch and Goldberg 2019, "A little is enough: circumventing defenses for distributed learning",
    algorithm 3.
    """

    z: Any = None

    def checked(self) -> Self:
        check_real("little_is_enough(z=...)", self.z, low=0.0, optional=True)
        return self

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        if self.z is not None:
            check_scalar("little_is_enough(z=...)", self.z)
        z = _largest_z(honest, attackers) if self.z is None else self.z
        share = _equal_shares(honest)
        mean = weighted_sum(share, _only(honest, stack))

        def spread(leaf: jax.Array, at: jax.Array) -> jax.Array:
            apart = jnp.where(column(honest, leaf), leaf - at[None], jnp.zeros_like(leaf))
            variance = jnp.sum(column(share.astype(leaf.dtype), leaf) * jnp.square(apart), axis=0)
            spreads = variance > 0
            root = jnp.sqrt(jnp.where(spreads, variance, jnp.ones_like(variance)))
            return jnp.where(spreads, root, jnp.zeros_like(root))

        return trees.subtract(mean, trees.scale(z, jax.tree.map(spread, stack, mean)))


class InnerProduct(Collusion):
    """Inner-product manipulation: the honest mean turned round, so that the aggregate points against the gradient.

    m = -epsilon mean

    Args:
      epsilon: >= 0; small ones are hard to tell from honest messages, large ones turn a mean round.

    Reference: Xie, Koyejo and Gupta 2020, "Fall of empires: breaking Byzantine-tolerant SGD by inner product
    manipulation", section 4.
    """

    epsilon: Any = 0.1

    def checked(self) -> Self:
        check_real("inner_product(epsilon=...)", self.epsilon, low=0.0)
        return self

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        check_scalar("inner_product(epsilon=...)", self.epsilon)
        mean = weighted_sum(_equal_shares(honest), _only(honest, stack))
        return jax.tree.map(jnp.negative, trees.scale(self.epsilon, mean))


def _only(honest: jax.Array, stack: Any) -> Any:
    """The stack with zeros for the others: what an attacker computed itself may be infinite, and 0 * inf is NaN."""
    return jax.tree.map(lambda leaf: jnp.where(column(honest, leaf), leaf, jnp.zeros_like(leaf)), stack)


def _equal_shares(honest: jax.Array) -> jax.Array:
    dtype = jnp.result_type(float)
    return honest.astype(dtype) / jnp.maximum(jnp.sum(honest, dtype=dtype), 1)


def _largest_z(honest: jax.Array, attackers: jax.Array) -> jax.Array:
    dtype = jnp.result_type(float)
    count, lying = jnp.sum(honest | attackers), jnp.sum(attackers)
    supporters = count // 2 + 1 - lying
    left = jnp.maximum(count - lying, 1).astype(dtype)
    quantile = jnp.clip((left - supporters.astype(dtype)) / left, 0.5, 1 - jnp.finfo(dtype).eps)
    z: jax.Array = jax.scipy.special.ndtri(quantile)
    return jnp.where(supporters > 0, z, jnp.zeros_like(z))


little_is_enough = factory("attack.little_is_enough", LittleIsEnough)
inner_product = factory("attack.inner_product", InnerProduct)
