"""LIBSVM's mushrooms: a convex problem of the optimisation literature."""

from __future__ import annotations

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.files import check_regular, parsing
from fedjax_sim.datasets.construct import from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.places import check_sha256, find
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, partitioner

_GET = "Get mushrooms from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_SHA256 = "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"
_FEATURES = 112


@recipe("dataset.mushrooms")
def mushrooms(
    num_clients: int = 20,
    alpha: float = 0.5,
    partition: Named | Partitioner = "iid",
    seed: int = 0,
    *,
    shards_per_client: int = 1,
    test_fraction: float = 0.2,
    verify: bool = True,
) -> FederatedDataset:
    """Edible or poisonous: 8,124 mushrooms, 112 features of 0 and 1, for logistic regression (convex, separable).

    Args:
      num_clients: number of clients, for a ``partition`` that is a name.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: "iid", "dirichlet" or "shards" by class, or a function from the labels int[n] to the rows of each
        client (which describes itself as opaque).
      seed: of the partition and of the draw of held-out examples.
      shards_per_client: for ``partition="shards"``.
      test_fraction: share of each client's examples held out.
      verify: whether to check the file against its SHA-256; give False for a copy that is written otherwise.

    Returns:
      ``{"x": float32[n, 112], "y": int32[n]}``, two classes: the file's labels 1 and 2 as 0 and 1.

    Raises:
      FileNotFoundError: ``<data>/mushrooms/mushrooms_train`` (or ``mushrooms``) is missing.
      ImportError: scikit-learn, which reads the format, is not installed.
      ValueError: another file, or an unknown ``partition``.

    Source: UCI repository, Mushroom (1981), CC BY 4.0; encoded by LIBSVM, Chang and Lin 2011.
    """
    choose = partitioner("mushrooms", partition, num_clients, alpha, shards_per_client, seed)
    path = find("mushrooms", "mushrooms_train", "mushrooms", get=_GET)
    if verify:
        check_sha256(path, _SHA256)
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        raise ImportError(
            "mushrooms() reads LIBSVM's format with scikit-learn: install it with pip install 'fedjax_sim[data]'"
        ) from error
    check_regular(path)
    with parsing(path, f"is not a LIBSVM file of {_FEATURES} features"):
        sparse, labels = load_svmlight_file(str(path), n_features=_FEATURES, zero_based=False, dtype=np.float32)
    if not labels.size or not np.isfinite(sparse.data).all():
        raise ValueError(f"{path} has no rows, or values that are not finite: fetch it again")
    for row in np.flatnonzero(~np.isin(labels, [1.0, 2.0]))[:1]:
        raise ValueError(f"{path}: row {row} (counted from 0) has the label {labels[row]}, not 1 or 2")
    y = labels.astype(np.int64) - 1
    return from_partition(
        (sparse.toarray(), y), choose(y), test_fraction=test_fraction, seed=seed, num_classes=2
    )  # fmt: skip
