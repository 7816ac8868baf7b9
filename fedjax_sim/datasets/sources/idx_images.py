"""MNIST and Fashion-MNIST from their original idx files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.idx import read_idx
from fedjax_sim.datasets.reading.places import find
from fedjax_sim.descriptions import recipe
from fedjax_sim.values import check_count, suggest

_GET = {
    "mnist": "Get the four original files (https://ossci-datasets.s3.amazonaws.com/mnist/ mirrors them)",
    "fashion_mnist": "Get the four original files (https://github.com/zalandoresearch/fashion-mnist, data/fashion)",
}


@recipe("dataset.mnist")
def mnist(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Literal["dirichlet", "iid", "shards"] = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Literal["official", "local"] = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
) -> FederatedDataset:
    """MNIST from the four original files in ``<data>/mnist``, gzipped or not.

    Args:
      num_clients: number of clients.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: how the 60,000 training images are shared out, see :mod:`fedjax_sim.datasets.partition`.
      seed: of the partition and of the test images' deal.
      shards_per_client: for ``partition="shards"``.
      test: "official" deals the 10,000 test images to the clients uniformly at random, so that the pooled test
        accuracy is the usual one; "local" holds out part of each client's own training images instead, which have
        the client's own labels (the official test images are then not used).
      test_fraction: share held out, for ``test="local"``.
      flat: whether the images are vectors [n, 784] or have the shape [n, 28, 28, 1].

    Returns:
      ``{"x": float32 in [0, 1], "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing; the message says where it was looked for.
      ValueError: a file that is not what it should be, or an unknown ``partition`` or ``test``.

    Source: LeCun, Cortes and Burges, the MNIST database of handwritten digits.
    """
    return _idx_images("mnist", num_clients, alpha, partition, seed, shards_per_client, test, test_fraction, flat)


@recipe("dataset.fashion_mnist")
def fashion_mnist(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Literal["dirichlet", "iid", "shards"] = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Literal["official", "local"] = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
) -> FederatedDataset:
    """Fashion-MNIST from the four original files in ``<data>/fashion_mnist``; arguments as in :func:`mnist`.

    Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747.
    """
    return _idx_images(
        "fashion_mnist", num_clients, alpha, partition, seed, shards_per_client, test, test_fraction, flat
    )


def _idx_images(
    name: str,
    num_clients: int,
    alpha: float,
    partition: str,
    seed: int,
    shards_per_client: int,
    test: str,
    test_fraction: float,
    flat: bool,
) -> FederatedDataset:
    if partition not in ("dirichlet", "iid", "shards"):
        raise ValueError(f"{name}(partition={partition!r}): {suggest(str(partition), ['dirichlet', 'iid', 'shards'])}")
    if test not in ("official", "local"):
        raise ValueError(f"{name}(test={test!r}): {suggest(str(test), ['official', 'local'])}")
    check_count(f"{name}(seed=...)", seed, low=0)
    x, y = _images(name, "train", flat)
    if partition == "dirichlet":
        rows = partitions.dirichlet(y, num_clients, alpha, seed)
    elif partition == "shards":
        rows = partitions.shards(y, num_clients, shards_per_client, seed)
    else:
        rows = partitions.iid(y.size, num_clients, seed)
    if test == "local":
        return from_partition((x, y), rows, test_fraction=test_fraction, seed=seed, num_classes=10)
    owner = np.empty(y.size, np.int64)
    owner[np.concatenate(rows)] = np.repeat(np.arange(num_clients), [part.size for part in rows])
    test_x, test_y = _images(name, "t10k", flat)
    deal = np.random.Generator(np.random.PCG64(seed)).permutation(np.arange(test_y.size) % num_clients)
    return from_ids((x, y), owner, test=(test_x, test_y), test_ids=deal, num_classes=10)


def _images(name: str, part: str, flat: bool) -> tuple[np.ndarray, Any]:
    """Images as float32 in [0, 1] and labels of one half of an MNIST-like data set."""
    images = read_idx(_file(name, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_file(name, f"{part}-labels-idx1-ubyte"))
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise ValueError(f"{name}: the {part} images are {images.dtype}{list(images.shape)}, not uint8[n, 28, 28]")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{name}: the {part} labels are {labels.dtype}{list(labels.shape)}, not one uint8 for each of the "
            f"{images.shape[0]} images"
        )
    return images.reshape((-1, 784) if flat else (-1, 28, 28, 1)).astype(np.float32) / np.float32(255), labels


def _file(name: str, stem: str) -> Path:
    return find(name, f"{stem}.gz", stem, get=_GET[name])
