"""What models accept as input, checked when a program is traced; pixels as bytes."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_real
from fedjax_sim.models.calling import told


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


class FromBytes(nn.Module):
    """A model behind pixels that are stored as bytes: model((x / 255 - mean) / std).

    Data sets with ``scaled=False`` take a quarter of the memory of floats; the pixels of a batch are scaled when it is
    used. The model is told whether it trains, as without the bytes around it.

    Attributes:
      model: the model.
      mean: of the scaled pixels, one number or one per channel.
      std: likewise their standard deviation.

    Raises:
      TypeError: ``model`` is no flax module; features that are not uint8.
      ValueError: a mean or standard deviation that is not finite, or a standard deviation of 0.

    Example:
      >>> import jax
      >>> from fedjax_sim.models import FemnistCNN
      >>> model = FromBytes(FemnistCNN(num_classes=10), mean=(0.1307,), std=(0.3081,))
      >>> x = jnp.full((2, 28, 28, 1), 255, jnp.uint8)
      >>> model.apply(model.init(jax.random.key(0), x), x).shape
      (2, 10)
    """

    model: nn.Module
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"FromBytes(model={self.model!r}): give a flax.linen module")
        for value in self.mean:
            check_real("FromBytes(mean=...)", value)
        for value in self.std:
            check_real("FromBytes(std=...)", value, low=0.0, open_=True)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        if x.dtype != jnp.uint8:
            raise TypeError(f"FromBytes got {x.dtype} features: it scales bytes, so give the data set scaled=False")
        ones = (1,) * (x.ndim - 1)
        mean, std = (jnp.asarray(v, jnp.float32).reshape(*ones, -1) for v in (self.mean, self.std))
        of_model = told(type(self.model).__call__, train=train)
        y: jax.Array = self.model((x.astype(jnp.float32) / 255 - mean) / std, **of_model)
        return y


register("model.FromBytes", FromBytes)
