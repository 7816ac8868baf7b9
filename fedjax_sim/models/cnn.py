"""Small convolutional networks of the federated-learning papers."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.descriptions import register
from fedjax_sim.models.conv import Conv, max_pool
from fedjax_sim.models.dense import Dense
from fedjax_sim.models.dropout import Dropout
from fedjax_sim.models.inputs import as_images
from fedjax_sim.models.widths import check_widths
from fedjax_sim.values import check_count, check_real


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


register("model.FemnistCNN", FemnistCNN)
register("model.CifarCNN", CifarCNN)
