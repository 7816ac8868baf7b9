"""MNIST by the people who wrote it."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count, suggest
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.idx import read_idx
from fedjax_sim.datasets.reading.places import check_sha256, find
from fedjax_sim.datasets.sources.idx_files import MNIST
from fedjax_sim.datasets.sources.pixels import Normalisation, checked_normalisation, features
from fedjax_sim.datasets.sources.sharing import deal
from fedjax_sim.datasets.split import held_out

_GET = "Get QMNIST's two label files (https://github.com/facebookresearch/qmnist)"
_FILES = {"train": "qmnist-train-labels-idx2-int", "test": "qmnist-test-labels-idx2-int"}
_PUBLISHED = {
    "train": (
        "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5",
    ),
    "test": (
        "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        "92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd",
    ),
}
_CLASS, _WRITER = 0, 2  # columns of a label file


@recipe("dataset.mnist_writers")
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
      test: "local" holds out part of each writer's own images (a client is tested on its own hand); "official" deals
        the 10,000 test images to the clients uniformly at random, so that the pooled test accuracy is the usual one,
        over the hands of people who are no clients.
      seed: of the draw of held-out images, or of the deal.
      test_fraction: share held out, for ``test="local"``.
      flat: as in :func:`fedjax_sim.datasets.mnist`, and so are ``scaled``, ``normalise`` and ``verify``.
      scaled: whether the pixels are float32 in [0, 1] or uint8.
      normalise: whether to normalise by mean and standard deviation.
      verify: whether to check the files against the published SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, ten classes; ``client_ids`` are NIST's numbers of the writers.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file that is not the published one, label files that do not belong to the images, an unknown
        argument.

    Source: Yadav and Bottou 2019, Cold case: the lost MNIST digits, arXiv:1905.10498.
    """
    for name, value, known in (("writers", writers, ["train", "all"]), ("test", test, ["local", "official"])):
        if value not in known:
            raise ValueError(f"mnist_writers({name}={value!r}): {suggest(str(value), known)}")
    if (writers, test) == ("all", "official"):
        raise ValueError(
            "mnist_writers(writers='all', test='official'): the writers of the test images are clients then and train "
            "on them; give test='local'"
        )
    check_count("mnist_writers(seed=...)", seed, low=0)
    normalisation = checked_normalisation("mnist_writers", "mnist", scaled, normalise)
    to_features = functools.partial(features, flat=flat, scaled=scaled, normalisation=normalisation)
    halves = ["train", "test"] if writers == "all" or test == "official" else ["train"]
    read = {half: (*MNIST.read(half, verify=verify), _writers(half, verify)) for half in halves}
    for half, (_, labels, table) in read.items():
        if table.shape[0] < labels.size or not np.array_equal(table[: labels.size, _CLASS], labels):
            raise ValueError(
                f"mnist_writers: the classes in {_FILES[half]} are not the labels of MNIST's {half} images: the files "
                "do not belong together"
            )
    images, labels, ids = _pooled([read[half] for half in (halves if writers == "all" else ["train"])])
    if test == "official":
        test_images, test_labels, _ = read["test"]
        known_ids = np.unique(ids)
        owner = known_ids[deal(test_labels.size, known_ids.size, seed)]
        return from_ids(
            (to_features(images), labels), ids, test=(to_features(test_images), test_labels), test_ids=owner,
            num_classes=10,
        )  # fmt: skip
    held = held_out(ids, test_fraction, seed)
    return from_ids(
        (to_features(images[~held]), labels[~held]), ids[~held], test=(to_features(images[held]), labels[held]),
        test_ids=ids[held], num_classes=10,
    )  # fmt: skip


def _writers(half: str, verify: bool) -> np.ndarray:
    """QMNIST's table of a half, int32[n, 8]; its row i belongs to MNIST's image i, rows beyond MNIST's to others."""
    stem = _FILES[half]
    path = find("qmnist_writers", f"{stem}.gz", stem, get=_GET)
    if verify:
        check_sha256(path, *_PUBLISHED[half])
    table = read_idx(path)
    if table.dtype != np.int32 or table.ndim != 2 or table.shape[1] != 8:
        raise ValueError(f"mnist_writers: {path} has {table.dtype}{list(table.shape)}, not int32[n, 8]")
    return table


def _pooled(halves: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and writers of the halves, end to end."""
    images, labels, tables = zip(*halves, strict=True)
    writers = [table[: of.size, _WRITER] for table, of in zip(tables, labels, strict=True)]
    return np.concatenate(images), np.concatenate(labels), np.concatenate(writers)
