"""Partitions are disjoint, complete, never empty, repeatable, and skewed as they say."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.datasets import from_partition, partition
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.partition.dealing import apportioned, within_bounds
from fedjax_sim.datasets.partition.skew import _filled

LABELS = np.arange(1000) % 10
METHODS: dict[str, Callable[[int], partition.Partition]] = {
    "iid": lambda seed: partition.iid(1000, 17, seed),
    "sized": lambda seed: partition.sized(LABELS, partition.power_law_sizes(1000, 17, 2.0, seed), seed),
    "natural": lambda seed: partition.natural((LABELS + seed * (np.arange(1000) % 7 == 0)) % 10 * 3),
    "shards": lambda seed: partition.shards(LABELS, 17, 2, seed),
    "similarity": lambda seed: partition.similarity(LABELS, 17, 10, seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 17, 0.1, seed),
    "dirichlet_balanced": lambda seed: partition.dirichlet(LABELS, 17, 0.1, seed, balanced=True),
    "dirichlet_capped": lambda seed: partition.dirichlet(LABELS, 17, 0.1, seed, 20, max_size=90),
    "dirichlet_per_client": lambda seed: partition.dirichlet_per_client(LABELS, 17, 0.3, seed),
    "classes": lambda seed: partition.classes(LABELS, 17, 2, seed),
    "even_classes": lambda seed: partition.even_classes(LABELS, 17, 2, seed),
    "consecutive_classes": lambda seed: partition.consecutive_classes(LABELS, 17, 2, seed),
}
NUMBER_OF_CLIENTS = {"natural": 10}


def assert_partition(parts: Sequence[np.ndarray], total: int, clients: int, min_size: int = 1) -> None:
    assert len(parts) == clients
    assert min(part.size for part in parts) >= min_size
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(total))


def digest(made: partition.Partition) -> str:
    content = np.concatenate([made.sizes, made.rows]).astype("<i8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def class_counts(parts: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("name", METHODS)
def test_is_a_partition_and_repeats(name: str) -> None:
    first, again, other = METHODS[name](3), METHODS[name](3), METHODS[name](4)
    assert_partition(first, 1000, NUMBER_OF_CLIENTS.get(name, 17))
    assert digest(first) == digest(again) != digest(other)


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_means_the_same_partition_everywhere(name: str) -> None:
    """Whatever the platform and the version of numpy: a change here changes everybody's experiments."""
    assert digest(METHODS[name](0)) == DIGESTS[name]


def test_sizes_are_the_same_everywhere() -> None:
    found = {
        "power_law": partition.power_law_sizes(1000, 6, 2.0, 0),
        "lognormal": partition.lognormal_sizes(1000, 6, 1.0, 0),
        "dirichlet": partition.dirichlet_sizes(1000, 6, 0.5, 0),
        "counts": partition.lognormal_counts(6, 4.0, 1.0, 0, least=5),
    }
    assert {name: sizes.tolist() for name, sizes in found.items()} == SIZES


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


def test_dirichlet_balanced_passes_over_who_holds_n_over_N_exactly() -> None:
    # n/N = 4: client 0 holds 4 after the first class and gets nothing more, client 1 holds 3 and does
    shares = np.array([[0.5, 0.375, 0.125], [0.5, 0.5, 0.0]])
    counts = _filled(shares, np.array([8, 4]))
    assert counts.tolist() == [[4, 3, 1], [0, 4, 0]]


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


def test_record_of_the_repair() -> None:
    plenty = partition.dirichlet(LABELS, 5, 100.0, 0)
    assert (plenty.redraws, plenty.moved) == (0, 0)
    assert repr(plenty) == "Partition(5 clients, 1000 examples, redraws=0, moved=0)"
    again = partition.dirichlet(LABELS, 12, 0.1, 0, min_size=12)  # a few clients short: worth another draw
    assert again.redraws > 0
    assert again.sizes.min() >= 12
    hopeless = partition.dirichlet(LABELS, 300, 0.05, 0)
    assert hopeless.redraws == 0
    assert hopeless.moved > 12
    assert hopeless.sizes.min() == 1


