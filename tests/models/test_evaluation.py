"""Evaluation: overall, per client and of the worst, in pieces, on the device and from the host."""

import functools
import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import devices as chunks
from fedjax_sim.core.fields import real
from fedjax_sim.models import evaluation, passes, predictions
from fedjax_sim.run.training import TrainResult

TASK = fjs.classification(fjs.models.LogisticRegression(3), weight_decay=0.01)


@functools.cache
def drawn(width=4):
    rng = np.random.default_rng(0)
    sizes = [1, 7, 30, 2, 11, 4, 25]
    clients = [(rng.normal(size=(n, width)).astype("f"), rng.integers(0, 3, n)) for n in sizes]
    test = [None if i in (1, 4) else (x[::2], y[::2]) for i, (x, y) in enumerate(clients)]
    made = fjs.datasets.from_clients(clients, test=test, num_classes=3)
    return made.with_example_weights(rng.uniform(0.5, 2.0, made.num_examples))


@pytest.fixture
def data():
    return drawn()


def model(width=4):
    kernel = np.random.default_rng(5).normal(size=(width, 3)).astype("f")
    return {"params": {"Dense_0": {"kernel": kernel, "bias": np.ones(3, "f")}}}


def by_hand(part, name):
    """The values of every client in numpy; NaN where it has no examples."""
    leaves = model(part.examples["x"].shape[1])["params"]["Dense_0"]
    kernel, bias = np.asarray(leaves["kernel"], float), np.asarray(leaves["bias"], float)
    logits, labels = np.asarray(part.examples["x"], float) @ kernel + bias, np.asarray(part.examples["y"])
    if name == "loss":
        values = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
        values = values * (1.0 if part.example_weights is None else np.asarray(part.example_weights))
        penalty = 0.01 * ((kernel**2).sum() + (bias**2).sum())
    else:
        values, penalty = (logits.argmax(1) == labels).astype(float), 0.0
    pieces = np.split(values, np.cumsum(np.asarray(part.sizes))[:-1])
    return np.array([piece.mean() + penalty if piece.size else np.nan for piece in pieces])


