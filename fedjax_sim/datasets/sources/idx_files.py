"""The image sets that are published as idx files: which files, their digests, and what must be in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.reading.idx import read_idx
from fedjax_sim.datasets.reading.places import check_sha256, find


@dataclasses.dataclass(frozen=True)
class IdxSet:
    """An image set of two halves, each a file of images and a file of labels.

    Attributes:
      folder: its folder in the data directory, and its name in messages.
      halves: "train" and "test" to the names of the images' and the labels' file, without ``.gz``.
      get: how to come by the files.
      num_classes: number of classes C.
      first_label: the label of the first class in the files; read labels are 0 .. C-1.
      transposed: whether the files have rows and columns of an image swapped.
      published: file name to the SHA-256 of the gzipped file and of its content.
    """

    folder: str
    halves: Mapping[str, tuple[str, str]]
    get: str
    num_classes: int
    published: Mapping[str, tuple[str, str]]
    first_label: int = 0
    transposed: bool = False

    def read(self, half: str, *, verify: bool) -> tuple[np.ndarray, np.ndarray]:
        """Reads one half.

        Args:
          half: "train" or "test".
          verify: whether to check that the files are the published ones.

        Returns:
          Images uint8[n, 28, 28, 1], upright, and labels uint8[n] from 0.

        Raises:
          FileNotFoundError: a file is missing.
          ValueError: not the published file, damaged, not images of 28x28 bytes with a label each, or a label that
            is no class.
        """
        check_flag(f"{self.folder}(verify=...)", verify)
        images, labels = (read_idx(self.file(stem, verify=verify)) for stem in self.halves[half])
        if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
            raise ValueError(
                f"{self.folder}: the {half} images are {images.dtype}{list(images.shape)}, not uint8[n, 28, 28]"
            )
        if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{self.folder}: the {half} labels are {labels.dtype}{list(labels.shape)}, not one uint8 for each of "
                f"the {images.shape[0]} images"
            )
        low, high = self.first_label, self.first_label + self.num_classes - 1
        for row in np.flatnonzero((labels < low) | (labels > high))[:1]:
            raise ValueError(f"{self.folder}: {half} image {row} has the label {labels[row]}, outside {low} to {high}")
        upright = images.transpose(0, 2, 1) if self.transposed else images
        return upright[..., np.newaxis], labels - np.uint8(low)

    def file(self, stem: str, *, verify: bool) -> Path:
        """The path of a file, gzipped or not, once it is known to be the published one."""
        path = find(self.folder, f"{stem}.gz", stem, get=self.get)
        if verify:
            try:
                check_sha256(path, *self.published[stem])
            except ValueError as error:
                raise ValueError(f"{error}, or give verify=False for files of your own") from None
        return path


_MNIST_HALVES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}

MNIST = IdxSet(
    folder="mnist",
    halves=_MNIST_HALVES,
    get="Get the four original files (https://ossci-datasets.s3.amazonaws.com/mnist/ mirrors them)",
    num_classes=10,
    published={
        "train-images-idx3-ubyte": (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        "train-labels-idx1-ubyte": (
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "t10k-images-idx3-ubyte": (
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        "t10k-labels-idx1-ubyte": (
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
)

FASHION_MNIST = IdxSet(
    folder="fashion_mnist",
    halves=_MNIST_HALVES,
    get="Get the four original files (https://github.com/zalandoresearch/fashion-mnist, data/fashion)",
    num_classes=10,
    published={
        "train-images-idx3-ubyte": (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        "train-labels-idx1-ubyte": (
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "t10k-images-idx3-ubyte": (
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        "t10k-labels-idx1-ubyte": (
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
)

EMNIST_LETTERS = IdxSet(
    folder="emnist_letters",
    halves={
        half: (f"emnist-letters-{half}-images-idx3-ubyte", f"emnist-letters-{half}-labels-idx1-ubyte")
        for half in ("train", "test")
    },
    get="Get the letters split of EMNIST (https://www.nist.gov/itl/products-and-services/emnist-dataset, gzip.zip)",
    num_classes=26,
    first_label=1,
    transposed=True,
    published={
        "emnist-letters-train-images-idx3-ubyte": (
            "6288f418a917e007bf5fddb823a2dc7a5c6a35031401b93292a539cb12bd881f",
            "7a786db773b2096a7b9a3f3275388a27711f4451548c3ca8be96f09ae94371ae",
        ),
        "emnist-letters-train-labels-idx1-ubyte": (
            "9759af91ea6bccdf07a6040fd085861f2ec88e37f7c3f5760f6feb57106fbe5c",
            "e8e94c3f4353d5532fd9604b939cb4c76e7847945b9b0d9ff7884d881dead6bc",
        ),
        "emnist-letters-test-images-idx3-ubyte": (
            "50f0e93d75b99b463e9760b8345866f22587fa2c2fba472730a5ba09c693412d",
            "d5895e82d14765b22a84342337bc5c25f1affd61cc97d3821d4e65504bbf8dbc",
        ),
        "emnist-letters-test-labels-idx1-ubyte": (
            "924955c31fe7fd809b7303b5c0141282955f4b8390c74cdfd5d80435e0f4b4cb",
            "22dbcde0a929a7f166bdac863b9195b2994d840a1e082f8f6daaeac5606376a6",
        ),
    },
)
