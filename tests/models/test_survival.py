"""Cox's partial likelihood against sums over pairs, in runs and evaluations; the concordance index."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.devices import double_precision

SIZES = (7, 3, 2, 4)  # the third has no event


def people() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.Generator(np.random.PCG64(3))
    made = []
    for client, size in enumerate(SIZES):
        event = (rng.uniform(size=size) < 0.6) & (client != 2)
        event[0] = client != 2
        time = rng.integers(1, 4, size)  # many ties, of events and of others
        made.append((rng.normal(size=(size, 2)), np.stack([event, time], axis=1).astype(float)))
    return made


PEOPLE = people()
TASK = fjs.cox(nn.Dense(1, use_bias=False, param_dtype=float))
FULL = fjs.local.full_batch(piece_size=7)
RUN = {"task": TASK, "rounds": 1, "batches": FULL, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
W = np.array([0.7, -1.3])


def params(w: np.ndarray) -> dict:
    return {"params": {"kernel": jnp.asarray(w)[:, None]}}


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """(1/n) sum over events of log sum exp over those at risk, less the log-risk; pair by pair."""
    z, total = x @ w, 0.0
    for j in range(len(z)):
        if y[j, 0] == 1:
            total += np.log(sum(np.exp(z[k]) for k in range(len(z)) if y[k, 1] >= y[j, 1])) - z[j]
    return total / len(z)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Central differences."""
    return np.array([(loss(w + h, x, y) - loss(w - h, x, y)) / 2e-6 for h in 1e-6 * np.eye(len(w))])


def concordance(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    z, won, pairs = x @ w, 0.0, 0
    for i in range(len(z)):
        for j in range(len(z)):
            before = y[i, 1] < y[j, 1] or (y[i, 1] == y[j, 1] and y[j, 0] == 0)
            if y[i, 0] == 1 and before:
                pairs += 1
                won += 1.0 if z[i] > z[j] else 0.5 if z[i] == z[j] else 0.0
    return won / pairs if pairs else float("nan")


@pytest.fixture(scope="module")
def data() -> fjs.FederatedDataset:
    with double_precision():
        return fjs.datasets.from_clients(PEOPLE, test=PEOPLE[::-1])


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@pytest.mark.parametrize(
    "layout", [fjs.layout.turns(), pytest.param(fjs.layout.stacked(), marks=pytest.mark.slow)], ids=["turns", "stacked"]
)
def test_a_round_follows_the_gradient_of_every_client_alone(data, layout):
    sgd = fjs.optim.sgd(0.5)
    history = fjs.simulate(
        fjs.fedavg(client_optimizer=sgd),
        data,
        **RUN,
        initial_params=params(W),
        layout=layout,
        seeds=[0],
        progress=False,
    )
    n = sum(SIZES)
    step = sum(len(x) / n * gradient(W, x, y) for x, y in PEOPLE)
    new = W - 0.5 * step
    np.testing.assert_allclose(np.asarray(history.params["params"]["kernel"]).ravel(), new, rtol=1e-7)
    wanted = sum(len(x) / n * loss(new, x, y) for x, y in PEOPLE)
    np.testing.assert_allclose(history.final("loss"), wanted, rtol=1e-7)
    pooled = [np.concatenate(part) for part in zip(*PEOPLE[::-1], strict=True)]
    np.testing.assert_allclose(history.final("test_concordance"), concordance(new, *pooled), rtol=1e-12)


@pytest.mark.slow
def test_evaluations_of_every_client(data):
    found = fjs.evaluate(TASK, params(W), data)
    np.testing.assert_allclose(found.clients["loss"], [loss(W, x, y) for x, y in PEOPLE], rtol=1e-10)
    assert found.clients["loss"][2] == 0.0  # without an event
    indices = [concordance(W, x, y) for x, y in PEOPLE]
    np.testing.assert_allclose(found.clients["concordance"], indices)
    assert np.isnan(indices[2])
    pooled = [np.concatenate(part) for part in zip(*PEOPLE, strict=True)]
    np.testing.assert_allclose(found.overall["concordance"], concordance(W, *pooled))
    np.testing.assert_allclose(found.overall["loss"], np.average(found.clients["loss"], weights=SIZES), rtol=1e-12)
    np.testing.assert_allclose(found.worst["concordance"], np.nanmin(indices))
    equal = fjs.evaluate(TASK, params(np.zeros(2)), data)
    np.testing.assert_allclose(equal.clients["concordance"], np.where(np.isnan(indices), np.nan, 0.5))
    assert np.isnan(fjs.evaluate(TASK, params(np.array([np.nan, 0.0])), data).overall["concordance"])


@pytest.mark.slow
def test_personal_and_tuned_models_are_evaluated_alike(data):
    sgd = fjs.optim.sgd(0.5)
    tuned = fjs.personalise(TASK, sgd, fjs.local.steps(1), FULL)
    history = fjs.simulate(
        fjs.ditto(client_optimizer=sgd, lam=0.0), data, **RUN, initial_params=params(W),
        evaluate=fjs.per_client(TASK, tuned=tuned), seeds=[0], progress=False,
    )  # fmt: skip
    shared = np.asarray(history.params["params"]["kernel"]).ravel()
    for i, (x, y) in enumerate(PEOPLE):
        xt, yt = PEOPLE[::-1][i]
        own = W - 0.5 * gradient(W, x, y)  # without a pull to the shared model
        near = shared - 0.5 * gradient(shared, x, y)
        for model, w in (("personal", own), ("tuned", near)):
            found = np.asarray(history.final(f"{model}_client_loss")).ravel()[i]
            np.testing.assert_allclose(found, loss(w, xt, yt), rtol=1e-6, atol=1e-12, err_msg=model)
            found = np.asarray(history.final(f"{model}_client_concordance")).ravel()[i]
            np.testing.assert_allclose(found, concordance(w, xt, yt), err_msg=model)


def test_large_risks_do_not_overflow():
    x, y = PEOPLE[0]
    z = {"x": jnp.asarray(x) * 1e4, "y": jnp.asarray(y)}
    value, slope = jax.jit(jax.value_and_grad(lambda p: jnp.sum(TASK.losses(p, z))))(params(W))
    assert np.isfinite(value)
    assert np.isfinite(slope["params"]["kernel"]).all()


@pytest.mark.parametrize(
    "batches", [fjs.local.shuffled(20), fjs.local.in_order(7), fjs.local.full_batch(piece_size=6), None]
)
def test_minibatches_and_pieces_are_refused(data, batches):
    given = {**RUN, "batches": batches} if batches else {**RUN, "batches": None, "batch_size": 3}
    with pytest.raises(ValueError, match=r"neither minibatches nor pieces.*full_batch\(piece_size=7\)"):
        fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, **given)
    tuned = fjs.personalise(TASK, fjs.optim.sgd(0.1), fjs.local.steps(1), batches or fjs.local.shuffled(3))
    with pytest.raises(ValueError, match="neither minibatches nor pieces"):
        tuned(params(W), data)


