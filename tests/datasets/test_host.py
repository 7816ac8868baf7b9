"""Data on the host: a run on windows is the run on all the data."""

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.devices import prefetched
from fedjax_sim.datasets import validate
from fedjax_sim.datasets.buckets import in_bucket
from fedjax_sim.datasets.fingerprints import dataset_fingerprint, fingerprint
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.streaming import drawn_ahead, rounded_up


def small_data(*, weighted=False):
    """Twelve clients of 1 to 40 examples, stored out of the order of their ids, with a test part."""
    rng = np.random.default_rng(3)
    sizes = np.maximum(1, 40 // np.arange(1, 13))
    clients = [(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]
    test = [(x[:2], y[:2]) if i % 3 else None for i, (x, y) in enumerate(clients)]
    data = fjs.datasets.from_clients(clients, test=test, client_ids=rng.permutation(12) * 7, num_classes=3)
    return data.with_example_weights(rng.uniform(0.5, 2.0, data.num_examples)) if weighted else data


TASK = fjs.classification(fjs.models.LogisticRegression(3), weight_decay=1e-3)
SGD = fjs.optim.sgd(0.1)
RUNS = {
    "fedavg": (fjs.fedavg(client_optimizer=SGD), fjs.cohort.uniform(3), {"batch_size": 4}),
    "fednova-replacement": (
        fjs.fednova(client_optimizer=SGD),
        fjs.cohort.with_replacement(4),
        {"batches": fjs.local.with_replacement(5)},
    ),
    "scaffold-anchors": (
        fjs.scaffold(client_optimizer=SGD, option="I"),
        fjs.cohort.independent(0.3),
        {"batches": fjs.local.in_order(7)},
    ),
    "feddane-two-cohorts": (
        fjs.feddane(client_optimizer=SGD, mu=0.1),
        fjs.cohort.uniform(2),
        {"batches": fjs.local.full_batch(8)},
    ),
    "fedaware-availability": (
        fjs.fedaware(client_optimizer=SGD),
        fjs.cohort.available(fjs.cohort.uniform(5), fjs.cohort.bernoulli(0.5)),
        {"batches": fjs.local.fraction(0.3)},
    ),
}


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("fednova-replacement", marks=pytest.mark.nightly),
        pytest.param("scaffold-anchors", marks=pytest.mark.slow),
        pytest.param("feddane-two-cohorts", marks=pytest.mark.slow),
        pytest.param("fedaware-availability", marks=pytest.mark.nightly),
    ],
)
def test_a_run_on_windows_is_the_run_on_all_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm, cohort, batches = RUNS[name]
    data = small_data(weighted=name == "fedavg")
    common = {
        "task": TASK, "rounds": 3, "eval_every": 2, "cohort": cohort, "work": fjs.local.random_epochs(1, 3),
        "seeds": [4, 7], "diagnostics": ("drift",), **batches,
    }  # fmt: skip
    each = name != "fedavg"  # of which tests/models/test_evaluation.py has the clients' values
    common["evaluate"] = fjs.per_client(TASK, worst=0.25) if each else None
    on_device = fjs.simulate(algorithm, data, **common)
    capsys.readouterr()
    on_host = fjs.simulate(algorithm, fjs.datasets.on_host(data), **common, progress=True)
    said = capsys.readouterr().err
    assert all(f": round {done}/3, " in said for done in (1, 3))  # within chunks of two rounds too
    for one, other in zip(jax.tree.leaves(on_device.params), jax.tree.leaves(on_host.params), strict=True):
        # XLA fuses the products of FedDANE's two phases differently in the two programs.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7 if name == "feddane-two-cohorts" else 0)
    recorded = {"client_loss", "test_accuracy_worst", "test_loss"} if each else {"loss", "test_loss"}
    assert on_device.metrics.keys() == on_host.metrics.keys() >= recorded
    for name_, values in on_device.metrics.items():
        np.testing.assert_allclose(values, on_host.metrics[name_], rtol=2e-6, err_msg=name_)
    assert on_device.rounds.keys() == on_host.rounds.keys()
    for name_, values in on_device.rounds.items():
        np.testing.assert_allclose(values, on_host.rounds[name_], rtol=1e-5, atol=1e-7, err_msg=name_)


def test_weights_are_padded_with_their_examples() -> None:
    """By zeros, which count nowhere."""
    data = small_data(weighted=True)
    made = in_bucket(data, rough=True)
    assert made.example_weights.shape == (made.num_rows,)
    assert made.num_rows > data.num_examples
    np.testing.assert_array_equal(made.example_weights[: data.num_examples], data.example_weights)
    assert not np.asarray(made.example_weights)[data.num_examples :].any()


