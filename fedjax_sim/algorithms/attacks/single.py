"""Attacks by clients that know nothing of each other."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.attacks.base import Attack
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.values import check_real, check_scalar


class SignFlip(Attack):
    """m -> -factor m: the honest message turned round.

    Args:
      factor: >= 0.
    """

    factor: Any = 1.0

    def checked(self) -> Self:
        check_real("sign_flip(factor=...)", self.factor, low=0.0)
        return self

    def tampered(self, message: Any, key: jax.Array) -> Any:
        check_scalar("sign_flip(factor=...)", self.factor)
        return jax.tree.map(jnp.negative, trees.scale(self.factor, message))


class Scaling(Attack):
    """m -> factor m: a client that makes itself heard (or, below 1, silent). Negative factors are sign flips.

    Args:
      factor: any number.
    """

    factor: Any = 10.0

    def checked(self) -> Self:
        check_real("scaling(factor=...)", self.factor)
        return self

    def tampered(self, message: Any, key: jax.Array) -> Any:
        check_scalar("scaling(factor=...)", self.factor)
        return trees.scale(self.factor, message)


class Gaussian(Attack):
    """m -> keep m + std z, z standard normal in every coordinate, fresh every round and client.

    Args:
      std: >= 0, in units of the messages.
      keep: 0 sends noise alone (Blanchard et al. 2017, with std 200), 1 adds it to the honest message.
    """

    std: Any = 200.0
    keep: Any = 0.0

    def checked(self) -> Self:
        check_real("gaussian(std=...)", self.std, low=0.0)
        check_real("gaussian(keep=...)", self.keep)
        return self

    def tampered(self, message: Any, key: jax.Array) -> Any:
        check_scalar("gaussian(std=...)", self.std)
        check_scalar("gaussian(keep=...)", self.keep)
        leaves, structure = jax.tree.flatten(message)
        noise = [
            jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
        ]
        return trees.add_scaled(trees.scale(self.keep, message), self.std, jax.tree.unflatten(structure, noise))


sign_flip = factory("attack.sign_flip", SignFlip)
scaling = factory("attack.scaling", Scaling)
gaussian = factory("attack.gaussian", Gaussian)
