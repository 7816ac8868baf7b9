"""Handwriting with clients of its own: one a writer (LEAF's FEMNIST, MNIST), or two digits each (MNIST)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import check_choice, check_count, check_flag, shown
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.partition.dealing import even_sizes
from fedjax_sim.datasets.reading.npz import read_npy
from fedjax_sim.datasets.reading.tables import csv_rows
from fedjax_sim.datasets.sources.image_files import MNIST, Normalisation, checked_normalisation, features, read_idx
from fedjax_sim.datasets.sources.images import NIST, OF_MNIST
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set
from fedjax_sim.datasets.sources.sharing import by_rows, deal

_CLASSES = 62
_LEAF = (
    "These are the test files of LEAF's femnist (https://github.com/TalwalkarLab/leaf, preprocess.sh -s niid --sf 0.14 "
    "-t sample) as one array of pixels and a table row,writer,label; LEAF's own json is read by "
    "fedjax_sim.datasets.from_leaf"
)
_IMAGES = DataFile(
    "leaf_femnist_520",
    ("femnist_images_uint8.npy", "femnist_images_uint8.npy.xz"),
    _LEAF,
    "333c88aff22fdfdc4b3796fc05bcff285861529ee8d37d037dd4e1b1cd97cf3c",
)
_LABELS = DataFile(
    "leaf_femnist_520",
    ("femnist_labels.csv",),
    _LEAF,
    "5dcc3959548afe405a495eee8caf9c7f9255a821486b1a37a09a8bc4c2b57f0f",
)


@data_set(
    "dataset.femnist_writers", source=Source((_IMAGES, _LABELS), size="1.3 MB", terms=f"{NIST}; LEAF: BSD-2-Clause")
)
def femnist_writers(
    min_images: int = 2,
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    verify: bool = True,
) -> FederatedDataset:
    """LEAF's FEMNIST, one client a writer: digits, capital and small letters of 520 people, 1 to 44 images each.

    These are the test images (a tenth of each writer's) of LEAF's non-IID sample of 14 %: 11,687 in all, of the classes
    0-9, A-Z, a-z in this order. White is 1 and ink 0, as LEAF gives them; MNIST has it the other way round.

    Args:
      min_images: leaves out writers with fewer; 519 have 2 or more, 505 have 10, 199 have 20.
      seed: of the draw of held-out images.
      test_fraction: share of each writer's images held out.
      flat: vectors [n, 784], or [n, 28, 28, 1].
      scaled: float32 in [0, 1], or the bytes, uint8.
      verify: whether to check the files against their SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, 62 classes; :func:`fedjax_sim.datasets.client_names` has LEAF's names
      of the writers, ``"f0004_09"``.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: another file, or no writer with as many images.

    Source: Caldas et al. 2018, LEAF, arXiv:1812.01097.
    """
    check_count("femnist_writers(min_images=...)", min_images)
    check_flag("femnist_writers(flat=...)", flat)
    check_flag("femnist_writers(scaled=...)", scaled)
    images, rows = read_npy(_IMAGES.path(verify=verify)), _LABELS.path(verify=verify)
    table = list(csv_rows(rows, ("row", "writer", "label")))
    if images.dtype != np.uint8 or images.shape != (len(table), 28, 28):
        raise ValueError(
            f"femnist_writers: {_IMAGES.path()} has {images.dtype}{list(images.shape)}, and {rows} has {len(table)} "
            "rows: they do not belong together"
        )
    labels = {str(label): label for label in range(_CLASSES)}
    for number, (row, _, label) in enumerate(table):
        if row != str(number) or label not in labels:
            raise ValueError(
                f"{rows}: line {number + 2} has the row {shown(row)} and the label {shown(label)}, not the row "
                f"{number} and a label of 0 to {_CLASSES - 1}"
            )
    names, owner, sizes = np.unique([row[1] for row in table], return_inverse=True, return_counts=True)
    kept = (sizes >= min_images)[owner]
    if not kept.any():
        raise ValueError(f"femnist_writers(min_images={min_images}): the most that a writer has are {sizes.max()}")
    written = images[kept][..., np.newaxis], np.array([labels[row[2]] for row in table])[kept]
    examples = features(written, flat=flat, scaled=scaled, normalisation=None)
    return from_ids(examples, names[owner[kept]], test_fraction=test_fraction, seed=seed, num_classes=_CLASSES)


_QMNIST = "Get QMNIST's two label files (https://github.com/facebookresearch/qmnist)"
_TABLES = {
    half: DataFile(
        "qmnist_writers", (f"qmnist-{half}-labels-idx2-int.gz", f"qmnist-{half}-labels-idx2-int"), _QMNIST, sum_
    )
    for half, sum_ in {
        "train": "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
        "test": "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
    }.items()
}
_CLASS, _WRITER = 0, 2  # columns of a table


@data_set(
    "dataset.mnist_writers",
    source=Source((*OF_MNIST.files, *_TABLES.values()), size="13 MB", terms=f"{OF_MNIST.terms}; QMNIST's: BSD-style"),
)
def mnist_writers(
    writers: Literal["train", "all"] = "train",
    test: Literal["local", "official"] = "local",
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """MNIST with one client a writer: the natural federation of the set.

    QMNIST traced every MNIST image back to NIST's forms, and so to the person who wrote it: 539 people (19 to 131
    images each) wrote the 60,000 training images and 297 others (8 to 130) the 10,000 test images. Needs MNIST's four
    files in ``<data>/mnist`` and QMNIST's label files in ``<data>/qmnist_writers``.

    Args:
      writers: "train" makes the 539 writers of the training images clients; "all" makes all 836 clients, each with
        its own images whichever half they were in, and needs ``test="local"``.
      test: "local" holds out part of each writer's own images; "official" deals the 10,000 test images, by people who
        are no clients, to the clients uniformly at random, so that the pooled test accuracy is the usual one.
      seed: of the draw of held-out images, or of the deal.
      test_fraction: share held out, for ``test="local"``.
      flat: as in :func:`fedjax_sim.datasets.mnist`, and so are the others.
      scaled: float32 or uint8.
      normalise: by mean and standard deviation.
      verify: the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes; ``client_ids`` are NIST's numbers of the writers.

    Source: Yadav and Bottou 2019, Cold case: the lost MNIST digits, arXiv:1905.10498.
    """
    check_choice("mnist_writers(writers=...)", writers, ("train", "all"))
    check_choice("mnist_writers(test=...)", test, ("local", "official"))
    if (writers, test) == ("all", "official"):
        raise ValueError(
            "mnist_writers(writers='all', test='official'): the writers of the test images are clients then and train "
            "on them; give test='local'"
        )
    check_count("mnist_writers(seed=...)", seed, low=0)
    normalisation = checked_normalisation("mnist_writers", MNIST, scaled, normalise)
    prepare = functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation)
    parts = [_with_writers(half, verify) for half in (("train", "test") if writers == "all" else ("train",))]
    images, labels, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    examples = prepare((images, labels))
    if test == "local":
        return from_ids(examples, ids, test_fraction=test_fraction, seed=seed, num_classes=10)
    test_images, test_labels, _ = _with_writers("test", verify)
    known = np.unique(ids)
    owner = known[deal(test_labels.size, known.size, seed)]
    return from_ids(examples, ids, test=prepare((test_images, test_labels)), test_ids=owner, num_classes=10)


def _with_writers(half: str, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and writers of one of MNIST's halves: row i of QMNIST's table belongs to image i."""
    images, labels = MNIST.read(half, verify=verify)
    path = _TABLES[half].path(verify=verify)
    table = read_idx(path)
    if table.dtype != np.int32 or table.shape[1:] != (8,):
        raise ValueError(f"mnist_writers: {path} has {table.dtype}{list(table.shape)}, not int32[n, 8]")
    table = table[: labels.size]  # QMNIST goes on with images that MNIST does not have
    if not np.array_equal(table[:, _CLASS], labels):
        raise ValueError(
            f"mnist_writers: the classes in {path.name} are not the labels of MNIST's {half} images: the files do not "
            "belong together"
        )
    return images, labels, table[:, _WRITER]


