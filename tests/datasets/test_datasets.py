"""The federated data set, its constructors, and the data sets that are drawn."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_sim as fjs
from fedjax_sim import datasets
from fedjax_sim.core.descriptions import build, describe, opaque_parts
from fedjax_sim.datasets import FederatedDataset, client_names, from_clients, from_ids, from_partition
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import named


def three_clients(**kwargs: Any) -> FederatedDataset:
    clients = [(np.full((n, 2), float(i)), np.arange(n) % 3) for i, n in enumerate((4, 1, 6))]
    test = [(np.full((2, 2), 0.5), [0, 3]), None, (np.ones((1, 2)), [1])]
    return from_clients(clients, test=test, **kwargs)


def leaves_equal(one: Any, other: Any) -> bool:
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(a, b), one, other)
    return all(jax.tree.leaves(same))


# The type


def test_fields() -> None:
    data = three_clients(client_ids=[7, 30, 2])
    assert (data.num_clients, data.num_examples, data.max_size, data.num_classes) == (3, 11, 6, 4)
    assert data.offsets.tolist() == [0, 4, 5]
    assert data.sizes.tolist() == [4, 1, 6]
    assert data.client_ids.tolist() == [7, 30, 2]
    assert data.order.tolist() == [2, 0, 1]
    assert data.largest == ((1, 6, 6), (2, 10, 4), (3, 11, 1))
    assert data.example_weights is None
    for array in (data.offsets, data.sizes, data.client_ids, data.order, data.examples["y"]):
        assert array.dtype == jnp.int32
    assert data.examples["x"].dtype == data.shares.dtype == jnp.float32
    np.testing.assert_allclose(data.shares, np.array([4, 1, 6]) / 11, rtol=1e-6)
    assert data.test is not None
    assert data.test.test is None
    assert data.test.sizes.tolist() == [2, 0, 1]
    assert data.test.client_ids.tolist() == data.client_ids.tolist()
    assert data.test.num_classes == data.num_classes
    assert repr(data) == "FederatedDataset(3 clients, 11 examples, 3 test examples, 4 classes)"


@pytest.mark.usefixtures("x64")
def test_double_precision() -> None:
    data = three_clients()
    assert data.examples["x"].dtype == data.shares.dtype == jnp.float64
    assert data.sizes.dtype == data.examples["y"].dtype == jnp.int32
    single = from_clients([{"x": np.zeros((2, 1), np.float32)}])
    assert single.examples["x"].dtype == jnp.float32
    assert datasets.synthetic(1, 1, 2, sizes=[3, 3]).examples["x"].dtype == jnp.float64
    assert datasets.synthetic(1, 1, 2, sizes=[3, 3], dtype="float32").examples["x"].dtype == jnp.float32
    assert datasets.quadratics(2, 3).examples["H"].dtype == jnp.float64
    assert data.with_example_weights(np.ones(11)).example_weights.dtype == jnp.float64


def test_client_gives_host_arrays() -> None:
    data = three_clients()
    held = data.client(2)
    assert isinstance(held["x"], np.ndarray)
    np.testing.assert_array_equal(held["x"], np.full((6, 2), 2.0))
    np.testing.assert_array_equal(held["y"], [0, 1, 2, 0, 1, 2])
    assert data.test is not None
    assert data.test.client(1)["x"].shape == (0, 2)
    for position in (3, -1):
        with pytest.raises(IndexError, match="0 to 2"):
            data.client(position)


def test_statistics() -> None:
    statistics = three_clients().statistics()
    assert (statistics.clients, statistics.examples, statistics.min, statistics.max) == (3, 11, 1, 6)
    assert statistics.mean == pytest.approx(11 / 3)
    assert statistics.std == pytest.approx(np.std([4, 1, 6]))
    assert statistics.label_table.tolist() == [[2, 1, 1, 0], [1, 0, 0, 0], [2, 2, 2, 0]]
    text = str(statistics)
    assert "mean 3.7, std 2.1, min 1, max 6" in text
    assert "0: 5, 1: 3, 2: 3, 3: 0" in text
    assert from_clients([{"x": np.zeros((2, 1))}]).statistics().label_table is None


def test_statistics_count_every_label_of_a_sequence() -> None:
    data = from_clients([([[0.0], [0.0]], [[0, 1, 1], [2, 2, 2]]), ([[0.0]], [[3, 3, 0]])])
    assert data.statistics().label_table.tolist() == [[1, 2, 3, 0], [1, 0, 0, 2]]


def test_is_a_pytree_without_checks() -> None:
    data = three_clients().with_example_weights(np.arange(11.0))
    leaves, structure = jax.tree.flatten(data)
    assert len(leaves) == 2 + 4 + 1 + 2 + 4
    hash(structure)
    blank = jax.tree.unflatten(structure, [object()] * len(leaves))
    assert repr(blank) == repr(data)
    poisoned = jax.tree.map(
        lambda leaf: leaf * jnp.asarray(jnp.nan, leaf.dtype) if leaf.dtype.kind == "f" else leaf, data
    )
    assert poisoned.num_examples == 11
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), data)
    np.testing.assert_allclose(jax.vmap(lambda one: one.shares)(stacked)[1], data.shares)


def test_passes_through_jit_and_compiles_once_for_other_values() -> None:
    traces = []

    @jax.jit
    def mean(data: FederatedDataset) -> tuple[jax.Array, FederatedDataset]:
        traces.append(1)
        return (data.examples["x"].sum(axis=1) * data.example_weights).sum(), data

    data = three_clients().with_example_weights(np.ones(11))
    value, back = mean(data)
    assert float(value) == pytest.approx(2 * (0 * 4 + 1 * 1 + 2 * 6))
    assert leaves_equal(data, back)
    mean(data.replace(examples=jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), data.examples)))
    assert len(traces) == 1


def test_gradient_reaches_the_example_weights() -> None:
    data = three_clients()

    def loss(weights: jax.Array) -> jax.Array:
        weighted = data.with_example_weights(weights)
        return (weighted.example_weights * weighted.examples["x"][:, 0]).sum()

    gradient = jax.jit(jax.grad(loss))(jnp.ones(11))
    np.testing.assert_array_equal(gradient, data.examples["x"][:, 0])


def test_example_weights_are_checked_and_copied() -> None:
    data = three_clients()
    with pytest.raises(ValueError, match=r"shape \(3,\).*11 training examples"):
        data.with_example_weights(np.ones(3))
    with pytest.raises(ValueError, match=r"must be in \[0, inf\)"):
        data.with_example_weights(np.linspace(-1, 1, 11))
    for weight in (np.nan, 1e39):  # infinite in float32
        with pytest.raises(ValueError, match=r"must be finite|infinite in float32"):
            data.with_example_weights(np.full(11, weight))
    mine = np.ones(11, np.float32)
    weighted = data.with_example_weights(mine)
    mine[:] = 5
    np.testing.assert_array_equal(weighted.example_weights, np.ones(11))
    assert weighted.with_example_weights(None).example_weights is None


def test_arrays_are_copied() -> None:
    x = np.ones((64, 64), np.float32)
    made = [from_clients([{"x": x}]), from_ids({"x": x}, np.zeros(64, int)), from_partition({"x": x}, [np.arange(64)])]
    x[:] = 7
    for data in made:
        assert float(data.examples["x"].max()) == 1.0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(0, 45))
@settings(max_examples=100)
def test_largest_total_bounds_every_choice_of_clients(sizes: list[int], count: int) -> None:
    data = from_clients([{"x": np.zeros((size, 1), np.float32)} for size in sizes])
    decreasing = sorted(sizes, reverse=True)
    true = sum(decreasing[:count])
    bound = data.largest_total(count)
    assert true <= bound <= min(sum(sizes), count * max(sizes))
    if count in [at for at, _, _ in data.largest] or count == 0 or count >= len(sizes) or len(set(sizes)) == 1:
        assert bound == true
    assert bound <= data.largest_total(count + 1)


def test_largest_total_refuses_what_is_no_count() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        three_clients().largest_total(-1)
    with pytest.raises(TypeError, match="integer"):
        three_clients().largest_total(1.5)  # type: ignore[arg-type]


@given(st.permutations(range(5)))
@settings(max_examples=20)
def test_a_subset_of_all_is_another_order_of_everything(permutation: list[int]) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    sizes, held = (3, 1, 4, 2, 5), (1, 0, 2, 0, 1)
    data = from_clients(
        [(rng.normal(size=(n, 2)), rng.integers(0, 3, n)) for n in sizes],
        test=[(rng.normal(size=(n, 2)), rng.integers(0, 3, n)) for n in held],
        client_ids=[50, 4, 9, 0, 7],
    ).with_example_weights(np.arange(15.0))
    moved = data.subset(permutation)
    for new, old in enumerate(permutation):
        assert leaves_equal(moved.client(new), data.client(old))
        assert moved.test is not None
        assert data.test is not None
        assert leaves_equal(moved.test.client(new), data.test.client(old))
        rows = slice(int(moved.offsets[new]), int(moved.offsets[new]) + sizes[old])
        start = int(data.offsets[old])
        assert moved.example_weights[rows].tolist() == list(range(start, start + sizes[old]))
    assert moved.client_ids.tolist() == [[50, 4, 9, 0, 7][old] for old in permutation]
    assert moved.client_ids[moved.order].tolist() == [0, 4, 7, 9, 50]
    assert moved.test.client_ids.tolist() == moved.client_ids.tolist()
    assert (moved.largest, moved.max_size) == (data.largest, data.max_size)
    assert leaves_equal(moved.subset(np.argsort(permutation)), data)


def test_a_subset_of_the_clients() -> None:
    names = np.repeat(["ann", "bob", "cid", "dan"], [3, 1, 4, 2])
    x = np.arange(10.0, dtype=np.float32)
    data = from_ids({"x": x}, names, test={"x": x[:2]}, test_ids=["bob", "cid"]).with_example_weights(x)
    data = named(data, client_names(from_ids({"x": x}, names)))
    some = data.subset([2, 0])
    assert (some.num_clients, some.num_examples, some.max_size) == (2, 7, 4)
    assert some.client_ids.tolist() == [2, 0]
    assert client_names(some) == ("cid", "ann")
    assert some.client(0)["x"].tolist() == some.example_weights[:4].tolist() == [4, 5, 6, 7]
    assert some.test is not None
    assert (some.test.sizes.tolist(), some.test.examples["x"].tolist()) == ([1, 0], [1.0])
    assert data.subset([3]).test is None
    assert leaves_equal(data.subset(range(4)), data)


@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        ([], TypeError, "give the storage positions of one client or more"),
        ([True, False, True], TypeError, r"np.flatnonzero\(mask\)"),
        ([0, 3], ValueError, "storage positions are 0 to 2, and each is given once"),
        ([-1], ValueError, "storage positions are 0 to 2"),
        ([1, 1], ValueError, "each is given once"),
    ],
)
def test_a_subset_wants_positions(positions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        three_clients().subset(positions)


# The constructors


def test_from_clients_takes_any_pytree() -> None:
    data = from_clients([{"a": (np.zeros((n, 2)), {"b": np.zeros((n,), np.uint8)}), "c": [[True]] * n} for n in (1, 3)])
    assert jax.tree.map(lambda leaf: (str(leaf.dtype), leaf.shape), data.examples) == {
        "a": (("float32", (4, 2)), {"b": ("uint8", (4,))}),
        "c": ("bool", (4, 1)),
    }
    assert data.num_classes is None


def test_stored_types() -> None:
    def stored(leaf: Any) -> str:
        return str(from_clients([{"x": leaf}]).examples["x"].dtype)

    kept = {"uint8": "uint8", "bool": "bool", "float16": "float16", "float32": "float32", "bfloat16": "bfloat16"}
    changed = {"int64": "int32", "int8": "int32", "uint16": "int32", "float64": "float32"}
    for given_type, wanted in (kept | changed).items():
        assert stored(np.zeros(3, jnp.dtype(given_type))) == wanted
    assert stored(jnp.zeros(3, jnp.bfloat16)) == "bfloat16"
    labelled = from_clients([(np.zeros((2, 1)), np.array([0, 200], np.uint8))])
    assert (labelled.examples["y"].dtype, labelled.num_classes) == (jnp.int32, 201)


def test_test_examples_take_the_training_types() -> None:
    data = from_clients(
        [{"x": np.zeros(2, np.float32), "t": np.zeros(2, np.uint8)}],
        test=[{"x": np.zeros(1), "t": np.ones(1, np.int64)}],
    )
    assert data.test is not None
    assert (data.test.examples["x"].dtype, data.test.examples["t"].dtype) == (jnp.float32, jnp.uint8)
    for wide in (np.float32, jnp.bfloat16):
        with pytest.raises(ValueError, match=r"test examples\['x'\] are .*float16\[2\], whose type would round them"):
            from_clients([{"x": np.zeros(2, np.float16)}], test=[{"x": jnp.zeros(2, wide)}])
    assert from_clients([{"x": np.zeros(2)}], test=[{"x": np.zeros(2, np.float16)}]).test is not None


def test_number_of_classes() -> None:
    assert three_clients().num_classes == 4  # the largest label is in the test part
    assert three_clients(num_classes=12).num_classes == 12
    assert from_clients([(np.zeros((2, 1)), [0.5, 1.0])]).num_classes is None
    assert from_clients([(np.zeros((2, 1)), [True, False])]).num_classes == 2
    assert from_clients([np.zeros((2, 1))]).num_classes is None
    assert from_clients([(np.zeros((2, 1)), None)]).num_classes is None


def test_an_empty_test_part_is_none() -> None:
    clients = [(np.zeros((2, 1)), [0, 1])] * 2
    for nothing in (None, (np.zeros((0, 1)), np.zeros(0, int)), ([], [])):
        assert from_clients(clients, test=[nothing, nothing]).test is None
    assert from_partition((np.zeros((3, 1)), [0, 1, 2]), [[0], [1], [2]], test_fraction=0.0).test is None


def test_from_ids() -> None:
    x = np.arange(12.0).reshape(6, 2)
    data = from_ids((x, np.arange(6)), [30, 4, 30, 4, 9, 4], test=(x[:2], [0, 1]), test_ids=[30, 9])
    assert data.client_ids.tolist() == [4, 9, 30]
    np.testing.assert_array_equal(data.client(0)["x"], x[[1, 3, 5]])
    np.testing.assert_array_equal(data.client(2)["y"], [0, 2])
    assert data.test is not None
    assert data.test.sizes.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(data.test.client(2)["x"], x[:1])


@pytest.mark.parametrize("ids", [["b", "a", "b"], np.array(["b", "a", "b"], object), [-1, -5, -1], [2**40, 7, 2**40]])
def test_from_ids_numbers_other_ids(ids: Any) -> None:
    data = from_ids({"x": np.arange(3.0)}, ids)
    assert data.client_ids.tolist() == [0, 1]
    np.testing.assert_array_equal(data.client(1)["x"], [0.0, 2.0])


def test_from_partition_splits_each_client() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    sizes = np.array([1, 2, 5, 10, 103])
    rows = np.split(rng.permutation(200)[: sizes.sum()], np.cumsum(sizes)[:-1])
    data = from_partition({"row": np.arange(200)}, rows, test_fraction=0.2, seed=3)
    assert data.test is not None
    assert data.sizes.tolist() == [1, 1, 4, 8, 82]
    assert data.test.sizes.tolist() == [0, 1, 1, 2, 21]
    for client, mine in enumerate(rows):
        both = np.concatenate([data.client(client)["row"], data.test.client(client)["row"]])
        np.testing.assert_array_equal(np.sort(both), np.sort(mine))
    assert leaves_equal(data, from_partition({"row": np.arange(200)}, rows, test_fraction=0.2, seed=3))
    other = from_partition({"row": np.arange(200)}, rows, test_fraction=0.2, seed=4)
    assert not np.array_equal(data.examples["row"], other.examples["row"])
    whole = from_partition({"row": np.arange(200)}, rows)
    assert whole.test is None
    np.testing.assert_array_equal(whole.examples["row"], np.concatenate(rows))


def test_a_client_that_is_tested_also_trains() -> None:
    sizes = [1, 2, 5, 10, 103]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    given = [{"row": mine} for mine in rows]
    owner = np.repeat([7, 3, 0, 1, 9], sizes)
    for fraction in (0.2, 0.99):
        clients = from_clients(given, client_ids=[7, 3, 0, 1, 9], test_fraction=fraction, seed=3)
        for data in (clients, from_ids({"row": np.arange(owner.size)}, owner, test_fraction=fraction, seed=3)):
            assert data.test is not None
            kept = np.maximum(1, np.floor((1 - fraction) * np.bincount(owner)[data.client_ids] + 1e-9))
            np.testing.assert_array_equal(data.sizes, kept)
            assert data.test.client_ids.tolist() == data.client_ids.tolist()
            for position, client in enumerate(data.client_ids.tolist()):
                both = np.concatenate([part.client(position)["row"] for part in (data, data.test)])
                np.testing.assert_array_equal(np.sort(both), np.flatnonzero(owner == client))
    assert leaves_equal(clients, from_clients(given, client_ids=[7, 3, 0, 1, 9], test_fraction=0.99, seed=3))
    assert from_clients(given).test is None


@pytest.mark.slow
def test_the_held_out_examples_are_drawn_uniformly() -> None:
    counts = np.zeros(10)
    for seed in range(300):
        data = from_partition({"row": np.arange(10)}, [np.arange(10)], test_fraction=0.3, seed=seed)
        assert data.test is not None
        counts[data.client(0)["row"]] += 1
    assert ((counts - 210) ** 2 / 63).sum() < 34  # about chi-square, 9 degrees of freedom


class DataFrame:
    """As much of pandas' one as is looked at."""

    columns = ("age", "ill")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> np.ndarray:
        return np.arange(2)