@pytest.mark.slow
def test_what_would_average_the_terms_is_refused(data):
    sgd = fjs.optim.sgd(0.1)
    with pytest.raises(ValueError, match="leave out diagnostics"):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd), data, **RUN, diagnostics=["e_lud"])
    with pytest.raises(ValueError, match="leave out a mesh"):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd), data, **RUN, layout=fjs.layout.mesh(1))
    with pytest.raises(TypeError, match="the loss of each example"):
        fjs.simulate(fjs.fedem(client_optimizer=sgd, components=2), data, **RUN)
    with pytest.raises(ValueError, match="host"):
        fjs.evaluate(TASK, params(W), fjs.datasets.on_host(data))
    with pytest.raises(ValueError, match="host"):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd), fjs.datasets.on_host(data), **RUN)
    with pytest.raises(ValueError, match="has no gamma here"):
        fjs.diagnostics.gamma(TASK, data)
    weighted = data.replace(example_weights=jnp.ones(sum(SIZES)))
    with pytest.raises(ValueError, match="example weights"):
        TASK.check(weighted)
    with pytest.raises(ValueError, match="example weights"):
        fjs.evaluate(TASK, params(W), weighted)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[3.0, 1.0], [2.0, 0.0]], r"example 0 is \[3.0, 1.0\]"),  # the columns the other way round
        ([[1.0, -1.0], [0.0, 2.0]], "at least 0"),
        ([1.0, 2.0], r"floats \[n, 2\]"),
        ([[1, 1], [0, 2]], r"floats \[n, 2\]"),
    ],
)
def test_times_that_are_none(y, message):
    with pytest.raises(ValueError, match=message):
        TASK.check(fjs.datasets.from_clients([(np.ones((2, 2)), np.array(y))]))


@pytest.mark.slow
def test_models_that_do_not_fit(data):
    with pytest.raises(ValueError, match=r"the shape \[2\]: cox needs one number"):
        fjs.cox(nn.Dense(2)).check(data)

    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.BatchNorm(use_running_average=not self.has_rng("dropout"))(x))

    with pytest.raises(ValueError, match="no model with running statistics"):
        fjs.cox(Normed()).init(jax.random.key(0), data)