@pytest.mark.parametrize("rows", [pytest.param(None, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("home", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_evaluate(monkeypatch, rows, home) -> None:
    """All at once and in pieces, which have a width of their own: that no program is one of the other's."""
    if rows is not None:
        monkeypatch.setattr(passes, "_rows_at_once", lambda *_: rows)
    width = 6 if rows is None else 5
    data, params = drawn(width), model(width)

    @jax.jit
    def on_device():
        parts = (data, data.test)
        means = [passes.mean_values(TASK, params, part) for part in parts]
        return means, [fjs.evaluate(TASK, params, part, worst=0.3) for part in parts]

    means, evaluations = on_device()
    if home == "host":
        there = fjs.datasets.on_host(data)
        evaluations = [fjs.evaluate(TASK, params, part, worst=0.3) for part in (there, there.test)]
    for part, mean, found in zip((data, data.test), means, evaluations, strict=True):
        sizes = np.asarray(part.sizes)
        for name in ("loss", "accuracy"):
            clients = by_hand(part, name)
            np.testing.assert_allclose(found.clients[name], clients, rtol=1e-5)
            held = clients[sizes > 0]
            assert float(found.overall[name]) == pytest.approx(np.nansum(clients * sizes) / sizes.sum(), rel=1e-5)
            count = int(np.ceil(0.3 * len(held)))
            worst = np.sort(held)[-count:] if name == "loss" else np.sort(held)[:count]
            assert float(found.worst[name]) == pytest.approx(worst.mean(), rel=1e-5)
        assert float(mean["loss"]) == pytest.approx(float(found.overall["loss"]), rel=1e-6)


@pytest.mark.slow
def test_recorded_by_simulate_and_make_train(data) -> None:
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    common = {
        "task": TASK, "rounds": 2, "eval_every": 2, "batch_size": 4, "cohort": fjs.cohort.uniform(2),
        "work": fjs.local.epochs(1), "evaluate": fjs.per_client(TASK, worst=0.5),
    }  # fmt: skip
    history = fjs.simulate(algorithm, data, **common, seeds=[3])
    assert history["client_loss"].shape == (1, 2, 7)
    assert np.isnan(history["test_client_accuracy"][0, :, [1, 4]]).all()
    assert np.isfinite(history["test_accuracy_worst"]).all()
    result = jax.jit(fjs.make_train(**common))(algorithm, data, jax.random.key(3))
    np.testing.assert_allclose(result.metrics["loss_worst"], history["loss_worst"][0], rtol=1e-6)


@pytest.mark.slow
def test_evaluation_has_a_derivative(data) -> None:
    @jax.jit
    def worst(scale):
        params = jax.tree.map(lambda leaf: scale * leaf, model())
        return fjs.evaluate(TASK, params, data, worst=0.3).worst["loss"]

    slope = jax.jit(jax.grad(worst))(1.0)
    step = 1e-2
    assert float(slope) == pytest.approx(float(worst(1 + step) - worst(1 - step)) / (2 * step), rel=1e-2)


@pytest.mark.parametrize(("clients", "share"), [(50, 0.3), (25, 0.6), (100, 0.15), (50, 0.07), (30, 0.1), (1, 0.1)])
def test_the_worst_are_no_more_than_the_share_says(clients, share) -> None:
    values = np.random.default_rng(0).random(clients).astype("f")
    worst = np.sort(values)[-int(np.ceil(round(share * clients, 9))) :]  # 0.3 * 50 is above 15 in single precision
    assert float(evaluation.worst_mean(jnp.asarray(values), share, highest=True)) == pytest.approx(worst.mean())


@pytest.mark.parametrize("worst", [0.0, 1.5, -1.0])
def test_bad_share(data, worst) -> None:
    with pytest.raises(ValueError, match=r"worst=\.\.\."):
        fjs.evaluate(TASK, model(), data, worst=worst)
    with pytest.raises(ValueError, match=r"worst=\.\.\."):
        fjs.per_client(TASK, worst=worst)
    with pytest.raises(TypeError, match="give the run's task"):
        fjs.per_client("loss")


def test_models_of_all_seeds_are_refused(data) -> None:
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), model())
    for given in (data, fjs.datasets.on_host(data)):
        with pytest.raises(ValueError, match=r"params has 2 models on a leading axis.*leaf\[0\]"):
            fjs.evaluate(TASK, stacked, given)
        with pytest.raises(ValueError, match=r"params has 1 models on a leading axis"):
            fjs.evaluate(TASK, jax.tree.map(lambda leaf: leaf[None], model()), given.test)
    side_by_side = jax.jit(jax.vmap(lambda params: fjs.evaluate(TASK, params, data).overall["loss"]))(stacked)
    sizes = np.asarray(data.sizes)
    np.testing.assert_allclose(side_by_side, [by_hand(data, "loss") @ sizes / sizes.sum()] * 2, rtol=1e-6)


@pytest.mark.parametrize("home", ["device", "host"])
def test_values_that_are_not_of_single_examples_are_refused(data, home) -> None:
    given = data if home == "device" else fjs.datasets.on_host(data)
    mean = fjs.functions(lambda key: model(), lambda p, e: TASK.losses(p, e).mean())
    with pytest.raises(ValueError, match=r"losses_function returns float32\[\].*leave out \.mean"):
        fjs.evaluate(mean, model(), given)
    with pytest.raises(ValueError, match=r"losses_function returns float32\[\]"):
        jax.jit(lambda params: fjs.evaluate(mean, params, data).overall)(model())
    with pytest.raises(ValueError, match=r"losses\(params, examples\).*failed on params \{'w': float32\[2\]\}"):
        fjs.evaluate(TASK, {"w": jnp.zeros(2)}, given)


@pytest.mark.parametrize("home", ["device", "host"])
def test_labels_that_the_model_does_not_have_are_refused(data, home) -> None:
    few, params = fjs.classification(nn.Dense(2)), {"params": {"kernel": jnp.zeros((4, 2)), "bias": jnp.zeros(2)}}
    given = data if home == "device" else fjs.datasets.on_host(data)
    with pytest.raises(ValueError, match="has 3 classes and the model 2 outputs"):
        fjs.evaluate(few, params, given)


class Wide(nn.Module):
    """An inner program (a scan) holds the largest array: 4 MB an example."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wide = jnp.broadcast_to(x[:, :1], (x.shape[0], 1 << 20))
        total, _ = jax.lax.scan(lambda c, _: (c, jnp.sum(jnp.exp(wide), axis=1)), jnp.float32(0), None, length=2)
        return nn.Dense(2)(x) + total


def test_rows_follow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_BUDGETS", {jax.default_backend(): 5 * (4 << 20)})
    x = np.ones((50, 3), np.float32)
    narrow = fjs.datasets.from_clients([(np.ones((9000, 3), np.float32), np.zeros(9000, int))])
    wide = fjs.datasets.from_clients([(x, np.zeros(50, int))])
    task, other = fjs.classification(nn.Dense(2)), fjs.classification(Wide())
    most = passes.ROWS
    shapes = jax.eval_shape(lambda: task.init(jax.random.key(0), narrow))
    assert chunks.rows_within(task.values, shapes, narrow.examples, most=most) == most
    shapes = jax.eval_shape(lambda: other.init(jax.random.key(0), wide))
    rows = chunks.rows_within(other.values, shapes, wide.examples, most=most)
    assert rows == 5
    monkeypatch.setattr(chunks, "_BUDGETS", {})
    assert chunks.rows_within(other.values, shapes, wide.examples, most=most) == chunks._BUDGET // (4 << 20)
    huge = fjs.datasets.from_clients([(np.zeros((2, 1), np.float32), [0, 1])])
    assert chunks.rows_within(lambda p, e: jnp.broadcast_to(e["x"], (*e["x"].shape[:1], 1 << 30)), {}, huge.examples,
                              most=8) == 1  # fmt: skip


@pytest.mark.slow
def test_many_models_side_by_side() -> None:
    """jaxlib 0.10.2 took rows of other models in sums of more than 32,768 results (jax issue 39103)."""
    rng = np.random.default_rng(0)
    data = fjs.datasets.from_clients([(rng.normal(size=(200, 60)).astype("f"), rng.integers(0, 10, 200))] * 30)
    task = fjs.classification(fjs.models.LogisticRegression(10))
    dense = {"kernel": rng.normal(size=(12, 60, 10)).astype("f"), "bias": rng.normal(size=(12, 10)).astype("f")}
    models = {"params": {"Dense_0": dense}}
    assert 12 * data.num_examples > 2 * 32_768

    def loss(params: Any) -> jax.Array:
        return fjs.evaluate(task, params, data).overall["loss"]

    alone = jax.jit(lambda models: jax.lax.map(loss, models))(models)
    np.testing.assert_allclose(jax.jit(jax.vmap(loss))(models), alone, rtol=1e-5)


# A loss with its penalty and without: w = 2 and w = 1.3, losses (w x - y)^2, penalty w^2 / 4; all by hand.

SQUARES = fjs.functions(
    lambda key: jnp.asarray(2.0), lambda w, e: (w * e["x"] - e["y"]) ** 2, penalty_function=lambda w: w**2 / 4
)
# By name, at w = 2 and after a step of 0.1 down the gradient 18/3 + 1, at w = 1.3.
BY_HAND = {
    "loss": [14 / 3 + 1, 4.34 / 3 + 0.4225],
    "data_loss": [14 / 3, 4.34 / 3],
    "test_loss": [6 + 1, 4.7 / 3 + 0.4225],
    "test_data_loss": [6, 4.7 / 3],
    "client_data_loss": [[6.5, 1], [2.125, 0.09]],
    "client_loss": [[7.5, 2], [2.5475, 0.5125]],
    "test_client_data_loss": [[1, 8.5], [0.09, 2.305]],
    "test_client_loss": [[2, 9.5], [0.5125, 2.7275]],
    "data_loss_worst": [6.5, 2.125],
    "loss_worst": [7.5, 2.5475],
    "test_data_loss_worst": [8.5, 2.305],
    "test_loss_worst": [9.5, 2.7275],
}


def lines():
    def part(x, y):
        return {"x": np.array(x, float), "y": np.array(y, float)}

    test = [part([1], [1]), part([3, 0], [2, 1])]
    return fjs.datasets.from_clients([part([1, 2], [0, 1]), part([1], [1])], test=test)


def line_run(task=SQUARES, **changes):
    return {
        "task": task, "rounds": 1, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(),
        "work": fjs.local.steps(1), "evaluate": fjs.per_client(task, worst=0.5), **changes,
    }  # fmt: skip


STEP = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))


def line_test(home, request):
    """The data in double precision; that of the host is sent by a thread, which the fixture does not reach."""
    if home == "host":
        return fjs.datasets.on_host(lines()), 1e-6
    request.getfixturevalue("x64")
    return lines(), 1e-14


@pytest.mark.slow
@pytest.mark.parametrize(
    "home", ["host", *(pytest.param(home, marks=pytest.mark.slow) for home in ("device", "sweep"))]
)
def test_the_loss_without_the_penalty_is_recorded_beside_the_objective(home, request) -> None:
    data, tolerance = line_test(home, request)
    if home == "sweep":
        space = fjs.sweeps.points([{"client_optimizer.learning_rate": 0.1}])
        history = fjs.sweep(STEP, data, space, **line_run()).at(0)
    else:
        history = fjs.simulate(STEP, data, **line_run())
    assert set(history.metrics) == set(BY_HAND)
    for name, values in BY_HAND.items():
        np.testing.assert_allclose(history[name][0], values, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("home", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_evaluate_tells_the_penalty_from_the_loss(home, request) -> None:
    data, _ = line_test(home, request)

    def evaluated():
        return fjs.evaluate(SQUARES, jnp.asarray(2.0), data.test, worst=0.5)

    found = jax.jit(evaluated)() if home == "device" else evaluated()
    assert {name: float(value) for name, value in found.overall.items()} == {"loss": 7, "data_loss": 6}
    assert {name: float(value) for name, value in found.worst.items()} == {"loss": 9.5, "data_loss": 8.5}
    assert {name: value.tolist() for name, value in found.clients.items()} == {"loss": [2, 9.5], "data_loss": [1, 8.5]}


FAST = (("same", "device"), ("other", "device"), ("numbers", "host"))


class Scaled(fjs.Task):
    """Losses scale (w x - y)^2, with a number that a run traces."""

    scale: Any = real(default=1.0)

    def init(self, key, dataset):
        return jnp.float32(2.0)

    def losses(self, params, examples, key=None):
        return self.scale * (params * examples["x"] - examples["y"]) ** 2


@pytest.mark.parametrize(
    ("kind", "home"),
    [
        pytest.param(*case, id="-".join(case), marks=() if case in FAST else pytest.mark.slow)
        for case in itertools.product(("same", "other", "numbers"), ("device", "host"))
    ],
)
def test_clients_values_of_the_run_s_own_task_are_read_with_its_own(monkeypatch, kind, home) -> None:
    """Every part once; those of another task, or where traced numbers may differ, as they are asked for."""
    asked = []

    def noted(read):
        def reading(*args, clients):
            asked.append(clients)
            return read(*args, clients=clients)

        return reading

    for module, name in itertools.product((evaluation, predictions), ("passed", "streamed")):
        monkeypatch.setattr(module, name, noted(getattr(passes, name)))
    task, other = {
        "same": (SQUARES, SQUARES),
        "other": (SQUARES, fjs.functions(SQUARES.init_function, lambda w, e: 3 * SQUARES.losses_function(w, e))),
        "numbers": (Scaled(1.0), Scaled(3.0)),
    }[kind]
    run = line_run(task, evaluate=fjs.per_client(other, worst=0.5))
    if home == "device":
        found = jax.jit(fjs.make_train(**run))(STEP, lines(), jax.random.key(0)).metrics
    else:
        history = fjs.simulate(STEP, fjs.datasets.on_host(lines()), **run)
        found = {name: values[0] for name, values in history.metrics.items()}
    assert set(asked) == ({True} if kind == "same" else {False, True})
    penalty, scale = (1, 1) if kind == "same" else (0, 3)
    np.testing.assert_allclose(found["client_loss"][0], [scale * 6.5 + penalty, scale + penalty], rtol=1e-6)
    np.testing.assert_allclose(found["test_loss_worst"][0], scale * 8.5 + penalty, rtol=1e-6)
    np.testing.assert_allclose(found["loss"][0], 14 / 3 + (kind != "numbers"), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_study_minimises_the_objective_unless_it_is_told_otherwise() -> None:
    result = jax.jit(fjs.make_train(**line_run()))(STEP, lines(), jax.random.key(0))
    for name, values in BY_HAND.items():
        np.testing.assert_allclose(result.metrics[name], values, rtol=1e-14, err_msg=name)
    for objective, name in ((fjs.hyper.final(), "test_loss"), (fjs.hyper.final("test_data_loss"), "test_data_loss")):
        assert float(objective(result)) == float(result.metrics[name][-1])


@pytest.mark.slow
def test_without_a_penalty_nothing_is_recorded_twice_and_the_name_is_known() -> None:
    task = fjs.functions(SQUARES.init_function, SQUARES.losses_function)
    stop = fjs.stopping.reached("test_data_loss", 2.5)
    history = fjs.simulate(STEP, lines(), **line_run(task, stop=stop, rounds=2))
    assert not [name for name in history.metrics if "data_loss" in name]
    for name in ("loss", "test_loss", "test_client_loss", "loss_worst"):
        assert history[name.replace("loss", "data_loss")] is history[name]
    assert history.rounds_to("test_data_loss", 2.5).tolist() == [1]
    assert history.stops[0] == (1, "test_data_loss reached 2.5")
    found = {name: values[0] for name, values in history.metrics.items()}
    result = TrainResult(None, None, found, {})
    assert fjs.hyper.final("test_data_loss")(result) == history["test_loss"][0, -1]
    with pytest.raises(KeyError, match="nothing called 'data_lost' was recorded"):
        history["data_lost"]


@pytest.mark.slow
@pytest.mark.parametrize("home", [pytest.param("device", marks=pytest.mark.slow), "host"])
def test_means_are_not_summed_in_the_type_of_the_values(home) -> None:
    """4,800 examples of which half are 1: a sum in half precision stops at 256 or 2,048, one of int8 at 127."""
    kinds = ("bfloat16", "float16", "bool", "int8")
    data = fjs.datasets.from_clients([{"x": np.arange(4800) % 2}])
    task = fjs.functions(
        lambda key: jnp.float32(1.0),
        lambda w, e: e["x"].astype("bfloat16"),
        lambda w, e: {kind: e["x"].astype(kind) for kind in kinds},
    )

    def evaluated(data):
        return fjs.evaluate(task, np.float32(1.0), data)

    if home == "host":
        found, means = evaluated(fjs.datasets.on_host(data)), {}
    else:
        found = jax.jit(lambda: evaluated(data))()
        means = passes.mean_values(task, np.float32(1.0), data)
    for values in (found.overall, found.clients, found.worst, *([means] if means else [])):
        assert {name: float(value.sum()) for name, value in values.items()} == dict.fromkeys(("loss", *kinds), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home", "rows"), [("device", None), ("device", 40), pytest.param("host", None, marks=pytest.mark.slow)]
)
def test_means_of_large_clients_keep_their_digits(monkeypatch, home, rows) -> None:
    """Added one after another, 100,000 losses of log 10 had the mean 2.3005; neighbours and what is not finite stay."""
    monkeypatch.setattr(passes, "ROWS", rows or passes.ROWS)
    data = fjs.datasets.from_clients([np.full(n, n == 90, np.uint8) for n in (37, 100_000, 3, 90, 200)])
    data = data if home == "device" else fjs.datasets.on_host(data)
    task = fjs.functions(
        lambda key: jnp.float32(np.log(10)), lambda w, x: jnp.where(x == 1, jnp.nan, jnp.broadcast_to(w, x.shape))
    )
    found = fjs.evaluate(task, np.float32(np.log(10)), data).clients["loss"]
    np.testing.assert_allclose(found, np.where(np.arange(5) == 3, np.nan, np.log(10)), rtol=3e-5)


def test_the_worst_of_what_should_be_large_is_the_lowest() -> None:
    def named(*names):
        metrics = lambda w, e: dict.fromkeys(names, e["x"])
        return fjs.functions(lambda key: np.float32(1.0), lambda w, e: w * e["x"], metrics)

    data = fjs.datasets.from_clients([{"x": np.array([size], np.float32)} for size in (0.25, 0.5, 0.75)])
    task = named("top5_accuracy", "f1", "mse", "perplexity")
    found = jax.jit(lambda: fjs.evaluate(task, jnp.float32(1.0), data, worst=0.3))()
    worst = {name: float(value) for name, value in found.worst.items()}
    assert worst == {"loss": 0.75, "top5_accuracy": 0.25, "f1": 0.25, "mse": 0.75, "perplexity": 0.75}
