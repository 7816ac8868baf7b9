"""Statistics of clients, and the partition reports they are compared with."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedjax_sim.datasets import from_clients, partition, read_idx
from fedjax_sim.datasets.statistics import Statistics, read_report

REAL_DATA = Path(os.environ.get("FEDJAX_SIM_DATA", ""))
REPORTS = REAL_DATA / "partition_reports"
needs_data = pytest.mark.skipif(
    not os.environ.get("FEDJAX_SIM_DATA") or not REPORTS.is_dir(),
    reason="the reference reports are not in $FEDJAX_SIM_DATA/partition_reports",
)
TABLE = np.array([[4, 0, 0], [1, 1, 2], [0, 3, 3]])


def test_statistics_of_a_table() -> None:
    found = Statistics(TABLE.sum(axis=1), TABLE, np.array([1, 0, 2]))
    assert (found.clients, found.examples, found.min, found.max) == (3, 14, 4, 6)
    assert found.median == 4
    assert found.quantiles(0.0, 1.0) == (4.0, 6.0)
    assert found.classes_per_client.tolist() == [1, 3, 2]
    np.testing.assert_allclose(found.commonest_share, [1.0, 0.5, 0.5])
    np.testing.assert_allclose(found.label_entropy, [0.0, 1.5 * np.log(2), np.log(2)])
    np.testing.assert_allclose(found.effective_classes, [1.0, 2**1.5, 2.0])
    text = str(found)
    for line in (
        "examples per client  mean 4.7, std 0.9, min 4, max 6",
        "quartiles          4.0, 4.0, 5.0",
        "test examples        3; per client min 0, max 2",
        "classes per client   mean 2.0, min 1, max 3; effective mean 1.94",
        "commonest class      66.7 % of a client on average",
        "examples per class   0: 5, 1: 4, 2: 5",
    ):
        assert line in text


def test_statistics_without_labels() -> None:
    found = Statistics(np.array([1, 2]))
    assert "class" not in str(found)
    with pytest.raises(ValueError, match="no label table"):
        _ = found.label_entropy


def test_shares_are_of_labels_where_an_example_has_several() -> None:
    found = from_clients([{"y": np.array([[0, 0], [0, 1]])}, {"y": np.array([[2, 2]])}]).statistics()
    assert (found.examples, found.label_table.tolist()) == (3, [[3, 1, 0], [0, 0, 2]])
    np.testing.assert_allclose(found.commonest_share, [0.75, 1.0])
    np.testing.assert_allclose(found.effective_classes, [4 / 3**0.75, 1.0])
    assert "commonest class      87.5 % of a client on average" in str(found)


def test_statistics_of_a_partition() -> None:
    labels = np.array([0, 1, 1, 2])
    parts = partition.Partition(np.array([0, 3, 1, 2]), np.array([2, 2]))
    assert parts.statistics(labels).label_table.tolist() == [[1, 0, 1], [0, 2, 0]]
    assert parts.statistics().label_table is None


def test_a_report_is_read(tmp_path: Path) -> None:
    """Shares are rounded: 0.000 is a few, 0.00 none, and what is missing to the sum is of the commonest class."""
    rows = ["Client   0,1.000,0.00,0.00,4", "Client   1,0.250,0.250,0.500,4", "Client   2,0.333,0.00,0.667,100000"]
    rows.append("Client   3,0.000,0.00,1.000,9")
    (tmp_path / "report.csv").write_text("\n".join(["Class frequencies:", "client,class0,class1,class2,Amount", *rows]))
    found = read_report(tmp_path / "report.csv")
    assert found.sizes.tolist() == [4, 4, 100_000, 9]
    assert found.label_table.tolist() == [[4, 0, 0], [1, 1, 2], [33_300, 0, 66_700], [1, 0, 8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a partition report"),
        ("client,class0,Amount\nClient 0,1.0,5", "not a partition report"),
        ("Class frequencies:\nclient,class0,Amount", "no clients"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,1.000", "line 3"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,1.000,0.00,5", "line 3 has 4 of 3 cells"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,x,5", "line 3: could not convert"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,0.700,5", "add up to 0.7000, not to 1"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,nan,5", "add up to nan"),
        ("Class frequencies:\nclient,class0,Amount\nClient 0,1.000,0", "0 examples"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_report(tmp_path / "report.csv")


@needs_data
@pytest.mark.parametrize("name", sorted(path.name for path in REPORTS.glob("*.csv")) if REPORTS.is_dir() else [])
def test_the_reference_reports_are_read(name: str) -> None:
    found = read_report(REPORTS / name)
    assert found.clients == (100 if "cifar10" in name else 10)
    assert found.examples in (50_000, 60_000, 59_995)


# Our partitioner for each report. FedLab's "hetero" and "labeldir" are the balanced rule, redrawn below 10 examples.
COMPARED: dict[str, Callable[[np.ndarray, int], partition.Partition]] = {
    "cifar10_balance_iid_100clients": lambda y, seed: partition.iid(y.size, 100, seed),
    "cifar10_unbalance_iid_unbalance_sgm_0.3_100clients": lambda y, seed: partition.sized(
        y, partition.lognormal_sizes(y.size, 100, 0.3, seed), seed
    ),
    "cifar10_hetero_dir_0.3_100clients": lambda y, seed: partition.dirichlet(y, 100, 0.3, seed, 10, balanced=True),
    "cifar10_shards_200_100clients": lambda y, seed: partition.shards(y, 100, 2, seed),
    "fmnist_iid_clients_10": lambda y, seed: partition.iid(y.size, 10, seed),
    "fmnist_noniid-label_1_clients_10": lambda y, seed: partition.classes(y, 10, 1, seed),
    "fmnist_noniid-label_2_clients_10": lambda y, seed: partition.classes(y, 10, 2, seed),
    "fmnist_noniid-label_3_clients_10": lambda y, seed: partition.classes(y, 10, 3, seed),
    "fmnist_noniid_labeldir_clients_10": lambda y, seed: partition.dirichlet(y, 10, 0.5, seed, 10, balanced=True),
    "fmnist_unbalance_clients_10": lambda y, seed: partition.sized(
        y, partition.dirichlet_sizes(y.size, 10, 0.5, seed, 10), seed
    ),
}


def numbers(found: Statistics) -> np.ndarray:
    """Mean and std of the sizes, classes per client, share of the commonest class in percent, effective classes."""
    held, share, effective = found.classes_per_client, found.commonest_share, found.effective_classes
    return np.array([found.mean, found.std, held.mean(), 100 * share.mean(), effective.mean()])


def test_labels_of_a_partition_are_counted_from_0() -> None:
    with pytest.raises(ValueError, match=r"a label is -1; classes are counted from 0"):
        partition.iid(8, 2, 0).statistics([1, 1, 1, 1, -1, -1, 1, -1])


def test_labels_of_a_partition_are_integers_of_any_type_one_for_each_row() -> None:
    parts, labels = partition.similarity([0, 0, 1, 1], 2, 0, 0), np.array([0, 0, 1, 1])
    for kind in (np.uint64, np.uint8, np.int16, bool):
        assert parts.statistics(labels.astype(kind)).label_table.tolist() == [[2, 0], [0, 2]]
    with pytest.raises(ValueError, match=r"has 3 labels, and the partition has row 3: give one for each row"):
        parts.statistics(labels[:3])
    for wrong in (labels.astype(float), ["a", "a", "b", "b"], 3):
        with pytest.raises(TypeError, match=r"give the class of every row, integers"):
            parts.statistics(wrong)


@needs_data
@pytest.mark.parametrize("name", COMPARED)
def test_our_partitions_are_like_the_reference(name: str) -> None:
    """A report is one draw: it lies within three standard deviations of ours over 20 seeds, plus rounding."""
    path = "cifar10/train-labels-50000-idx1-ubyte.gz" if "cifar" in name else "fashion_mnist/train-labels-idx1-ubyte.gz"
    if not (REAL_DATA / path).exists():
        pytest.skip(f"$FEDJAX_SIM_DATA/{path} is not there")
    labels = read_idx(REAL_DATA / path)
    ours = np.array([numbers(COMPARED[name](labels, seed).statistics(labels)) for seed in range(20)])
    reference = numbers(read_report(REPORTS / f"{name}.csv"))
    rounding = np.array([0.6, 0.5, 0.05, 0.1, 0.02])  # the unbalanced Fashion-MNIST lacks 5 of the 60,000 images
    assert np.all(np.abs(reference - ours.mean(axis=0)) <= 3 * ours.std(axis=0) + rounding)


@needs_data
@pytest.mark.parametrize(
    "name",
    ["cifar10_balance_dir_alpha_0.3_100clients", "cifar10_unbalance_dir_alpha_0.3_unbalance_sgm_0.3_100clients"],
)
def test_two_reference_reports_are_iid_whatever_their_name(name: str) -> None:
    """Their clients' class shares are those of the IID reports; a Dir(0.3) mixture has half its mass on one class."""
    found = numbers(read_report(REPORTS / f"{name}.csv"))
    iid = numbers(read_report(REPORTS / f"{name.replace('dir_alpha_0.3', 'iid')}.csv"))
    np.testing.assert_allclose(found, iid, rtol=0.01)
    labels = np.arange(50_000) % 10
    drawn = numbers(partition.dirichlet_per_client(labels, 100, 0.3, 0).statistics(labels))
    assert drawn[2] < 9
    assert drawn[3] > 35