def test_what_is_drawn_ahead_is_what_the_rounds_draw() -> None:
    data = small_data()
    algorithm, cohort, _ = RUNS["feddane-two-cohorts"]
    plan = Plan(
        TASK, cohort, fjs.local.epochs(1), fjs.local.in_order(2), algorithm=algorithm, dataset=data,
        key=jax.random.key(1),
    )  # fmt: skip
    ahead = drawn_ahead(plan, 300)  # more than are drawn in one call
    assert ahead.shape == (300, 4)
    ids = np.append(np.asarray(data.client_ids), -1)
    rounds = np.array([0, 255, 256, 299], np.int32)
    draws = jax.jit(jax.vmap(lambda t: cohort.draw(data, jax.random.key(1), t).ids))(rounds)
    for round_, drawn in zip(rounds, map(set, np.asarray(draws).tolist()), strict=True):
        planned = {int(i) for i in ids[ahead[round_]]} - {-1}
        assert drawn <= planned
        assert len(planned) == (ahead[round_] < 12).sum()  # each once


def test_window() -> None:
    data = small_data(weighted=True)
    host = fjs.datasets.on_host(data)
    examples, weights, starts = host.window(np.array([5, 0]), 64)
    size = int(data.sizes[5])
    assert starts.tolist() == [0, size]
    for name in ("x", "y"):
        np.testing.assert_array_equal(examples[name][:size], data.client(5)[name])
        np.testing.assert_array_equal(examples[name][size : size + int(data.sizes[0])], data.client(0)[name])
        assert examples[name].shape[0] == 64
    first = int(data.offsets[5])
    np.testing.assert_array_equal(weights[:size], data.example_weights[first : first + size])
    assert [rounded_up(rows) for rows in (1, 15, 16, 17, 1000, 1025)] == [1, 15, 16, 18, 1024, 1152]


def test_round_trip_and_description() -> None:
    data = small_data(weighted=True)
    host = fjs.datasets.on_host(data)
    again = host.on_device()
    for one, other in zip(jax.tree.leaves(data), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert jax.tree.structure(data) == jax.tree.structure(again)
    assert str(host.statistics()) == str(data.statistics())
    assert repr(host) == repr(data).replace("Federated", "Host")
    np.testing.assert_array_equal(host.client(3)["x"], data.client(3)["x"])
    with pytest.raises(IndexError, match="0 to 11"):
        host.client(12)
    with pytest.raises(TypeError, match=r"on_host\(HostDataset\(12 clients.*on the device"):
        fjs.datasets.on_host(host)
    made = fjs.datasets.on_host(fjs.datasets.synthetic(0.0, 0.0, num_clients=2, sizes=[5, 6]))
    rebuilt = fjs.build(json.loads(json.dumps(fjs.describe(made))))
    np.testing.assert_array_equal(rebuilt.client(1)["x"], made.client(1)["x"])


def test_what_stays_on_the_device_is_small() -> None:
    host = fjs.datasets.on_host(small_data())
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(host.frame.examples))
    assert not [leaf for leaf in jax.tree.leaves((host.examples, host.test.examples)) if isinstance(leaf, jax.Array)]


def test_refusals() -> None:
    host = fjs.datasets.on_host(small_data())
    common = {"task": TASK, "rounds": 2, "batch_size": 4, "cohort": fjs.cohort.uniform(2), "work": fjs.local.epochs(1)}
    with pytest.raises(TypeError, match=r"make_train was given a HostDataset.*on_device\(\)"):
        fjs.make_train(**common)(fjs.fedavg(client_optimizer=SGD), host, jax.random.key(0))
    with pytest.raises(ValueError, match="Dissimilarity reads the examples of all clients"):
        fjs.simulate(fjs.fedavg(client_optimizer=SGD), host, **common, diagnostics=("drift", "dissimilarity"))
    with pytest.raises(ValueError, match="FedProx reads the examples of all clients"):
        fjs.simulate(fjs.fedprox(client_optimizer=SGD, mu=0.1, adaptive=True), host, **common)


def test_prefetched() -> None:
    made: list[int] = []
    main = threading.get_ident()

    def make(i: int) -> int:
        assert threading.get_ident() != main
        if i == 5:
            raise OSError("the disk is gone")
        made.append(i)
        return i * i

    taken = prefetched(make, 8)
    assert [next(taken) for _ in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(OSError, match="the disk is gone"):
        next(taken)
    assert made[:5] == [0, 1, 2, 3, 4]
    few = prefetched(lambda i: made.append(i) or i, 100)
    made.clear()
    assert next(few) == 0
    few.close()
    assert len(made) <= 4
    assert list(prefetched(make, 0)) == []


def test_what_is_prefetched_has_the_precision_of_who_asks_for_it(x64: None) -> None:
    """It is set for one thread alone, and examples are sent to the device from another one."""
    assert [item.dtype for item in prefetched(lambda number: jax.device_put(np.ones(number)), 2)] == [np.float64] * 2
    with jax.default_device(jax.devices()[-1]):
        (item,) = prefetched(lambda number: jnp.zeros(number), 1)
        assert item.devices() == {jax.devices()[-1]}


def test_jnp_is_not_needed_to_gather() -> None:
    """Rows are gathered by numpy alone, in the types of the device: a memory-mapped file works like an array."""
    host = fjs.datasets.on_host(small_data())
    taken = host.take(np.array([3, 1]), 4)
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(taken))
    assert taken["x"].dtype == jnp.float32
    assert not taken["x"][2:].any()


