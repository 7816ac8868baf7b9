"""Data that is read: scikit-learn's digits, the idx format, MNIST."""

import gzip
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.datasets.sources import record
from tests.datasets.stored import check_rebuilt, idx, needs


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with 300 and 40 made-up images under both names; one file of each kind is not gzipped."""
    rng = np.random.Generator(np.random.PCG64(0))
    for name in ("mnist", "fashion_mnist"):
        folder = tmp_path / name
        folder.mkdir()
        for part, count in (("train", 300), ("t10k", 40)):
            images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
            images[:, 0, 0] = np.arange(count) % 10  # so that an image can be matched with its label
            labels = (np.arange(count) % 10).astype(np.uint8)
            (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images), 1))
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    return tmp_path


def test_digits() -> None:
    data = datasets.digits()
    assert data.test is not None
    assert (data.num_clients, data.num_classes) == (20, 10)
    assert data.num_examples + data.test.num_examples == 1797
    assert data.examples["x"].shape == (data.num_examples, 64)
    assert data.examples["x"].dtype == np.float32
    x = np.asarray(data.examples["x"])
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert np.asarray(data.test.sizes).min() >= 1
    held = (data.statistics().label_table > 0).sum(axis=1)
    assert held.mean() < 6  # Dir(0.1): few of the ten classes at a client


def test_digits_are_described_and_rebuilt() -> None:
    data = datasets.digits(num_clients=5, alpha=1.0, seed=2)
    check_rebuilt(data)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"fedjax_sim\[data\]"):
        datasets.digits()


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_read_idx(tmp_path: Path, dtype: str, pack: Callable[[bytes], bytes]) -> None:
    array = (np.arange(24).reshape(2, 3, 4) - 5).astype(dtype)
    (tmp_path / "array").write_bytes(pack(idx(array)))
    read = datasets.read_idx(tmp_path / "array")
    assert read.dtype == np.dtype(dtype)
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)


GOOD = idx(np.arange(60, dtype=np.uint8).reshape(3, 20))
# No time stamps: the bytes name the cases, and all of xdist's workers must find the same names.
ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 4 bytes are announced and 0"),
        (GOOD[:3], "truncated"),
        (GOOD[:6], "truncated: 8 bytes"),
        (GOOD[:-1], "truncated: 60 bytes are announced and 59"),
        (GOOD + b"\0", "longer than its header"),
        (b"\1" + GOOD[1:], "starts with 0100"),
        (GOOD[:2] + b"\x07" + GOOD[3:], "starts with 000007"),
        (GOOD[:3] + b"\0" + GOOD[4:], "announces 0 dimensions"),
        (GOOD[:3] + b"\xff" + GOOD[4:], "announces 255 dimensions"),
        (b"\x80\x04\x95" + GOOD, "starts with 800495"),  # a pickle
        (ZIPPED[:-1], "is damaged"),
        (ZIPPED[: len(ZIPPED) // 2], "is damaged|truncated"),
        (ZIPPED[:12] + b"\xff\xff\xff" + ZIPPED[15:], "is damaged|starts with|truncated"),
        (ZIPPED[:-6] + b"\0\0" + ZIPPED[-4:], "is damaged"),  # a wrong checksum
        (gzip.compress(GOOD[:-5], mtime=0), "truncated"),
        (gzip.compress(GOOD + b"more", mtime=0), "longer than its header"),
    ],
)
def test_read_idx_refuses_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "array").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        datasets.read_idx(tmp_path / "array")
    assert str(tmp_path / "array") in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_read_idx_memory_is_bounded(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """A short file that announces 2 GiB, or 2^96 elements, costs no memory."""
    path = tmp_path / "array"
    for shape, message in (((2**31,), "truncated"), ((2**31, 2), "at most"), ((2**32 - 1,) * 3, "at most")):
        path.write_bytes(pack(struct.pack(">BBBB", 0, 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape)))
        tracemalloc.start()
        with pytest.raises(ValueError, match=message):
            datasets.read_idx(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


def test_read_idx_stops_reading_where_the_header_ends(tmp_path: Path) -> None:
    """A gzip file that unpacks to far more than its header says is not unpacked."""
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(GOOD + bytes(64 << 20), 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match="longer than its header"):
        datasets.read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_data_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    assert datasets.data_dir() == tmp_path
    monkeypatch.delenv("FEDJAX_SIM_DATA")
    assert datasets.data_dir() == Path.home() / ".cache" / "fedjax_sim"


@pytest.mark.parametrize("make", [datasets.mnist, datasets.fashion_mnist])
def test_mnist_reads_the_official_files(small_mnist: Path, make: Callable[..., datasets.FederatedDataset]) -> None:
    data = make(num_clients=7, alpha=0.5, verify=False)
    assert data.test is not None
    assert (data.num_clients, data.num_examples, data.test.num_examples, data.num_classes) == (7, 300, 40, 10)
    assert data.examples["x"].shape == (300, 784)
    for part in (data, data.test):
        pixels = np.rint(np.asarray(part.examples["x"])[:, 0] * 255).astype(int)
        np.testing.assert_array_equal(pixels, part.examples["y"])
        assert np.asarray(part.examples["x"]).max() <= 1.0
    sizes = np.asarray(data.test.sizes)
    assert sizes.max() - sizes.min() <= 1
    check_rebuilt(data)


def test_mnist_options(small_mnist: Path) -> None:
    local = datasets.mnist(num_clients=5, partition="shards", test="local", test_fraction=0.5, flat=False, verify=False)
    assert local.test is not None
    assert local.examples["x"].shape == (150, 28, 28, 1)
    own, held = local.statistics().label_table, local.test.statistics().label_table
    assert np.all((held > 0).sum(axis=1) <= 4)
    np.testing.assert_array_equal((own + held).sum(axis=0), np.full(10, 30))
    even = datasets.mnist(num_clients=5, partition="iid", verify=False)
    np.testing.assert_array_equal(even.sizes, np.full(5, 60))
    assert even.test is not None
    many = datasets.mnist(num_clients=100, partition="iid", verify=False)  # more clients than test images
    assert many.test is not None
    assert int(many.test.sizes.min()) == 0
    with pytest.raises(ValueError, match="did you mean 'dirichlet'"):
        datasets.mnist(partition="dirichlett")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known: official, local"):
        datasets.mnist(test="none")  # type: ignore[arg-type]


def test_mnist_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        datasets.mnist()
    for part in ("mnist", str(tmp_path / "mnist"), "FEDJAX_SIM_DATA", "train-images-idx3-ubyte.gz", "https://"):
        assert part in str(caught.value)


def test_mnist_refuses_other_files(small_mnist: Path) -> None:
    labels = small_mnist / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(299, np.uint8)))
    with pytest.raises(ValueError, match=r"uint8\[299\], not one uint8 for each of the 300"):
        datasets.mnist(num_clients=3, verify=False)
    (small_mnist / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(idx(np.zeros((299, 8, 8), np.uint8)))
    with pytest.raises(ValueError, match=r"uint8\[299, 8, 8\], not"):
        datasets.mnist(num_clients=3, verify=False)


@pytest.mark.slow
@needs("mnist")
def test_real_mnist() -> None:
    data = datasets.mnist()
    assert data.test is not None
    assert (data.num_clients, data.num_examples, data.test.num_examples) == (100, 60_000, 10_000)
    assert data.statistics().label_table.sum(axis=0).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert data.test.statistics().label_table.sum(axis=0).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert np.asarray(data.examples["x"]).mean() == pytest.approx(0.1307, abs=1e-4)
    assert np.asarray(data.examples["x"]).std() == pytest.approx(0.3081, abs=1e-4)


@pytest.mark.slow
@needs("fashion_mnist")
def test_real_fashion_mnist() -> None:
    data = datasets.fashion_mnist(partition="iid", flat=False)
    assert data.examples["x"].shape == (60_000, 28, 28, 1)
    assert data.statistics().label_table.sum(axis=0).tolist() == [6000] * 10
    assert np.asarray(data.examples["x"]).mean() == pytest.approx(0.2860, abs=1e-4)


def test_every_set_that_is_read_says_where_from_and_is_in_the_docs() -> None:
    docs = "".join(path.read_text() for path in (Path(__file__).parents[2] / "docs" / "data").glob("*.md"))
    for name, of in record.sources().items():
        if of.files:
            assert f"`{name}`" in docs
            assert of.size
            assert of.terms
        assert all("http" in file.get for file in of.files)
