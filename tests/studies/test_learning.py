"""The gradients of docs/learning.md against central differences; a server rate by layer, a lambda by client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim import paths
from tests.algorithms.test_hypergradients import differences, directions_of

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("tuning")]

sgd, KEY = fjs.optim.sgd, jax.random.key(2)
MODEL = fjs.models.LogisticRegression(3, param_dtype=jnp.float64)
RUN = {
    "rounds": 2, "eval_every": 2, "evaluate_train": False, "cohort": fjs.cohort.full(), "work": fjs.local.steps(3),
    "batches": fjs.local.in_order(2), "layout": fjs.layout.turns(),
}  # fmt: skip


class Noisy(fjs.task.Classification):
    noise: float = fjs.fields.real(default=0.1, low=0.0)
    smoothing: float = fjs.fields.real(default=0.1, low=0.0, high=1.0)

    def losses(self, params, examples, key=None):
        if key is None:
            return super().losses(params, examples)
        x = examples["x"]
        logits = self.outputs(params, {"x": x + self.noise * jax.random.normal(key, x.shape, x.dtype)}, key)
        uniform = -jnp.mean(jax.nn.log_softmax(logits), axis=-1)
        return (1 - self.smoothing) * self.losses_of(logits, examples) + self.smoothing * uniform


def labelled():
    rng = np.random.default_rng(9)

    def clients(sizes):
        return [(rng.standard_normal((n, 2)), rng.integers(0, 3, n)) for n in sizes]

    return fjs.datasets.from_clients(
        clients((3, 6, 4)), test=clients((2, 3, 2)), client_ids=[7, 2, 5], num_classes=3
    )  # fmt: skip


def start(data):
    params = fjs.classification(MODEL).init(KEY, data)
    return jax.tree.map(
        lambda leaf: leaf + 0.2 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), params
    )


def by_layer(bias, kernel):
    return {"params": {"Dense_0": {"bias": jnp.array(bias), "kernel": jnp.array(kernel)}}}


def check(values, theta):
    """The gradient of ``values(theta)`` along random directions is the central difference."""
    directions = directions_of(theta, 3)
    expected = differences(lambda theta: values(theta)[None], theta, directions)[:, 0]
    gradient = jax.jit(jax.grad(values))(theta)
    found = directions @ np.asarray(ravel_pytree(gradient)[0])
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-9 * np.abs(expected).max())
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_rates_by_layer_of_clients_and_server_noise_smoothing_weights_of_examples():
    data, params = labelled(), start(labelled())
    algorithm = fjs.fedavg(
        client_optimizer=sgd(0.3), client_learning_rate=by_layer(0.8, 1.1), server_learning_rate=by_layer(1.2, 0.7)
    )
    theta = {
        "algorithm": jax.tree.map(jnp.asarray, paths.real_leaves(algorithm)),
        "task": {"noise": jnp.array(0.3), "smoothing": jnp.array(0.2)},
        "weights": jnp.linspace(0.5, 1.5, data.num_examples),
    }  # fmt: skip

    def values(theta):
        train = fjs.make_train(task=Noisy(MODEL, **theta["task"]), **RUN)
        weighted = data.with_example_weights(theta["weights"])
        return train(paths.replace(algorithm, theta["algorithm"]), weighted, KEY, initial_params=params).metrics[
            "test_loss"
        ][-1]

    check(values, theta)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_what_clients_mix_and_rates_of_rounds(name):
    data, params = labelled(), start(labelled())
    method, own = {"ditto": (fjs.ditto, {"lam": jnp.array([0.3, 0.9, 1.6])}), "apfl": (fjs.apfl, {"alpha": 0.4})}[name]
    algorithm = method(
        client_optimizer=sgd(0.3), server_learning_rate=fjs.rates.over_rounds(jnp.array([0.8, 1.1])), **own
    )
    task = fjs.classification(MODEL)
    train = fjs.make_train(task=task, evaluate=fjs.per_client(task), **RUN)

    def values(reals):
        result = train(paths.replace(algorithm, reals), data, KEY, initial_params=params)
        return result.metrics["personal_loss"][-1]

    check(values, jax.tree.map(jnp.asarray, paths.real_leaves(algorithm)))


@pytest.mark.slow
def test_the_model_to_start_from_through_a_round_and_own_steps():
    data, task = labelled(), fjs.classification(MODEL)
    train = fjs.make_train(task=task, evaluate=fjs.personalise(task, sgd(0.2), fjs.local.steps(2)), **RUN)
    method = fjs.fedavg(client_optimizer=sgd(0.3))
    check(lambda x: train(method, data, KEY, initial_params=x).metrics["personal_loss"][-1], start(data))


@pytest.mark.slow
def test_a_server_rate_by_layer_moves_each_layer_by_its_own():
    data, params = labelled(), start(labelled())
    train = jax.jit(fjs.make_train(task=fjs.classification(MODEL), **RUN | {"rounds": 1, "eval_every": 1}))

    def moved(rate):
        found = train(
            fjs.fedavg(client_optimizer=sgd(0.3), server_learning_rate=rate), data, KEY, initial_params=params
        )
        return jax.tree.map(jnp.subtract, found.params, params)

    whole, layers = moved(1.0), by_layer(0.5, 1.5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), moved(layers), fjs.trees.multiply(whole, layers)
    )
    with pytest.raises(ValueError, match=r"server_learning_rate.*a pytree like the parameters"):
        moved({"bias": 1.0})


@pytest.mark.slow
def test_lambda_of_a_client_is_what_it_would_be_of_all():
    """Clients by their ids, which are not the order of storage; v_i of other clients have no part in v_i."""
    data, params = labelled(), start(labelled())
    train = jax.jit(fjs.make_train(task=fjs.classification(MODEL), **RUN))

    def kept(lam):
        return train(fjs.ditto(client_optimizer=sgd(0.3), lam=lam), data, KEY, initial_params=params).state.clients

    each, lams = kept([0.2, 1.0, 2.5]), [0.2, 1.0, 2.5]
    for i, one in enumerate(map(kept, lams)):
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b[i], rtol=1e-12), each, one)
    kernels = np.stack([kept(lam)["params"]["Dense_0"]["kernel"] for lam in lams])
    assert all(np.abs(kernels[0, i] - kernels[1, i]).max() > 1e-3 for i in range(3))
    with pytest.raises(ValueError, match=r"ditto\(lam=...\) has the shape \(2,\).*3 clients"):
        kept([0.2, 1.0])
