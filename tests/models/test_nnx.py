"""Models of flax nnx, and plain functions with a key: random in local training alone, another draw at every step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_sim as fjs
from fedjax_sim.models import Nnx


class Dropped(nnx.Module):
    """Two layers of dropout, which draw from streams of their own."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 16, rngs=rngs)
        self.first, self.second = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(16, 3, rngs=rngs)

    def features(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(self.hidden(x)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.features(x))


class Normed(nnx.Module):
    """A model with running statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x)


class Told(nnx.Module):
    """A model that is told whether it trains."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(jnp.ones(3))

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return self.scale * (0.0 if deterministic else 1.0) + x[:, :3]


X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
DATA = fjs.datasets.from_ids((X, np.arange(6) % 3), ids=np.arange(6) % 2)
RUN: dict[str, Any] = {
    "rounds": 2, "cohort": fjs.cohort.full(), "work": fjs.local.steps(2), "batches": fjs.local.full_batch(),
}  # fmt: skip


def test_an_nnx_model_is_that_of_nnx() -> None:
    task = fjs.classification(Nnx(Dropped))
    params = task.init(jax.random.key(0), DATA)
    own = jax.tree.map(np.asarray, params["params"]["model"])
    x = np.asarray(DATA.examples["x"])
    expected = (x @ own["hidden"]["kernel"] + own["hidden"]["bias"]) @ own["head"]["kernel"] + own["head"]["bias"]
    np.testing.assert_allclose(task.outputs(params, DATA.examples), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_dropout_is_drawn_by_the_key_and_off_in_evaluation() -> None:
    task = fjs.classification(Nnx(Dropped))
    params = task.init(jax.random.key(0), DATA)
    still, one, again, other = (
        np.asarray(task.features(params, DATA.examples, key))
        for key in (None, jax.random.key(1), jax.random.key(1), jax.random.key(2))
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert (still != 0).all()
    # Two layers with streams of their own leave a quarter, four times as large; with one stream they would leave half.
    dropped = one == 0
    np.testing.assert_allclose(one[~dropped], 4 * still[~dropped], rtol=1e-6)
    assert 0.6 < dropped.mean() < 0.9


@pytest.mark.slow
def test_a_run_with_dropout_learns_and_its_evaluation_is_deterministic() -> None:
    task = fjs.classification(Nnx(Dropped))
    history = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), DATA, task=task, **RUN)
    last = jax.tree.map(lambda leaf: leaf[0], history.params)
    np.testing.assert_allclose(fjs.evaluate(task, last, DATA).overall["loss"], history.final("loss")[0], rtol=1e-6)
    assert history["loss"][0, -1] < history["loss"][0, 0]


class Deep(nnx.Module):
    """More than ten layers, whose numbers and whose names have another order."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.Sequential(*(nnx.Linear(4 + k, 5 + k, rngs=rngs) for k in range(11)), nnx.tanh)
        self.head = nnx.Linear(15, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.body(x))


@pytest.mark.slow
def test_a_model_with_a_list_of_layers_goes_on_from_a_file(tmp_path) -> None:
    run = RUN | {"task": fjs.classification(Nnx(Deep))}
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    history = fjs.simulate(method, DATA, **run)
    history.save(tmp_path / "deep.npz")
    params = jax.tree.map(lambda leaf: leaf[0], type(history).load(tmp_path / "deep.npz").params)
    np.testing.assert_allclose(
        fjs.simulate(method, DATA, initial_params=params, **run)["loss"][0, 0], history.final("loss")
    )


def test_a_model_is_told_whether_it_trains() -> None:
    task = fjs.regression(Nnx(Told))
    params = task.init(jax.random.key(0), DATA)
    outputs = [task.outputs(params, DATA.examples, key) for key in (None, jax.random.key(0))]
    np.testing.assert_allclose(outputs[1] - outputs[0], np.ones((6, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "error", "told"),
    [
        (lambda: Nnx(Dropped(nnx.Rngs(0))), TypeError, r"give what makes the model, make\(rngs\)"),
        (lambda: Nnx(3), TypeError, r"Nnx\(make=...\) is 3"),
        (lambda: Nnx(lambda rngs: 3), TypeError, "makes 3: it must make a flax.nnx.Module"),
        (lambda: Nnx(Normed), ValueError, r"keeps state besides its nnx.Param \(norm/mean, norm/var\)"),
    ],
)
def test_what_is_refused(made: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        fjs.classification(made()).init(jax.random.key(0), DATA)


def test_features_need_a_method() -> None:
    task = fjs.classification(Nnx(Told))
    with pytest.raises(TypeError, match=r"Told has no method features\(x\)"):
        task.features(task.init(jax.random.key(0), DATA), DATA.examples)


def noisy(params: Any, examples: Any, key: Any = None) -> jax.Array:
    """Another loss in training: that of noisy parameters."""
    shift = 0.0 if key is None else jax.random.normal(key, ())
    return (examples["x"] @ params - 1.0 + shift) ** 2


@pytest.mark.slow
def test_a_function_with_a_key_gets_one_in_training_alone() -> None:
    task = fjs.functions(lambda key: jnp.zeros(4), noisy, outputs_function=lambda params, examples, key: noisy(
        params, examples, key))  # fmt: skip
    params = task.init(jax.random.key(0), DATA)
    for values in (task.losses, task.outputs):
        still, one, other = (values(params, DATA.examples, key) for key in (None, *jax.random.split(jax.random.key(1))))
        np.testing.assert_allclose(still, np.ones(6))
        assert (one != other).all()
    seen: list[Any] = []

    def step(params: Any, examples: Any, key: Any = None) -> jax.Array:
        if key is not None:
            jax.debug.callback(lambda words: seen.append(tuple(words.tolist())), jax.random.key_data(key))
        return jnp.sum(params) * jnp.ones(len(examples["y"]))

    task = fjs.functions(lambda key: jnp.zeros(4), step)
    fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), DATA, task=task, layout=fjs.layout.turns(), **RUN)
    jax.effects_barrier()
    assert len(set(seen)) == 2 * 2 * 2  # clients, rounds and steps


def test_a_key_that_means_something_else_is_left_alone() -> None:
    task = fjs.functions(lambda key: jnp.zeros(4), lambda params, examples, key="y": examples[key].astype(float))
    np.testing.assert_array_equal(task.losses(jnp.zeros(4), DATA.examples, jax.random.key(0)), DATA.examples["y"])


def test_a_function_without_a_key_is_called_as_before() -> None:
    task = fjs.functions(lambda key: jnp.zeros(4), lambda params, examples: examples["x"] @ params)
    assert task.losses(jnp.ones(4), DATA.examples, jax.random.key(0)).shape == (6,)
    with pytest.raises(TypeError, match="losses_function"):
        fjs.functions(lambda key: jnp.zeros(4), lambda params, examples, key, more: examples["x"] @ params)