@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=12),
    low=st.integers(1, 6),
    high=st.integers(1, 20),
)
def test_repair_keeps_bounds_classes_and_moves_as_few_as_can_be(counts: list[list[int]], low: int, high: int) -> None:
    table = np.array(counts, np.int64).T
    clients, total = table.shape[1], int(table.sum())
    if not clients * low <= total <= clients * max(high, low):
        return
    high = max(high, low)
    after, moved = within_bounds(Draws("test", 0), table, low, high)
    sizes, before = after.sum(axis=0), table.sum(axis=0)
    assert after.min() >= 0
    assert low <= sizes.min()
    assert sizes.max() <= high
    np.testing.assert_array_equal(after.sum(axis=1), table.sum(axis=1))
    assert moved == max(np.maximum(before - high, 0).sum(), np.maximum(low - before, 0).sum())


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda w: sum(w) > 0), st.integers(0, 1000))
def test_apportioned_is_exact_in_sum_and_within_one(weights: list[float], total: int) -> None:
    found = apportioned(np.array([weights]), np.array([total]))[0]
    assert found.sum() == total
    assert np.abs(found - total * np.array(weights) / sum(weights)).max() <= 1 + 1e-6


def test_a_partition_is_a_frozen_sequence() -> None:
    made = partition.dirichlet(LABELS, 5, 1.0, 0)
    assert isinstance(made, Sequence)
    assert len(list(made)) == 5
    np.testing.assert_array_equal(made[-1], made[4])
    assert digest(made[:]) == digest(made)
    assert [part.tolist() for part in made[3:0:-2]] == [made[3].tolist(), made[1].tolist()]
    with pytest.raises(IndexError):
        made[5]
    with pytest.raises(ValueError, match="read-only"):
        made[0][0] = 7
    with pytest.raises(AttributeError):
        made.moved = 3  # type: ignore[misc]


def test_a_partition_makes_the_data_set_that_its_lists_make() -> None:
    made = partition.dirichlet(LABELS, 9, 0.5, 0)
    for fraction in (0.0, 0.3):
        fast = from_partition({"row": np.arange(1000)}, made, test_fraction=fraction, seed=1)
        slow = from_partition(
            {"row": np.arange(1000)}, [part.tolist() for part in made], test_fraction=fraction, seed=1
        )
        np.testing.assert_array_equal(fast.examples["row"], slow.examples["row"])
        np.testing.assert_array_equal(fast.sizes, slow.sizes)
        if fraction:
            assert fast.test is not None
            assert slow.test is not None
            np.testing.assert_array_equal(fast.test.examples["row"], slow.test.examples["row"])


def test_a_partition_of_one_s_own_is_checked_where_it_is_used() -> None:
    examples = {"row": np.arange(4)}
    with pytest.raises(ValueError, match="client 1 has index 7: there are examples 0 to 3 only"):
        from_partition(examples, partition.Partition(np.array([0, 7]), np.array([1, 1])))
    with pytest.raises(ValueError, match="example 2 is used by client 0 and by client 1"):
        from_partition(examples, partition.Partition(np.array([1, 2, 2]), np.array([2, 1])))


def test_dirichlet_caps_the_sizes() -> None:
    plain = partition.dirichlet(LABELS, 10, 0.1, 0)
    capped = partition.dirichlet(LABELS, 10, 0.1, 0, max_size=150)
    assert plain.sizes.max() > 150
    assert capped.sizes.max() == 150
    assert capped.moved == np.maximum(plain.sizes - 150, 0).sum()
    assert partition.dirichlet(LABELS, 10, 0.1, 0, max_size=100).sizes.tolist() == [100] * 10


