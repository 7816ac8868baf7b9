"""The image sets as they are published: which files, their digests, how to read them (idx, CIFAR's records), pixels."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.reading.archives import CHUNK, BoundedStream, open_bounded, read_bounded, read_members
from fedjax_sim.datasets.sources.record import DataFile

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIXELS = 3 * 32 * 32
_CIFAR_LIMIT = 2**28  # the largest published file of CIFAR, CIFAR-100's train.bin, has 153,700,000 bytes

Half: TypeAlias = tuple[np.ndarray, np.ndarray]  # images uint8[n, height, width, channels] and labels int[n]
_Values: TypeAlias = Sequence[float] | np.ndarray
Normalisation: TypeAlias = tuple[_Values, _Values]  # mean and standard deviation, of each channel


@dataclasses.dataclass(frozen=True)
class ImageSet(abc.ABC):
    """An image set of two halves."""

    folder: str  # in the data directory, and its name in messages
    num_classes: int
    usual: Normalisation  # of the training pixels in [0, 1], to four digits: what the field's code normalises by
    halves: Mapping[str, tuple[str, ...]]  # "train" and "test" to the names of their files
    get: str  # how to come by them
    sums: tuple[str, ...]  # SHA-256 of each, in that order

    @functools.cached_property
    def files(self) -> dict[str, DataFile]:
        """All files by name."""
        names = [name for half in self.halves.values() for name in half]
        return {name: self._file(name, sum_) for name, sum_ in zip(names, self.sums, strict=True)}

    @abc.abstractmethod
    def _file(self, name: str, sha256: str) -> DataFile: ...

    @abc.abstractmethod
    def read(self, half: str, *, verify: bool) -> Half:
        """One half; ``verify`` says whether to check that the files are the published ones."""


@dataclasses.dataclass(frozen=True)
class IdxSet(ImageSet):
    """An image set whose halves are a file of images and a file of labels each."""

    first_label: int = 0  # of the first class in the files; read labels are 0 .. C-1
    transposed: bool = False  # whether the files have rows and columns of an image swapped

    def _file(self, name: str, sha256: str) -> DataFile:
        return DataFile(self.folder, (f"{name}.gz", name, f"{name}.xz"), self.get, sha256)

    def read(self, half: str, *, verify: bool) -> Half:
        images, labels = (read_idx(self.files[name].path(verify=verify)) for name in self.halves[half])
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


@dataclasses.dataclass(frozen=True)
class CifarSet(ImageSet):
    """One of the two CIFAR sets in the binary version."""

    archive: str  # as published; it has the files in the folder ``inner``
    inner: str
    label_bytes: int = 1  # of a record

    def _file(self, name: str, sha256: str) -> DataFile:
        names = tuple(f"{place}{name}{packed}" for place in ("", f"{self.inner}/") for packed in ("", ".xz", ".gz"))
        return DataFile(self.folder, names, self.get, sha256, self.archive)

    def read(self, half: str, *, verify: bool) -> Half:
        return self.read_files(self.halves[half], verify=verify)

    def read_files(self, names: Sequence[str], *, verify: bool) -> Half:
        """Some of the files end to end, packed or not; all from the published archive where one is missing."""
        check_flag(f"{self.folder}(verify=...)", verify)
        parts = []
        for name, (where, content) in self._contents(names).items():
            if verify:
                self.files[name].check(where, content)
            parts.append(_decode_cifar(content, where, self.num_classes, self.label_bytes))
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _contents(self, names: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """File name to where it was found and what it holds."""
        beside = {name: file._replace(instead="").found() for name, file in self.files.items()}
        missing = [name for name in names if beside[name] is None]
        if missing:
            file = self.files[missing[0]]
            batches = tuple(int(name[len("data_batch_")]) for name in beside if "data_batch" in name and beside[name])
            fewer = f"; batches={batches} reads the training files that are there" if batches else ""
            lacking = f"its members {', '.join(missing)} are not there as files either{fewer}"
            archive = file._replace(names=(file.instead,), get=f"{file.get} ({lacking})").path()
            inner = {name: f"{self.inner}/{name}" for name in names}
            held = read_members(archive, list(inner.values()))
            return {name: (f"{archive}: {name}", held[member]) for name, member in inner.items()}
        return {
            name: (str(path), read_bounded(path, _CIFAR_LIMIT)) for name in names if (path := beside[name]) is not None
        }


def checked_normalisation(
    what: str, files: ImageSet, scaled: bool, normalise: bool | Normalisation
) -> Normalisation | None:
    """What the argument ``normalise`` of the function ``what`` stands for: True is the usual constants, False None."""
    check_flag(f"{what}(scaled=...)", scaled)
    if normalise is False:
        return None
    if not scaled:
        raise ValueError(f"{what}(scaled=False, normalise={normalise}): bytes cannot be normalised; give scaled=True")
    usual = files.usual
    if normalise is True:
        return usual
    try:
        pair = np.asarray(normalise)
    except ValueError:  # rows of different lengths
        pair = np.empty(0)
    fits = pair.shape == (2, len(usual[0])) and pair.dtype.kind in "iuf"
    if not fits or not np.isfinite(pair).all() or pair[1].min() <= 0:
        raise ValueError(
            f"{what}(normalise={normalise!r}): it must be True, False or a pair (mean, std) of {len(usual[0])} finite "
            f"number(s) each, the second positive, as the usual {usual}"
        )
    return normalise


def features(
    half: Half, *, flat: bool, scaled: bool, normalisation: Normalisation | None, white: float = 255.0
) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), x = pixels/white, then (x - mean)/std where a normalisation is given; or the bytes as they are."""
    x, y = half
    if scaled:
        x = x.astype(np.float32)
        x /= np.float32(white)  # in place: at a hundred thousand images each copy is hundreds of megabytes
    if normalisation is not None:
        mean, std = normalisation  # of the channels, or of each pixel
        x -= np.asarray(mean, np.float32)
        x /= np.asarray(std, np.float32)
    return x.reshape(x.shape[0], -1) if flat else x, y


