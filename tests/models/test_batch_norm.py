"""Models with running statistics: what a step does to them, padding, gradients, evaluation, what is refused."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import FedAvg
from fedjax_sim.algorithms.partial import merged, split
from fedjax_sim.models.task import Batch
from fedjax_sim.optim import third_party
from fedjax_sim.studies.personalise import personalise

KEY = jax.random.key(3)
pytestmark = pytest.mark.xdist_group("batch norm")


class Normed(nn.Module):
    """Two batch normalisations, of rows of an image and of vectors; variances without cancellation."""

    dtype: type = jnp.float64

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        options = {"momentum": 0.75, "param_dtype": self.dtype, "use_fast_variance": False}
        x = jnp.tanh(nn.BatchNorm(use_running_average=not train, **options)(x)).reshape(len(x), -1)
        x = nn.BatchNorm(use_running_average=not train, **options)(nn.Dense(4, param_dtype=self.dtype)(x))
        return nn.Dense(3, param_dtype=self.dtype)(x)


class Single(nn.Module):
    """The same with one."""

    dtype: type = jnp.float64

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        options = {"momentum": 0.75, "param_dtype": self.dtype, "use_fast_variance": False}
        x = jnp.tanh(nn.BatchNorm(use_running_average=not train, **options)(x)).reshape(len(x), -1)
        return nn.Dense(3, param_dtype=self.dtype)(x)


class Frozen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(x.reshape(len(x), -1)))


class TimeFirst(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        y = nn.BatchNorm(use_running_average=not train)(jnp.swapaxes(x, 0, 1))
        return nn.Dense(3)(y[-1])


class Counting(nn.Module):
    """A layer's statistics that are nobody's BatchNorm."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = x.reshape(len(x), -1)
        mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[1:])
        if train:
            mean.value = 0.9 * mean.value + 0.1 * x.mean(axis=0)
        return nn.Dense(3)(x - mean.value)


class AlwaysMoving(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x.reshape(len(x), -1)))


class Remembering(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self.variable("cache", "seen", jnp.zeros, ())
        return nn.Dense(3)(x.reshape(len(x), -1))


@functools.cache
def federated(dtype=np.float64):
    rng = np.random.default_rng(0)
    clients = [(2 + rng.normal(size=(n, 4, 4)).astype(dtype), rng.integers(0, 3, n)) for n in (5, 8, 5)]
    return fjs.datasets.from_clients(clients, test_fraction=0.25)


@jax.jit
def start(task, data):
    return task.init(jax.random.key(0), data)


def batch_of(data, first, padding):
    """Four examples and some rows that are none of them, at the end or at the beginning."""
    rows, weights = np.arange(first, first + 4 + padding), np.ones(4 + padding)
    weights[slice(4, None) if first == 0 else slice(padding)] = 0
    examples = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], data.examples)
    return Batch(examples, weights.astype(examples["x"].dtype), np.int32(4))


@jax.jit
def step(task, params, batch):
    """A step of gradient descent, as one who trains such a model writes it."""

    def objective(params):
        losses, statistics = task.losses_and_statistics(params, batch.examples, KEY, batch.weights)
        return task.batch_mean(params, losses, batch), statistics

    (loss, statistics), gradient = jax.value_and_grad(objective, has_aux=True)(params)
    return loss, task.with_statistics(jax.tree.map(lambda x, g: x - 0.1 * g, params, gradient), statistics)


