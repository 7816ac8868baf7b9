"""What a message is worth that began with an old model: s(tau), 1 for a fresh one.

tau counts the server updates between the dispatch of the model to the client and the update that uses what came back:
0 where there was none. The three functions are those of Xie et al. 2019, "Asynchronous federated optimization".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.values import check_real, check_scalar


class Staleness(Described):
    """Base of the functions of the staleness."""

    def weight(self, staleness: jax.Array) -> jax.Array:
        """s(tau) of each tau, elementwise.

        Args:
          staleness: tau >= 0 as real numbers.
        """
        raise TypeError(f"{type(self).__name__} must define weight(staleness)")


class Constant(Staleness):
    """s(tau) = 1: old messages count as much as fresh ones."""

    def weight(self, staleness: jax.Array) -> jax.Array:
        return jnp.ones_like(staleness)


class Polynomial(Staleness):
    """s(tau) = (1 + tau)^-a.

    Args:
      a: >= 0; 1/2 is what FedBuff uses (Nguyen et al. 2022).
    """

    a: Any = 0.5

    def checked(self) -> Polynomial:
        check_real("polynomial(a=...)", self.a, low=0.0)
        return self

    def weight(self, staleness: jax.Array) -> jax.Array:
        check_scalar("polynomial(a=...)", self.a)
        return (1 + staleness) ** -jnp.asarray(self.a).astype(staleness.dtype)


class Hinge(Staleness):
    """s(tau) = 1 for tau <= b, and 1 / (a (tau - b) + 1) beyond.

    Args:
      a: how fast it falls, >= 0.
      b: up to which staleness nothing is lost, >= 0.
    """

    a: Any = 10.0
    b: Any = 4.0

    def checked(self) -> Hinge:
        check_real("hinge(a=...)", self.a, low=0.0)
        check_real("hinge(b=...)", self.b, low=0.0)
        return self

    def weight(self, staleness: jax.Array) -> jax.Array:
        check_scalar("hinge(a=...)", self.a)
        check_scalar("hinge(b=...)", self.b)
        a, b = (jnp.asarray(value).astype(staleness.dtype) for value in (self.a, self.b))
        return 1 / (a * jnp.maximum(staleness - b, 0) + 1)


constant = factory("staleness.constant", Constant)
polynomial = factory("staleness.polynomial", Polynomial)
hinge = factory("staleness.hinge", Hinge)
