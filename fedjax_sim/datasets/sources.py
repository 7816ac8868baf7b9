"""Data sets that are read: scikit-learn's digits, and MNIST and Fashion-MNIST from their original idx files."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import recipe
from fedjax_sim.values import check_count, suggest

DATA_VARIABLE = "FEDJAX_SIM_DATA"

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 20


@recipe("dataset.digits")
def digits(num_clients: int = 20, alpha: float = 0.1, seed: int = 0, test_fraction: float = 0.2) -> FederatedDataset:
    """The 1,797 8x8 digits that come with scikit-learn, shared out by Dirichlet label skew.

    Args:
      num_clients: number of clients; each gets two examples or more.
      alpha: concentration of :func:`fedjax_sim.datasets.partition.dirichlet`.
      seed: of the partition and of the held-out examples.
      test_fraction: share of each client's examples held out.

    Returns:
      ``{"x": float32[n, 64] in [0, 1], "y": int32[n]}``, ten classes.

    Raises:
      ImportError: scikit-learn is not installed.

    Source: Alpaydin and Kaynak 1998, UCI optical recognition of handwritten digits (the test half).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "digits() reads the data that comes with scikit-learn: install it with pip install 'fedjax_sim[data]'"
        ) from error
    x, y = load_digits(return_X_y=True)
    rows = partitions.dirichlet(y, num_clients, alpha, seed, min_size=2)
    features = (x / 16.0).astype(np.float32)
    return from_partition((features, y), rows, test_fraction=test_fraction, seed=seed, num_classes=10)


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


def data_dir() -> Path:
    """Where data sets are read from: the environment variable FEDJAX_SIM_DATA, or ``~/.cache/fedjax_sim``."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedjax_sim"


def read_idx(path: str | os.PathLike[str], *, max_bytes: int = 2**31) -> np.ndarray:
    """Reads an array in the idx format, gzipped or not.

    The header is checked before anything is read, and no more is read than it announces: a damaged or hostile file
    ends in an error, not in an exhausted memory.

    Args:
      path: the file.
      max_bytes: largest array to read.

    Returns:
      The array, in the machine's byte order.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not an idx file, truncated, longer than its header says, damaged, or larger than ``max_bytes``.

    Source: the format is described on the MNIST database's page.
    """
    place = Path(path)
    with place.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not zipped:
            return _parse_idx(raw, place, max_bytes)
        try:
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                return _parse_idx(unzipped, place, max_bytes)  # type: ignore[arg-type]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{place} is a damaged gzip file ({error}): fetch it again") from error


def _parse_idx(stream: BinaryIO, place: Path, max_bytes: int) -> np.ndarray:
    magic = _read_exactly(stream, 4, place)
    if magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES:
        known = ", ".join(f"0x{code:02x}" for code in _IDX_TYPES)
        raise ValueError(f"{place} starts with {magic.hex()}: an idx file starts with 0000 and a type among {known}")
    if not 1 <= magic[3] <= 8:
        raise ValueError(f"{place} announces {magic[3]} dimensions: 1 to 8 are supported")
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    header = _read_exactly(stream, 4 * magic[3], place)
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    size = math.prod(shape) * dtype.itemsize
    if size > max_bytes:
        raise ValueError(f"{place} announces {list(shape)} {dtype.name}, {size} bytes: at most {max_bytes} are read")
    body = _read_exactly(stream, size, place)
    if stream.read(1):
        raise ValueError(f"{place} is longer than its header {list(shape)} {dtype.name} says: fetch it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_exactly(stream: BinaryIO, size: int, place: Path) -> bytearray:
    # in chunks: a read of the announced size would reserve that much before a short file shows itself
    body = bytearray()
    while len(body) < size:
        chunk = stream.read(min(_CHUNK, size - len(body)))
        if not chunk:
            raise ValueError(f"{place} is truncated: {size} bytes are announced and {len(body)} are there")
        body += chunk
    return body


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
    images = read_idx(_find(name, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(name, f"{part}-labels-idx1-ubyte"))
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise ValueError(f"{name}: the {part} images are {images.dtype}{list(images.shape)}, not uint8[n, 28, 28]")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{name}: the {part} labels are {labels.dtype}{list(labels.shape)}, not one uint8 for each of the "
            f"{images.shape[0]} images"
        )
    return images.reshape((-1, 784) if flat else (-1, 28, 28, 1)).astype(np.float32) / np.float32(255), labels


def _find(name: str, stem: str) -> Path:
    folder = data_dir() / name
    for candidate in (folder / f"{stem}.gz", folder / stem):
        if candidate.is_file():
            return candidate
    origin = "set" if os.environ.get(DATA_VARIABLE) else "not set"
    raise FileNotFoundError(
        f"{name}: {stem}.gz (or {stem}) is not in {folder}. Get the four original files "
        f"({_ORIGINS[name]}), put them there, or put them in a folder {name} of another directory and name that "
        f"directory in the environment variable {DATA_VARIABLE} (now {origin})."
    )


_ORIGINS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/ mirrors them",
    "fashion_mnist": "https://github.com/zalandoresearch/fashion-mnist, data/fashion",
}