def test_steps_are_those_of_a_loop_by_hand(x64) -> None:
    data, task = federated(), fjs.classification(Normed(), weight_decay=0.01)
    params = start(task, data)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float64")}
    weights, statistics = params["params"], params["batch_stats"]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def by_hand(weights, statistics, x, y):
        with third_party():
            logits, new = Normed().apply(
                {"params": weights, "batch_stats": statistics}, x, train=True, mutable=["batch_stats"]
            )
        loss = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))
        return loss + 0.01 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights)), new["batch_stats"]

    for first, padding in ((0, 3), (3, 3), (5, 3)):
        batch = batch_of(data, first, padding)
        real = np.asarray(batch.weights) > 0
        x, y = (np.asarray(batch.examples[name])[real] for name in "xy")
        (loss, statistics), gradient = by_hand(weights, statistics, x, y)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
        ours, params = step(task, params, batch)
        np.testing.assert_allclose(ours, loss, rtol=1e-12)
        for mine, theirs in zip(
            jax.tree.leaves(params), jax.tree.leaves({"params": weights, "batch_stats": statistics}), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    # Evaluation is by the running averages, and takes the examples in any company.
    with third_party():
        logits = jax.jit(Normed().apply)({"params": weights, "batch_stats": statistics}, data.test.examples["x"])
    labels = np.asarray(data.test.examples["y"])
    hits = np.asarray(logits).argmax(1) == labels
    owners = np.repeat(np.arange(3), np.asarray(data.test.sizes))
    each = [hits[owners == client].mean() for client in range(3)]
    found = jax.jit(fjs.per_client(task))(params, data)
    np.testing.assert_allclose(found["test_client_accuracy"], each, rtol=1e-12)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    losses = -np.log(probabilities[np.arange(len(labels)), labels])
    means = [losses[owners == client].mean() for client in range(3)]
    np.testing.assert_allclose(found["test_client_data_loss"], means, rtol=1e-9)


def test_padding_counts_nowhere(x64) -> None:
    data, task = federated(), fjs.classification(Normed())
    params = start(task, data)
    batch = batch_of(data, 0, 3)
    padding = np.arange(7).reshape(-1, 1, 1) >= 4
    other = batch._replace(examples={**batch.examples, "x": batch.examples["x"] * np.where(padding, -7.0, 1.0)})
    counted = jax.tree.map(lambda leaf: leaf[:4], batch.examples)

    @jax.jit
    def seen(params, examples, weights):
        of = (params, examples, KEY, weights)
        return task.losses_and_statistics(*of), task.outputs(*of), task.features(*of)

    (losses, statistics), outputs, features = seen(params, batch.examples, batch.weights)
    (again, moved), *described = seen(params, other.examples, other.weights)
    alone, _, _ = jax.jit(lambda params: seen(params, counted, None))(params)
    np.testing.assert_array_equal(losses[:4], again[:4])
    np.testing.assert_allclose(losses[:4], alone[0], rtol=1e-12)
    np.testing.assert_allclose(outputs[:4], described[0][:4], rtol=1e-12)
    np.testing.assert_allclose(features[:4], described[1][:4], rtol=1e-12)
    for mine, theirs, bare in zip(*map(jax.tree.leaves, (statistics, moved, alone[1])), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_allclose(mine, bare, rtol=1e-12)
    # A batch of padding alone, of a slot without a client: nothing moves and nothing is NaN.
    nothing = batch._replace(weights=np.zeros(7))
    (_, kept), _, _ = seen(params, nothing.examples, nothing.weights)
    jax.tree.map(np.testing.assert_array_equal, kept, params["batch_stats"])
    gradient = jax.jit(jax.grad(task.batch_loss))(params, nothing, KEY)
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("model", "key"), [(Normed(), KEY), (Normed(), None), (Frozen(), KEY)], ids=["training", "evaluation", "frozen"]
)
def test_no_gradient_and_no_penalty_in_statistics(model, key, x64) -> None:
    data, task = federated(), fjs.classification(model, weight_decay=0.5)
    params = start(task, data)
    gradient = jax.jit(jax.grad(task.batch_loss))(params, batch_of(data, 0, 0), key)
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(gradient["batch_stats"]))
    assert all(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(gradient["params"]))
    if model == Frozen():
        new = jax.jit(task.updated_statistics)(params, batch_of(data, 0, 0).examples, key, np.ones(4))
        jax.tree.map(np.testing.assert_array_equal, new, params["batch_stats"])


def test_derivatives_of_whole_runs_go_through_statistics(x64) -> None:
    data, task = federated(), fjs.classification(Normed())
    params = start(task, data)
    batch, statistics = batch_of(data, 0, 2), params["batch_stats"]

    def moved(statistics):
        with_them = task.with_statistics(params, statistics)
        return task.updated_statistics(with_them, batch.examples, KEY, batch.weights)

    change = jax.tree.map(np.ones_like, statistics)
    tangent = jax.jit(lambda *given: jax.jvp(moved, given[:1], given[1:])[1])(statistics, change)
    for leaf in jax.tree.leaves(tangent):
        np.testing.assert_allclose(leaf, 0.75, rtol=1e-12)
    by_average = jax.jit(jax.grad(lambda params: task.values(params, batch.examples)["loss"].sum()))(params)
    assert all(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(by_average["batch_stats"]))