X2, Y2 = np.zeros((2, 3)), np.array([0, 1])
BAD_CLIENTS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: from_clients([]), ValueError, "no clients were given"),
    (lambda: from_clients([(X2, Y2), (X2[:0], Y2[:0])]), ValueError, "client 1 has no examples: drop this client or"),
    (lambda: from_clients([(X2, Y2), ([], [])], client_ids=[5, 9]), ValueError, r"client 1 \(id 9\) has no examples"),
    (
        lambda: from_clients([(X2, Y2[:1])]),
        ValueError,
        r"examples\['y'\] of client 0 has 1 rows but examples\['x'\] has 2",
    ),
    (lambda: from_clients([(X2, 1)]), ValueError, r"examples\['y'\] of client 0 is the scalar"),
    (lambda: from_clients([(X2, Y2), {"x": X2}]), ValueError, "client 1 has examples PyTreeDef"),
    (
        lambda: from_clients([(X2, Y2), (X2[:, :2], Y2)]),
        ValueError,
        r"client 1 are float64\[2, 2\] but those of client 0",
    ),
    (lambda: from_clients([(X2, Y2), (X2, Y2 * 1.0)]), ValueError, r"examples\['y'\] of client 1 are float64"),
    (lambda: from_clients([(X2, Y2, Y2)]), ValueError, "a tuple of 3"),
    (lambda: from_clients([{}]), ValueError, "no arrays"),
    (lambda: from_clients([{"x": np.array(["a", "b"])}]), TypeError, "encode them as integers"),
    (lambda: from_clients([{"x": np.zeros(2, complex)}]), TypeError, "complex128"),
    (lambda: from_clients([{"x": np.array([1, 2**31])}]), ValueError, "outside int32"),
    (
        lambda: from_clients([(X2, Y2), (np.array([[0.0] * 3, [0, np.nan, 0]]), Y2)], client_ids=[3, 8]),
        ValueError,
        r"^examples\['x'\] has NaN or infinite values \(as float32\): client 1 \(id 8\), first in its row 1",
    ),
    (lambda: from_clients([(X2 - np.inf, Y2)]), ValueError, "client 0, first in its row 0"),
    (lambda: from_clients([(X2 + 1e300, Y2)]), ValueError, "as float32"),
    (lambda: from_clients([(X2, Y2)], test=[(X2 * np.nan, Y2)]), ValueError, r"^test examples\['x'\] has NaN"),
    (
        lambda: from_clients([(X2, Y2), (X2, Y2 + 9)], num_classes=10),
        ValueError,
        r"client 1 has the label 10, outside \[0, 10\)",
    ),
    (lambda: from_clients([(X2, Y2 - 1)]), ValueError, r"client 0 has the label -1.*number the classes from 0"),
    (lambda: from_clients([(X2, Y2)], test=[(X2, Y2 + 1)], num_classes=2), ValueError, "client 0 has the test label 2"),
    (lambda: from_clients([(X2, Y2 * 1.0)], num_classes=2), TypeError, r"float64.*y.astype\(int\)"),
    (lambda: from_clients([{"x": X2}], num_classes=2), TypeError, "no integer labels 'y'"),
    (lambda: from_clients([(X2, Y2)], num_classes=0), ValueError, "num_classes is 0"),
    (lambda: from_clients([(X2, Y2)] * 3, client_ids=[1, 2, 1]), ValueError, "the client id 1 is used by 2 clients"),
    (lambda: from_clients([(X2, Y2)] * 2, client_ids=[1, -2]), ValueError, r"id -2 is outside \[0"),
    (lambda: from_clients([(X2, Y2)] * 2, client_ids=[1, 2**31]), ValueError, "2147483648 is outside"),
    (lambda: from_clients([(X2, Y2)] * 2, client_ids=[1]), ValueError, "one integer for each of the 2 clients"),
    (lambda: from_clients([(X2, Y2)], client_ids=["a"]), ValueError, "from_ids"),
    (lambda: from_clients([(X2, Y2)] * 2, test=[None]), ValueError, "test has 1 clients but there are 2"),
    (lambda: from_clients([(X2, Y2)], test=[{"x": X2}]), ValueError, "the test examples are PyTreeDef"),
    (lambda: from_clients([(X2, Y2)], test=[(X2[:, :1], Y2)]), ValueError, r"test examples\['x'\] are float64\[2, 1\]"),
    (
        lambda: from_clients({"ann": (X2, Y2), "rob": (X2, Y2)}),  # type: ignore[arg-type]
        TypeError,
        r"a dict with the keys \['ann', 'rob'\]: give a list.*from_ids takes names",
    ),
    (lambda: from_clients([("ann", DataFrame())]), TypeError, r"client 0 is a tuple of .ann. and more: give \(x, y\)"),
    (lambda: from_clients([(X2, Y2), DataFrame()]), TypeError, "client 1 is a DataFrame: .*pandas.concat.*from_table"),
    (lambda: from_clients([(X2, Y2)], test_fraction=1.0), ValueError, r"test_fraction is 1.0: it must be in \[0, 1\)"),
    (lambda: from_clients([(X2, Y2)], test=[None], test_fraction=0.5), ValueError, "test_fraction is 0.5, but test"),
    (lambda: from_clients([(X2, Y2)], test_fraction=0.5, seed=-1), ValueError, "seed is -1"),
    (
        lambda: from_clients([(X2[:1], Y2[:1])], test_fraction=0.2),
        ValueError,
        "test_fraction=0.2 holds no example out, the largest client has 1:",
    ),
    (lambda: from_ids((X2, Y2), [0, 1], test_fraction=0.2), ValueError, "test_fraction=0.2 holds no example out"),
    (
        lambda: from_partition((X2, Y2), [[1], [0]], test_fraction=0.9),
        ValueError,
        "give test_fraction=0.0, or clients with two or more",
    ),
    (lambda: from_ids((X2, Y2), [0, 0], test_fraction="half"), TypeError, "test_fraction is 'half'"),  # type: ignore[arg-type]
    (
        lambda: from_ids((X2, Y2), [0, 1], test=(X2, Y2), test_ids=[0, 1], test_fraction=0.5),
        ValueError,
        "test_fraction is 0.5, but test has the held-out examples",
    ),
    (lambda: from_ids((X2, Y2), [0]), ValueError, "2 rows but ids has 1"),
    (lambda: from_ids((X2, Y2), [[0], [1]]), ValueError, "one-dimensional"),
    (lambda: from_ids((X2, Y2), [0.0, 1.0]), TypeError, "integers or strings"),
    (lambda: from_ids((X2[:0], Y2[:0]), []), ValueError, "no examples were given"),
    (lambda: from_ids((X2, Y2), [0, 1], test=(X2, Y2)), ValueError, "come together"),
    (
        lambda: from_ids((X2, Y2), [0, 1], test=(X2, Y2), test_ids=[1, 2]),
        ValueError,
        "client 2 has test examples but no",
    ),
    (lambda: from_ids((X2, Y2), ["a", "b"], test=(X2, Y2), test_ids=["b", "c"]), ValueError, "client 'c' has test"),
    (lambda: from_ids((X2, Y2), ["a", "b"], test=(X2, Y2), test_ids=[0, 1]), TypeError, "the same kind"),
    (lambda: from_ids((X2 * np.nan, Y2), ["a", "b"]), ValueError, r"client 0 \(id 'a'\)"),
    (lambda: from_partition((X2, Y2), []), ValueError, "no clients"),
    (lambda: from_partition((X2, Y2), [[0], []]), ValueError, "client 1 has no examples"),
    (lambda: from_partition((X2, Y2), [[0], [2]]), ValueError, "client 1 has index 2: there are examples 0 to 1"),
    (lambda: from_partition((X2, Y2), [[-1]]), ValueError, "client 0 has index -1"),
    (lambda: from_partition((X2, Y2), [[0, 1], [1]]), ValueError, "example 1 is used by client 0 and by client 1"),
    (lambda: from_partition((X2, Y2), [[0, 0]]), ValueError, "used by client 0 and by client 0"),
    (lambda: from_partition((X2, Y2), [[0.0]]), TypeError, "1-d array of integers"),
    (
        lambda: from_partition((X2, Y2), [[0, 1]], test_fraction=1.0),
        ValueError,
        r"test_fraction is 1.0: it must be in \[0, 1\)",
    ),
    (lambda: from_partition((X2, Y2), [[0, 1]], test_fraction=-0.1), ValueError, "test_fraction"),
    (lambda: from_partition((X2, Y2), [[0, 1]], test_fraction=0.5, seed=-1), ValueError, "seed"),
]


