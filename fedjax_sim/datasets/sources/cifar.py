"""CIFAR-10 and CIFAR-100 in the binary version, with FedNova's and FedAWARE's partitions."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import shown
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.sources.cifar_files import CIFAR10, CIFAR100, CifarSet
from fedjax_sim.datasets.sources.pixels import Normalisation, checked_normalisation, features
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, Test, partitioner, share_out

_ALL = (1, 2, 3, 4, 5)


@recipe("dataset.cifar10")
def cifar10(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    batches: Sequence[int] = _ALL,
    shards_per_client: int = 2,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = False,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """CIFAR-10's binary version from ``<data>/cifar10``.

    Reads the files ``data_batch_N.bin`` and ``test_batch.bin`` (also as ``.bin.xz`` or ``.bin.gz``), or the published
    ``cifar-10-binary.tar.gz`` as it is, without unpacking it to disk.

    Args:
      num_clients: number of clients, for a ``partition`` that is a name.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: how the training images are shared out, as in :func:`fedjax_sim.datasets.mnist`.
      seed: of the partition, of the deal of the test images and of the draw of held-out examples.
      batches: which of the five training files of 10,000 images each to read. With fewer than five the data set is a
        part of CIFAR-10, and its description says which.
      shards_per_client: for ``partition="shards"``.
      test: "official" deals the 10,000 test images to the clients uniformly at random; "local" holds out part of each
        client's own training images instead.
      test_fraction: share held out, for ``test="local"``.
      flat: whether the images are vectors [n, 3072] or have the shape [n, 32, 32, 3].
      scaled: whether the pixels are float32 in [0, 1] (614 MB for 50,000 images); False keeps the bytes, uint8
        (154 MB), for a model that scales them itself.
      normalise: whether to subtract a mean and divide by a standard deviation of each channel after that: True for
        (0.4914, 0.4822, 0.4465) and (0.2470, 0.2435, 0.2616), those of the training images, or a pair of triples.
      verify: whether to check the files' content against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing; the message says which ones are there.
      ValueError: a file that is not the published one, bad ``batches``, an unknown ``partition`` or ``test``.

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images.
    """
    choose = partitioner("cifar10", partition, num_clients, alpha, shards_per_client, seed)
    return _cifar(
        "cifar10", CIFAR10, _batch_files("cifar10", batches), choose, test=test, test_fraction=test_fraction,
        seed=seed, flat=flat, scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


@recipe("dataset.cifar10_dirichlet")
def cifar10_dirichlet(
    alpha: float = 0.1,
    num_clients: int = 16,
    seed: int = 0,
    *,
    balanced: bool = False,
    min_size: int = 1,
    batches: Sequence[int] = _ALL,
    scaled: bool = True,
    normalise: bool | Normalisation = True,
    verify: bool = True,
) -> FederatedDataset:
    """CIFAR-10 with Dirichlet label skew, as FedNova and FedAWARE use it.

    FedNova: Dir(0.1) over 16 clients, the defaults here. Its published code has ``balanced=True, min_size=10``, one
    fixed partition for all runs, the standard deviations (0.2023, 0.1994, 0.2010) and random crops and flips, which a
    data set of arrays does not have. FedAWARE: Dir(0.1), and Dir(0.5), Dir(1) and Dir(10)
    for comparison, over 100 clients. Both test on the whole official test set, which is dealt to the clients here.

    Args:
      alpha: concentration of :func:`fedjax_sim.datasets.partition.dirichlet`.
      num_clients: number of clients.
      seed: of the partition and of the deal of the test images.
      balanced: as in :func:`fedjax_sim.datasets.partition.dirichlet`.
      min_size: fewest images of a client.
      batches: as in :func:`cifar10`, and so are ``scaled``, ``normalise`` and ``verify``.
      scaled: whether the pixels are float32 in [0, 1] or uint8; with uint8 give ``normalise=False``.
      normalise: whether to normalise by channel.
      verify: whether to check the files' content against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8 [n, 32, 32, 3], "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing; the message says which ones are there.
      ValueError: a file that is not the published one, or a bad argument.

    Source: Wang et al. 2020 (FedNova), arXiv:2007.07481, section VI; Zeng et al. 2025 (FedAWARE), section 5.
    """
    return _cifar(
        "cifar10_dirichlet", CIFAR10, _batch_files("cifar10_dirichlet", batches),
        _dirichlet(alpha, num_clients, seed, balanced, min_size), test="official", test_fraction=0.0, seed=seed,
        flat=False, scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


@recipe("dataset.cifar100_dirichlet")
def cifar100_dirichlet(
    alpha: float = 0.1,
    num_clients: int = 100,
    seed: int = 0,
    *,
    balanced: bool = False,
    min_size: int = 1,
    scaled: bool = True,
    normalise: bool | Normalisation = True,
    verify: bool = True,
) -> FederatedDataset:
    """CIFAR-100 with Dirichlet label skew from ``<data>/cifar100``, as FedAWARE uses it: Dir(0.1) over 100 clients.

    Reads ``train.bin`` and ``test.bin``, or the published ``cifar-100-binary.tar.gz`` as it is. The classes are the
    100 fine ones. ``normalise=True`` uses the mean (0.5071, 0.4865, 0.4409) and the standard deviation (0.2673,
    0.2564, 0.2762); the arguments are those of :func:`cifar10_dirichlet`.

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images; Zeng et al. 2025 (FedAWARE),
    section 5.
    """
    return _cifar(
        "cifar100_dirichlet", CIFAR100, ["train.bin"], _dirichlet(alpha, num_clients, seed, balanced, min_size),
        test="official", test_fraction=0.0, seed=seed, flat=False, scaled=scaled, normalise=normalise, verify=verify,
    )  # fmt: skip


def _cifar(
    what: str,
    files: CifarSet,
    train: Sequence[str],
    choose: Partitioner,
    *,
    test: Test,
    test_fraction: float,
    seed: int,
    flat: bool,
    scaled: bool,
    normalise: bool | Normalisation,
    verify: bool,
) -> FederatedDataset:
    normalisation = checked_normalisation(what, files.folder, scaled, normalise)
    halves = {"train": train, "test": [name for name in files.published if name.startswith("test")]}
    return share_out(
        what,
        lambda half: files.read(halves[half], verify=verify),
        choose,
        functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation),
        num_classes=files.num_classes,
        test=test,
        test_fraction=test_fraction,
        seed=seed,
    )


def _dirichlet(alpha: float, num_clients: int, seed: int, balanced: bool, min_size: int) -> Partitioner:
    return lambda labels: partitions.dirichlet(labels, num_clients, alpha, seed, min_size, balanced=balanced)


def _batch_files(what: str, batches: Sequence[int]) -> list[str]:
    """The names of the training files."""
    numbers = list(batches) if isinstance(batches, (Sequence, np.ndarray)) and not isinstance(batches, str) else []
    whole = all(isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in numbers)
    if not numbers or not whole or not set(numbers) <= set(_ALL) or len(set(numbers)) < len(numbers):
        raise ValueError(f"{what}(batches={shown(batches)}): give some of the numbers 1 to 5, each at most once")
    return [f"data_batch_{number}.bin" for number in numbers]