def test_models_without_statistics_have_none() -> None:
    data, task = federated(np.float32), fjs.classification(fjs.models.LogisticRegression(3))
    params = start(task, data)
    assert task.statistics(params) is None
    assert task.updated_statistics(params, data.examples, KEY) is None
    assert task.with_statistics(params, ()) is params
    losses, none = task.losses_and_statistics(params, data.examples, KEY)
    np.testing.assert_allclose(losses, np.log(3), rtol=1e-6)
    assert none is None


def test_a_model_behind_bytes_is_told_that_it_trains() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4)).astype(np.uint8)
    data = fjs.datasets.from_clients([(pixels, [0, 1, 2, 0, 1, 2])])
    task = fjs.classification(fjs.models.FromBytes(Normed(jnp.float32)))
    params = start(task, data)
    new = jax.jit(task.updated_statistics)(params, data.examples, KEY)
    inner = fjs.classification(Normed(jnp.float32))
    own = {name: part["model"] for name, part in params.items()}
    scaled = {"x": pixels.astype(np.float32) / 255, "y": data.examples["y"]}
    bare = jax.jit(inner.updated_statistics)(own, scaled, KEY)
    jax.tree.map(
        lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7), new["model"], bare
    )
    assert np.abs(np.asarray(jax.tree.leaves(new)[0])).max() > 0


class Smoothed(fjs.task.Classification):
    def losses(self, params, examples, key=None):
        return 0.9 * super().losses(params, examples, key)


class SmoothedOf(fjs.task.Classification):
    def losses_of(self, outputs, examples):
        return 0.9 * super().losses_of(outputs, examples)


def test_a_task_of_ones_own_says_its_loss_of_outputs() -> None:
    data = federated(np.float32)
    plain = fjs.classification(Single(jnp.float32))
    params = start(plain, data)
    losses, expected = (
        jax.jit(task.losses_and_statistics)(params, data.examples, KEY)[0]
        for task in (SmoothedOf(Single(jnp.float32)), plain)
    )
    np.testing.assert_allclose(losses, 0.9 * expected, rtol=1e-6)
    with pytest.raises(TypeError, match=r"Smoothed defines losses.*define losses_of\(outputs, examples\)"):
        Smoothed(Single(jnp.float32)).batch_loss(params, batch_of(data, 0, 1), KEY)


RUN = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batch_size": 4}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TimeFirst(), r"BatchNorm BatchNorm_0 receives \[4, 5, 4\] of a batch of 5 examples: its first axis must"),
        (Counting(), "Counting keeps running statistics at mean, which are not those of a flax.linen.BatchNorm"),
        (AlwaysMoving(), r"AlwaysMoving moves its running statistics in evaluation too: give its __call__.*not train"),
        (Remembering(), r"besides its parameters and a BatchNorm's running statistics \(cache\)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_trained_is_said_before_compiling(model, message) -> None:
    data, sgd = federated(np.float32), fjs.optim.sgd(0.1)
    task = fjs.classification(model)
    with pytest.raises(ValueError, match=message):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd), data, task=task, rounds=1, **RUN)


def of_client(data, client):
    begin, size = (int(np.asarray(of)[client]) for of in (data.offsets, data.sizes))
    return {name: np.asarray(leaf)[begin : begin + size] for name, leaf in data.examples.items()}


@jax.jit
def step_by_flax(model, x, y):
    def objective(weights):
        with third_party():
            logits, new = Single().apply({**model, "params": weights}, x, train=True, mutable=["batch_stats"])
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
        return -jnp.mean(picked) + 0.01 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights)), new

    gradient, new = jax.grad(objective, has_aux=True)(model["params"])
    return {"params": jax.tree.map(lambda w, g: w - 0.1 * g, model["params"], gradient), **new}


