"""Tasks of flax modules: labels with axes, regression, modules that are told when they train."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.task import Batch


class Positions(nn.Module):
    """Logits for every position of a sequence of integers."""

    classes: int = 5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.classes)(jax.nn.one_hot(x, 7))


class Line(nn.Module):
    """One output, a vector of outputs, or none but the batch axis."""

    outputs: int = 1
    squeezed: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(self.outputs)(x)
        return y[:, 0] if self.squeezed else y


def sequences():
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 7, (n, 6)), rng.integers(0, 5, (n, 6))) for n in (4, 9, 2)]
    return fjs.datasets.from_clients(clients)


def real_targets(outputs=None):
    rng = np.random.default_rng(0)
    shape = () if outputs is None else (outputs,)
    return fjs.datasets.from_clients(
        [(rng.normal(size=(n, 3)).astype("f"), rng.normal(size=(n, *shape)).astype("f")) for n in (4, 9, 2)]
    )


def labelled(y):
    return fjs.datasets.from_clients([(np.ones((3, 4), np.float32), np.asarray(y))])


def test_labels_with_axes() -> None:
    data, task = sequences(), fjs.classification(Positions())
    task.check(data)
    params = task.init(jax.random.key(0), data)
    x, y = np.asarray(data.examples["x"]), np.asarray(data.examples["y"])
    kernel, bias = params["params"]["Dense_0"]["kernel"], params["params"]["Dense_0"]["bias"]
    logits = np.asarray(kernel)[x] + np.asarray(bias)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = -np.log(np.take_along_axis(probabilities, y[..., None], -1))[..., 0].mean(axis=1)
    np.testing.assert_allclose(task.losses(params, data.examples), losses, rtol=2e-5)
    accuracy = (logits.argmax(-1) == y).mean(axis=1)
    np.testing.assert_allclose(task.metrics(params, data.examples)["accuracy"], accuracy, rtol=1e-6)
    table = data.statistics().label_table
    assert table is not None
    assert table.sum() == y.size


@pytest.mark.parametrize(("outputs", "model"), [(None, Line()), (None, Line(squeezed=True)), (2, Line(2))])
def test_regression(outputs, model) -> None:
    data, task = real_targets(outputs), fjs.regression(model, weight_decay=0.1)
    task.check(data)
    params = task.init(jax.random.key(0), data)
    kernel = np.asarray(params["params"]["Dense_0"]["kernel"])
    errors = np.asarray(data.examples["x"]) @ kernel - np.asarray(data.examples["y"]).reshape(15, -1)
    np.testing.assert_allclose(task.losses(params, data.examples), (errors**2).sum(1) / 2, rtol=1e-5)
    metrics = task.metrics(params, data.examples)
    np.testing.assert_allclose(metrics["mse"], (errors**2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(metrics["mae"], np.abs(errors).mean(1), rtol=1e-5)
    batch = Batch(data.examples, jnp.ones(15), jnp.int32(15))
    objective = (errors**2).sum() / 2 / 15 + 0.1 * (kernel**2).sum()
    assert float(task.batch_loss(params, batch)) == pytest.approx(float(objective), rel=1e-5)


def test_a_federated_regression_reaches_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3)).astype("f")
    y = (x @ np.array([1.0, -2.0, 0.5], "f") + 0.1 * rng.normal(size=60)).astype("f")
    data = fjs.datasets.from_ids((x, y), np.arange(60) % 4)
    history = fjs.simulate(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.3)), data, task=fjs.regression(Line()), rounds=60, eval_every=60,
        batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.epochs(1),
    )  # fmt: skip
    design = np.concatenate([x, np.ones((60, 1))], axis=1)
    solution, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(history.params["params"]["Dense_0"]["kernel"][0, :, 0], solution[:3], atol=1e-3)
    assert history["mse"][0, -1] == pytest.approx(residual[0] / 60, rel=1e-3)


class Told(nn.Module):
    """Doubles its input in training, if it is told of it under ``name``."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(2)(x) * (2 if train else 1)


