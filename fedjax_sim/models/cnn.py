"""Small convolutional networks of the federated-learning papers."""

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
from fedjax_sim.models.widths import check_widths


class FemnistCNN(nn.Module):
    """Two 3x3 convolutions, one 2x2 pooling and two dense layers for 28x28 grey images.

    conv 3x3x32, ReLU, conv 3x3x64, ReLU, max-pool 2x2, (dropout 0.25), dense 128, ReLU, (dropout 0.5), dense
    num_classes; convolutions without padding. 1,206,590 parameters for 62 classes, as in the paper's table.

    Kernels start Glorot-uniform and biases at zero, the defaults of Keras, in which the paper's models were written.

    Attributes:
      num_classes: number of outputs; 62 are FEMNIST's digits, capital and small letters.
      dropout: rates before the two dense layers; the paper's are (0.25, 0.5), (0, 0) for none.
      channels: output channels of the convolutions.
      hidden: width of the first dense layer.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: images smaller than 6x6, or a bad width or rate.

    Source: Reddi et al. 2021, "Adaptive federated optimization", the EMNIST character-recognition model of the
    appendix.
    """

    num_classes: int = 62
    dropout: tuple[float, float] = (0.0, 0.0)
    channels: tuple[int, int] = (32, 64)
    hidden: int = 128
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("FemnistCNN(num_classes=...)", self.num_classes)
        check_count("FemnistCNN(hidden=...)", self.hidden)
        check_widths("FemnistCNN(channels=...)", self.channels, 2)
        if not isinstance(self.dropout, (tuple, list)) or len(self.dropout) != 2:
            raise TypeError(f"FemnistCNN(dropout={self.dropout!r}): give the two rates, (0.25, 0.5)")
        for rate in self.dropout:
            check_real("FemnistCNN(dropout=...)", rate, low=0.0, below=1.0)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("FemnistCNN", x, self.param_dtype, smallest=6)
        options: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": nn.initializers.glorot_uniform()}
        for width in self.channels:
            x = nn.relu(Conv(width, (3, 3), padding="VALID", **options)(x))
        x = max_pool(x, (2, 2), (2, 2))
        x = Dropout(self.dropout[0])(x.reshape(x.shape[0], -1))
        x = nn.relu(Dense(self.hidden, **options)(x))
        return Dense(self.num_classes, **options)(Dropout(self.dropout[1])(x))


class CifarCNN(nn.Module):
    """FedAWARE's five layers for CIFAR-10: three 3x3 convolutions and two dense layers.

    conv 32, ReLU, pool, conv 64, ReLU, pool, conv 64, ReLU, dense 64, ReLU, dense num_classes; convolutions without
    padding, 2x2 max-pools. 122,570 parameters for 10 classes of 32x32 colour images. The paper says "5-layer CNN" and
    no more; this is the network of its authors' code (``ToyCifarNet``), which for CIFAR-100 widens the first dense
    layer to 256.

    Convolution kernels start normal with variance 2/(9 output channels) (He et al. 2015, fan-out), dense kernels
    normal with standard deviation 0.01, biases at zero, as in that code.

    Attributes:
      num_classes: number of outputs.
      channels: output channels of the convolutions.
      hidden: width of the first dense layer.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: images smaller than 18x18, or a bad width.

    Source: Zeng et al. 2025 (FedAWARE), section 5 and the authors' repository dunzeng/FedAWARE, ``model.py``.
    """

    num_classes: int = 10
    channels: tuple[int, int, int] = (32, 64, 64)
    hidden: int = 64
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("CifarCNN(num_classes=...)", self.num_classes)
        check_count("CifarCNN(hidden=...)", self.hidden)
        check_widths("CifarCNN(channels=...)", self.channels, 3)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("CifarCNN", x, self.param_dtype, smallest=18)
        he = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        small = nn.initializers.normal(0.01)
        for layer, width in enumerate(self.channels):
            if layer > 0:
                x = max_pool(x, (2, 2), (2, 2))
            x = nn.relu(Conv(width, (3, 3), padding="VALID", param_dtype=self.param_dtype, kernel_init=he)(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(Dense(self.hidden, param_dtype=self.param_dtype, kernel_init=small)(x))
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=small)(x)


class DigitsCNN(nn.Module):
    """FedBN's network for digits of several sources: three 5x5 convolutions and three dense layers with BatchNorm.

    conv 64, norm, ReLU, pool, conv 64, norm, ReLU, pool, conv 128, norm, ReLU, dense 2048, norm, ReLU, dense 512, norm,
    ReLU, dense num_classes; convolutions padded to keep the size, 2x2 max-pools. 14,219,210 parameters for 10 classes
    of 28x28 colour images, and 5,632 running statistics beside them.

    In training (a task's steps give a dropout key) a norm takes the batch's mean and variance, in evaluation running
    ones, which a step moves by a tenth. Kernels and biases start uniform in +-1/sqrt(inputs), scales at 1, as PyTorch's
    layers in the authors' code do. PyTorch's running variances are those of a sample, n/(n - 1) times flax's.

    Attributes:
      num_classes: number of outputs.
      channels: output channels of the convolutions.
      hidden: widths of the dense layers before the last one.
      param_dtype: dtype of the parameters and the logits.

    Raises:
      ValueError: images smaller than 4x4, or a bad width.

    Source: Li et al. 2021, "FedBN: Federated learning on non-IID features via local batch normalization", the network
    of the digits' experiments, and the authors' repository med-air/FedBN, ``nets/models.py``.
    """

    num_classes: int = 10
    channels: tuple[int, int, int] = (64, 64, 128)
    hidden: tuple[int, ...] = (2048, 512)
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("DigitsCNN(num_classes=...)", self.num_classes)
        check_widths("DigitsCNN(channels=...)", self.channels, 3)
        check_widths("DigitsCNN(hidden=...)", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_images("DigitsCNN", x, self.param_dtype, smallest=4)
        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

        def options(inputs: int) -> dict[str, Any]:
            bias = _uniform(inputs**-0.5)
            return {"param_dtype": self.param_dtype, "kernel_init": uniform, "bias_init": bias}

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


def _uniform(bound: float) -> Any:
    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


register("model.FemnistCNN", FemnistCNN)
register("model.CifarCNN", CifarCNN)
register("model.DigitsCNN", DigitsCNN)
