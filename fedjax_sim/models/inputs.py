"""What models accept as input, checked when a program is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def as_images(model: str, x: jax.Array, dtype: Any, smallest: int) -> jax.Array:
    """Images [B, height, width, channels] in the model's dtype; [B, height, width] gets a channel axis.

    Args:
      model: name of the model, for messages.
      x: images, of any real dtype.
      dtype: dtype of the result.
      smallest: least height and width that the model can reduce.

    Raises:
      ValueError: not images, or too small.
    """
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4:
        raise ValueError(
            f"{model} got features of shape {list(x.shape[1:])}: it needs images [height, width, channels] or "
            "[height, width] (data sets of ours that flatten their images take flat=False)"
        )
    if min(x.shape[1:3]) < smallest:
        raise ValueError(f"{model} got images of {x.shape[1]} x {x.shape[2]}: {smallest} x {smallest} is the least")
    return x.astype(dtype)


def as_tokens(model: str, x: jax.Array) -> jax.Array:
    """Token ids int32[B, T].

    Raises:
      ValueError: another rank, or an empty sequence.
      TypeError: not integers.
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"{model} got features of shape {list(x.shape[1:])}: it needs token ids [T], T of at least 1")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{model} got {x.dtype} features: it needs integer token ids")
    return x.astype(jnp.int32)
