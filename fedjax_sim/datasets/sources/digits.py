"""scikit-learn's digits: the one image set that needs no file of its own."""

from __future__ import annotations

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_partition
from fedjax_sim.datasets.federated import FederatedDataset


@recipe("dataset.digits")
def digits(num_clients: int = 20, alpha: float = 0.1, seed: int = 0, test_fraction: float = 0.2) -> FederatedDataset:
    """The 1,797 8x8 digits that come with scikit-learn, shared out by Dirichlet label skew.

    Args:
      num_clients: number of clients; each gets two examples or more.
      alpha: concentration of :func:`fedjax_sim.datasets.partition.dirichlet`.
      seed: of the partition and of the held-out examples.
      test_fraction: share of each client's examples held out.

    Returns:
      ``{"x": float32[n, 64] in [0, 1], "y": int32[n]}``, ten classes.

    Raises:
      ImportError: scikit-learn is not installed.

    Source: Alpaydin and Kaynak 1998, UCI optical recognition of handwritten digits (the test half).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "digits() reads the data that comes with scikit-learn: install it with pip install 'fedjax_sim[data]'"
        ) from error
    x, y = load_digits(return_X_y=True)
    rows = partitions.dirichlet(y, num_clients, alpha, seed, min_size=2)
    features = (x / 16.0).astype(np.float32)
    return from_partition((features, y), rows, test_fraction=test_fraction, seed=seed, num_classes=10)
