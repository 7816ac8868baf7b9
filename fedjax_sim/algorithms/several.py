"""Servers that keep several models side by side."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core import sampling
from fedjax_sim.core.trees import add_scaled, subtract


class Several(FedAvg):
    """Base of the methods whose server keeps K models, leaves [K, ...] of ``server.params``.

    What is evaluated, and what diagnostics see, is their mean; moving it moves all of them alike. What a client would
    use itself is ``personal``.
    """

    def model(self, server: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), server.params)

    def with_model(self, server: Any, params: Any) -> Any:
        move = subtract(params, self.model(server))
        return server._replace(params=jax.tree.map(lambda leaf, by: leaf + by[None], server.params, move))


def apart(params: Any, number: int, spread: Any, seed: int) -> Any:
    """K models around x, leaves [K, ...]: x_k = x + spread (n_k - mean_l n_l), n_k ~ N(0, I); their mean is x.

    The draws are those of :func:`fedjax_sim.core.sampling.normal_tree` by ``jax.random.key(seed)``.
    """
    models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), params)
    noise = sampling.normal_tree(jax.random.key(seed), models)
    return add_scaled(models, spread, jax.tree.map(lambda n: n - jnp.mean(n, axis=0, keepdims=True), noise))


def pick(models: Any, number: Any) -> Any:
    """The model of this number out of leaves [K, ...]."""
    return jax.tree.map(lambda leaf: leaf[number], models)