class ToldTheOpposite(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool) -> jax.Array:
        return nn.Dense(2)(nn.Dropout(0.5)(x, deterministic=deterministic))


class Asking(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x))


@pytest.mark.parametrize("model", [Told(), ToldTheOpposite(), Asking()], ids=["train", "deterministic", "has_rng"])
def test_a_module_knows_when_it_trains(model) -> None:
    data = fjs.datasets.from_clients([(np.ones((3, 8), np.float32), [0, 1, 1])])
    task = fjs.classification(model)
    params = task.init(jax.random.key(0), data)
    quiet = task.outputs(params, data.examples)
    np.testing.assert_array_equal(quiet, task.outputs(params, data.examples))
    in_training = task.outputs(params, data.examples, jax.random.key(1))
    assert np.abs(np.asarray(in_training - quiet)).max() > 1e-3
    if not isinstance(model, Told):
        other = task.outputs(params, data.examples, jax.random.key(2))
        assert np.abs(np.asarray(in_training - other)).max() > 1e-3


@pytest.mark.parametrize(
    ("task", "data", "error", "message"),
    [
        (fjs.classification(Line(3)), sequences(), ValueError, r"logits of one example have the shape.*\[6\]"),
        (fjs.classification(Line(3)), real_targets(), ValueError, "float32: classification needs integers"),
        (
            fjs.classification(Line(3)),
            real_targets(),
            ValueError,
            r"y\.astype\('int32'\), or use fedjax_sim\.regression",
        ),
        (fjs.classification(Line(2)), labelled([[0], [1], [1]]), ValueError, r"label the shape \[1\].*give y\[:, 0\]"),
        (fjs.classification(Line(2)), labelled([[0.0], [1.0], [1.0]]), ValueError, r"float32.*give y\[:, 0\]"),
        (
            fjs.classification(Line(2)),
            labelled(np.eye(2, dtype=int)[[0, 1, 1]]),
            ValueError,
            r"one-hot, give y\.argmax",
        ),
        (fjs.classification(Line(2)), labelled(np.eye(2)[[0, 1, 1]]), ValueError, r"one-hot, give y\.argmax\(-1\)"),
        (fjs.classification(Line(squeezed=True)), labelled([0, 1, 1]), ValueError, r"has the shape \[\].*\[classes\]"),
        (fjs.classification(Positions(4)), sequences(), ValueError, "5 classes and the model 4 outputs"),
        (fjs.regression(Line()), sequences(), ValueError, "int32: regression needs floats"),
        (fjs.regression(Line(2)), real_targets(3), ValueError, r"shape \[2\] and its target the shape \[3\]"),
        (fjs.regression(Line(2)), real_targets(), ValueError, r"shape \[2\] and its target the shape \[\]"),
    ],
)
def test_what_does_not_fit(task, data, error, message) -> None:
    with pytest.raises(error, match=message):
        task.check(data)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"regression\(model=.*give an object, Model\(\.\.\.\)"):
        fjs.regression(Line)
    with pytest.raises(ValueError, match=r"regression\(weight_decay=\.\.\.\)"):
        fjs.regression(Line(), weight_decay=-1.0)


def test_a_function_that_does_not_say_what_it_takes_is_accepted() -> None:
    task = fjs.functions(lambda *given: jnp.zeros(()), lambda *given, **more: jnp.zeros((2,)))
    assert task.init(jax.random.key(0), sequences()) == 0
    assert fjs.functions(jnp.float32, np.add).losses_function is np.add  # a class and a ufunc


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))


def test_batch_statistics_are_refused() -> None:
    data = fjs.datasets.from_clients([(np.ones((3, 8), np.float32), [0, 1, 1])])
    with pytest.raises(ValueError, match=r"batch_stats.*GroupNorm"):
        fjs.classification(Normalised()).check(data)