_DIGITS = 10


@data_set("dataset.mnist_two_digits", source=OF_MNIST)
def mnist_two_digits(
    num_clients: int = 1000,
    seed: int = 0,
    *,
    balanced: bool = False,
    images: Literal["first", "random"] = "first",
    test_fraction: float = 0.2,
    standardised: bool = False,
    flat: bool = True,
    scaled: bool = True,
    verify: bool = True,
) -> FederatedDataset:
    """MNIST shared out so that every client has images of two digits only.

    *Unbalanced* (FedProx, 1,000 clients; Li et al., 100): the 70,000 images of both halves are pooled; client u holds
    the digits u and u + 1 (mod 10), 5 images of each and LogNormal(0, 2) shares of what is left
    (:func:`fedjax_sim.datasets.partition.consecutive_classes`); part of each client's images is held out.

    *Balanced* (Li et al., 100 clients): the training half only; each digit goes to N/5 clients in equal parts, in
    random pairs of digits (:func:`fedjax_sim.datasets.partition.even_classes`), so each client has 542 images of the
    54,200 in use. These are the first 5,420 of each digit, cut into 20 parts in the order of the files, as in the code
    published with the paper; the official test images of a digit are cut likewise for the clients that hold it.

    Args:
      num_clients: number of clients N; 1,000 in FedProx, 100 in Li et al.
      seed: of the partition and of the draw of held-out images.
      balanced: whether all clients have equally many images.
      images: where ``balanced``: "first" takes those of the published code, "random" draws which are in use and deals
        them, and the test images, out at random.
      test_fraction: share of a client's images held out where not ``balanced``: 0.2 in FedProx's text, 0.1 in its code
        and, to judge by their count of training images, in Li et al.
      standardised: whether each pixel is standardised over the 70,000 images, x = (p - mean)/(std + 0.001) with p in
        0 .. 255, as in FedProx's code (its text does not say; its learning rate 0.03 belongs to such features).
      flat: as in :func:`fedjax_sim.datasets.mnist`, and so are the others, the result and the errors.
      scaled: float32 in [0, 1] or uint8.
      verify: the published SHA-256.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, Table 1 and appendix C.1; Li et al. 2020, arXiv:1907.02189,
    Table 2; the code published with them (of the latter data/mnist/generate_equal.py).
    """
    what = "mnist_two_digits"
    check_flag(f"{what}(balanced=...)", balanced)
    check_flag(f"{what}(standardised=...)", standardised)
    check_choice(f"{what}(images=...)", images, ("first", "random"))
    if images == "random" and not balanced:
        raise ValueError(f"{what}(images='random'): without balanced=True all images are used; leave it out")
    checked_normalisation(what, MNIST, scaled, False)
    if standardised and not scaled:
        raise ValueError(f"{what}(scaled=False, standardised=True): bytes cannot be standardised; give scaled=True")
    train, test = (MNIST.read(half, verify=verify) for half in ("train", "test"))
    pooled = (np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]]))
    prepare = functools.partial(features, flat=flat, scaled=scaled, normalisation=None)
    if standardised:
        mean, deviation = _moments(pooled[0])
        usual = (mean, deviation.astype(np.float32) + np.float32(0.001))
        prepare = functools.partial(features, flat=flat, scaled=True, normalisation=usual, white=1.0)
    if balanced:
        rows: Sequence[np.ndarray] = partitions.even_classes(train[1], num_clients, 2, seed, equal_sizes=True)
        owner = _followed(train[1], rows, test[1], seed if images == "random" else None)
        if images == "first":
            rows = _in_order(train[1], rows)
        return by_rows(rows, train, test, owner, _DIGITS, prepare)
    rows = partitions.consecutive_classes(pooled[1], num_clients, 2, seed)
    return from_partition(prepare(pooled), rows, test_fraction=test_fraction, seed=seed, num_classes=_DIGITS)


