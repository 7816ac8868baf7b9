"""Coalitions of clients: each is a run on the data of its members alone; Shapley's formula; what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import hyper

sgd = fjs.optim.sgd
SIZES = [3, 3, 4, 2]


def problem():
    data = fjs.datasets.quadratics(num_clients=4, dim=2, scale=1.0, sizes=SIZES, seed=2)
    run = {
        "task": fjs.quadratic(start=1.0), "rounds": 3, "eval_every": 3, "batches": fjs.local.shuffled(2),
        "cohort": fjs.cohort.full(), "work": fjs.local.random_epochs(1, 3),
    }  # fmt: skip
    return data, run


def loss(x, H, e):
    return np.mean(np.einsum("d,jde,e->j", x, H, x) / 2 - e @ x)


def alone(data, train, algorithm, members):
    """The model after a run on the data of the members, with the same ids and so the same draws."""
    rows = np.isin(np.repeat(np.arange(4), SIZES), np.flatnonzero(members))
    owners = np.repeat(np.asarray(data.client_ids), SIZES)
    theirs = fjs.datasets.from_ids({name: np.asarray(leaf)[rows] for name, leaf in data.examples.items()}, owners[rows])
    return train(algorithm, theirs, jax.random.key(5)).params


@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fednova", "fedadam"))]
)
def test_a_coalition_is_a_run_on_its_members_data(method, x64):
    data, run = problem()
    algorithm = getattr(fjs, method)(client_optimizer=sgd(0.1))
    # Two of equal shapes, whose runs alone are one program; and of methods that are slow a client by itself.
    which = np.array([[1, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 0, 0]], bool)
    checked, train = [0, 1] if method == "fedavg" else [0, 1, 3], jax.jit(fjs.make_train(**run))
    H, e = (np.asarray(data.examples[name]) for name in "He")
    found = hyper.coalitions(
        algorithm, data, which, objective=hyper.final("loss"), seeds=[4, 5], keep_models=True, **run
    )
    for members, value in zip(which[checked], found.by_seed[checked, 1], strict=True):
        params = alone(data, train, algorithm, members)
        np.testing.assert_allclose(found.model(members)[1], params, rtol=1e-10)
        np.testing.assert_allclose(value, loss(params, H, e), rtol=1e-10)  # on everybody's data
    assert found.value([True, True, True, True]) == found.values[2]


def test_columns_are_clients_in_storage_order(x64):
    data, run = problem()
    algorithm, order = fjs.fedavg(client_optimizer=sgd(0.1)), [2, 0, 3, 1]
    first, moved = (
        hyper.coalitions(algorithm, one, "leave_one_out", objective=hyper.final("loss"), **run)
        for one in (data, data.subset(order))
    )
    np.testing.assert_allclose(moved.leave_one_out, first.leave_one_out[order], rtol=1e-9)
    assert len(set(first.leave_one_out.tolist())) == 4


def test_shapley_values_are_means_over_the_orders_of_joining(x64):
    data, run = problem()
    found = hyper.coalitions(
        fjs.fedavg(client_optimizer=sgd(0.1)), data, objective=hyper.final("loss"), seeds=range(2), **run
    )
    assert found.by_seed.shape == (16, 2)
    wanted = np.zeros(4)
    for order in itertools.permutations(range(4)):
        there = np.zeros(4, bool)
        for i in order:
            before = found.value(there)
            there[i] = True
            wanted[i] += (found.value(there) - before) / 24
    np.testing.assert_allclose(found.shapley, wanted, rtol=1e-10)
    H, e = (np.asarray(data.examples[name]) for name in "He")
    assert found.value([False] * 4) == pytest.approx(loss(np.ones(2), H, e))


@pytest.mark.slow
def test_a_client_without_effect_is_worth_nothing(x64):
    """H = 0 and e = 0: whether it takes part changes the others' shares alone, which plain means of one do not have."""
    H, e = np.stack([np.eye(2), np.zeros((2, 2))]), np.array([[1.0, 0.0], [0.0, 0.0]])
    data = fjs.datasets.quadratics_from(H, e)
    run = problem()[1] | {"cohort": fjs.cohort.full()}
    found = hyper.coalitions(fjs.fedavg(client_optimizer=sgd(0.1)), data, objective=hyper.final("loss"), **run)
    assert found.value([False, True]) == found.value([False, False])
    assert found.value([True, False]) < found.value([True, True])  # it halves the other's steps


BAD = {
    "many": ({"num": 17}, "all", ValueError, "2\\^17 runs"),
    "word": ({}, "most", ValueError, "give 'all'"),
    "shape": ({}, np.ones((2, 3), bool), ValueError, "an array of True and False"),
    "integers": ({}, np.ones((2, 4), int), ValueError, "an array of True and False"),
    "states": ({"algorithm": fjs.scaffold(client_optimizer=sgd(0.1))}, "all", ValueError, "keeps a state"),
    "weights": ({"algorithm": fjs.ema(fjs.afl(client_optimizer=sgd(0.1)))}, "all", ValueError, "server counts all"),
    "told": (
        {"algorithm": fjs.fedprox(client_optimizer=sgd(0.1), mu=0.1, adaptive=True)}, "all", ValueError,
        "over all clients",
    ),
    "average": ({"cohort": fjs.cohort.full(average="original")}, "all", ValueError, "leaves x"),
    "objective": ({"objective": 3}, "all", TypeError, "give a function of a TrainResult"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name):
    changed, which, kind, message = BAD[name]
    data, run = problem()
    if "num" in changed:
        data = fjs.datasets.quadratics(num_clients=changed["num"], dim=2)
    algorithm = changed.get("algorithm", fjs.fedavg(client_optimizer=sgd(0.1)))
    run |= {"cohort": changed.get("cohort", run["cohort"])}
    with pytest.raises(kind, match=message):
        hyper.coalitions(algorithm, data, which, objective=changed.get("objective", hyper.final("loss")), **run)


def test_shapley_values_need_all_coalitions():
    found = hyper.Coalitions(np.eye(3, dtype=bool), jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="need all 8"):
        found.shapley  # noqa: B018
    with pytest.raises(KeyError, match="not tried"):
        found.value([True, True, False])
    with pytest.raises(ValueError, match="bool"):
        found.value([1, 0, 0])
    with pytest.raises(ValueError, match="models were not kept"):
        found.model([True, False, False])
