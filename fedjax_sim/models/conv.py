"""Convolutions that stay fast under a client axis and inside loops."""

from __future__ import annotations

import flax.linen as nn


class Conv(nn.Conv):
    """``flax.linen.Conv``."""