@functools.wraps(mnist_two_digits)
def _described(**arguments: Any) -> FederatedDataset:
    """The set that a description means.

    Descriptions name all arguments. One without ``images`` is older than that argument: it means random ones.
    """
    others = inspect.signature(mnist_two_digits).parameters.keys() - {"images"}
    if arguments.get("balanced") is True and arguments.keys() == others:
        arguments["images"] = "random"
    return mnist_two_digits(**arguments)


register("dataset.mnist_two_digits", _described)


def _held(labels: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """How many images of each digit each client has, int[N, 10]."""
    return np.array([np.bincount(labels[part], minlength=_DIGITS) for part in rows])


def _in_order(labels: np.ndarray, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The first images of each digit in the place of those in ``rows``: as many, one client's after another's."""
    parts: list[list[np.ndarray]] = [[] for _ in rows]
    for digit, counts in enumerate(_held(labels, rows).T):
        for part, images in zip(parts, np.split(np.flatnonzero(labels == digit), np.cumsum(counts)), strict=False):
            part.append(images)
    return [np.concatenate(part) for part in parts]


def _followed(labels: np.ndarray, rows: Sequence[np.ndarray], test_labels: np.ndarray, seed: int | None) -> np.ndarray:
    """The client of each test image: the images of a digit go evenly to the clients that train on it.

    With a seed they are dealt at random, else in the order of the files.
    """
    held = _held(labels, rows) > 0
    owner = np.empty(test_labels.size, np.int64)
    for digit in range(_DIGITS):
        holders, images = np.flatnonzero(held[:, digit]), np.flatnonzero(test_labels == digit)
        if seed is None:
            owner[images] = np.repeat(holders, even_sizes(images.size, holders.size))
        else:
            owner[images] = holders[deal(images.size, holders.size, seed)]
    return owner


def _moments(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each pixel over all images, float64[28, 28, 1], of exact sums of integers."""
    count = images.shape[0]
    mean = images.sum(axis=0, dtype=np.int64) / count
    squares = np.square(images, dtype=np.uint16).sum(axis=0, dtype=np.int64)
    return mean, np.sqrt(np.maximum(squares / count - mean**2, 0.0))
