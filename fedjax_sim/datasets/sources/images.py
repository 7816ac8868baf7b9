"""MNIST, Fashion-MNIST, EMNIST and CIFAR from their original files, with any partition and the papers'."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_sim.core.values import shown
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.calls import arguments_of
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.sources.image_files import (
    CIFAR10,
    CIFAR100,
    EMNIST_BYCLASS,
    EMNIST_LETTERS,
    FASHION_MNIST,
    MNIST,
    Half,
    ImageSet,
    Normalisation,
    checked_normalisation,
    features,
)
from fedjax_sim.datasets.sources.record import Source, data_set
from fedjax_sim.datasets.sources.sharing import Named, Partitioner, Test, from_halves

_BATCHES = (1, 2, 3, 4, 5)
_FEMNIST_LETTERS = 10  # a .. j
NIST = "from NIST Special Database 19, a work of the US government"
_CIFAR = "no formal licence: research use, cite the report"


def _files(of: ImageSet, size: str, terms: str) -> Source:
    return Source(tuple(of.files.values()), size=size, terms=terms)


OF_MNIST = _files(MNIST, "12 MB", "copyright LeCun and Cortes; commonly given as CC BY-SA 3.0")
_OF_LETTERS = _files(EMNIST_LETTERS, "36 MB", f"{NIST}; no separate licence stated")
_OF_CIFAR10 = _files(CIFAR10, "170 MB", _CIFAR)


@data_set("dataset.mnist", source=OF_MNIST)
def mnist(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test: Test = "official",
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """MNIST from the four original files in ``<data>/mnist``, gzipped or not.

    Args:
      num_clients: number of clients, for a ``partition`` that is a name.
      alpha: concentration, for ``partition="dirichlet"``.
      partition: of the 60,000 training images: "dirichlet", "iid" or "shards" (see
        :mod:`fedjax_sim.datasets.partition`), or a function from the labels int[n] to the rows of each client, which
        describes itself as opaque.
      seed: of the partition, of the deal of the test images and of the draw of held-out examples.
      shards_per_client: for ``partition="shards"``.
      test: "official" deals the 10,000 test images to the clients uniformly at random, so that the pooled test
        accuracy is the usual one; "local" holds out part of each client's own training images instead.
      test_fraction: share held out, for ``test="local"``.
      flat: whether the images are vectors [n, 784] or have the shape [n, 28, 28, 1].
      scaled: whether the pixels are float32 in [0, 1]; False keeps the bytes, uint8, in a quarter of the memory.
      normalise: whether to subtract a mean and divide by a standard deviation after that: True for 0.1307 and
        0.3081, those of the training images, or a pair ``((mean,), (std,))``.
      verify: whether to check the files against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes.

    Raises:
      FileNotFoundError: a file is missing; the message says where it was looked for.
      ValueError: a file that is not the published one, or an unknown ``partition`` or ``test``.

    Source: LeCun, Cortes and Burges, the MNIST database of handwritten digits.
    """
    return from_image_set("mnist", MNIST, **locals())


@data_set("dataset.fashion_mnist", source=_files(FASHION_MNIST, "31 MB", "MIT"))
@arguments_of(mnist)
def fashion_mnist(**given: Any) -> FederatedDataset:
    """Fashion-MNIST from the four original files in ``<data>/fashion_mnist``; arguments as in :func:`mnist`.

    ``normalise=True`` uses the mean 0.2860 and the standard deviation 0.3530.

    Source: Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747.
    """
    return from_image_set("fashion_mnist", FASHION_MNIST, **given)


@data_set("dataset.emnist_letters", source=_OF_LETTERS)
@arguments_of(mnist)
def emnist_letters(**given: Any) -> FederatedDataset:
    """EMNIST's letters split from its four files in ``<data>/emnist_letters``; arguments as in :func:`mnist`.

    124,800 training and 20,800 test images of 26 letters, upper and lower case in one class. The files have each
    image's rows and columns swapped and number the letters from 1; here the images are upright and ``a`` is 0.
    ``normalise=True`` uses the mean 0.1722 and the standard deviation 0.3309.

    Source: Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373.
    """
    return from_image_set("emnist_letters", EMNIST_LETTERS, **given)


@data_set("dataset.emnist_byclass", source=_files(EMNIST_BYCLASS, "11 MB", f"{NIST}; no separate licence stated"))
@arguments_of(mnist, without=("test",))
def emnist_byclass(**given: Any) -> FederatedDataset:
    """EMNIST by class, every second image of its test files: 58,162 images, 62 classes of 170 to 3,154.

    Digits, capital and small letters in this order, upright. Each client is tested on its own images; all else as in
    :func:`mnist`. ``normalise=True`` uses the mean 0.1738 and the standard deviation 0.3318.

    Source: Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373.
    """
    return from_image_set("emnist_byclass", EMNIST_BYCLASS, test="local", **given)


@data_set("dataset.emnist_similarity", source=_OF_LETTERS)
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
    the letters split, so accuracies need not be the paper's. s is in [0, 100], all else as in :func:`emnist_letters`.

    Source: Karimireddy et al. 2020 (SCAFFOLD), arXiv:1910.06378, section 7.
    """
    given = dict(locals())
    percent = given.pop("s")

    def choose(labels: np.ndarray) -> partitions.Partition:
        return partitions.similarity(labels, num_clients, percent, seed)

    return from_image_set("emnist_similarity", EMNIST_LETTERS, choose, **given)


