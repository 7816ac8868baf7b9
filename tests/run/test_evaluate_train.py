"""evaluate_train=False: what is recorded, judged and shown of a run without the values of its training examples."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.run.verification import verify

pytestmark = pytest.mark.xdist_group("evaluate_train")  # one worker compiles what they share
TASK = fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3)
RUN = {
    "task": TASK, "rounds": 4, "eval_every": 2, "batch_size": 10, "cohort": fjs.cohort.uniform(3),
    "work": fjs.local.steps(2), "seeds": [0, 3],
}  # fmt: skip
ONE = {name: value for name, value in RUN.items() if name != "seeds"}
FEDAVG = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))


@pytest.fixture(scope="module")
def data():
    return fjs.datasets.synthetic(1.0, 1.0, num_clients=6, max_size=60, seed=0)


@pytest.fixture(scope="module")
def without(data):
    return fjs.simulate(FEDAVG, data, **RUN, evaluate_train=False)


@pytest.fixture(scope="module")
def usual(data):
    return fjs.simulate(FEDAVG, data, **RUN)


def test_all_else_is_the_same(without, usual):
    assert set(without.metrics) == {"test_loss", "test_data_loss", "test_accuracy"}
    assert set(usual.metrics) - set(without.metrics) == {"loss", "data_loss", "accuracy"}
    for name, values in without.metrics.items():
        np.testing.assert_array_equal(values, usual[name])
    jax.tree.map(np.testing.assert_array_equal, without.params, usual.params)


@pytest.mark.slow
def test_all_ways_to_run_leave_them_out(data, without):
    trained = jax.jit(fjs.make_train(**ONE, evaluate_train=False))(FEDAVG, data, jax.random.key(3))
    assert set(trained.metrics) == {"round", *without.metrics}
    np.testing.assert_allclose(trained.metrics["test_loss"], without["test_loss"][1], rtol=1e-6)
    streamed = fjs.simulate(FEDAVG, fjs.datasets.on_host(data), **RUN, evaluate_train=False)
    assert set(streamed.metrics) == set(without.metrics)
    np.testing.assert_allclose(streamed["test_loss"], without["test_loss"], rtol=1e-6)


@pytest.mark.slow
def test_training_examples_are_not_read(data):
    """Counted in the program: the pass over all 10 n examples is not there."""

    def passes(**more):
        train = fjs.make_train(**ONE | {"rounds": 1}, **more)
        program = str(jax.make_jaxpr(train)(FEDAVG, data, jax.random.key(0)))
        return program.count("argmax")

    assert 0 < passes(evaluate_train=False) < passes()


def test_it_is_part_of_what_a_run_is(data, without, tmp_path):
    assert without.description["run"]["evaluate_train"] is False
    path = tmp_path / "run.npz"
    without.save(path)
    assert verify(fjs.History.load(path)).passed
    fjs.simulate(FEDAVG, data, **RUN, evaluate_train=False, checkpoint=tmp_path / "kept", every=2)
    with pytest.raises(ValueError, match=r"run\.evaluate_train"):
        fjs.simulate(FEDAVG, data, **RUN | {"rounds": 6}, checkpoint=tmp_path / "kept", every=2)


@pytest.mark.slow
def test_divergence_is_seen_in_the_other_losses(data):
    bad = fjs.fedavg(client_optimizer=fjs.optim.sgd(30.0))
    signs = fjs.simulate(bad, data, **RUN, evaluate_train=False).divergences
    assert {(sign.what, sign.factor) for sign in signs} == {("loss", 10.0)}
    alone = dataclasses.replace(data, test=None)
    own = fjs.simulate(bad, alone, **RUN, evaluate_train=False, evaluate=one)
    assert set(own.metrics) == {"one"}
    assert own.divergences == []  # no loss to be judged, and no model that is not finite


@pytest.mark.slow
def test_divergence_is_seen_in_the_loss_of_a_validation_part(data):
    split = fjs.datasets.with_validation(data, 0.3)
    bad = fjs.fedavg(client_optimizer=fjs.optim.sgd(30.0))
    assert fjs.simulate(bad, split, **RUN, evaluate_train=False).divergences[0].what == "loss"


def one(params, dataset):
    return {"one": jnp.float32(1)}


@pytest.mark.slow
def test_sweeps(data):
    swept = fjs.sweep(
        FEDAVG, data, fjs.sweeps.grid({"client_optimizer.learning_rate": [0.01, 0.1]}), **RUN, evaluate_train=False
    )
    assert swept["test_loss"].shape[:2] == (2, 2)
    with pytest.raises(KeyError, match="test_loss"):
        swept["loss"]


def test_it_is_shown(without, usual, tmp_path):
    said = fjs.reporting.results_table({"FedAvg": without})
    assert said.startswith("method  test loss")
    assert f"{without['test_data_loss'][:, -1].mean():.4f}" in said
    fjs.reporting.report({"FedAvg": without}, tmp_path / "report.html")
    assert "test loss" in (tmp_path / "report.html").read_text()
    assert "–" in fjs.reporting.results_table({"without": without, "with": usual})
    with pytest.raises(KeyError, match="test_loss"):
        without["loss"]


@pytest.mark.slow
def test_nothing_to_evaluate_is_refused(data):
    alone = dataclasses.replace(data, test=None)
    for call in (
        lambda: fjs.simulate(FEDAVG, alone, **RUN, evaluate_train=False),
        lambda: fjs.simulate(FEDAVG, fjs.datasets.on_host(alone), **RUN, evaluate_train=False),
        lambda: jax.eval_shape(fjs.make_train(**ONE, evaluate_train=False), FEDAVG, alone, jax.random.key(0)),
    ):
        with pytest.raises(ValueError, match="nothing would be evaluated"):
            call()
    with pytest.raises(TypeError, match="evaluate_train"):
        fjs.simulate(FEDAVG, data, **RUN, evaluate_train=0)