def by_hand(data, kept=(), rounds=2):
    """Rounds of two steps on all of a client's examples by flax alone: ``(x, [the clients' own models])``."""
    x = jax.tree.map(np.asarray, start(fjs.classification(Single()), data))
    own = [x] * 3
    for _ in range(rounds):
        ends = []
        for client in range(3):
            model = merged(split(x, kept, "")[0], split(own[client], kept, "")[1])
            for _ in range(2):
                model = step_by_flax(model, **of_client(data, client))
            own[client] = model = jax.tree.map(np.asarray, model)
            share = int(data.sizes[client]) / data.num_examples
            ends.append(jax.tree.map(lambda leaf, share=share: leaf * share, model))
        mean = jax.tree.map(lambda *leaves: sum(leaves), *ends)
        x = merged(split(mean, kept, "")[0], split(x, kept, "")[1])
    return x, [merged(split(x, kept, "")[0], split(model, kept, "")[1]) for model in own]


def close(mine, theirs):
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), mine, theirs)


def trained(method, data, batches=None, layout=None, task=None, rounds=2, steps=2):
    task = task or fjs.classification(Single(), weight_decay=0.01)
    train = fjs.make_train(
        task=task, rounds=rounds, cohort=fjs.cohort.full(average="sample" if batches is None else None),
        work=fjs.local.steps(steps), batches=batches or fjs.local.full_batch(), layout=layout,
    )  # fmt: skip
    return jax.jit(train)(method, data, jax.random.key(0), initial_params=start(task, data))


SGD = fjs.optim.sgd(0.1)
FEDAVG = fjs.fedavg(client_optimizer=SGD)


@pytest.mark.slow
def test_averaging_averages_statistics(x64) -> None:
    data = federated()
    found = trained(FEDAVG, data)
    close(found.params, by_hand(data)[0])


@pytest.mark.slow
def test_fedbn(x64) -> None:
    data, method = federated(), fjs.keep(FEDAVG, "BatchNorm_*")
    found = trained(method, data)
    x, own = by_hand(data, ("BatchNorm_*",))
    close(found.params, x)
    for client in range(3):
        c_i = jax.tree.map(lambda leaf, client=client: leaf[client], found.state.clients)
        close(method.personal(found.state.server, c_i), own[client])
    first = start(fjs.classification(Single()), data)
    jax.tree.map(np.testing.assert_array_equal, found.params["batch_stats"], first["batch_stats"])


@pytest.mark.slow
def test_no_optimiser_moves_statistics(x64) -> None:
    data = federated()
    adamw = fjs.optim.from_optax("adamw", learning_rate=0.1, weight_decay=0.5)
    found = trained(FEDAVG.replace(client_optimizer=adamw), data, rounds=1, steps=1)
    task = fjs.classification(Single())
    x, shares = start(task, data), np.asarray(data.sizes) / data.num_examples
    moved = [jax.jit(task.updated_statistics)(x, of_client(data, client), KEY) for client in range(3)]
    expected = jax.tree.map(lambda *leaves: np.tensordot(shares, np.stack(leaves), 1), *moved)
    close(found.params["batch_stats"], expected)


@pytest.mark.slow
def test_every_model_that_is_trained_has_statistics_of_its_own(x64) -> None:
    data, method = federated(), fjs.ditto(client_optimizer=fjs.optim.sgd(0.1), lam=0.0)
    found = trained(method, data)
    close(found.params, by_hand(data)[0])
    for client, end in enumerate(by_hand(data, ("*",))[1]):  # alone
        close(jax.tree.map(lambda leaf, client=client: leaf[client], found.state.clients), end)


def test_a_mixture_moves_the_statistics_of_the_model_that_it_is_trained_for(x64) -> None:
    data, task = federated(), fjs.classification(Single())
    found = trained(fjs.apfl(client_optimizer=fjs.optim.sgd(0.1)), data, rounds=1, steps=1)
    own = jax.tree.map(lambda leaf: leaf[0], found.state.clients.own["batch_stats"])
    close(own, jax.jit(task.updated_statistics)(start(task, data), of_client(data, 0), KEY))


@pytest.mark.parametrize("around", [pytest.param(fjs.keep, marks=pytest.mark.slow), fjs.freeze])
def test_a_mixture_of_parts_moves_them_too(around, x64) -> None:
    data, task = federated(), fjs.classification(Single())
    method = around(fjs.apfl(client_optimizer=fjs.optim.sgd(0.1)), "Dense_0")
    found = trained(method, data, rounds=1, steps=1)
    state = found.state.clients
    of_apfl = state.base if hasattr(state, "base") else state
    own = jax.tree.map(lambda leaf: leaf[0], of_apfl.own["batch_stats"])
    close(own, jax.jit(task.updated_statistics)(start(task, data), of_client(data, 0), KEY))


