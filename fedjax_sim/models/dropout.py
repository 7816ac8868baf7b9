"""Dropout that follows the task: on in training, off in evaluation."""

from __future__ import annotations

import flax.linen as nn
import jax

from fedjax_sim.core.values import check_real


class Dropout(nn.Module):
    """Zeroes each value with probability ``rate`` and divides the others by 1 - rate, where a dropout key is given.

    ``Classification`` gives the key ``"dropout"`` in local training only, another one to every
    client, round and step; evaluations get none and are deterministic.

    Attributes:
      rate: probability of a zero, in [0, 1); 0 leaves nothing of it in the program.

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    rate: float

    def __post_init__(self) -> None:
        check_real("Dropout(rate=...)", self.rate, low=0.0, below=1.0)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dropped: jax.Array = nn.Dropout(self.rate, deterministic=not self.has_rng("dropout"))(x)
        return dropped
