"""The convolutional networks of the federated-learning papers."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.fields import count, flag, real
from fedjax_sim.core.values import check_real
from fedjax_sim.models.base import Dropout, Model, as_images, several, wide, widths
from fedjax_sim.models.conv import Conv, max_pool
from fedjax_sim.models.dense import Dense

_HE = wide(nn.initializers.variance_scaling(2.0, "fan_out", "normal"))
_GLOROT = wide(nn.initializers.glorot_uniform())
# VGG-11's output channels in units of the first layer's, one tuple per resolution; a pooling follows each.
_VGG11 = ((1,), (2,), (4, 4), (8, 8), (8, 8))


class FemnistCNN(Model):
    """Two 3x3 convolutions, one 2x2 pooling and two dense layers for 28x28 grey images (6x6 at least).

    conv 3x3x32, ReLU, conv 3x3x64, ReLU, max-pool 2x2, (dropout 0.25), dense 128, ReLU, (dropout 0.5), dense
    num_classes; convolutions without padding. 1,206,590 parameters for 62 classes, as in the paper's table. Kernels
    start Glorot-uniform and biases at zero, the defaults of Keras, which the paper used.

    Attributes:
      num_classes: 62 are FEMNIST's digits, capital and small letters.
      dropout: rates before the two dense layers; the paper's are (0.25, 0.5), (0, 0) for none.
      channels: output channels of the convolutions.
      hidden: width of the first dense layer.

    Source: Reddi et al. 2021, "Adaptive federated optimization", the EMNIST character-recognition model of the
    appendix.
    """

    num_classes: int = count(default=62)
    dropout: tuple[float, float] = several(functools.partial(check_real, low=0.0, below=1.0), 2, default=(0.0, 0.0))
    channels: tuple[int, int] = widths(2, default=(32, 64))
    hidden: int = count(default=128)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("FemnistCNN", x, self.param_dtype, smallest=6)
        options: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": _GLOROT}
        for width in self.channels:
            x = nn.relu(Conv(width, (3, 3), padding="VALID", **options)(x))
        x = max_pool(x, (2, 2), (2, 2))
        x = Dropout(self.dropout[0])(x.reshape(x.shape[0], -1))
        x = nn.relu(Dense(self.hidden, **options)(x))
        return Dense(self.num_classes, **options)(Dropout(self.dropout[1])(x))


class CifarCNN(Model):
    """FedAWARE's five layers for CIFAR-10 (18x18 at least): three 3x3 convolutions and two dense layers.

    conv 32, ReLU, pool, conv 64, ReLU, pool, conv 64, ReLU, dense 64, ReLU, dense num_classes; convolutions without
    padding, 2x2 max-pools. 122,570 parameters for 10 classes of 32x32 colour images. It is ``ToyCifarNet`` of the
    authors' code, which for CIFAR-100 widens the first dense layer to 256. Convolution kernels start normal with
    variance 2/(9 output channels) (He et al. 2015, fan-out), dense kernels normal with standard deviation 0.01, biases
    at zero.

    Attributes:
      channels: output channels of the convolutions.
      hidden: width of the first dense layer.

    Source: Zeng et al. 2025 (FedAWARE), section 5 and the authors' repository dunzeng/FedAWARE, ``model.py``.
    """

    num_classes: int = count(default=10)
    channels: tuple[int, int, int] = widths(3, default=(32, 64, 64))
    hidden: int = count(default=64)
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("CifarCNN", x, self.param_dtype, smallest=18)
        small = wide(nn.initializers.normal(0.01))
        for layer, width in enumerate(self.channels):
            if layer > 0:
                x = max_pool(x, (2, 2), (2, 2))
            x = nn.relu(Conv(width, (3, 3), padding="VALID", param_dtype=self.param_dtype, kernel_init=_HE)(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(Dense(self.hidden, param_dtype=self.param_dtype, kernel_init=small)(x))
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=small)(x)


class LeNet(Model):
    """Two 5x5 convolutions with 2x2 max-pools and dense layers, for 28x28 grey images (16x16 at least).

    conv channels[0], ReLU, pool, conv channels[1], ReLU, pool, then for each width of ``hidden`` dense, ReLU, and dense
    num_classes; convolutions without padding. 44,426 parameters for 10 classes of 28x28 grey images, NIID-Bench's; with
    ``channels=(32, 64), hidden=(512,)`` 582,026, PFLlib's. Kernels and biases start uniform in +-1/sqrt(inputs), as
    PyTorch's layers in both codes do.

    Attributes:
      num_classes: outputs.
      channels: output channels of the convolutions.
      hidden: widths of the dense layers before the last one.

    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", as Li et al. 2022 have it
    (NIID-Bench, arXiv:2102.02079, section V, and Xtra-Computing/NIID-Bench, ``model.py``) and Zhang et al. 2025
    (TsingZ0/PFLlib, ``FedAvgCNN``).
    """

    num_classes: int = count(default=10)
    channels: tuple[int, int] = widths(2, default=(6, 16))
    hidden: tuple[int, ...] = widths(default=(120, 84))
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("LeNet", x, self.param_dtype, smallest=16)
        for width in self.channels:
            options = _pytorch(25 * x.shape[-1], self.param_dtype)
            x = max_pool(nn.relu(Conv(width, (5, 5), padding="VALID", **options)(x)), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(Dense(width, **_pytorch(x.shape[-1], self.param_dtype))(x))
        return Dense(self.num_classes, **_pytorch(x.shape[-1], self.param_dtype))(x)


class DigitsCNN(Model):
    """FedBN's network for digits of several sources: three 5x5 convolutions and three dense layers with BatchNorm.

    conv 64, norm, ReLU, pool, conv 64, norm, ReLU, pool, conv 128, norm, ReLU, dense 2048, norm, ReLU, dense 512, norm,
    ReLU, dense num_classes; convolutions padded to keep the size, 2x2 max-pools. 14,219,210 parameters for 10 classes
    of 28x28 colour images, and 5,632 running statistics beside them.

    In training a norm takes the batch's mean and variance, in evaluation running ones, which a step moves by a tenth.
    Kernels and biases start uniform in +-1/sqrt(inputs), scales at 1, as PyTorch's layers in the authors' code do.
    PyTorch's running variances are those of a sample, n/(n - 1) times flax's.

    Attributes:
      channels: output channels of the convolutions.
      hidden: widths of the dense layers before the last one.

    Source: Li et al. 2021, "FedBN: Federated learning on non-IID features via local batch normalization", the network
    of the digits' experiments, and the authors' repository med-air/FedBN, ``nets/models.py``.
    """

    num_classes: int = count(default=10)
    channels: tuple[int, int, int] = widths(3, default=(64, 64, 128))
    hidden: tuple[int, ...] = widths(default=(2048, 512))
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("DigitsCNN", x, self.param_dtype, smallest=4)
        options = functools.partial(_pytorch, param_dtype=self.param_dtype)

        def normed(x: jax.Array) -> jax.Array:
            evaluated = not self.has_rng("dropout")
            norm = nn.BatchNorm(use_running_average=evaluated, momentum=0.9, param_dtype=self.param_dtype)
            return nn.relu(norm(x))

        for layer, width in enumerate(self.channels):
            if layer > 0:
                x = max_pool(x, (2, 2), (2, 2))
            x = normed(Conv(width, (5, 5), padding=2, **options(25 * x.shape[-1]))(x))
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = normed(Dense(width, **options(x.shape[-1]))(x))
        return Dense(self.num_classes, **options(x.shape[-1]))(x)


class VGG11(Model):
    """Eight 3x3 convolutions with five poolings, then dense layers, for images of 32x32 at least.

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
      hidden: widths of the dense layers before the last one.
      dropout: rate before each of those layers.
      groups: groups of a GroupNorm after each convolution, which divide ``width``; None for no norm (as in FedNova).
      width: output channels of the first convolution.

    Source: Simonyan and Zisserman 2015, configuration A; Wang et al. 2020 (FedNova), section VII and the authors'
    repository JYWa/FedNova, ``models/vgg.py``.
    """

    num_classes: int = count(default=10)
    hidden: tuple[int, ...] = widths(default=(512, 512))
    dropout: float = real(default=0.5, low=0.0, below=1.0, structure=True)
    groups: int | None = count(default=None)
    width: int = count(default=64)
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups is not None:
            _check_groups("VGG11", self.groups, self.width)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("VGG11", x, self.param_dtype, smallest=32)
        for stage in _VGG11:
            for factor in stage:
                x = Conv(factor * self.width, (3, 3), padding=1, param_dtype=self.param_dtype, kernel_init=_HE)(x)
                if self.groups is not None:
                    x = nn.GroupNorm(self.groups, epsilon=1e-5, param_dtype=self.param_dtype)(x)
                x = nn.relu(x)
            x = max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        dense: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": _GLOROT}
        for width in self.hidden:
            x = nn.relu(Dense(width, **dense)(Dropout(self.dropout)(x)))
        return Dense(self.num_classes, **dense)(x)


class ResNet18(Model):
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

    which are also the counts of ResNet-18 with BatchNorm. Convolution kernels start normal with variance
    2/(k² output channels) (He et al. 2015, fan-out), the last layer Glorot-uniform, scales at 1, biases at 0.

    Attributes:
      groups: normalisation groups in every layer, which divide ``width``: 32 in Wu and He 2018 and in FedAWARE's code,
        2 in Reddi et al. 2021.
      imagenet_stem: whether the first layer is a 7x7 convolution with stride 2 and a 3x3 pooling with stride 2, for
        large images, instead of a 3x3 convolution.
      width: channels of the first stage; the others have 2, 4 and 8 times as many.

    Source: He et al. 2016, "Deep residual learning", table 1; Hsieh et al. 2020 for the group normalisation in
    federated learning; Zeng et al. 2025 (FedAWARE), section 5.
    """

    num_classes: int = count(default=10)
    groups: int = count(default=32)
    imagenet_stem: bool = flag(default=False)
    width: int = count(default=64)
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_groups("ResNet18", self.groups, self.width)

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
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=_GLOROT, name="head")(x)


def _pytorch(inputs: int, param_dtype: Any) -> dict[str, Any]:
    """Of a layer that sees so many inputs: kernel and bias start uniform in +-1/sqrt(inputs)."""
    uniform = wide(nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"))
    bias = wide(functools.partial(jax.random.uniform, minval=-(inputs**-0.5), maxval=inputs**-0.5))
    return {"param_dtype": param_dtype, "kernel_init": uniform, "bias_init": bias}


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
    return norm(conv(x))


def _check_groups(model: str, groups: int, width: int) -> None:
    if width % groups:
        raise ValueError(f"{model}(groups={groups}): it must divide the {width} channels of the first convolution")


register("model.FemnistCNN", FemnistCNN)
register("model.CifarCNN", CifarCNN)
register("model.DigitsCNN", DigitsCNN)
register("model.LeNet", LeNet)
register("model.VGG11", VGG11)
register("model.ResNet18", ResNet18)
