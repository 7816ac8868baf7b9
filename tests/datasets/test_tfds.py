"""Data sets prepared by tensorflow-datasets.

``tfds_builder/tiny_writers.zip`` is what ``python tfds_builder/prepare.py FOLDER`` wrote, packed with
``python -m zipfile -c tiny_writers.zip FOLDER/tiny_writers``: reading it needs no TensorFlow. ``.ci/tfds`` prepares it
anew, with the genuine MNIST builder, and runs these tests on the result (the environment variable FEDJAX_SIM_TFDS).
"""

import functools
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.descriptions import build, describe, opaque_parts
from fedjax_sim.datasets import partition
from fedjax_sim.datasets.federated import client_names
from fedjax_sim.datasets.own import tfds as reading
from tests.datasets.stored import REAL, needs
from tests.datasets.tfds_builder.examples import WRITERS, example
from tests.processes import printed

# What tensorflow-datasets itself does with newer versions of its dependencies (protobuf) is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")

HERE = Path(__file__).parent
PREPARED = os.environ.get("FEDJAX_SIM_TFDS", "")
TRAIN, TEST = range(24), range(24, 32)
Read = Callable[..., datasets.FederatedDataset]


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the committed data set."""
    pytest.importorskip("tensorflow_datasets", reason="needs tensorflow-datasets: pip install 'fedjax_sim[tfds]'")
    folder = tmp_path_factory.mktemp("tfds")
    with zipfile.ZipFile(HERE / "tfds_builder" / "tiny_writers.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(params=["committed", "prepared"])
def folder(request: pytest.FixtureRequest) -> Path:
    """The committed data set, and one prepared just now."""
    if request.param == "prepared":
        if not PREPARED:
            pytest.skip("FEDJAX_SIM_TFDS names no folder of prepared data sets (.ci/tfds makes one)")
        return Path(PREPARED)
    path: Path = request.getfixturevalue("committed")
    return path


@pytest.fixture
def read(committed: Path) -> Read:
    return functools.partial(datasets.from_tfds, "tiny_writers", data_dir=committed)


def by_number(data: datasets.FederatedDataset) -> dict[int, dict[str, Any]]:
    """All examples by their number, with the id of the client who holds them."""
    found = {}
    for position in range(data.num_clients):
        rows = data.client(position)
        for row, number in enumerate(rows["number"].tolist()):
            found[number] = {key: value[row] for key, value in rows.items()}
            found[number]["client"] = int(data.client_ids[position])
    return found


def halves(y: np.ndarray) -> list[np.ndarray]:
    return partition.iid(y.size, 2, seed=0)


KEPT = {"number": "number", "x": "image", "y": "label", "s": "score", "v": "vector", "f": "nested/flag"}


def test_every_value_is_what_was_stored(folder: Path) -> None:
    data = datasets.from_tfds(
        "tiny_writers", client="person", test_split="test", features=KEPT, scaled=False, data_dir=folder
    )
    assert data.test is not None
    for part, numbers in ((data, TRAIN), (data.test, TEST)):
        found = by_number(part)
        assert sorted(found) == list(numbers)
        for number, row in found.items():
            stored = example(number)
            for ours, theirs in (("x", "image"), ("y", "label"), ("s", "score"), ("v", "vector")):
                np.testing.assert_array_equal(row[ours], stored[theirs])
            assert row["f"] == stored["nested"]["flag"]  # type: ignore[index]
            assert row["client"] == stored["person"]
    types = {key: str(value.dtype) for key, value in data.examples.items()}
    assert types == {"number": "int32", "x": "uint8", "y": "int32", "s": "float32", "v": "float32", "f": "bool"}
    assert data.num_classes == 3


def test_the_supervised_pair_is_the_default(read: Read) -> None:
    data = read(partition=halves)
    assert sorted(data.examples) == ["x", "y"]
    x = np.asarray(data.examples["x"])
    assert (x.shape, x.dtype) == ((24, 5, 4, 1), np.float32)
    np.testing.assert_array_equal(np.sort(np.rint(x[:, 0, 0, 0] * 255)), np.arange(24))
    assert data.num_classes == 3  # the builder's own, whatever the labels of a small split
    assert read(split="train[:1]", partition=[[0]]).num_classes == 3
    assert read(partition=halves, num_classes=7).num_classes == 7


def test_clients_by_text_keep_their_names(read: Read) -> None:
    data = read(client="writer", features={"number": "number"})
    assert client_names(data) == WRITERS
    for number, row in by_number(data).items():
        assert WRITERS[row["client"]] == example(number)["writer"]


def test_a_share_of_each_natural_client_is_held_out(read: Read) -> None:
    data = read(client="person", features={"number": "number"}, test_fraction=0.5, seed=3)
    assert data.test is not None
    np.testing.assert_array_equal(data.sizes, [3, 3, 3, 3])
    np.testing.assert_array_equal(data.test.sizes, [3, 3, 3, 3])
    own, held = by_number(data), by_number(data.test)
    assert sorted([*own, *held]) == list(TRAIN)
    assert all(row["client"] == example(number)["person"] for number, row in (own | held).items())
    again = read(client="person", features={"number": "number"}, test_fraction=0.5, seed=3)
    np.testing.assert_array_equal(again.examples["number"], data.examples["number"])


def test_partitions(read: Read) -> None:
    by_label = functools.partial(partition.shards, num_clients=3, shards_per_client=1, seed=0)
    data = read(partition=by_label, test_split="test", seed=1)
    assert data.test is not None
    assert ((data.statistics().label_table > 0).sum(axis=1) == 1).all()
    assert sorted(np.asarray(data.test.sizes).tolist()) == [2, 3, 3]
    both = read(partition=by_label, validation_split="test[:4]", test_split="test", seed=1)
    assert both.validation is not None
    assert sorted(np.asarray(both.validation.sizes).tolist()) == [1, 1, 2]
    for one, other in zip(jax.tree.leaves(data.test), jax.tree.leaves(both.test), strict=True):
        np.testing.assert_array_equal(one, other)
    mine = read(client="person", validation_split="test", features={"number": "number"}).validation
    assert mine is not None
    assert all(row["client"] == example(number)["person"] for number, row in by_number(mine).items())
    rows = [[4, 0], [7]]
    data = read(partition=rows, features={"number": "number"})
    whole = read(partition=[range(24)], features={"number": "number"})
    stored = np.asarray(whole.examples["number"])
    assert [data.client(i)["number"].tolist() for i in range(2)] == [stored[[4, 0]].tolist(), stored[[7]].tolist()]
    held = read(partition=halves, test_fraction=0.25).test
    assert held is not None
    np.testing.assert_array_equal(held.sizes, [3, 3])


def test_splits_are_read_in_their_stored_order(read: Read) -> None:
    one = functools.partial(read, partition=lambda y: [range(y.size)], features={"number": "number", "y": "label"})
    whole = np.asarray(one().examples["number"])
    np.testing.assert_array_equal(one(split="train[3:7]").examples["number"], whole[3:7])
    assert one(split="train+test").num_examples == 32


def test_a_transform_makes_sequences_and_texts_numbers(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK", 5)  # several pieces

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        words = np.zeros(3, np.int32)
        words[: len(row["words"])] = row["words"]
        return {"x": {"words": words, "first": row["writer"][0]}, "image": row["image"], "number": row["number"]}

    features = {"words": "words", "writer": "writer", "image": "image", "number": "number"}
    data = read(client="person", features=features, transform=encode)
    for row in range(24):
        stored = example(int(data.examples["number"][row]))
        words: Any = stored["words"]
        np.testing.assert_array_equal(data.examples["x"]["words"][row], words + [0] * (3 - len(words)))
        assert int(data.examples["x"]["first"][row]) == ord(str(stored["writer"])[0])
        np.testing.assert_array_equal(data.examples["image"][row], stored["image"])
    assert data.examples["image"].dtype == np.uint8  # nothing is scaled


def test_large_records_are_decoded_in_threads_alike(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    one = read(client="person")
    monkeypatch.setattr(reading, "_LARGE", 1)
    other = read(client="person")
    for key in ("x", "y"):
        np.testing.assert_array_equal(one.examples[key], other.examples[key])


def test_described_and_rebuilt(committed: Path) -> None:
    arguments: dict[str, Any] = {"client": "writer", "features": {"x": "vector", "y": "label"}, "test_fraction": 0.5}
    data = datasets.from_tfds("tiny_writers", "train[:20]", data_dir=str(committed), **arguments)
    again = build(json.loads(json.dumps(describe(data))))
    np.testing.assert_array_equal(data.examples["x"], again.examples["x"])
    np.testing.assert_array_equal(data.test.examples["y"], again.test.examples["y"])  # type: ignore[union-attr]
    assert client_names(again) == WRITERS
    data = datasets.from_tfds("tiny_writers", partition=halves, data_dir=str(committed))
    assert [part.partition(":")[0] for part in opaque_parts(describe(data))] == ["partition"]


IN_A_NEW_PROCESS = """
import json, sys
from fedjax_sim import datasets
data = datasets.from_tfds("tiny_writers", client="person", test_split="test")
print(json.dumps([data.num_examples, float(data.examples["x"].sum()), [m for m in sys.modules if m in {modules}]]))
"""


def test_tensorflow_is_not_imported(folder: Path) -> None:
    code = IN_A_NEW_PROCESS.format(modules={"tensorflow", "tensorflow_cpu", "keras", "torch", "tensorflow_datasets"})
    count, total, imported = json.loads(printed("-c", code, TFDS_DATA_DIR=str(folder)))
    assert imported == ["tensorflow_datasets"]
    assert count == 24
    assert total == pytest.approx(sum(float(np.sum(example(i)["image"])) / 255 for i in TRAIN), rel=1e-5)


# What can go wrong.


def test_without_tensorflow_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"fedjax_sim\[tfds\]"):
        datasets.from_tfds("mnist", client="writer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either partition="),
        ({"partition": halves, "client": "person"}, "either partition="),
        ({"client": "person", "test_fraction": 1.0}, r"must be in \[0, 1\)"),
        ({"client": "person", "test_fraction": 0.5, "test_split": "test"}, "leave one of them out"),
        ({"client": "person", "seed": -1}, "at least 0"),
    ],
)
def test_arguments_are_checked_first(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        datasets.from_tfds("nothing", **arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"split": "trian"}, ValueError, r"Unknown split 'trian'.*\(splits: train, test\)"),
        ({"split": "train[:0]"}, ValueError, "'train\\[:0\\]' of tiny_writers/1.0.0"),
        ({"features": {"x": "imag"}}, ValueError, "did you mean 'image'"),
        ({"features": {"x": "nested/flg"}}, ValueError, "did you mean 'nested/flag'"),
        ({"features": {"x": "image/height"}}, ValueError, "no feature 'image/height'"),
        ({"features": {}}, ValueError, "our name: feature"),
        ({"features": {"x": "words"}}, ValueError, r"\['x'\] have the shapes \[1\], \[2\], \[3\].*transform="),
        ({"features": {"x": "writer"}}, TypeError, "'writer', Text.*transform="),
        ({"features": {"x": "nested"}}, TypeError, r"(?s)'nested', FeaturesDict.*transform="),
        ({"features": {"x": "image"}, "partition": halves, "client": None}, ValueError, "labels 'y'.*have none"),
        ({"partition": [], "client": None, "test_split": "test"}, ValueError, "no clients"),
        ({"partition": [[99]], "client": None, "test_split": "test"}, ValueError, "examples 0 to 23 only"),
        ({"client": "vector"}, TypeError, "'vector'.*one integer or text"),
        ({"client": "score"}, TypeError, "'score'.*one integer or text"),
        ({"client": "words"}, TypeError, "'words'.*one integer or text"),
        ({"client": "persn"}, ValueError, "did you mean 'person'"),
        ({"split": "train[:1]", "test_split": "test"}, ValueError, "no training examples"),
        ({"transform": lambda row: [[1], [2, 3]]}, ValueError, "unequal length"),
        ({"transform": lambda row: row | {"z": 1} if row["y"] else row}, ValueError, "one structure for all"),
        ({"transform": lambda row: {"x": "text"}}, TypeError, "must be arrays of numbers"),
    ],
    ids=range(20),
)
def test_what_cannot_be_read_is_refused(
    read: Read, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read(**{"client": "person", **arguments})


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        (
            "fashion_mnist",
            FileNotFoundError,
            ["not prepared in {folder}", "python -c", "tfds.builder('fashion_mnist', data_dir='{folder}')",
             "file_format='array_record'", "needs TensorFlow", "TFDS_DATA_DIR"],
        ),
        ("tiny_writers:2.0.0", FileNotFoundError, ["there are tiny_writers/1.0.0", "name/config:version"]),
        ("tiny_writers/large", FileNotFoundError, ["there are tiny_writers/1.0.0"]),
        ("mnits", ValueError, ["did you mean 'mnist'", "no builder 'mnits'"]),
        ("my_own_set", ValueError, ["no builder 'my_own_set'", "YourBuilder(data_dir='{folder}')"]),
        ("my own set", ValueError, ["dataset_name[/config_name][:version]"]),
        ("", ValueError, ["name of a builder"]),
    ],
    ids=["known", "version", "config", "misspelt", "own", "malformed", "empty"],
)  # fmt: skip
def test_what_is_not_prepared(committed: Path, name: str, kind: type[Exception], parts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        datasets.from_tfds(name, client="person", data_dir=committed)
    for part in parts:
        assert part.format(folder=committed) in str(caught.value)


@pytest.fixture
def changed(committed: Path, tmp_path: Path) -> Callable[[str, Any], Read]:
    """Reads a copy of the data set whose dataset_info.json has another value (None: has no such entry)."""

    def change(key: str, value: Any) -> Read:
        place = tmp_path / "tiny_writers" / "1.0.0"
        place.mkdir(parents=True)
        for path in (committed / "tiny_writers" / "1.0.0").iterdir():
            place.joinpath(path.name).write_bytes(path.read_bytes())
        info = json.loads((place / "dataset_info.json").read_text())
        changed = {name: kept for name, kept in (info | {key: value}).items() if kept is not None}
        (place / "dataset_info.json").write_text(json.dumps(changed))
        return functools.partial(datasets.from_tfds, "tiny_writers", data_dir=tmp_path)

    return change


def test_another_format_is_refused(changed: Callable[[str, Any], Read]) -> None:
    with pytest.raises(ValueError, match=r"in the format tfrecord: only array_record or parquet.*ANOTHER_FOLDER"):
        changed("fileFormat", "tfrecord")(client="person")


def test_a_builder_without_a_supervised_pair(changed: Callable[[str, Any], Read]) -> None:
    with pytest.raises(ValueError, match=r"no supervised pair.*it has image, label, nested/flag, number"):
        changed("supervisedKeys", None)(client="person")


def test_without_a_decoder_of_images(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow_datasets.core.features import image_feature

    monkeypatch.setattr(image_feature, "PIL_Image", None)
    monkeypatch.setattr(image_feature, "cv2", None)
    with pytest.raises(ImportError, match=r"pillow: pip install 'fedjax_sim\[tfds\]'"):
        read(client="person")
    assert read(client="person", features={"y": "label"}).num_examples == 24  # no image is decoded


@pytest.mark.slow
@pytest.mark.skipif(not Path(PREPARED, "mnist").is_dir(), reason="FEDJAX_SIM_TFDS names no folder with mnist/")
@needs("mnist")
def test_mnist_is_that_of_the_original_files() -> None:
    """Image by image, in the order of their bytes: tensorflow-datasets has shuffled them."""
    deal = functools.partial(partition.dirichlet, num_clients=100, alpha=0.1, seed=0)
    data = datasets.from_tfds("mnist", partition=deal, test_split="test", scaled=False, data_dir=PREPARED)
    assert data.test is not None
    assert (data.num_clients, data.num_classes) == (100, 10)
    for part, stem, count in ((data, "train", 60_000), (data.test, "t10k", 10_000)):
        pixels = datasets.read_idx(Path(REAL, "mnist", f"{stem}-images-idx3-ubyte.gz")).reshape(count, -1)
        labels = datasets.read_idx(Path(REAL, "mnist", f"{stem}-labels-idx1-ubyte.gz"))
        ours = np.column_stack([np.asarray(part.examples["x"]).reshape(count, -1), np.asarray(part.examples["y"])])
        theirs = np.column_stack([pixels, labels])
        assert ours.shape == theirs.shape
        assert sorted(row.tobytes() for row in ours.astype(np.uint8)) == sorted(row.tobytes() for row in theirs)
