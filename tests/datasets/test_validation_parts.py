"""Validation parts: as they are given, as they are taken from the training examples, and what a run records of them."""

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import datasets
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.datasets.fingerprints import dataset_fingerprint

SIZES = (1, 5, 8)
ROWS = np.split(np.arange(14.0, dtype="f"), np.cumsum(SIZES)[:-1])
CLIENTS = [{"x": rows} for rows in ROWS]
IDS = [7, 2, 9]
TEST = [{"x": np.array([-1.0], "f")}, None, {"x": np.array([-2.0, -3.0], "f")}]
VALIDATION = [None, {"x": np.array([-4.0], "f")}, {"x": np.array([-5.0], "f")}]
HOMES = {"device": datasets, "host": datasets.host}


def given(home="device", **more):
    return HOMES[home].from_clients(CLIENTS, test=TEST, client_ids=IDS, **more)


def held(part):
    """Each client's numbers."""
    return [part.client(i)["x"].tolist() for i in range(part.num_clients)]


def weighted(data):
    return data.with_example_weights(np.arange(14.0)) if isinstance(data, fjs.FederatedDataset) else data


@pytest.mark.parametrize("home", HOMES)
def test_some_of_every_clients_training_examples_are_taken(home) -> None:
    data = weighted(given(home))
    made = datasets.with_validation(data, 0.4, seed=3)
    assert np.asarray(made.sizes).tolist() == [1, 3, 4]  # max(1, floor(0.6 n))
    assert np.asarray(made.validation.sizes).tolist() == [0, 2, 4]
    for rows, kept, taken in zip(ROWS, held(made), held(made.validation), strict=True):
        assert sorted(kept + taken) == rows.tolist()
        assert kept == sorted(kept)  # in their order
    assert held(made.test) == held(data.test)
    assert made.client_ids.tolist() == made.validation.client_ids.tolist() == IDS
    if home == "device":
        assert made.example_weights.tolist() == np.concatenate(held(made)).tolist()
        assert made.validation.example_weights is None
    again, other = (datasets.with_validation(data, 0.4, seed) for seed in (3, 4))
    assert held(again) == held(made) != held(other)
    assert repr(made).endswith("Dataset(3 clients, 8 examples, 6 validation examples, 3 test examples)")


def test_the_same_are_taken_on_the_host() -> None:
    """Also of rows that lie in another order there."""
    rows, owner = np.random.default_rng(0).permutation(14), np.repeat([3, 1, 2], SIZES)
    x = {"x": np.concatenate(ROWS)[rows]}
    here, there = (datasets.with_validation(HOMES[home].from_ids(x, owner[rows]), 0.4, seed=3) for home in HOMES)
    assert held(here) == held(there)
    assert held(here.validation) == held(there.validation)
    moved = there.on_device()
    assert held(moved) == held(here)
    assert held(moved.validation) == held(datasets.on_host(here).validation) == held(here.validation)
    turned = here.subset([2, 0, 1])
    assert held(turned.validation) == [held(here.validation)[i] for i in (2, 0, 1)]


def test_where_clients_are_stored_does_not_matter_to_what_is_drawn():
    data = datasets.from_ids({"x": np.arange(30.0)}, np.repeat([2, 5, 7, 9], [4, 11, 9, 6]))
    moved = data.subset([2, 0, 3, 1])
    for home in (lambda one: one, datasets.on_host):
        drawn, again = (datasets.with_validation(home(one), 0.4, seed=3).validation for one in (data, moved))
        for position, other in enumerate([2, 0, 3, 1]):
            assert again.client(position)["x"].tolist() == drawn.client(other)["x"].tolist()


def test_nor_to_what_from_clients_holds_out():
    clients = {7: np.arange(6.0), 3: np.arange(10.0, 15.0), 5: np.arange(20.0, 27.0)}

    def tested(ids):
        made = datasets.from_clients([{"x": clients[one]} for one in ids], client_ids=ids, test_fraction=0.4)
        return {one: made.test.client(at)["x"].tolist() for at, one in enumerate(ids)}

    assert tested([7, 3, 5]) == tested([3, 5, 7]) == tested([5, 7, 3])