@data_set("dataset.femnist", source=_OF_LETTERS)
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
    upper and lower case in one class. Its code can give one image to several devices; here an image is used once. And
    its code has 3 classes a device where its text has 5, the default here; it holds out 0.1 where the text has 0.2. To
    run on FedProx's or LEAF's own files, read their json instead. All else as in :func:`emnist_letters`.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, Table 1 and appendix C.1, and its published code.
    """
    given = dict(locals())
    del given["classes_per_client"]

    def choose(labels: np.ndarray) -> partitions.Partition:
        sizes = partitions.lognormal_counts(num_clients, 4.0, 1.0, seed, least=5)
        return partitions.consecutive_classes(labels, num_clients, classes_per_client, seed, sizes=sizes)

    def first_letters(half: str, *, verify: bool) -> Half:
        images, labels = EMNIST_LETTERS.read(half, verify=verify)
        wanted = labels < _FEMNIST_LETTERS
        return images[wanted], labels[wanted]

    return from_image_set(
        "femnist", EMNIST_LETTERS, choose, first_letters, classes=_FEMNIST_LETTERS, test="local", **given
    )


@data_set("dataset.cifar10", source=_OF_CIFAR10)
def cifar10(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    batches: Sequence[int] = _BATCHES,
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
    ``cifar-10-binary.tar.gz`` as it is. Arguments as in :func:`mnist`, and ``batches``: which of the five training
    files of 10,000 images each to read.

    Images are [n, 32, 32, 3], or [n, 3072] where ``flat``; 614 MB as floats of 50,000 images, 154 MB as bytes.
    ``normalise=True`` uses the mean (0.4914, 0.4822, 0.4465) and the standard deviation (0.2470, 0.2435, 0.2616) of
    the training images by channel.

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images.
    """
    given = dict(locals())
    return from_image_set("cifar10", CIFAR10, read=_of_batches("cifar10", given.pop("batches")), **given)