def test_dirichlet_per_client_mixtures_have_the_moments_of_the_distribution() -> None:
    """With plenty left of each class: p_i ~ Dir(alpha 1_C) has mean 1/C and variance (1/C)(1 - 1/C)/(C alpha + 1)."""
    labels = np.arange(400_000) % 4
    sizes = np.full(400, 100)
    for alpha, exponent, total in ((0.5, 0.0, 2.0), (2.0, 1.0, 2.0)):  # alpha / 4 four times is alpha
        made = partition.dirichlet_per_client(labels, 400, alpha, 0, sizes=sizes, prior_exponent=exponent)
        shares = class_counts(made, labels) / 100
        assert made.rows.size == 40_000
        assert shares.mean() == pytest.approx(0.25)
        expected = 0.25 * 0.75 / (total + 1) + (0.25 - 0.25**2 - 0.25 * 0.75 / (total + 1)) / 100  # and a multinomial
        assert shares.var() == pytest.approx(expected, rel=0.1)


def test_dirichlet_per_client_uses_the_prior() -> None:
    labels = np.repeat([0, 1], [90_000, 10_000])
    made = partition.dirichlet_per_client(labels, 200, 5.0, 0, sizes=np.full(200, 50), prior_exponent=1.0)
    assert class_counts(made, labels)[:, 1].mean() / 50 == pytest.approx(0.1, rel=0.15)
    flat = partition.dirichlet_per_client(labels, 200, 5.0, 0, sizes=np.full(200, 40))
    assert class_counts(flat, labels)[:, 1].mean() / 40 == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("exponent", [1000.0, -1000.0])
def test_a_prior_that_no_number_holds_is_refused(exponent: float) -> None:
    """It made the draws never end."""
    with pytest.raises(ValueError, match=r"prior_exponent=-?1000.0\): alpha pi\^e is .*: prior_exponent is 0 or 1"):
        partition.dirichlet_per_client([0, 1, 2, 3] * 5 + [4], 4, 0.1, 0, prior_exponent=exponent)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-6, 0.1, 10.0]),
    seed=st.integers(0, 3),
)
@settings(max_examples=60)
def test_dirichlet_per_client_uses_up_the_data(labels: list[int], clients: int, alpha: float, seed: int) -> None:
    if clients > len(labels):
        return
    made = partition.dirichlet_per_client(labels, clients, alpha, seed)
    assert_partition(made, len(labels), clients)
    assert max(made.sizes) - min(made.sizes) <= 1


@pytest.mark.parametrize("percent", [0, 10, 50, 100])
def test_similarity_mixes_the_share_it_says(percent: float) -> None:
    labels = np.random.Generator(np.random.PCG64(0)).permutation(np.arange(20_000) % 10)
    made = partition.similarity(labels, 10, percent, 0)
    assert_partition(made, 20_000, 10)
    assert set(made.sizes) == {2000}
    counts = class_counts(made, labels)
    own = counts[np.arange(10), np.arange(10)] / 2000
    assert own.mean() == pytest.approx((100 - percent) / 100 + percent / 1000, abs=0.03)


@given(st.integers(1, 40), st.integers(1, 12), st.floats(0.0, 100.0))
def test_similarity_sizes_differ_by_at_most_one(examples: int, clients: int, percent: float) -> None:
    if clients > examples:
        return
    made = partition.similarity(np.arange(examples) % 3, clients, percent, 0)
    assert_partition(made, examples, clients)
    assert max(made.sizes) - min(made.sizes) <= 1


