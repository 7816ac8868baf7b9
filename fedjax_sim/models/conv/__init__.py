"""Convolutions and pooling that stay fast under a client axis and inside loops.

:class:`Conv` is ``flax.linen.Conv`` with :func:`conv_general_dilated` inside, and :func:`max_pool` and :func:`avg_pool`
compute what flax's functions of these names do. See docs/convolutions.md for what was measured.
"""

from fedjax_sim.models.conv.general import conv_general_dilated, matmul_conv
from fedjax_sim.models.conv.layer import Conv
from fedjax_sim.models.conv.pooling import avg_pool, max_pool

__all__ = ["Conv", "avg_pool", "conv_general_dilated", "matmul_conv", "max_pool"]