def as_mapped(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("how", ["clients", "ids", "partition"])
@pytest.mark.parametrize("mapped", [False, True])
def test_constructors(how, mapped, tmp_path, monkeypatch) -> None:
    """The same data as the namesake on the device makes, whatever its types; checked in pieces of a few rows."""
    monkeypatch.setattr(validate, "_PIECE", 100)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 5, 40).astype(np.uint8)
    pixels = rng.integers(0, 255, (40, 2, 2)).astype(np.uint8)
    ids = np.concatenate([np.arange(6), rng.integers(0, 6, 34)]) * 3
    if mapped:
        x, y, pixels = (as_mapped(a, tmp_path / f"{i}.npy") for i, a in enumerate((x, y, pixels)))
    examples = {"x": x, "pixels": pixels, "y": y}
    if how == "clients":
        given = ([jax.tree.map(lambda leaf, i=i: leaf[ids == i], examples) for i in np.unique(ids)],)
        options = {"client_ids": np.unique(ids)}
    elif how == "ids":
        given, options = (examples, ids), {"test": examples, "test_ids": ids[::-1]}
    else:
        given = (examples, fjs.datasets.partition.iid(40, 4, seed=1))
        options = {"test_fraction": 0.3, "seed": 2}
    on_device = getattr(fjs.datasets, f"from_{how}")(*given, **options)
    host = getattr(fjs.datasets.host, f"from_{how}")(*given, **options)
    again = host.on_device()
    assert jax.tree.structure(on_device) == jax.tree.structure(again)
    for one, other in zip(jax.tree.leaves(on_device), jax.tree.leaves(again), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    if mapped and how != "clients":
        assert np.shares_memory(host.examples["x"], x)


def test_bad_values_are_named_where_they_are(monkeypatch) -> None:
    monkeypatch.setattr(validate, "_PIECE", 32)
    x, ids = np.zeros((40, 2)), np.repeat([5, 9], 20)
    x[33, 1] = np.nan
    for module in (fjs.datasets, fjs.datasets.host):
        with pytest.raises(ValueError, match=r"NaN or infinite.*client 1 \(id 9\), first in its row 13"):
            module.from_ids({"x": x}, ids)
        with pytest.raises(ValueError, match=r"client 0 \(id 5\) has the label 9, outside \[0, 3\)"):
            module.from_ids((np.zeros((40, 2)), np.full(40, 9)), ids, num_classes=3)
        with pytest.raises(ValueError, match="outside int32"):
            module.from_ids({"x": np.arange(40) * 2**27}, ids)


def test_a_checksum_knows_whose_an_example_is() -> None:
    inputs, labels = np.arange(8, dtype=np.float32)[:, None], np.arange(8) % 2
    owners, weights = np.repeat([0, 1], 4), np.ones(8, np.float32)

    def checksum(owners: np.ndarray, weights: np.ndarray | None = None) -> str:
        data = fjs.datasets.host.from_ids({"x": inputs, "y": labels}, owners)
        return dataset_fingerprint(dataclasses.replace(data, example_weights=weights))

    kinds = [checksum(owners), checksum(np.roll(owners, 1)), checksum(owners, weights), checksum(owners, 2 * weights)]
    assert len(set(kinds)) == len(kinds)
    assert checksum(owners.copy()) == kinds[0]
    # The held-out examples count too; of data without any of these the checksum is what it always was.
    data = small_data()
    test = data.test
    assert test is not None
    changed = data.replace(test=test.replace(examples=jax.tree.map(lambda leaf: leaf[::-1], test.examples)))
    assert dataset_fingerprint(fjs.datasets.on_host(data)) != dataset_fingerprint(fjs.datasets.on_host(changed))
    plain = fjs.datasets.on_host(data.replace(test=None))
    rows = [leaf[np.arange(plain.num_examples)] for leaf in jax.tree.leaves(plain.examples)]
    assert plain.rows is None
    assert dataset_fingerprint(plain) == fingerprint((plain.frame, rows, plain.num_examples))


@pytest.mark.slow
def test_double_precision_of_this_thread_alone_is_kept(x64: None) -> None:
    data = fjs.datasets.quadratics(num_clients=6, dim=4, seed=0)
    run = {
        "task": fjs.quadratic(), "rounds": 2, "cohort": fjs.cohort.full(), "work": fjs.local.steps(2),
        "batches": fjs.local.full_batch(),
    }  # fmt: skip
    algorithm = fjs.fedavg(client_optimizer=SGD)
    here, there = (fjs.simulate(algorithm, each, **run) for each in (data, fjs.datasets.on_host(data)))
    np.testing.assert_allclose(there["loss"], here["loss"], rtol=1e-13)
    np.testing.assert_allclose(there.params, here.params, rtol=1e-13)
