"""What losses of classes are made of: labels and counts of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client
from fedjax_sim.core import trees
from fedjax_sim.models.supervised import per_example


def one_hot(labels: jax.Array, like: jax.Array) -> jax.Array:
    """The labels [B, ...] as [B, ..., C], of the shape and type of logits."""
    return jax.nn.one_hot(labels, like.shape[-1], dtype=like.dtype)


def of_classes(values: jax.Array, like: jax.Array) -> jax.Array:
    """[C], with axes for the examples and positions of logits [B, ..., C]."""
    return values.reshape(*[1] * (like.ndim - 1), -1)


def counts(F: Any, params: Any, client: Client) -> jax.Array:
    """For a survey: [C], n_ic, how many labels of each class the client has; examples count by their weights."""
    logits = jax.eval_shape(F.outputs, params)  # for the number of classes: no model is run
    of = one_hot(F.labels, logits)
    mean = F.mean(jnp.sum(of.reshape(len(of), -1, of.shape[-1]), axis=1))
    if client.scale is not None:
        mean = trees.divide(mean, client.scale)
    return trees.scale(client.size, mean)


def cross_entropies(logits: jax.Array, labels: jax.Array, among: jax.Array | None = None) -> jax.Array:
    """-log softmax(logits)_y of every example, [B]; ``among`` [1, ..., C] says which classes the softmax has."""
    if among is not None:  # a void slot has no label of any class, and an infinite loss times its weight 0 is NaN
        among = among | ~jnp.any(among)
    true = jnp.sum(logits * one_hot(labels, logits), axis=-1)
    return per_example(jax.nn.logsumexp(logits, axis=-1, where=among) - true)