@pytest.mark.parametrize(("clients", "held"), [(10, 1), (25, 3), (4, 3), (1, 10), (7, 10)])
def test_classes_holds_c_classes_and_leaves_none_out(clients: int, held: int) -> None:
    for seed in range(5):
        made = partition.classes(LABELS, clients, held, seed)
        assert_partition(made, 1000, clients)
        counts = class_counts(made, LABELS)
        assert set((counts > 0).sum(axis=1)) == {held}
        for column in counts.T:  # split evenly
            assert np.ptp(column[column > 0]) <= 1


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    held=st.integers(1, 6),
    min_size=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_class_sets_deal_out_whatever_there_is(
    labels: list[int], clients: int, held: int, min_size: int, seed: int
) -> None:
    kinds = len(set(labels))
    if held > kinds or clients * held < kinds or clients * min_size > len(labels):
        return
    for make in (partition.classes, partition.even_classes):
        assert_partition(make(labels, clients, held, seed, min_size), len(labels), clients, min_size)
    weighted = partition.even_classes(labels, clients, held, seed, min_size, weights=1.0 / np.arange(1, clients + 1))
    assert_partition(weighted, len(labels), clients, min_size)
    if clients + held - 1 < kinds:
        with pytest.raises(ValueError, match="consecutive classes reach"):
            partition.consecutive_classes(labels, clients, held, seed, min_size, base=0)
    else:
        consecutive = partition.consecutive_classes(labels, clients, held, seed, min_size, base=0)
        assert_partition(consecutive, len(labels), clients, min_size)


def test_classes_are_drawn_uniformly() -> None:
    """Client 0 holds class 0, and each of the nine others a third of the time: four classes of ten, three at random."""
    held = np.array([class_counts(partition.classes(LABELS, 10, 4, seed), LABELS)[0] > 0 for seed in range(600)])
    assert held[:, 0].all()
    assert np.abs(held[:, 1:].mean(axis=0) - 1 / 3).max() < 0.085  # 4.4 standard deviations


@pytest.mark.parametrize(("clients", "held"), [(100, 2), (10, 5), (30, 10), (5, 2), (33, 3), (1, 10)])
def test_even_classes_are_at_equally_many_clients(clients: int, held: int) -> None:
    made = partition.even_classes(LABELS, clients, held, 0)
    assert_partition(made, 1000, clients)
    counts = class_counts(made, LABELS)
    assert set((counts > 0).sum(axis=1)) == {held}
    assert np.ptp((counts > 0).sum(axis=0)) <= 1


def test_even_classes_come_in_all_combinations() -> None:
    pairs = np.zeros((5, 5))
    labels = np.arange(100) % 5
    for seed in range(60):
        for counts in class_counts(partition.even_classes(labels, 10, 2, seed), labels):
            pairs[tuple(np.flatnonzero(counts))] += 1
    drawn = pairs[np.triu_indices(5, 1)]
    assert drawn.sum() == 600
    assert ((drawn - 60) ** 2 / 60).sum() < 34  # 9 degrees of freedom: beyond 1 - 1e-4 even if they were independent


def test_the_balanced_mnist_of_li_et_al_has_542_images_a_client() -> None:
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST's training images
    labels = np.repeat(np.arange(10), counts)
    made = partition.even_classes(labels, 100, 2, 0, equal_sizes=True)
    assert set(made.sizes) == {542}
    assert made.rows.size == 54_200
    assert np.unique(made.rows).size == 54_200
    weights = partition.power_law_sizes(60_000, 100, 2.0, 0)
    uneven = partition.even_classes(labels, 100, 2, 0, weights=weights)
    assert_partition(uneven, 60_000, 100)
    assert (class_counts(uneven, labels) > 0).sum(axis=1).max() == 2
    assert np.corrcoef(np.log(weights), np.log(uneven.sizes))[0, 1] > 0.7


def test_consecutive_classes() -> None:
    labels = np.arange(10_000) % 10
    made = partition.consecutive_classes(labels, 200, 2, 0)
    assert_partition(made, 10_000, 200, min_size=10)
    for client, counts in enumerate(class_counts(made, labels)):
        assert set(np.flatnonzero(counts)) == {client % 10, (client + 1) % 10}
        assert counts[counts > 0].min() >= 5
    assert made.sizes.std() > made.sizes.mean()  # LogNormal(0, 2) is heavy
    even = partition.consecutive_classes(labels, 200, 2, 0, sigma=0.0)
    assert set(even.sizes) == {50}


