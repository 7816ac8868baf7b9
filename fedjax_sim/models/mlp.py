"""Fully connected models."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_count
from fedjax_sim.models.dense import Dense


class LogisticRegression(nn.Module):
    """Multinomial logistic regression: logits = x W + b, both zero at the start.

    Attributes:
      num_classes: number of outputs.
      param_dtype: dtype of W, b and the logits.
    """

    num_classes: int
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("LogisticRegression(num_classes=...)", self.num_classes)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1).astype(self.param_dtype)
        zeros = nn.initializers.zeros_init()
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=zeros)(x)


class MLP(nn.Module):
    """A multilayer perceptron with ReLU: He-initialised kernels, zero biases.

    Attributes:
      num_classes: number of outputs.
      hidden: widths of the hidden layers.
      param_dtype: dtype of the parameters and the logits.
    """

    num_classes: int
    hidden: tuple[int, ...] = (200, 200)
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("MLP(num_classes=...)", self.num_classes)
        if not isinstance(self.hidden, (tuple, list)):
            raise TypeError(f"MLP(hidden={self.hidden!r}): give a tuple of widths, (200, 200)")
        for width in self.hidden:
            check_count("MLP(hidden=...)", width)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1).astype(self.param_dtype)
        for width in self.hidden:
            dense = Dense(width, param_dtype=self.param_dtype, kernel_init=nn.initializers.he_normal())
            x = nn.relu(dense(x))
        return Dense(self.num_classes, param_dtype=self.param_dtype)(x)


register("model.LogisticRegression", LogisticRegression)
register("model.MLP", MLP)