MASKED = np.ma.array([0, 1, 1], mask=[False, True, False])
MASKED_X = np.ma.array(np.zeros((3, 2)), mask=[[False, False], [False, True], [False, False]])
X3, Y3 = np.zeros((3, 2)), np.array([0, 1, 1])
WHERE_DATA_ARE_TAKEN: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "features": (lambda x, y: from_clients([(X3, Y3), (x, Y3)]), r"examples\['x'\] of client 1"),
    "labels": (lambda x, y: from_clients([(X3, y)], client_ids=[4]), r"examples\['y'\] of client 0 \(id 4\)"),
    "a list of arrays": (lambda x, y: from_clients([{"x": list(x)}]), r"examples\['x'\] of client 0"),
    "a leaf": (lambda x, y: from_clients([{"a": [X3, x][1]}]), r"examples\['a'\] of client 0"),
    "test": (lambda x, y: from_clients([(X3, Y3)], test=[(X3, y)]), r"test examples\['y'\] of client 0"),
    "client_ids": (lambda x, y: from_clients([(X3, Y3)] * 3, client_ids=y * [1, 1, 2]), "client_ids"),
    "rows": (lambda x, y: from_ids((x, Y3), [1, 2, 3]), r"examples\['x'\]"),
    "ids": (lambda x, y: from_ids((X3, Y3), y), "ids"),
    "test rows": (
        lambda x, y: from_ids((X3, Y3), [1] * 3, test=(x, Y3), test_ids=[1] * 3), r"test examples\['x'\]",
    ),
    "partition": (lambda x, y: from_partition((X3, Y3), [y * [1, 1, 2]]), "the indices of client 0"),
    "partitioned": (lambda x, y: from_partition((X3, y), [[0, 2], [1]]), r"examples\['y'\]"),
    "host": (lambda x, y: datasets.host.from_clients([(x, Y3)]), r"examples\['x'\] of client 0"),
    "host ids": (lambda x, y: datasets.host.from_ids((X3, Y3), y), "ids"),
    "partitioner": (lambda x, y: datasets.partition.dirichlet(y, 1, 1.0, 0), r"dirichlet\(labels\)"),
    "sizes": (lambda x, y: datasets.partition.sized(9, y + 1, 0), r"sized\(sizes=...\)"),
    "weights": (lambda x, y: from_ids({"x": X3}, Y3).with_example_weights(y), r"with_example_weights\(weights\)"),
    "quadratics": (
        lambda x, y: datasets.quadratics_from(np.eye(2)[None].repeat(3, 0), x), r"quadratics_from\(e\)",
    ),
    "flipped": (lambda x, y: datasets.flip_labels(from_clients([(X3, Y3)], num_classes=3), [0], y), "flip_labels"),
    "table": (lambda x, y: datasets.from_table({"who": Y3, "x": y}, client="who"), "from_table: the column 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("where", WHERE_DATA_ARE_TAKEN)
def test_what_is_masked_is_not_data(where: str) -> None:
    call, name = WHERE_DATA_ARE_TAKEN[where]
    with pytest.raises(ValueError, match=f"{name}.* has 1 masked values, first in row 1 .*fill them in, with .filled"):
        call(MASKED_X, MASKED)
    call(MASKED_X.filled(0.0), MASKED.filled(1))
    call(np.ma.array(X3), np.ma.array(Y3))  # nothing is hidden


def test_one_type_for_all_clients() -> None:
    small, large = np.array([1, 2], np.uint64), np.array([0, 2**64 - 1], np.uint64)
    for module in (datasets, datasets.host):
        data = module.from_clients([(X2, Y2), (X2, small), (X2, Y2.astype(np.uint8))])
        assert data.num_classes == 3  # and no targets of regression
        assert data.client(1)["y"].tolist() == [1, 2]
        for clients in ([(X2, Y2), (X2, large)], [(X2, small), (X2, Y2), (X2, large)]):
            other = len(clients) - 1
            with pytest.raises(
                ValueError, match=rf"'y'\] of client {other} are uint64\[2\] but those of client 0 are "
            ):
                module.from_clients(clients)
        half = [{"x": np.zeros(2, np.float16)}, {"x": jnp.zeros(2, jnp.bfloat16)}]
        with pytest.raises(ValueError, match=r"of client 1 are bfloat16\[2\] but .* no type holds the numbers of both"):
            module.from_clients(half)
        wide = module.from_clients([{"x": np.zeros(2, np.float32)}, *half])
        assert wide.client(1)["x"].dtype == np.float32
        with pytest.raises(ValueError, match=r"'x'\] of client 1 \(id 8\) has lists of different lengths: pad them"):
            module.from_clients([{"x": [[1], [2]]}, {"x": [[1], [1, 2]]}], client_ids=[3, 8])


@pytest.mark.parametrize(
    ("values", "stored"),
    [([2**63, 1], "beyond"), ([[1, 2], [3, 2**63]], "beyond"), ([True, 0.5], "mixes"), ([1, "1"], "mixes"),
     ([None, 1.0], "missing"), ([[1.0], [None]], "missing"), ([[1], [True]], "mixes"), ([1, 2.5], "float32")],
)  # fmt: skip
def test_lists_of_numbers(values: Any, stored: str) -> None:
    def made() -> FederatedDataset:
        return from_clients([{"x": values}], client_ids=[7])

    if stored == "float32":
        assert made().examples["x"].dtype == jnp.float32
    else:
        message = {"beyond": "has a value outside int32", "missing": "has 1 missing values", "mixes": "mixes "}[stored]
        with pytest.raises((TypeError, ValueError), match=rf"examples\['x'\] of client 0 \(id 7\) {message}"):
            made()


@pytest.mark.parametrize(("call", "error", "message"), BAD_CLIENTS)
def test_bad_values_are_refused_at_construction(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


# synthetic(alpha, beta)


def test_synthetic_shape_and_determinism() -> None:
    data = datasets.synthetic(1.0, 1.0)
    assert data.test is not None
    assert (data.num_clients, data.num_classes) == (30, 10)
    assert data.examples["x"].shape == (data.num_examples, 60)
    total = np.asarray(data.sizes) + np.asarray(data.test.sizes)
    np.testing.assert_array_equal(data.sizes, np.floor(0.8 * total + 1e-9))
    assert leaves_equal(data, datasets.synthetic(1.0, 1.0))
    assert not np.array_equal(data.sizes, datasets.synthetic(1.0, 1.0, seed=1).sizes)


def test_synthetic_clients_do_not_depend_on_their_number() -> None:
    few = datasets.synthetic(1.0, 1.0, num_clients=3, max_size=80, test_fraction=0.0)
    many = datasets.synthetic(1.0, 1.0, num_clients=9, max_size=80, test_fraction=0.0)
    for client in range(3):
        assert leaves_equal(few.client(client), many.client(client))


def test_synthetic_sizes_are_log_normal() -> None:
    """floor(LogNormal(4, 2)) + 50: a median of e^4 + 50, log-standard deviation 2, a heavy tail."""
    from fedjax_sim.datasets.synthetic import _log_normal_sizes

    drawn = _log_normal_sizes(20_000, 0)
    assert drawn.min() >= 50
    assert np.median(drawn) == pytest.approx(np.exp(4) + 50, rel=0.03)
    logs = np.log(drawn - 50 + 0.5)
    assert np.quantile(logs, 0.8413) - np.quantile(logs, 0.5) == pytest.approx(2.0, rel=0.05)
    assert drawn.mean() > 3 * np.median(drawn)
    np.testing.assert_array_equal(_log_normal_sizes(10, 0), drawn[:10])


def client_means(data: FederatedDataset) -> np.ndarray:
    return np.stack([data.client(i)["x"].mean(axis=0) for i in range(data.num_clients)])


def test_synthetic_inputs_have_the_moments_of_their_distribution() -> None:
    data = datasets.synthetic(0.0, 0.0, 4, sizes=[4000] * 4, test_fraction=0.0)
    deviations = [data.client(i)["x"] - data.client(i)["x"].mean(axis=0) for i in range(4)]
    variance = np.concatenate(deviations).var(axis=0)
    np.testing.assert_allclose(variance, np.arange(1, 61) ** -1.2, rtol=0.12)
    flat = np.concatenate(deviations)
    correlation = np.corrcoef(flat[:, :6].T) - np.eye(6)
    assert np.abs(correlation).max() < 0.05


@pytest.mark.parametrize(("spread", "variance"), [("std", 4.0), pytest.param("variance", 2.0, marks=pytest.mark.slow)])
def test_synthetic_beta_spreads_the_inputs(spread: Any, variance: float) -> None:
    """Var over clients of mean_j v_k[j] is Var(B_k) + 1/60, and v_k[j] varies with variance 1 within a client."""
    data = datasets.synthetic(0.0, 2.0, 1500, sizes=[2] * 1500, test_fraction=0.0, spread=spread)
    means = client_means(data)
    noise = (np.arange(1, 61) ** -1.2).mean() / 2
    assert means.mean(axis=1).var() == pytest.approx(variance + (1 + noise) / 60, rel=0.15)
    assert means.var(axis=1, ddof=1).mean() == pytest.approx(1 + noise, rel=0.05)


@pytest.mark.parametrize(("spread", "variance"), [("std", 4.0), ("variance", 2.0)])
def test_synthetic_alpha_spreads_the_models(spread: Any, variance: float) -> None:
    from fedjax_sim.datasets.synthetic import _clients

    stds = (2.0, 0.0) if spread == "std" else (2.0**0.5, 0.0)
    weights = np.stack([w for _, w, _, _ in _clients(np.ones(800, int), 0, stds, False)])
    biases = np.stack([b for _, _, b, _ in _clients(np.ones(800, int), 0, stds, False)])
    assert weights.mean(axis=(1, 2)).var() == pytest.approx(variance + 1 / 600, rel=0.15)
    assert weights.var(axis=(1, 2)).mean() == pytest.approx(1.0, rel=0.02)
    # W_k and b_k share their mean u_k
    assert np.corrcoef(weights.mean(axis=(1, 2)), biases.mean(axis=1))[0, 1] > 0.95
    # ... and the labels are the argmax of that model
    data = datasets.synthetic(2.0, 0.0, 5, sizes=[40] * 5, test_fraction=0.0, spread=spread)
    for client, (_, w, b, _) in enumerate(_clients(np.full(5, 40), 0, stds, False)):
        held = data.client(client)
        scores = held["x"].astype(np.float64) @ w + b
        best = np.sort(scores, axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-4  # x was rounded to float32
        assert clear.mean() > 0.9
        np.testing.assert_array_equal(held["y"][clear], scores.argmax(axis=1)[clear])


def test_synthetic_readings_agree_at_zero_and_one() -> None:
    for value in (0.0, 1.0):
        std, variance = (
            datasets.synthetic(value, value, 3, max_size=60, spread=spread) for spread in ("std", "variance")
        )
        assert leaves_equal(std, variance)
    assert not leaves_equal(
        datasets.synthetic(0.5, 0.5, 3, max_size=60), datasets.synthetic(0.5, 0.5, 3, max_size=60, spread="variance")
    )


def test_synthetic_iid() -> None:
    data = datasets.synthetic(0, 0, 6, sizes=[3000] * 6, iid=True, test_fraction=0.0)
    tolerance = 5 * np.sqrt(np.arange(1, 61) ** -1.2 / 3000)
    assert np.all(np.abs(client_means(data)) < tolerance)
    shares = data.statistics().label_table / 3000
    assert np.abs(shares - shares.mean(axis=0)).max() < 0.05  # one W, b: the same label distribution for all
    skewed = datasets.synthetic(0, 0, 6, sizes=[3000] * 6, test_fraction=0.0).statistics().label_table / 3000
    assert np.abs(skewed - skewed.mean(axis=0)).max() > 0.3  # synthetic(0, 0) is not IID


def test_synthetic_sizes_and_cap() -> None:
    data = datasets.synthetic(1, 1, 3, sizes=[5, 100, 20], max_size=50)
    assert data.test is not None
    assert (data.sizes + data.test.sizes).tolist() == [5, 50, 20]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: datasets.synthetic(-1, 0), ValueError, r"synthetic\(alpha\) is -1"),
        (lambda: datasets.synthetic(0, float("inf")), ValueError, "beta"),
        (lambda: datasets.synthetic(0, 0, 0), ValueError, "num_clients"),
        (lambda: datasets.synthetic(0, 0, spread="sigma"), ValueError, "known: std, variance"),
        (lambda: datasets.synthetic(1, 1, iid=True), ValueError, "give 0 and 0"),
        (lambda: datasets.synthetic(0, 0, 2, sizes=[1, 0]), ValueError, "client 1 has size 0"),
        (lambda: datasets.synthetic(0, 0, 2, sizes=[1]), ValueError, "there are 2 clients"),
        (lambda: datasets.synthetic(0, 0, 2, sizes=[1.0, 2.0]), TypeError, "one integer for each"),
        (lambda: datasets.synthetic(0, 0, max_size=0), ValueError, "max_size"),
        (lambda: datasets.synthetic(0, 0, dtype="float64"), ValueError, "jax_enable_x64"),
        (lambda: datasets.synthetic(0, 0, dtype="int32"), TypeError, "floating-point"),
        (lambda: datasets.quadratics(0), ValueError, "num_clients"),
        (lambda: datasets.quadratics(2, 3, scale=-1.0), ValueError, "scale"),
        (lambda: datasets.quadratics(2, 3, hessians=np.eye(2)), ValueError, r"must be \(2, 3, 3\), or \(3, 3\)"),
        (lambda: datasets.quadratics(2, 2, hessians=[[1, 1], [0, 1]]), ValueError, "client 0 is not symmetric"),
        (lambda: datasets.quadratics(2, 2, sizes=[1, -1]), ValueError, "client 1 has size -1"),
        (lambda: datasets.quadratics_from(np.eye(2), np.ones((1, 2))), ValueError, r"\[N, d, d\]"),
        (lambda: datasets.quadratics_from(np.full((1, 1, 1), np.nan), np.ones((1, 1))), ValueError, "NaN"),
        (lambda: datasets.quadratics_from(np.eye(1)[None], [["1"]]), TypeError, r"quadratics_from\(e\) has dtype <U1"),
        (
            lambda: datasets.quadratics_from(1j * np.eye(1)[None], [[1]]),
            TypeError,
            "quadratics_from.H. has dtype compl",
        ),
    ],
)
def test_bad_arguments_of_drawn_data(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# quadratics


def test_quadratics() -> None:
    data = datasets.quadratics(400, 20, seed=5)
    assert data.sizes.tolist() == [1] * 400
    np.testing.assert_array_equal(data.examples["H"][17], np.eye(20))
    e = np.asarray(data.examples["e"])
    assert e.var() == pytest.approx(0.01, rel=0.05)  # the paper's variance
    assert abs(e.mean()) < 0.005
    assert data.num_classes is None
    np.testing.assert_array_equal(e, datasets.quadratics(400, 20, seed=5, sizes=[1] * 400).examples["e"])


def test_quadratics_with_shares_and_hessians() -> None:
    hessians = np.stack([np.diag([1.0, 2.0]), np.array([[3.0, 1.0], [1.0, 4.0]]), np.eye(2)])
    data = datasets.quadratics(3, 2, hessians=hessians, sizes=[1, 3, 4], scale=1.0)
    np.testing.assert_allclose(data.shares, [1 / 8, 3 / 8, 4 / 8])
    for client in range(3):
        held = data.client(client)
        np.testing.assert_array_equal(held["H"], np.broadcast_to(hessians[client], held["H"].shape))
        assert np.ptp(held["e"], axis=0).max() == 0
    shared = datasets.quadratics(3, 2, hessians=hessians[1])
    np.testing.assert_array_equal(shared.client(2)["H"][0], hessians[1])
    given_arrays = datasets.quadratics_from(hessians, np.ones((3, 2)), sizes=[2, 1, 1])
    assert given_arrays.sizes.tolist() == [2, 1, 1]


# Descriptions


@pytest.mark.parametrize(
    "make",
    [
        lambda: datasets.synthetic(0.5, 1, 4, seed=3, spread="variance", max_size=70, test_fraction=0.1),
        lambda: datasets.synthetic(0, 0, 2, iid=True, sizes=(3, 4), dtype=np.float32),
        lambda: datasets.synthetic(0, 0, 2, sizes=np.array([3, 4])),
        lambda: datasets.quadratics(3, 2, scale=0.5),
        lambda: datasets.quadratics(2, 2, hessians=np.diag([1.0, 2.0]), sizes=[1, 2]),
    ],
)
def test_recipes_round_trip_through_json(make: Callable[[], FederatedDataset]) -> None:
    data = make()
    description = json.loads(json.dumps(describe(data)))
    assert opaque_parts(description) == []
    again = build(description)
    assert leaves_equal(data, again)
    assert describe(again)["name"] == description["name"]


def test_a_recipe_has_its_arguments_as_they_were() -> None:
    sizes, hessian, labels = [5, 6], np.eye(2), {"labels": [1, 0] * 5}
    drawn, quadratic = datasets.synthetic(0, 0, 2, sizes=sizes), datasets.quadratics(2, 2, hessians=hessian)
    flipped = datasets.flip_labels(drawn, np.array([1]), **labels)
    before = [describe(data) for data in (drawn, quadratic, flipped)]
    sizes[0], labels["labels"][0] = 90, 7
    hessian *= 3
    assert [describe(data) for data in (drawn, quadratic, flipped)] == before
    assert leaves_equal(build(describe(drawn)), drawn)


def test_a_changed_data_set_forgets_its_recipe() -> None:
    data = datasets.quadratics(3, 2)
    assert "name" in describe(data)
    weighted = data.with_example_weights(np.ones(3))
    doubled = jax.tree.map(lambda leaf: leaf + leaf, data)
    for changed in (data.subset([2, 1, 0]), weighted, doubled):
        assert describe(changed) == {"opaque": "fedjax_sim.datasets.federated.FederatedDataset"}
    with pytest.raises(ValueError, match="opaque"):
        build(describe(weighted))


def _rows(data: FederatedDataset, change: Callable[[Any], Any]) -> FederatedDataset:
    return data.replace(examples=jax.tree.map(change, data.examples))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: _rows(data, lambda leaf: leaf[:6]), r"examples\['x'\] has the shape \[6, 2\].*11 examples"),
        (lambda data: _rows(data, lambda leaf: jnp.concatenate([leaf, leaf])), r"\[22, 2\]"),
        (lambda data: data.replace(examples=data.examples | {"y": data.examples["y"][:6]}), r"examples\['y'\]"),
        (
            lambda data: data.replace(examples=data.examples | {"y": data.examples["y"] + 2}),
            "labels from 2 to 4, and 4 cl",
        ),
        (lambda data: data.replace(examples=data.examples | {"y": data.examples["y"] - 1}), "labels from -1 to 1"),
        (lambda data: data.replace(num_classes=3).test.replace(num_classes=3), "labels from 0 to 3, and 3 classes"),
        (lambda data: data.replace(example_weights=jnp.ones(3)), r"example_weights has the shape \[3\]"),
        (lambda data: _rows(data, lambda leaf: leaf[:1]), r"examples\['x'\] has the shape \[1, 2\]"),
        (lambda data: data.replace(test=data.test.subset([0, 2])), r"test part's clients are not .*\(2 and 3\)"),
        (
            lambda data: data.replace(validation=data.test.subset([1, 0, 2])),
            "validation part's clients are not those",
        ),
        (
            lambda data: data.replace(test=data.test.replace(num_classes=5)),
            "test part has 5 classes and the data set 4",
        ),
        (lambda data: data.replace(validation=_rows(data.test, lambda leaf: leaf[:1].repeat(2, 0))), r"\[2, 2\].*3 "),
    ],
)
def test_copies_of_other_shapes_and_labels_are_refused(change: Callable[[FederatedDataset], Any], message: str) -> None:
    data = three_clients()
    task = fjs.classification(fjs.models.LogisticRegression(4))
    run: dict[str, Any] = {"task": task, "rounds": 1, "batch_size": 2}
    run |= {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
    params, method = task.init(jax.random.key(0), data), fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    with pytest.raises(ValueError, match=message):
        fjs.simulate(method, change(data), eval_every=1, **run)
    with pytest.raises(ValueError, match=message):
        fjs.evaluate(task, params, change(data))
    with pytest.raises(ValueError, match=message):
        fjs.datasets.on_host(change(data))


@pytest.mark.parametrize("rows", [6, 60_000])
def test_the_data_set_has_memory_of_its_own(rows: int) -> None:
    # large arrays are used by the CPU where they lie, so they must not be the user's
    x, y = np.ones((rows, 4), np.float32), np.zeros(rows, np.int32)
    data = from_ids((x, y), np.repeat(np.arange(3), rows // 3))
    x[:], y[:] = 7.0, 1
    assert (np.asarray(data.examples["x"]) == 1).all()
    assert (np.asarray(data.examples["y"]) == 0).all()


def test_uniform_numbers_are_inside(monkeypatch):
    extremes = np.array([0, 2**64 - 1], np.uint64)
    monkeypatch.setattr(Draws, "words", lambda self, count: extremes)
    drawn = Draws("test", 0).uniform(2)
    np.testing.assert_array_equal(drawn, [2.0**-53, 1 - 2.0**-53])


def test_random_labels_are_of_all_classes():
    clients = [{"x": np.zeros((300, 1)), "y": np.full(300, c, np.int32)} for c in range(3)]
    data = datasets.from_clients(clients, client_ids=[5, 9, 2])
    poisoned = datasets.random_labels(data, clients=[0, 2], seed=1)  # of the ids 2 and 9
    labels = [np.asarray(poisoned.client(position)["y"]) for position in range(3)]
    np.testing.assert_array_equal(labels[0], 0)
    for drawn in labels[1:]:
        assert np.bincount(drawn, minlength=3).min() > 60  # 100 of each, by 4.9 standard deviations
        assert drawn.max() == 2
