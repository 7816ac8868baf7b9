"""What models say of all examples: row for row, of one model and of every client's own."""

import jax
import numpy as np
import pytest

import fedjax_sim as fjs

IDS = [7, 2, 11]  # storage position 0 has the client of index 1
SIZES, HELD = (4, 9, 2), (3, 0, 5)
TASK = fjs.classification(fjs.models.LogisticRegression(3))


def rows(rng, n):
    return {"x": rng.normal(size=(n, 2)).astype("f4"), "y": rng.integers(0, 3, n)}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    train, test = ([rows(rng, n) for n in sizes] for sizes in (SIZES, HELD))
    return fjs.datasets.from_clients(train, test=test, client_ids=IDS, num_classes=3)


def models():
    """One for each client index, leaves [3, ...]."""
    rng = np.random.default_rng(1)
    one = {"params": {"Dense_0": {"kernel": np.zeros((2, 3), "f4"), "bias": np.zeros(3, "f4")}}}
    like = TASK.init(jax.random.key(0), fjs.datasets.from_clients([rows(rng, 2)], num_classes=3))
    assert jax.tree.structure(like) == jax.tree.structure(one)
    return jax.tree.map(lambda leaf: rng.normal(size=(3, *leaf.shape)).astype("f4"), one)


def logits(model, x):
    layer = model["params"]["Dense_0"]
    return x @ layer["kernel"] + layer["bias"]


def of_client(index):
    return jax.tree.map(lambda leaf: leaf[index], models())


def test_one_model(data):
    for part in (data, data.test):
        said = fjs.predict(TASK, of_client(0), part)
        np.testing.assert_allclose(said, logits(of_client(0), np.asarray(part.examples["x"])), rtol=1e-5, atol=1e-6)
    on_host = fjs.datasets.on_host(data)
    np.testing.assert_allclose(
        fjs.predict(TASK, of_client(0), on_host.test), fjs.predict(TASK, of_client(0), data.test), rtol=1e-6
    )


def test_each_client_s_own(data):
    index = np.argsort(np.argsort(IDS))
    for part in (data, data.test):
        wanted = np.concatenate(
            [logits(of_client(index[i]), np.asarray(part.client(i)["x"])) for i in range(3) if part.sizes[i]]
        )
        said = fjs.predict(TASK, models(), part, each=True)
        np.testing.assert_allclose(said, wanted, rtol=1e-5, atol=1e-6)
    traced = jax.jit(lambda models, test: fjs.predict(TASK, models, test, each=True))(models(), data.test)
    np.testing.assert_array_equal(traced, said)


@pytest.mark.slow
def test_each_client_s_own_has_a_derivative(data):
    def half_square(models):
        said = fjs.predict(TASK, models, data.test, each=True)
        return (said * said).sum() / 2

    found = jax.grad(half_square)(models())["params"]["Dense_0"]["kernel"]
    for i, index in enumerate(np.argsort(np.argsort(IDS))):
        x = np.asarray(data.test.client(i)["x"])
        np.testing.assert_allclose(found[index], x.T @ logits(of_client(index), x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_adapted_and_personal_models(data):
    """The accuracy of what they say is the one that is recorded."""
    params = of_client(0)
    adapted = fjs.personalise(TASK, fjs.optim.sgd(0.5), fjs.local.steps(3))
    said = np.asarray(fjs.predict(TASK, jax.jit(adapted.models)(params, data), data.test, each=True))
    right = (said.argmax(axis=1) == np.asarray(data.test.examples["y"])).astype(float)
    wanted = np.asarray(jax.jit(adapted)(params, data)["personal_client_accuracy"])
    np.testing.assert_allclose([right[:3].mean(), right[3:].mean()], wanted[[0, 2]], rtol=1e-6)
    method = fjs.ditto(client_optimizer=fjs.optim.sgd(0.5))
    history = fjs.simulate(
        method, data, task=TASK, rounds=2, cohort=fjs.cohort.full(), work=fjs.local.steps(2),
        batches=fjs.local.full_batch(), keep_state=True, evaluate=fjs.per_client(TASK), progress=False,
    )  # fmt: skip
    server, clients = jax.tree.map(lambda leaf: leaf[0], (history.state.server, history.state.clients))
    own = jax.vmap(method.personal, in_axes=(None, 0))(server, clients)
    said = np.asarray(fjs.predict(TASK, own, data.test, each=True))
    right = (said.argmax(axis=1) == np.asarray(data.test.examples["y"])).astype(float)
    recorded = history.final("personal_client_accuracy")[0]
    np.testing.assert_allclose([right[:3].mean(), right[3:].mean()], recorded[[0, 2]], rtol=1e-6)


def test_what_makes_no_sense_is_refused(data):
    with pytest.raises(ValueError, match=r"has the shape \[2, 3\], and its first axis must be that of the 3 clients"):
        fjs.predict(
            TASK, {"params": {"Dense_0": {"kernel": of_client(0)["params"]["Dense_0"]["kernel"]}}}, data, each=True
        )
    with pytest.raises(ValueError, match=r"use dataset\.on_device\(\)"):
        fjs.predict(TASK, models(), fjs.datasets.on_host(data), each=True)
    for one in (data, fjs.datasets.on_host(data)):
        with pytest.raises(ValueError, match=r"params has 3 models on a leading axis, as history\.params has"):
            fjs.predict(TASK, models(), one)
    with pytest.raises(TypeError, match="each"):
        fjs.predict(TASK, models(), data, each=1)
    examples = data.examples
    with pytest.raises(
        TypeError, match=r"^predict\(dataset=\.\.\.\) is float32\[.*\]: it must be a data set.*task\.outputs"
    ):
        fjs.predict(TASK, of_client(0), examples["x"])
    with pytest.raises(
        TypeError, match=r"^evaluate\(dataset=\.\.\.\) is \(float32\[.*\], int32\[.*\]\): it must be a data set"
    ):
        fjs.evaluate(TASK, of_client(0), (examples["x"], examples["y"]))
    with pytest.raises(TypeError, match="outputs"):
        fjs.predict(fjs.quadratic(), np.zeros(3, "f4"), fjs.datasets.quadratics(num_clients=2, dim=3, seed=0))
