"""Smaller images, for two cores."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fedjax_sim.datasets.federated import FederatedDataset


def pooled(data: FederatedDataset, factor: int) -> FederatedDataset:
    """The same data set with images in which ``factor`` x ``factor`` pixels have become their mean.

    Args:
      data: images ``x``, float[n, height, width, channels], both sides divisible by ``factor``.
      factor: pixels a side.
    """
    x = np.asarray(data.examples["x"])
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // factor, factor, width // factor, factor, channels)
    examples = {**data.examples, "x": jnp.asarray(blocks.mean(axis=(2, 4)))}
    test = None if data.test is None else pooled(data.test, factor)
    made: FederatedDataset = data.replace(examples=examples, test=test)
    return made
