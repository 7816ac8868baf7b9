"""EMNIST letters as SCAFFOLD and FedProx partition them."""

from __future__ import annotations

import functools

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.sources.idx_files import EMNIST_LETTERS
from fedjax_sim.datasets.sources.idx_images import idx_images
from fedjax_sim.datasets.sources.pixels import Normalisation, checked_normalisation, features
from fedjax_sim.datasets.sources.sharing import Test, share_out

_FEMNIST_LETTERS = 10  # a .. j


@recipe("dataset.emnist_similarity")
def emnist_similarity(
    s: float = 10.0,
    num_clients: int = 100,
    seed: int = 0,
    *,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """EMNIST with s % similarity between clients: s % of each client's images are IID, the others sorted by label.

    SCAFFOLD has N = 100 clients and s = 0, 10 and 100. Its text does not say which of EMNIST's splits it uses; this is
    the letters split (26 classes, 124,800 training and 20,800 test images), so accuracies need not be the paper's.
    Images upright, ``a`` is class 0, from ``<data>/emnist_letters``.

    Args:
      s: percentage in [0, 100], see :func:`fedjax_sim.datasets.partition.similarity`.
      num_clients: number of clients N.
      seed: of the partition and of the deal of the test images.
      test: "official" deals the 20,800 test images to the clients at random; "local" holds out part of each client's
        own images.
      test_fraction: share held out, for ``test="local"``.
      flat: vectors [n, 784] or images [n, 28, 28, 1].
      scaled: float32 in [0, 1] or uint8.
      normalise: whether to normalise: True for 0.1722 and 0.3309, or a pair ``((mean,), (std,))``.
      verify: whether to check the files against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, 26 classes.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file that is not the published one, or s outside [0, 100].

    Source: Karimireddy et al. 2020 (SCAFFOLD), arXiv:1910.06378, section 7.
    """
    return idx_images(
        "emnist_similarity", EMNIST_LETTERS,
        lambda labels: partitions.similarity(labels, num_clients, s, seed), test=test, test_fraction=test_fraction,
        seed=seed, flat=flat, scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


@recipe("dataset.femnist")
def femnist(
    num_clients: int = 200,
    classes_per_client: int = 5,
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """FedProx's FEMNIST: ten letters, five at each of 200 devices, LogNormal sizes. From ``<data>/emnist_letters``.

    Device u holds the letters u, u + 1, ..., u + 4 (mod 10) in equal numbers and 5 + LogNormal(4, 1) images in all
    (:func:`fedjax_sim.datasets.partition.consecutive_classes`).

    Three things differ from the paper. It takes lower-case letters; EMNIST's letters split, which is read here, has
    upper and lower case in one class, so ``a`` to ``j`` are of both cases. Its code can give one image to several
    devices; here an image is used once. And its code has 3 classes a device where its text has 5, the default here.
    To run on FedProx's or LEAF's own files, read their json instead.

    Args:
      num_clients: number of devices N.
      classes_per_client: letters a device, at most 10.
      seed: of the sizes, the partition and the draw of held-out images.
      test_fraction: share of each device's images held out (0.2 in the paper, 0.1 in its code).
      flat: vectors [n, 784] or images [n, 28, 28, 1].
      scaled: float32 in [0, 1], as in the paper's code, or uint8.
      normalise: whether to normalise: True for 0.1722 and 0.3309, or a pair ``((mean,), (std,))``.
      verify: whether to check the files against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file that is not the published one, or more devices than the images suffice for.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, Table 1 and appendix C.1, and its published code.
    """
    normalisation = checked_normalisation("femnist", EMNIST_LETTERS.folder, scaled, normalise)

    def first_letters(half: str) -> tuple[np.ndarray, np.ndarray]:
        images, labels = EMNIST_LETTERS.read(half, verify=verify)
        wanted = labels < _FEMNIST_LETTERS
        return images[wanted], labels[wanted]

    def choose(labels: np.ndarray) -> partitions.Partition:
        sizes = partitions.lognormal_counts(num_clients, 4.0, 1.0, seed, least=5)
        return partitions.consecutive_classes(labels, num_clients, classes_per_client, seed, sizes=sizes)

    return share_out(
        "femnist",
        first_letters,
        choose,
        functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation),
        num_classes=_FEMNIST_LETTERS,
        test="local",
        test_fraction=test_fraction,
        seed=seed,
    )
