"""The softmax cross-entropy of every example, in one pass over the logits where there are few classes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core.loops import with_static_derivative
from fedjax_sim.optim import third_party

# Classes up to which the columns win: with 32 a block of an evaluation took 0.63 of the time and compiled faster, with
# 62 it took 0.75 and compiled in twice the time.
_COLUMNS = 32


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)_label of each example: [...] of logits [..., C] and integer labels [...].

    A label that is no class, below 0 or from C on, has the loss 0.

    On a CPU a matrix of logits with up to 32 classes is read once: XLA makes a loop of its own, over memory and over
    the cores, of each of the maximum, the exponentials, their sum and the label's entry, and a row is too short for the
    processor's vectors. As sums of columns all of it is one loop over the rows. Derivatives are those of the other
    form, so that steps in training compute what they would without this.
    """
    columns = (
        jax.default_backend() == "cpu"
        and logits.ndim == 2
        and 1 < logits.shape[1] <= _COLUMNS
        and jnp.finfo(logits.dtype).bits >= 32  # a sum of columns in half precision would be rounded after each
    )
    return _by_columns(logits, labels) if columns else _by_rows(logits, labels)


def _by_rows(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # One-hot labels: indexing the logits costs a scatter in the backward pass of every step (10 % on a CPU).
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    with third_party():
        return optax.softmax_cross_entropy(logits, one_hot)


def _columns(logits: jax.Array, labels: jax.Array) -> jax.Array:
    real, classes = logits.dtype, logits.shape[1]
    columns = [logits[:, c] for c in range(classes)]
    highest = functools.reduce(jnp.maximum, columns)
    shifted = [column - highest for column in columns]
    total = jnp.log(functools.reduce(jnp.add, map(jnp.exp, shifted)))
    # Products, as with one-hot labels, and no choice: infinite logits have the loss NaN here too.
    mine = functools.reduce(jnp.add, [(labels == c).astype(real) * column for c, column in enumerate(shifted)])
    return ((labels >= 0) & (labels < classes)).astype(real) * total - mine


_by_columns = with_static_derivative(_columns, _by_rows)