def test_the_last_ones_behind_a_gap() -> None:
    made = datasets.with_validation(given(), 0.25, gap=2)
    assert held(made) == [[0.0], [1.0], [6.0, 7.0, 8.0, 9.0]]  # of 3 and 6 that are not taken, but for one at least
    assert held(made.validation) == [[], [4.0, 5.0], [12.0, 13.0]]
    assert held(datasets.with_validation(given(), 0.25, gap=0)) == [[0.0], [1.0, 2.0, 3.0], list(range(6, 12))]


def test_names_and_the_way_it_was_made_are_kept() -> None:
    data = datasets.with_validation(datasets.from_ids({"x": np.arange(6.0)}, list("ababab")), 0.4)
    assert datasets.client_names(data) == ("a", "b")
    made = datasets.with_validation(datasets.synthetic(1.0, 1.0, num_clients=3, sizes=[5, 6, 9]), 0.4, 1)
    again = build(describe(made))
    assert dataset_fingerprint(again) == dataset_fingerprint(made)


@pytest.mark.parametrize("home", HOMES)
def test_parts_that_are_given(home) -> None:
    x, owner = {"x": np.concatenate(ROWS)}, np.repeat(IDS, SIZES)
    mine = {"x": np.array([-5.0, -4.0], "f")}
    made = given(home, validation=VALIDATION)
    assert held(made.validation) == [[], [-4.0], [-5.0]]
    assert held(made.test) == [[-1.0], [], [-2.0, -3.0]]
    by_id = HOMES[home].from_ids(x, owner, validation=mine, validation_ids=[9, 2], test_fraction=0.4)
    assert held(by_id.validation) == [[-4.0], [], [-5.0]]  # in the order of the ids
    assert np.asarray(by_id.test.sizes).tolist() == [2, 0, 4]
    assert given(home, validation=[None] * 3).validation is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: given(validation=[None]), "validation has 1 clients but there are 3"),
        (lambda: given(validation=[None, {"x": np.ones((2, 2))}, None]), r"validation examples\['x'\].*\[2, 2\]"),
        (lambda: given(validation=[None, {"x": np.array([np.nan])}, None]), r"validation examples\['x'\] has NaN"),
        (lambda: datasets.from_ids({"x": np.ones(2)}, [1, 2], validation={"x": np.ones(1)}), "validation_ids come"),
        (
            lambda: datasets.from_ids({"x": np.ones(1)}, [1], validation={"x": np.ones(1)}, validation_ids=[3]),
            "client 3 has validation examples but no training examples",
        ),
        (
            lambda: datasets.from_clients([(np.ones((1, 1)), [0])], validation=[(np.ones((1, 1)), [4])], num_classes=2),
            r"validation label 4, outside \[0, 2\)",
        ),
        (lambda: datasets.with_validation(given(validation=VALIDATION), 0.2), "has a validation part already"),
        (lambda: datasets.with_validation(given(), 0.0), "nothing to take, the largest client has 8"),
        (
            lambda: datasets.with_validation(datasets.from_clients([{"x": np.ones(1)}]), 0.5),
            "clients with two examples",
        ),
        (lambda: datasets.with_validation(given(), 1.0), "fraction"),
        (lambda: datasets.with_validation(given(), 0.2, gap=-1), "gap"),
    ],
)
def test_what_cannot_be_is_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()
    with pytest.raises(TypeError, match="give a data set"):
        datasets.with_validation(CLIENTS, 0.2)


def test_statistics_count_the_parts() -> None:
    for home in HOMES:
        found = given(home, validation=VALIDATION).statistics()
        assert found.validation_sizes.tolist() == [0, 1, 1]
        assert found.test_sizes.tolist() == [1, 0, 2]
        assert "validation examples  2; per client min 0, max 1" in str(found)


