"""The models of the workloads in plain JAX, for programs that bring none of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def logits(weights: Any, x: jax.Array) -> jax.Array:
    """The model: convolutions without padding, a 2x2 max-pool, dense layers, ReLU between them."""
    h, last = x, len(weights) - 1
    for i, (w, b) in enumerate(weights):
        if w.ndim == 4:
            h = lax.conv_general_dilated(h, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
        else:
            h = h.reshape(h.shape[0], -1) @ w + b
        if i < last:
            h = jax.nn.relu(h)
        if w.ndim == 4 and weights[i + 1][0].ndim == 2:
            h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return h


def masked_loss(weights: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean cross-entropy of the rows that are not padding."""
    h = logits(weights, x)
    losses = jax.nn.logsumexp(h, axis=1) - jnp.take_along_axis(h, y[:, None], axis=1)[:, 0]
    return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)
