"""ResNet-18 with group normalisation."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_count, check_flag
from fedjax_sim.models.conv import Conv, max_pool
from fedjax_sim.models.dense import Dense
from fedjax_sim.models.inputs import as_images
from fedjax_sim.models.widths import check_groups

_HE = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class ResNet18(nn.Module):
    """Four stages of two residual blocks; group normalisation in the place of batch normalisation.

    A block is y = ReLU(x' + norm(conv(ReLU(norm(conv(x)))))) with 3x3 convolutions, where x' is x, or a normalised 1x1
    convolution of it where the shape changes. Parameters for colour images:

    ======================================  ==========
    classes and stem                        parameters
    ======================================  ==========
    10 (CIFAR-10)                           11,173,962
    100 (CIFAR-100)                         11,220,132
    1000, ``imagenet_stem=True``            11,689,512
    ======================================  ==========

    which are also the counts of ResNet-18 with BatchNorm: the affine parameters are the same, and the running
    statistics, which GroupNorm has not, are no parameters.

    Convolution kernels start normal with variance 2/(k² output channels) (He et al. 2015, fan-out), the last layer
    Glorot-uniform, scales at 1, biases at 0.

    Attributes:
      num_classes: number of outputs.
      groups: normalisation groups in every layer: 32 in Wu and He 2018 and in FedAWARE's code, 2 in Reddi et al. 2021.
      imagenet_stem: whether the first layer is a 7x7 convolution with stride 2 and a 3x3 pooling with stride 2, for
        large images, instead of a 3x3 convolution.
      width: channels of the first stage; the others have 2, 4 and 8 times as many.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: ``groups`` that do not divide ``width``, or a bad width.

    Source: He et al. 2016, "Deep residual learning", table 1; Hsieh et al. 2020 for the group normalisation in
    federated learning; Zeng et al. 2025 (FedAWARE), section 5.
    """

    num_classes: int = 10
    groups: int = 32
    imagenet_stem: bool = False
    width: int = 64
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("ResNet18(num_classes=...)", self.num_classes)
        check_count("ResNet18(width=...)", self.width)
        check_groups("ResNet18", self.groups, self.width)
        check_flag("ResNet18(imagenet_stem=...)", self.imagenet_stem)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("ResNet18", x, self.param_dtype, smallest=1)
        if self.imagenet_stem:
            x = _normed_conv(self, x, self.width, 7, 2, "stem")
            # Padding by -inf, as max_pool does, equals padding by zero after a ReLU.
            x = max_pool(nn.relu(x), (3, 3), (2, 2), ((1, 1), (1, 1)))
        else:
            x = nn.relu(_normed_conv(self, x, self.width, 3, 1, "stem"))
        for stage in range(4):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                x = _block(self, x, self.width << stage, stride, f"stage{stage + 1}_block{block + 1}")
        x = jnp.mean(x, axis=(1, 2))
        last = Dense(
            self.num_classes, param_dtype=self.param_dtype, kernel_init=nn.initializers.glorot_uniform(), name="head"
        )
        return last(x)


def _block(model: ResNet18, x: jax.Array, width: int, stride: int, name: str) -> jax.Array:
    residual = nn.relu(_normed_conv(model, x, width, 3, stride, f"{name}_first"))
    residual = _normed_conv(model, residual, width, 3, 1, f"{name}_second")
    if stride != 1 or x.shape[-1] != width:
        x = _normed_conv(model, x, width, 1, stride, f"{name}_shortcut")
    return nn.relu(x + residual)


def _normed_conv(model: ResNet18, x: jax.Array, width: int, size: int, stride: int, name: str) -> jax.Array:
    """A convolution of the calling module without bias (the norm has one), padded to keep the size, and its norm."""
    conv = Conv(
        width, (size, size), (stride, stride), padding=size // 2, use_bias=False, param_dtype=model.param_dtype,
        kernel_init=_HE, name=f"{name}_conv",
    )  # fmt: skip
    norm = nn.GroupNorm(model.groups, epsilon=1e-5, param_dtype=model.param_dtype, name=f"{name}_norm")
    normed: jax.Array = norm(conv(x))
    return normed


register("model.ResNet18", ResNet18)