def test_data_sets_are_told_apart_as_before_and_by_their_validation_part() -> None:
    """The two checksums were recorded before there were validation parts: checkpoints have them."""
    old = datasets.from_clients(
        [{"x": np.arange(3.0, dtype="f")}, {"x": np.ones(2, "f")}], test=[{"x": np.zeros(1, "f")}, None]
    )
    assert dataset_fingerprint(old) == "39c3e00c1a07a854"
    assert dataset_fingerprint(datasets.on_host(old)) == "aa8a6c3b94337a3d"
    parts = [old, old.replace(validation=old.test), old.replace(test=None), old.replace(test=None, validation=old.test)]
    every = [dataset_fingerprint(one) for one in (*parts, *map(datasets.on_host, parts))]
    assert len(set(every)) == len(every)


def part(draw, *sizes):
    return [(draw.normal(size=(size, 4)), draw.integers(0, 3, size)) for size in sizes]


@pytest.fixture(scope="module")
def run():
    """A method, data, settings and the history: what is recorded of clients, beside what they keep."""
    draw = np.random.default_rng(0)
    # As many examples to test on as to validate on, of other clients: exchanged, they are one program.
    train, test, validation = part(draw, 20, 31, 12, 26), part(draw, 5, 3, 8, 4), part(draw, 8, 4, 3, 5)
    data = datasets.from_clients(train, test=test, validation=validation, num_classes=3)
    task = fjs.classification(fjs.models.LogisticRegression(3))
    given = {
        "task": task, "rounds": 2, "eval_every": 2, "cohort": fjs.cohort.uniform(2), "batch_size": 8,
        "work": fjs.local.steps(2),
        "evaluate": fjs.per_client(task, tuned=fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(2))),
        "progress": False, "keep_best": "validation_loss",
    }  # fmt: skip
    method = fjs.ditto(lam=0.1, client_optimizer=fjs.optim.sgd(0.1))
    return method, data, given, fjs.simulate(method, data, **given)


OF_PARTS = ("test_", "personal_", "tuned_", "shared_", "unvisited")


@pytest.mark.slow
def test_a_run_records_what_it_is_worth_there(run) -> None:
    """All that it records of the test part, of the validation part too; tests/models/test_scores.py has its scores."""
    method, data, given, found = run
    there = fjs.evaluate(given["task"], jax.tree.map(lambda leaf: leaf[0], found.params), data.validation)
    at = int(found.metrics["validation_loss"][0].argmin())
    np.testing.assert_allclose(found["validation_loss"][0, at], there.overall["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["validation_client_loss"][0, at], there.clients["loss"], rtol=1e-6)
    swapped = fjs.simulate(method, data.replace(validation=data.test, test=data.validation), **given)
    plain = {name for name in found.metrics if "validation" not in name}
    assert {"personal_accuracy", "tuned_client_loss_gain", "shared_accuracy_worst", "unvisited"} <= plain
    others = {name: f"validation_{name.removeprefix('test_')}" for name in plain if name.startswith(OF_PARTS)}
    assert {*others.values()} <= found.metrics.keys()
    for name, other in others.items():
        np.testing.assert_array_equal(found[other], swapped[name], err_msg=name)


@pytest.mark.slow
def test_all_else_is_as_without_a_validation_part(run) -> None:
    method, data, given, found = run
    alone = fjs.simulate(method, data.replace(validation=None), **{**given, "keep_best": None})
    assert set(alone.metrics) == {name for name in found.metrics if not name.startswith("validation_")}
    for name in alone.metrics:
        np.testing.assert_array_equal(found[name], alone[name], err_msg=name)


@pytest.mark.slow
def test_a_run_of_data_on_the_host_records_the_same(run) -> None:
    _, data, given, _ = run
    task = given["task"].replace(scores=(fjs.scores.balanced_accuracy(),))
    host = {**given, "task": task, "evaluate": fjs.per_client(task)}
    streamed = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), datasets.on_host(data), **host)
    here = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, **host)
    assert set(streamed.metrics) == set(here.metrics) >= {"validation_accuracy_worst", "validation_accuracy"}
    for name, values in here.metrics.items():
        np.testing.assert_allclose(streamed[name], values, rtol=3e-6, atol=1e-6, err_msg=name)
