"""Tables and FedProx's synthetic data by name."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_sim import datasets
from tests.datasets.stored import check_rebuilt, needs, put

# FedProx's synthetic data.


def leaf_text(sizes: list[int], features: int = 60) -> str:
    rng = np.random.Generator(np.random.PCG64(len(sizes)))
    users = {
        f"f_{i:05}": {"x": rng.normal(size=(n, features)).tolist(), "y": rng.integers(0, 10, n).astype(float).tolist()}
        for i, n in enumerate(sizes)
    }
    return json.dumps({"users": list(users), "num_samples": sizes, "user_data": users})


@pytest.mark.parametrize("layout", ["synthetic_0_0", "synthetic_0_0/data/{half}"], ids=["flat", "repository"])
def test_fedprox_halves(folder: Path, layout: str) -> None:
    root = folder / "fedprox_synthetic"
    put(root / layout.format(half="test") / "mytest.json", leaf_text([1 + i % 3 for i in range(30)]))
    data = datasets.fedprox_synthetic("0_0", verify=False)
    assert (data.num_clients, data.num_examples, data.test, data.num_classes) == (30, 60, None, 10)
    with pytest.raises(FileNotFoundError, match=r"mytrain\.json.*halves='test'"):
        datasets.fedprox_synthetic("0_0", "both", verify=False)
    train = root / layout.format(half="train") / "mytrain.json"
    put(train, leaf_text([5] * 30))
    both = datasets.fedprox_synthetic("0_0", verify=False)
    assert both.test is not None
    assert (both.num_examples, both.test.num_examples) == (150, 60)
    np.testing.assert_array_equal(both.test.examples["x"], data.examples["x"])
    assert datasets.fedprox_synthetic("0_0", "test", verify=False).num_examples == 60
    check_rebuilt(both)
    put(train, leaf_text([5] * 31))
    with pytest.raises(ValueError, match=r"31 devices and features of shape \[60\]"):
        datasets.fedprox_synthetic("0_0", verify=False)
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.fedprox_synthetic("0_0")
    with pytest.raises(ValueError, match=r"known: 0_0, 0\.5_0\.5, 1_1, iid"):
        datasets.fedprox_synthetic("2_2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known: test, both"):
        datasets.fedprox_synthetic("0_0", "train")  # type: ignore[arg-type]


@needs("fedprox_synthetic")
@pytest.mark.parametrize(
    ("variant", "total", "smallest", "largest"),
    [("0_0", 897, 5, 169), ("0.5_0.5", 912, 5, 465), ("1_1", 1084, 5, 662), ("iid", 805, 6, 360)],
)
def test_real_fedprox_halves(variant: Any, total: int, smallest: int, largest: int) -> None:
    data = datasets.fedprox_synthetic(variant, "test")
    stats = data.statistics()
    assert (stats.clients, stats.examples, stats.min, stats.max) == (30, total, smallest, largest)
    assert data.examples["x"].shape == (total, 60)
    assert stats.label_table is not None
    assert (stats.label_table.sum(axis=0) == 0).tolist() == [variant == "iid" and label == 3 for label in range(10)]


# Tables.


@needs("parkinsons_telemonitoring")
def test_real_patients() -> None:
    data = datasets.parkinsons()
    assert data.test is not None
    assert (data.num_clients, data.num_examples + data.test.num_examples, data.num_classes) == (42, 5875, None)
    np.testing.assert_array_equal(data.client_ids, np.arange(1, 43))
    sizes = np.asarray(data.sizes) + np.asarray(data.test.sizes)
    assert (sizes.min(), sizes.max()) == (101, 168)
    x = np.asarray(data.examples["x"], np.float64)
    assert (x.shape[1], data.examples["y"].dtype) == (19, np.float32)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-5)
    raw = datasets.parkinsons("both", standardise=False, test_fraction=0.0)
    assert raw.test is None
    first = raw.client(0)
    np.testing.assert_allclose(first["y"][0], [28.199, 34.398], rtol=1e-6)
    np.testing.assert_allclose(first["x"][0, :4], [72, 0, 5.6431, 0.00662], rtol=1e-6)
    total = datasets.parkinsons("total_UPDRS")
    assert not np.array_equal(total.examples["y"], data.examples["y"])
    np.testing.assert_array_equal(total.examples["x"], data.examples["x"])
    check_rebuilt(data)


def test_patients_from_another_file(folder: Path) -> None:
    path = put(folder / "parkinsons_telemonitoring" / "parkinsons_updrs.data", "a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.parkinsons()
    with pytest.raises(ValueError, match=r"has the columns \['a', 'b'\]"):
        datasets.parkinsons(verify=False)
    header = ",".join(["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", "Jitter(%)", "Jitter(Abs)",
                       "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP", "Shimmer", "Shimmer(dB)", "Shimmer:APQ3",
                       "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA", "NHR", "HNR", "RPDE", "DFA", "PPE"])  # fmt: skip
    put(path, header + "\n" + ",".join(["1"] * 21 + ["x"]) + "\n")
    with pytest.raises(ValueError, match="is not a table of numbers"):
        datasets.parkinsons(verify=False)
    put(path, "\n".join([header] + [",".join([str(i % 2 + 5), *[str(i * j) for j in range(21)]]) for i in range(8)]))
    data = datasets.parkinsons(verify=False, test_fraction=0.25)
    np.testing.assert_array_equal(data.client_ids, [5, 6])
    assert np.isfinite(data.examples["x"]).all()  # one feature is constant
    check_rebuilt(data)
    with pytest.raises(ValueError, match="known: motor_UPDRS, total_UPDRS, both"):
        datasets.parkinsons("motor_updrs")  # type: ignore[arg-type]


@needs("mushrooms")
def test_real_mushrooms() -> None:
    pytest.importorskip("sklearn")
    data = datasets.mushrooms(test_fraction=0.0)
    stats = data.statistics()
    assert (stats.clients, stats.examples) == (20, 8124)
    assert stats.label_table is not None
    assert stats.label_table.sum(axis=0).tolist() == [3916, 4208]
    x = np.asarray(data.examples["x"])
    assert x.shape == (8124, 112)
    assert set(np.unique(x)) == {0.0, 1.0}
    assert set(x.sum(axis=1)) == {21.0}


def test_small_mushrooms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    path = put(folder / "mushrooms" / "mushrooms", "".join(f"{i % 2 + 1} {i + 1}:1 112:1 \n" for i in range(20)))
    data = datasets.mushrooms(2, partition="shards", verify=False)
    assert data.test is not None
    assert (data.num_examples, data.test.num_examples) == (16, 4)
    table = data.statistics().label_table
    assert table is not None
    assert np.sort(table, axis=None).tolist() == [0, 0, 8, 8]
    np.testing.assert_array_equal(np.asarray(data.examples["x"])[:, 111], np.ones(16))
    check_rebuilt(data)
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.mushrooms()
    for content, message in (("0 1:1\n", "label 0.0, not 1 or 2"), ("1 113:1\n", "LIBSVM"), ("1 a\n", "LIBSVM")):
        put(path, content)
        with pytest.raises(ValueError, match=message):
            datasets.mushrooms(1, verify=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"fedjax_sim\[data\]"):
        datasets.mushrooms(verify=False)