@data_set("dataset.cifar10_dirichlet", source=_OF_CIFAR10)
def cifar10_dirichlet(
    alpha: float = 0.1,
    num_clients: int = 16,
    seed: int = 0,
    *,
    balanced: bool = False,
    min_size: int = 1,
    batches: Sequence[int] = _BATCHES,
    scaled: bool = True,
    normalise: bool | Normalisation = True,
    verify: bool = True,
) -> FederatedDataset:
    """CIFAR-10 with Dirichlet label skew, as FedNova and FedAWARE use it.

    FedNova: Dir(0.1) over 16 clients, the defaults here. Its published code has ``balanced=True, min_size=10``, one
    fixed partition for all runs, the standard deviations (0.2023, 0.1994, 0.2010) and random crops and flips, which a
    data set of arrays does not have. FedAWARE: Dir(0.1), and Dir(0.5), Dir(1) and Dir(10)
    for comparison, over 100 clients. Both test on the whole official test set, which is dealt to the clients here.

    ``alpha``, ``balanced`` and ``min_size`` are those of :func:`fedjax_sim.datasets.partition.dirichlet`, the others
    those of :func:`cifar10`; with ``scaled=False`` give ``normalise=False``.

    Source: Wang et al. 2020 (FedNova), arXiv:2007.07481, section VII; Zeng et al. 2025 (FedAWARE), section 5.
    """
    given = dict(locals())
    read = _of_batches("cifar10_dirichlet", given.pop("batches"))
    choose = _dirichlet(given)
    return from_image_set("cifar10_dirichlet", CIFAR10, choose, read, **given)


@data_set("dataset.cifar100_dirichlet", source=_files(CIFAR100, "169 MB", _CIFAR))
@arguments_of(cifar10_dirichlet, without=("batches",), num_clients=100)
def cifar100_dirichlet(**given: Any) -> FederatedDataset:
    """CIFAR-100 with Dirichlet label skew from ``<data>/cifar100``, as FedAWARE uses it: Dir(0.1) over 100 clients.

    Reads ``train.bin`` and ``test.bin``, or the published ``cifar-100-binary.tar.gz``. The classes are the 100 fine
    ones; ``normalise=True`` uses the mean (0.5071, 0.4865, 0.4409) and the standard deviation (0.2673, 0.2564,
    0.2762). Arguments as in :func:`cifar10_dirichlet`.

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images; Zeng et al. 2025 (FedAWARE),
    section 5.
    """
    choose = _dirichlet(given)
    return from_image_set("cifar100_dirichlet", CIFAR100, choose, **given)


def from_image_set(
    what: str,
    files: ImageSet,
    choose: Partitioner | None = None,
    read: Callable[..., Half] | None = None,
    *,
    partition: Named | Partitioner = "iid",
    flat: bool = False,
    scaled: bool,
    normalise: bool | Normalisation,
    verify: bool,
    classes: int | None = None,
    **shared: Any,
) -> FederatedDataset:
    """Reads, partitions and packs an image set, as :func:`mnist` and its kind say; ``choose`` replaces a partition."""
    normalisation = checked_normalisation(what, files, scaled, normalise)
    prepare = functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation)
    read = functools.partial(read or files.read, verify=verify)
    return from_halves(what, read, classes or files.num_classes, prepare, partition=choose or partition, **shared)


def _dirichlet(given: dict[str, Any]) -> Partitioner:
    """The partition that the arguments of :func:`cifar10_dirichlet` mean; they are taken out, but for the seed."""
    own = {name: given.pop(name) for name in ("alpha", "num_clients", "balanced", "min_size")}
    return functools.partial(partitions.dirichlet, seed=given["seed"], **own)


def _of_batches(what: str, batches: Any) -> Callable[..., Half]:
    """CIFAR-10's reader with some of the training files."""
    given = np.asarray(batches)
    if given.dtype.kind not in "iu" or given.ndim != 1 or sorted(given) != sorted(set(given) & set(_BATCHES)):
        raise ValueError(f"{what}(batches={shown(batches)}): give some of the numbers 1 to 5, each at most once")
    halves = {**CIFAR10.halves, "train": tuple(f"data_batch_{number}.bin" for number in given)}
    return lambda half, *, verify: CIFAR10.read_files(halves[half], verify=verify)
