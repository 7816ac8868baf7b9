"""The flax layer."""

from __future__ import annotations

from typing import Any

import flax.linen as nn

from fedjax_sim.models.conv.general import conv_general_dilated


class Conv(nn.Conv):
    """``flax.linen.Conv`` that computes with :func:`~fedjax_sim.models.conv.conv_general_dilated`.

    Constructor, parameters, initial values and results (up to round-off) are flax's. Everything else goes through
    flax's own hook, the attribute ``conv_general_dilated``: give it another function of that signature to choose the
    algorithm.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedjax_sim.models.conv import Conv, matmul_conv
      >>> layer = Conv(features=4, kernel_size=(3, 3), padding="VALID")
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 8, 8, 2)))
      >>> layer.apply(variables, jnp.ones((5, 8, 8, 2))).shape
      (5, 6, 6, 4)
      >>> always_lax = Conv(features=4, kernel_size=(3, 3), conv_general_dilated=jax.lax.conv_general_dilated)
      >>> always_matmul = Conv(features=4, kernel_size=(3, 3), conv_general_dilated=matmul_conv)

    Attributes:
      conv_general_dilated: the convolution; by default the one that fits the backend.
    """

    conv_general_dilated: Any = conv_general_dilated
