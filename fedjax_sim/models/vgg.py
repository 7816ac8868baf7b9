"""VGG-11 for 32x32 images."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_count, check_real
from fedjax_sim.models.conv import Conv, max_pool
from fedjax_sim.models.dense import Dense
from fedjax_sim.models.dropout import Dropout
from fedjax_sim.models.inputs import as_images
from fedjax_sim.models.widths import check_groups, check_widths

# Output channels in units of the first layer's, one tuple per resolution; a pooling follows each.
_PLAN = ((1,), (2,), (4, 4), (8, 8), (8, 8))


class VGG11(nn.Module):
    """Eight 3x3 convolutions with five poolings, then dense layers.

    Published parameter counts, 10 classes of 32x32 colour images:

    ==================================  ==========  ==================================================
    arguments                           parameters  where
    ==================================  ==========  ==================================================
    the defaults                         9,750,922  FedNova's code: dense 512, 512, 10 with dropout
    ``hidden=(), dropout=0``             9,225,610  the convolutions and one dense layer 512 -> 10
    the same with ``groups``             9,231,114  the widespread CIFAR variant; GroupNorm in the place
                                                    of its BatchNorm has as many parameters
    ==================================  ==========  ==================================================

    Convolution kernels start normal with variance 2/(9 output channels) (He et al. 2015, fan-out), as in FedNova's
    code, dense kernels Glorot-uniform, biases at zero.

    Attributes:
      num_classes: number of outputs.
      hidden: widths of the dense layers before the last one.
      dropout: rate before each of those layers.
      groups: groups of a GroupNorm after each convolution, None for none (as in FedNova). BatchNorm has
        running statistics, of which clients' data have no common ones, hence GroupNorm.
      width: output channels of the first convolution.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: images smaller than 32x32, ``groups`` that do not divide ``width``, a bad width or rate.

    Source: Simonyan and Zisserman 2015, configuration A; Wang et al. 2020 (FedNova), section 6 and the authors'
    repository JYWa/FedNova, ``models/vgg.py``.
    """

    num_classes: int = 10
    hidden: tuple[int, ...] = (512, 512)
    dropout: float = 0.5
    groups: int | None = None
    width: int = 64
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("VGG11(num_classes=...)", self.num_classes)
        check_count("VGG11(width=...)", self.width)
        check_widths("VGG11(hidden=...)", self.hidden)
        check_real("VGG11(dropout=...)", self.dropout, low=0.0, below=1.0)
        if self.groups is not None:
            check_groups("VGG11", self.groups, self.width)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("VGG11", x, self.param_dtype, smallest=32)
        he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        for stage in _PLAN:
            for factor in stage:
                x = Conv(factor * self.width, (3, 3), padding=1, param_dtype=self.param_dtype, kernel_init=he)(x)
                if self.groups is not None:
                    x = nn.GroupNorm(self.groups, epsilon=1e-5, param_dtype=self.param_dtype)(x)
                x = nn.relu(x)
            x = max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        dense: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": nn.initializers.glorot_uniform()}
        for width in self.hidden:
            x = nn.relu(Dense(width, **dense)(Dropout(self.dropout)(x)))
        return Dense(self.num_classes, **dense)(x)


register("model.VGG11", VGG11)
