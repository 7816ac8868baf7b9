"""Partitions are disjoint, complete, never empty, repeatable, and skewed as they say."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.datasets import partition

LABELS = np.arange(1000) % 10
METHODS: dict[str, Callable[[int], list[np.ndarray]]] = {
    "iid": lambda seed: partition.iid(1000, 17, seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 17, 0.1, seed),
    "dirichlet_balanced": lambda seed: partition.dirichlet(LABELS, 17, 0.1, seed, balanced=True),
    "shards": lambda seed: partition.shards(LABELS, 17, 2, seed),
}


def assert_partition(parts: list[np.ndarray], total: int, clients: int, min_size: int = 1) -> None:
    assert len(parts) == clients
    assert min(part.size for part in parts) >= min_size
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(total))


def class_counts(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("name", METHODS)
def test_is_a_partition_and_repeats(name: str) -> None:
    first, again, other = METHODS[name](3), METHODS[name](3), METHODS[name](4)
    assert_partition(first, 1000, 17)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_seed_means_the_same_partition_everywhere() -> None:
    assert [part.tolist() for part in partition.iid(7, 3, 0)] == GOLDEN_IID
    assert [part.tolist() for part in partition.dirichlet(np.arange(12) % 3, 3, 0.5, 0)] == GOLDEN_DIRICHLET


def test_does_not_touch_the_global_generator() -> None:
    np.random.seed(0)  # noqa: NPY002  (the legacy state is what must not move)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    for method in METHODS.values():
        method(0)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
@settings(max_examples=50)
def test_iid_sizes_differ_by_at_most_one(examples: int, clients: int, seed: int) -> None:
    if clients > examples:
        with pytest.raises(ValueError, match="use fewer clients"):
            partition.iid(examples, clients, seed)
        return
    parts = partition.iid(examples, clients, seed)
    assert_partition(parts, examples, clients)
    sizes = [part.size for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_iid_is_uniform() -> None:
    """Each row goes to each of four clients a quarter of the time: a chi-square test over 400 seeds."""
    counts = np.zeros((8, 4))
    for seed in range(400):
        for client, rows in enumerate(partition.iid(8, 4, seed)):
            counts[rows, client] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 60  # 24 degrees of freedom: 60 is beyond 1 - 1e-4


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    clients=st.integers(1, 20),
    min_size=st.integers(1, 4),
    alpha=st.sampled_from([1e-6, 0.01, 0.1, 1.0, 100.0]),
    balanced=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=100)
def test_dirichlet_never_leaves_a_client_short(
    labels: list[int], clients: int, min_size: int, alpha: float, balanced: bool, seed: int
) -> None:
    if clients * min_size > len(labels):
        with pytest.raises(ValueError, match="use fewer clients"):
            partition.dirichlet(labels, clients, alpha, seed, min_size, balanced=balanced)
        return
    parts = partition.dirichlet(labels, clients, alpha, seed, min_size, balanced=balanced)
    assert_partition(parts, len(labels), clients, min_size)


def test_dirichlet_with_one_example_for_each_client() -> None:
    parts = partition.dirichlet(np.arange(3000) % 3, 3000, 0.05, 0)
    assert all(part.size == 1 for part in parts)


def test_dirichlet_proportions_have_the_moments_of_the_distribution() -> None:
    """q ~ Dir(alpha 1_N): mean 1/N, variance (1/N)(1 - 1/N)/(N alpha + 1)."""
    labels = np.arange(40_000) % 40
    for alpha in (0.5, 5.0):
        shares = np.concatenate(
            [class_counts(partition.dirichlet(labels, 5, alpha, seed), labels).T / 1000 for seed in range(15)]
        )
        assert shares.mean() == pytest.approx(0.2)
        assert shares.var() == pytest.approx(0.2 * 0.8 / (5 * alpha + 1), rel=0.1)


def test_dirichlet_alpha_orders_the_skew() -> None:
    labels = np.arange(5000) % 10

    def largest_class_share(alpha: float) -> float:
        counts = class_counts(partition.dirichlet(labels, 10, alpha, 0), labels)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    shares = [largest_class_share(alpha) for alpha in (0.05, 0.5, 1000.0)]
    assert shares[0] > 0.6 > shares[1] > 0.15 > shares[2]


def test_dirichlet_balanced_caps_the_sizes_before_the_last_classes() -> None:
    labels = np.arange(5000) % 10
    plain = [max(part.size for part in partition.dirichlet(labels, 10, 0.1, seed)) for seed in range(10)]
    capped = [
        max(part.size for part in partition.dirichlet(labels, 10, 0.1, seed, balanced=True)) for seed in range(10)
    ]
    # a client stops below 500 before it gets its last class, which has 500
    assert max(capped) < 1000 < max(plain)


def test_labels_need_not_be_numbered_from_zero() -> None:
    named = [part.tolist() for part in partition.dirichlet(LABELS * 7 - 20, 5, 0.3, 0)]
    assert named == [part.tolist() for part in partition.dirichlet(LABELS, 5, 0.3, 0)]


def test_shards_give_each_client_few_classes() -> None:
    labels = np.random.Generator(np.random.PCG64(0)).permutation(np.arange(2000) % 10)
    parts = partition.shards(labels, 50, 2, 1)
    assert_partition(parts, 2000, 50)
    assert {part.size for part in parts} == {40}
    classes = (class_counts(parts, labels) > 0).sum(axis=1)
    assert classes.max() == 2  # 20 divides 200: no shard straddles two classes
    assert classes.mean() > 1.5


def test_shards_of_unequal_length_differ_by_one() -> None:
    sizes = [part.size for part in partition.shards(np.zeros(103, int), 10, 3, 0)]
    assert sum(sizes) == 103
    assert max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: partition.dirichlet(LABELS, 5, 0.0, 0), ValueError, r"dirichlet\(alpha=...\) is 0.0.*\(0, inf\)"),
        (lambda: partition.dirichlet(LABELS, 5, -1.0, 0), ValueError, "alpha"),
        (lambda: partition.dirichlet(LABELS, 5, float("nan"), 0), ValueError, "must be finite"),
        (lambda: partition.dirichlet(LABELS, 5, 1.0, 0, min_size=0), ValueError, "min_size"),
        (lambda: partition.dirichlet(LABELS, 501, 1.0, 0, min_size=2), ValueError, "501 clients .* need 1002 .* 1000"),
        (lambda: partition.dirichlet(LABELS.astype(float), 5, 1.0, 0), TypeError, "float64"),
        (lambda: partition.dirichlet(LABELS[:, None], 5, 1.0, 0), ValueError, "one-dimensional"),
        (lambda: partition.dirichlet(LABELS, 5, 1.0, -1), ValueError, "seed"),
        (lambda: partition.dirichlet([], 1, 1.0, 0), TypeError, "integers"),
        (lambda: partition.dirichlet(np.zeros(0, int), 1, 1.0, 0), ValueError, "num_examples"),
        (lambda: partition.iid(10, 11, 0), ValueError, "11 clients"),
        (lambda: partition.iid(10, 0, 0), ValueError, "num_clients"),
        (lambda: partition.iid(10.0, 2, 0), TypeError, "integer"),
        (lambda: partition.shards(LABELS, 600, 2, 0), ValueError, "1200 examples"),
        (lambda: partition.shards(LABELS, 10, 0, 0), ValueError, "shards_per_client"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


GOLDEN_IID = [[2, 3, 4], [5, 6], [0, 1]]
GOLDEN_DIRICHLET = [[5, 6], [2, 4], [0, 1, 3, 7, 8, 9, 10, 11]]
