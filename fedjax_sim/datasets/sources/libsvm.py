"""Binary classification from LIBSVM's collection, sparse features of 0 and 1: mushrooms, a9a, w8a."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import parsing
from fedjax_sim.datasets.calls import arguments_of
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.archives import read_bounded
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set, scikit_learn
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, Test, from_halves

_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_MAX_BYTES = 2**28
Labelled = tuple[np.ndarray, np.ndarray]  # features [n, d] and labels int[n]


def _file(folder: str, name: str, sha256: str, *names: str) -> DataFile:
    packed = tuple(f"{one}{ending}" for one in (*names, name) for ending in ("", ".xz", ".bz2", ".gz"))
    return DataFile(folder, packed, f"Get {name} from {_PAGE}", sha256)


_MUSHROOMS = _file(
    "mushrooms", "mushrooms", "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538", "mushrooms_train"
)
_A9A = {
    "train": _file("libsvm", "a9a", "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca"),
    "test": _file("libsvm", "a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
}
_W8A = _file("libsvm", "w8a", "b464b4f6ce6a5d9e181ffc793e19a04751036273722312398ef7673705014902")


@data_set("dataset.mushrooms", source=Source((_MUSHROOMS,), "sklearn", "0.9 MB", "CC BY 4.0"))
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
      FileNotFoundError: the file is missing.
      ImportError: scikit-learn, which reads the format, is not installed.
      ValueError: another file, or an unknown ``partition``.

    Source: UCI repository, Mushroom (1981), CC BY 4.0; encoded by LIBSVM, Chang and Lin 2011.
    """
    return _shared_out("mushrooms", {"train": _MUSHROOMS}, 112, (1, 2), test="local", **locals())


@data_set("dataset.a9a", source=Source(tuple(_A9A.values()), "sklearn", "3.5 MB", "CC BY 4.0"))
def a9a(
    num_clients: int = 20,
    alpha: float = 0.5,
    partition: Named | Partitioner = "iid",
    seed: int = 0,
    *,
    shards_per_client: int = 1,
    test: Test = "official",
    test_fraction: float = 0.2,
    verify: bool = True,
) -> FederatedDataset:
    """Whether a person earned more than 50,000 dollars: the census rows of Adult in 123 features of 0 and 1.

    32,561 training and 16,281 test rows, a quarter of them of class 1. :func:`fedjax_sim.datasets.adult` has the same
    rows with their own columns, and natural clients.

    Arguments as in :func:`mushrooms`; ``test="official"`` deals the test rows to the clients uniformly at random,
    "local" holds out part of each client's own training rows.

    Returns:
      ``{"x": float32[n, 123], "y": int32[n]}``, two classes: the file's labels -1 and +1 as 0 and 1.

    Source: UCI repository, Adult (Becker and Kohavi 1996), CC BY 4.0; encoded by Platt 1998 and LIBSVM.
    """
    return _shared_out("a9a", _A9A, 123, (-1, 1), **locals())


@data_set("dataset.w8a", source=Source((_W8A,), "sklearn", "4.8 MB", "not stated"))
@arguments_of(mushrooms)
def w8a(**given: Any) -> FederatedDataset:
    """Whether a web page belongs to a category: 49,749 pages, 300 features of 0 and 1, 3 % of them of class 1.

    Arguments as in :func:`mushrooms`.

    Returns:
      ``{"x": float32[n, 300], "y": int32[n]}``, two classes: the file's labels -1 and +1 as 0 and 1.

    Source: Platt 1998, Fast training of support vector machines using sequential minimal optimization.
    """
    return _shared_out("w8a", {"train": _W8A}, 300, (-1, 1), test="local", **given)


def _shared_out(
    what: str, files: Mapping[str, DataFile], features: int, labels: tuple[int, int], *, verify: bool, **shared: Any
) -> FederatedDataset:
    return from_halves(what, lambda half: _read(what, files[half], features, labels, verify), 2, **shared)


def _read(what: str, file: DataFile, features: int, labels: tuple[int, int], verify: bool) -> Labelled:
    """A file's rows; its two ``labels`` as 0 and 1."""
    path: Path = file.path(verify=verify)
    read = scikit_learn(what).load_svmlight_file
    content = io.BytesIO(read_bounded(path, _MAX_BYTES))
    with parsing(path, f"is not a LIBSVM file of {features} features"):
        sparse, found = read(content, n_features=features, zero_based=False, dtype=np.float32)
    if not found.size or not np.isfinite(sparse.data).all():
        raise ValueError(f"{path} has no rows, or values that are not finite: fetch it again")
    for row in np.flatnonzero(~np.isin(found, labels))[:1]:
        raise ValueError(
            f"{path}: row {row} (counted from 0) has the label {found[row]}, not {labels[0]} or {labels[1]}"
        )
    return sparse.toarray(), (found == labels[1]).astype(np.int64)