def test_consecutive_classes_of_given_sizes() -> None:
    labels = np.arange(10_000) % 10
    wanted = partition.lognormal_counts(20, 4.0, 1.0, 0, least=5)
    made = partition.consecutive_classes(labels, 20, 5, 0, sizes=wanted)
    np.testing.assert_array_equal(made.sizes, wanted // 5 * 5)
    assert np.unique(made.rows).size == made.rows.size < 10_000
    scarce = partition.consecutive_classes(labels[:200], 20, 5, 0, sizes=np.full(20, 10))
    assert set(scarce.sizes) == {10}
    asked = partition.consecutive_classes(labels[:120], 20, 5, 0, sizes=np.full(20, 6))
    assert asked.sizes.min() >= 5


@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0, 50.0])
def test_sizes_add_up(sigma: float) -> None:
    sizes = partition.lognormal_sizes(10_000, 100, sigma, 0, min_size=7)
    assert sizes.sum() == 10_000
    assert sizes.min() >= 7
    if sigma == 0.3:
        assert np.log(sizes - 7).std() == pytest.approx(0.3, rel=0.2)


def test_power_law_sizes_have_the_tail_they_say() -> None:
    """P(w > t) = t^(1 - a): log w is exponential with mean 1 / (a - 1)."""
    for exponent in (1.5, 2.5):
        sizes = partition.power_law_sizes(10**9, 4000, exponent, 0, min_size=1)
        logs = np.log(sizes - 1.0)
        assert (logs - logs.min()).mean() == pytest.approx(1 / (exponent - 1), rel=0.06)


def test_sized_and_natural() -> None:
    made = partition.sized(10, [3, 1], 0)
    assert made.sizes.tolist() == [3, 1]
    assert np.unique(made.rows).size == 4
    ids = np.array([40, 7, 40, -2], np.int64)
    assert [part.tolist() for part in partition.natural(ids)] == [[3], [1], [0, 2]]
    assert [part.tolist() for part in partition.natural(ids.astype(np.int8))] == [[3], [1], [0, 2]]
    far = np.array([2**62, 5, 2**62], np.uint64)
    assert [part.tolist() for part in partition.natural(far)] == [[1], [0, 2]]


def test_shuffles_are_uniform_and_grouped() -> None:
    draws = Draws("test", 0)
    places = np.array([np.argsort(draws.shuffled(5)) for _ in range(2000)])
    counts = np.array([np.bincount(column, minlength=5) for column in places.T])
    assert ((counts - 400) ** 2 / 400).sum() < 45  # 16 degrees of freedom
    groups = np.array([3, 0, 3, 1, 0, 2**50])  # too many to share a word with the row
    for few in (groups % 1000, groups):
        order = draws.shuffled_by(few)
        assert sorted(order) == list(range(6))
        assert np.all(np.diff(few[order]) >= 0)
    assert draws.shuffled(0).size == 0