class Ahead(FedAvg):
    def objective(self, F, y, k, sent, c_i, client):
        return F(jax.tree.map(lambda leaf: 1.1 * leaf, y))


@pytest.mark.slow
def test_models_that_are_never_trained_move_no_statistics() -> None:
    data = federated(np.float32)
    task = fjs.classification(Single(jnp.float32))
    with pytest.raises(ValueError, match=r"asks of no model that it trains itself, F\(y\).*GroupNorm"):
        trained(Ahead(client_optimizer=fjs.optim.sgd(0.1)), data, task=task)


@pytest.mark.slow
def test_padding_counts_in_no_layout(x64) -> None:
    data = federated()
    method = fjs.keep(fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), "batch_stats")
    expected = trained(method, data, batches=fjs.local.shuffled(4), layout=fjs.layout.turns())
    for layout in (fjs.layout.stacked(), fjs.layout.lanes(2)):
        found = trained(method, data, batches=fjs.local.shuffled(4), layout=layout)
        close((found.params, found.state), (expected.params, expected.state))


@pytest.mark.slow
def test_clients_fine_tune_statistics_too(x64) -> None:
    data, task = federated(), fjs.classification(Single(), weight_decay=0.01)
    found = jax.jit(personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(2)))(start(task, data), data)
    for client, model in enumerate(by_hand(data, ("*",), rounds=1)[1]):
        loss = np.mean(jax.jit(task.values)(model, of_client(data.test, client))["loss"])
        np.testing.assert_allclose(found["personal_client_data_loss"][client], loss, rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (fjs.scaffold(client_optimizer=SGD), {}, "Scaffold does not just average"),
        (fjs.fednova(client_optimizer=SGD), {}, "FedNova does not just average"),
        (fjs.fedavgm(client_optimizer=SGD), {}, "the server optimiser of FedAvgM does not"),
        (fjs.large_batch_sgd(client_optimizer=SGD), {}, "LargeBatchSgd does not"),
        (fjs.mime(client_optimizer=SGD), {}, "Mime does not.* below zero: use flax.linen.GroupNorm"),
        (fjs.dp(FEDAVG), {}, r"Dp does not just average.*keep\(method, 'batch_stats'\)"),
        (FEDAVG.replace(server_learning_rate=1.5), {}, r"server_learning_rate=1.5 does not"),
        (FEDAVG.replace(server_learning_rate={"scale": 0.5, "bias": 1.5}), {}, r"server_learning_rate=\{.*\} does not"),
        (FEDAVG, {"cohort": fjs.cohort.uniform(2, average="scheme_ii")}, "average='scheme_ii' does not"),
        (fjs.keep(FEDAVG, "batch_stats"), {"batches": fjs.local.full_batch(4)}, "a full gradient taken in pieces"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, fjs.algorithms.Method) else "",
)
def test_what_would_do_more_than_average_statistics_is_refused(method, changes, message) -> None:
    data = federated(np.float32)
    run = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch(), **changes}
    train = fjs.make_train(task=fjs.classification(Single(jnp.float32)), rounds=1, **run)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda key: train(method, data, key), jax.random.key(0))


ADAM = fjs.fedadam(client_optimizer=SGD)


@pytest.mark.parametrize(
    "method",
    [
        fjs.dp(fjs.keep(ADAM, "batch_stats")),
        pytest.param(fjs.ema(fjs.freeze(ADAM, ("batch_stats", "Dense_0"))), marks=pytest.mark.slow),
    ],
    ids=["kept", "frozen"],
)
def test_what_keeps_its_statistics_may_do_anything(method) -> None:
    train = fjs.make_train(
        task=fjs.classification(Single(jnp.float32)), rounds=1, cohort=fjs.cohort.full(average="plain"),
        work=fjs.local.steps(1), batches=fjs.local.in_order(4),
    )  # fmt: skip
    jax.eval_shape(train, method, federated(np.float32), jax.random.key(0))