def read_idx(path: str | os.PathLike[str], *, max_bytes: int = 2**31) -> np.ndarray:
    """Reads an array in the idx format, packed with gzip (or xz or bzip2) or not.

    The header is checked before anything is read, and no more is read than it announces, and than ``max_bytes``.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: not an idx file, truncated, longer than its header says, damaged, or larger than ``max_bytes``.

    Source: the format is described on the MNIST database's page.
    """
    place = Path(path)
    with open_bounded(place, max_bytes + 64) as stream:
        magic = _read_exactly(stream, 4)
        if magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
            known = ", ".join(f"0x{code:02x}" for code in _IDX_TYPES)
            raise ValueError(
                f"{place} starts with {magic.hex()}: an idx file starts with 0000 and a type among {known}"
            )
        if not 1 <= magic[3] <= 8:
            raise ValueError(f"{place} announces {magic[3]} dimensions: 1 to 8 are supported")
        dtype = np.dtype(_IDX_TYPES[magic[2]])
        shape = tuple(int(size) for size in np.frombuffer(_read_exactly(stream, 4 * magic[3]), ">u4"))
        size = math.prod(shape) * dtype.itemsize
        if size > max_bytes:
            raise ValueError(
                f"{place} announces {list(shape)} {dtype.name}, {size} bytes: at most {max_bytes} are read"
            )
        body = _read_exactly(stream, size)
        if stream.read(1):
            raise ValueError(f"{place} is longer than its header {list(shape)} {dtype.name} says: fetch it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_exactly(stream: BoundedStream, size: int) -> bytearray:
    # in chunks: a read of the announced size would reserve that much before a short file shows itself
    body = bytearray()
    while len(body) < size:
        chunk = stream.read(min(CHUNK, size - len(body)))
        if not chunk:
            raise ValueError(f"{stream.name} is truncated: {size} bytes are announced and {len(body)} are there")
        body += chunk
    return body


def read_cifar(
    path: str | os.PathLike[str], *, classes: int = 10, label_bytes: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Reads one file of the binary version of CIFAR-10 or CIFAR-100, packed with xz or gzip or not.

    A record has ``label_bytes`` bytes of labels (CIFAR-10: the class; CIFAR-100: the superclass, then the class) and
    3,072 bytes of pixels: 1,024 red, 1,024 green, 1,024 blue, each row by row.

    Args:
      path: the file.
      classes: number of classes C.
      label_bytes: 1 for CIFAR-10, 2 for CIFAR-100; the last one is the class.

    Returns:
      Images uint8[n, 32, 32, 3] and labels uint8[n].

    Raises:
      FileNotFoundError: no such file.
      ValueError: damaged, not a whole number of records, no records, or a label outside [0, C).

    Source: Krizhevsky 2009, Learning multiple layers of features from tiny images; the format is described on the
    data sets' page.
    """
    return _decode_cifar(read_bounded(Path(path), _CIFAR_LIMIT), str(path), classes, label_bytes)


def _decode_cifar(content: bytes, where: str, classes: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Records to images and labels, as :func:`read_cifar`."""
    length = label_bytes + _PIXELS
    if not content or len(content) % length:
        raise ValueError(
            f"{where} has {len(content)} bytes: it must be a whole number of records of {length} bytes ({label_bytes} "
            "of labels, 3072 of pixels), at least one; fetch it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, length)
    labels = records[:, label_bytes - 1]
    for row in np.flatnonzero(labels >= classes)[:1]:
        raise ValueError(f"{where}: record {row} has the label {labels[row]}, outside [0, {classes}): fetch it again")
    images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.copy()


_MNIST_HALVES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_LETTERS_HALVES = {
    half: (f"emnist-letters-{half}-images-idx3-ubyte", f"emnist-letters-{half}-labels-idx1-ubyte")
    for half in ("train", "test")
}

MNIST = IdxSet(
    folder="mnist",
    num_classes=10,
    usual=((0.1307,), (0.3081,)),
    halves=_MNIST_HALVES,
    get="Get the four original files (https://ossci-datasets.s3.amazonaws.com/mnist/ mirrors them)",
    sums=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

FASHION_MNIST = IdxSet(
    folder="fashion_mnist",
    num_classes=10,
    usual=((0.2860,), (0.3530,)),
    halves=_MNIST_HALVES,
    get="Get the four original files (https://github.com/zalandoresearch/fashion-mnist, data/fashion)",
    sums=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)

EMNIST_LETTERS = IdxSet(
    folder="emnist_letters",
    num_classes=26,
    usual=((0.1722,), (0.3309,)),
    halves=_LETTERS_HALVES,
    get="Get the letters split of EMNIST (https://www.nist.gov/itl/products-and-services/emnist-dataset, gzip.zip)",
    sums=(
        "7a786db773b2096a7b9a3f3275388a27711f4451548c3ca8be96f09ae94371ae",
        "e8e94c3f4353d5532fd9604b939cb4c76e7847945b9b0d9ff7884d881dead6bc",
        "d5895e82d14765b22a84342337bc5c25f1affd61cc97d3821d4e65504bbf8dbc",
        "22dbcde0a929a7f166bdac863b9195b2994d840a1e082f8f6daaeac5606376a6",
    ),
    first_label=1,
    transposed=True,
)

_HALF = {"train": ("emnist-byclass-half-images-idx3-ubyte", "emnist-byclass-half-labels-idx1-ubyte")}
EMNIST_BYCLASS = IdxSet(
    folder="emnist_byclass_half",
    num_classes=62,
    usual=((0.1738,), (0.3318,)),
    halves=_HALF,
    get="Take images 0, 2, 4, ... and their labels of the test files of EMNIST's byclass split "
    "(https://www.nist.gov/itl/products-and-services/emnist-dataset, gzip.zip), as idx files of these names",
    sums=(
        "46926a0602715235df80de1a86271d5d094fe90b642861e6464755208c11f52b",
        "6f5d8a4d94bcde60a01866c89d45b989ca884a10286698a2004ecb7bc1ab4e46",
    ),
    transposed=True,
)

_CIFAR = "Get https://www.cs.toronto.edu/~kriz/{} and put it there as it is"
CIFAR10 = CifarSet(
    folder="cifar10",
    num_classes=10,
    usual=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    halves={"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)},
    get=_CIFAR.format("cifar-10-binary.tar.gz"),
    sums=(
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
    archive="cifar-10-binary.tar.gz",
    inner="cifar-10-batches-bin",
)

CIFAR100 = CifarSet(
    folder="cifar100",
    num_classes=100,
    usual=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    halves={"train": ("train.bin",), "test": ("test.bin",)},
    get=_CIFAR.format("cifar-100-binary.tar.gz"),
    sums=(
        "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    ),
    archive="cifar-100-binary.tar.gz",
    inner="cifar-100-binary",
    label_bytes=2,
)