def test_gamma_variates_have_their_moments() -> None:
    draws = Draws("test", 1)
    for shape in (0.05, 0.7, 1.0, 30.0):
        found = np.exp(draws.log_gamma(np.full(40_000, shape)))
        assert found.mean() == pytest.approx(shape, rel=0.08)
        assert found.var() == pytest.approx(shape, rel=0.12)
    tiny = draws.log_dirichlet(np.full((50, 4), 1e-9))
    assert np.isfinite(tiny).all()
    assert np.exp(tiny).sum(axis=1) == pytest.approx(1.0)


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
        (lambda: partition.dirichlet(LABELS, 10, 1.0, 0, max_size=99), ValueError, "hold 990 of the 1000 examples"),
        (lambda: partition.dirichlet(LABELS, 10, 1.0, 0, 50, max_size=20), ValueError, "max_size"),
        (lambda: partition.dirichlet(LABELS, 10, 1.0, 0, balanced=1), TypeError, "balanced"),  # type: ignore[arg-type]
        (lambda: partition.similarity(LABELS, 10, 101.0, 0), ValueError, r"percent=...\) is 101.0.*\[0, 100\]"),
        (lambda: partition.dirichlet_per_client(LABELS, 2, 1.0, 0, sizes=[1, 2, 3]), ValueError, "3 entries"),
        (lambda: partition.dirichlet_per_client(LABELS, 2, 1.0, 0, sizes=[1, 2000]), ValueError, "add up to 2001"),
        (lambda: partition.dirichlet_per_client(LABELS, 2, 1.0, 0, sizes=[4, 5], min_size=5), ValueError, "client 0"),
        (lambda: partition.dirichlet_per_client(LABELS, 2, 1.0, 0, sizes=[4.0, 5.0]), TypeError, "float64"),
        (lambda: partition.classes(LABELS, 4, 2, 0), ValueError, "at most 8 of the 10 classes: use more clients"),
        (lambda: partition.classes(LABELS, 4, 11, 0), ValueError, "classes_per_client=.* is 11: .* at most 10"),
        (lambda: partition.even_classes(LABELS, 4, 5, 0, weights=[1.0]), TypeError, "each of the 4 clients"),
        (lambda: partition.sized(10, [2**62] * 4, 0), ValueError, f"add up to {2**64} but"),
        (lambda: partition.even_classes(LABELS, 2, 5, 0, weights=[1.0, 0.0]), ValueError, "client 1 has 0.0"),
        (
            lambda: partition.even_classes(LABELS, 2, 5, 0, weights=[1.0, 2.0], equal_sizes=True),
            ValueError,
            "either weights or equal_sizes",
        ),
        (lambda: partition.consecutive_classes(LABELS, 200, 2, 0), ValueError, "40 clients hold .* base=2"),
        (lambda: partition.consecutive_classes(LABELS, 20, 2, 0, sizes=[3]), ValueError, "1 entries"),
        (lambda: partition.sized(10, [5, 6], 0), ValueError, "add up to 11 but there are 10"),
        (lambda: partition.sized(10, [5, 0], 0), ValueError, "client 1 has size 0"),
        (lambda: partition.dirichlet((np.eye(2), [0, 1]), 2, 1.0, 0), TypeError, "the labels alone, dirichlet"),
        (lambda: partition.natural([]), ValueError, "no ids"),
        (lambda: partition.natural([0.5]), TypeError, "integers or strings"),
        (lambda: partition.power_law_sizes(10, 2, 1.0, 0), ValueError, "exponent"),
        (lambda: partition.lognormal_sizes(10, 11, 1.0, 0), ValueError, "11 clients"),
        (lambda: partition.lognormal_sizes(10, 2, -1.0, 0), ValueError, "sigma"),
        (lambda: partition.Partition(np.array([0, 1]), np.array([2, 0])), ValueError, "client 1 has no examples"),
        (lambda: partition.Partition(np.array([0, 1]), np.array([1])), ValueError, "add up to 1 but there are 2 rows"),
        (lambda: partition.Partition(np.array([0.0]), np.array([1])), TypeError, "1-d array of integers"),
    ],
)
def test_errors(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


DIGESTS = {
    "iid": "41b0707d9befc661",
    "sized": "895f36dbf01593ff",
    "natural": "aae4af2355761bbd",
    "shards": "f7dacd423dafce4f",
    "similarity": "ebb5a4092bf99f3d",
    "dirichlet": "9613830be46a9675",
    "dirichlet_balanced": "350b1258667bbe96",
    "dirichlet_capped": "248c65c8edd4885b",
    "dirichlet_per_client": "41485c2c2850c0dd",
    "classes": "f8660f937bbc7acc",
    "even_classes": "46a26197a35c7a5f",
    "consecutive_classes": "fef16c76c403af28",
}
SIZES = {
    "power_law": [96, 110, 160, 131, 95, 408],
    "lognormal": [221, 70, 82, 287, 308, 32],
    "dirichlet": [7, 224, 349, 397, 21, 2],
    "counts": [57, 82, 17, 73, 30, 126],
}
