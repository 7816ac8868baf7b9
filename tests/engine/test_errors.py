"""Bad input gives an error that names the value, the rule and the fix, before any program of the run exists."""

import functools
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import Algorithm, FedAvg, FedProx, Requires
from fedjax_sim.engine import rounds
from fedjax_sim.engine.checks import unmet
from fedjax_sim.models.evaluation import all_metrics
from fedjax_sim.run import resident

NAN = float("nan")
BIG = 2**40
sgd = fjs.optim.sgd

COMPILED: list[str] = []


def _note(event: str, _: float, **__: Any) -> None:
    if "backend_compile" in event:
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_note)  # never taken back: it costs nothing


def clients(**kwargs: Any) -> fjs.FederatedDataset:
    return fjs.datasets.from_clients([(np.ones((n, 3)), np.arange(n) % 3) for n in (4, 2, 5)], **kwargs)


@functools.cache
def data() -> fjs.FederatedDataset:
    return clients()


@functools.cache
def common() -> dict[str, Any]:
    return {
        "algorithm": fjs.fedavg(client_optimizer=sgd(0.1)),
        "dataset": data(),
        "task": fjs.classification(fjs.models.LogisticRegression(3)),
        "rounds": 2,
        "cohort": fjs.cohort.uniform(2),
        "work": fjs.local.steps(1),
        "batch_size": 2,
    }


def through_simulate(**changes: Any) -> None:
    given = {**common(), **changes}
    fjs.simulate(given.pop("algorithm"), given.pop("dataset"), **given)


def through_train(**changes: Any) -> None:
    given = {**common(), **changes}
    run = given.pop("algorithm"), given.pop("dataset"), given.pop("key", jax.random.key(0))
    initial_params = given.pop("initial_params", None)
    fjs.make_train(**given)(*run, initial_params=initial_params)


def through_jit(**changes: Any) -> None:
    given = {**common(), **changes}
    algorithm, dataset = given.pop("algorithm"), given.pop("dataset")
    initial_params = given.pop("initial_params", None)
    train = fjs.make_train(**given)
    jax.jit(lambda key: train(algorithm, dataset, key, initial_params=initial_params))(jax.random.key(0))


mostly_simulate = pytest.mark.parametrize(
    "drive",
    [through_simulate, *(pytest.param(drive, marks=pytest.mark.slow) for drive in (through_train, through_jit))],
)


@pytest.fixture
def no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where a run gets as far as its first state, which every program of a run begins with."""

    def reached(*_: Any) -> None:
        pytest.fail("the run's program was begun")

    monkeypatch.setattr(rounds, "_first_client", reached)  # a method's hooks are called on shapes before any program
    monkeypatch.setattr(resident, "initial_states", reached)  # it may be compiled already


def check(call: Callable[[], object], error: type[Exception], *fragments: str) -> None:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, f"{fragment!r} is not in {message!r}"


@pytest.mark.slow
def test_the_common_setting_is_right() -> None:
    """Else the tests below would pass for a wrong reason."""
    through_simulate()


@pytest.mark.usefixtures("no_program")
def test_the_fixture_sees_a_program() -> None:
    with pytest.raises(pytest.fail.Exception):
        through_simulate(rounds=3)
    with pytest.raises(pytest.fail.Exception):
        through_train()


class Sampled(FedAvg):
    @property
    def requires(self) -> Requires:
        return Requires(averages=frozenset({"sample"}))


class BatchNormed(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(x))


def fedavg(**kwargs: Any) -> Algorithm:
    return fjs.fedavg(client_optimizer=kwargs.pop("client_optimizer", sgd(0.1)), **kwargs)


def squares(params: Any, examples: Any) -> jax.Array:
    return jnp.square(examples["x"] @ params["w"] - 1.0)


def own(losses: Any = squares, **functions: Any) -> fjs.Task:
    """A linear model of one output; what is given replaces a function that is right."""
    init = functions.pop("init", lambda key: {"w": jnp.zeros((3,))})
    named = {f"{name}_function": function for name, function in functions.items()}
    return fjs.functions(init, losses, **named)


def of_a_matrix(losses: Any) -> fjs.Task:
    return own(losses, init=lambda key: {"w": jnp.zeros((3, 1))})


class Halves(fjs.Task):
    """A task by its own class whose metric is a mean already."""

    def init(self, key: jax.Array, dataset: fjs.FederatedDataset) -> Any:
        return {"w": jnp.zeros((3,))}

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return squares(params, examples) / 2

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        return {"half": jnp.mean(self.losses(params, examples))}


# A task whose values are not one number an example: a run would train another model without a word.
TASKS: dict[str, tuple[Callable[[], fjs.Task], type[Exception], tuple[str, ...]]] = {
    "losses: a mean": (
        lambda: own(lambda p, e: squares(p, e).mean()),
        ValueError,
        ("losses_function returns float32[] for 5 examples", "one loss for each, float32[5]", "leave out .mean()"),
    ),
    "losses: a sum": (lambda: own(lambda p, e: squares(p, e).sum()), ValueError, ("float32[]", "or .sum()")),
    "losses: broadcast": (
        lambda: of_a_matrix(lambda p, e: (e["x"] @ p["w"] - e["y"].astype(jnp.float32)[None, :]) ** 2),
        ValueError,
        ("float32[5, 5] for 5 examples", "[5, 1] was broadcast against one of [5]", "output[:, 0]"),
    ),
    "losses: a column": (lambda: of_a_matrix(squares), ValueError, ("float32[5, 1]", "drop its last axis, [:, 0]")),
    "losses: one of them": (
        lambda: own(lambda p, e: squares(p, e)[:1]),
        ValueError,
        ("float32[1] for 5 examples", "keep the first axis"),
    ),
    "losses: one for each output": (
        lambda: own(squares, init=lambda key: {"w": jnp.zeros((3, 4))}),
        ValueError,
        ("float32[5, 4]", ".mean(axis=1)"),
    ),
    "losses: one for each output and place": (
        lambda: own(lambda p, e: squares(p, e)[:, None, None] + jnp.zeros((1, 2, 7))),
        ValueError,
        ("float32[5, 2, 7]", ".mean(axis=(1, 2))"),
    ),
    "losses: with something else": (
        lambda: own(lambda p, e: (squares(p, e), p)),
        TypeError,
        ("(float32[5], {'w': float32[3]})", "one loss for each"),
    ),
    "losses: None": (lambda: own(lambda p, e: None), TypeError, ("losses_function returns None", "an array [5]")),
    "losses: integers": (lambda: own(lambda p, e: e["y"]), TypeError, ("int32[5]", "real", ".astype('float32')")),
    "losses: examples are no tuple": (
        lambda: own(lambda p, e: squares(p, {"x": e[0]})),
        ValueError,
        ("losses_function(params, examples)", "{'w': float32[3]}", "'x': float32[5, 3], 'y': int32[5]", "KeyError: 0"),
    ),
    "metrics: a mean": (
        lambda: own(metrics=lambda p, e: {"mse": squares(p, e).mean()}),
        ValueError,
        ("metrics_function, 'mse', returns float32[]", "one number for each", "leave out .mean()"),
    ),
    "metrics of a class": (Halves, ValueError, ("Halves.metrics, 'half', returns float32[]", "leave out .mean()")),
    "metrics: no names": (
        lambda: own(metrics=squares),
        TypeError,
        ("metrics_function returns float32[5]", "by name", "{'accuracy'"),
    ),
    "metrics: None": (lambda: own(metrics=lambda p, e: None), TypeError, ("metrics_function returns None", "by name")),
    "metrics: a taken name": (
        lambda: own(metrics=lambda p, e: {"loss": squares(p, e)}),
        ValueError,
        ("metrics_function", "'loss'", "records itself", "choose another"),
    ),
    "metrics: a name no file can have": (
        lambda: own(metrics=lambda p, e: {"a\0b": squares(p, e)}),
        ValueError,
        ("metrics_function", r"'a\x00b'", "printable characters"),
    ),
    "metrics: the name of the loss without the penalty": (
        lambda: own(metrics=lambda p, e: {"data_loss": squares(p, e)}),
        ValueError,
        ("metrics_function", "'data_loss'", "records itself", "choose another"),
    ),
    "metrics: complex numbers": (
        lambda: own(metrics=lambda p, e: {"phase": squares(p, e).astype("complex64")}),
        TypeError,
        ("metrics_function, 'phase', returns complex64[5]", "use .real"),
    ),
    "metrics: a number as name": (
        lambda: own(metrics=lambda p, e: {3: squares(p, e)}),
        ValueError,
        ("metrics_function", "for 3", "names must be text"),
    ),
    "penalty: a vector": (
        lambda: own(penalty=lambda p: p["w"] ** 2),
        ValueError,
        ("penalty_function returns float32[3]", "one number", "jnp.sum(...)"),
    ),
    "penalty: a tree": (lambda: own(penalty=lambda p: p), ValueError, ("{'w': float32[3]}", "one number")),
    "parameters: integers": (
        lambda: own(init=lambda key: {"w": jnp.zeros((3,), int)}),
        TypeError,
        ("init_function", "int32[3] ['w']", "real numbers", ".astype('float32')"),
    ),
    "parameters: complex numbers": (
        lambda: own(init=lambda key: {"w": jnp.zeros((3,), "complex64")}),
        TypeError,
        ("init_function", "complex64[3] ['w']", "real numbers", "imaginary part"),
    ),
    "parameters: None": (lambda: own(init=lambda key: None), TypeError, ("init_function returns None", "arrays")),
}


# What only the run can know: each through all drivers. A value is made when its test runs.
RUNS: dict[str, tuple[dict[str, Callable[[], Any]], type[Exception], tuple[str, ...]]] = {
    "cohort too large": (
        {"cohort": lambda: fjs.cohort.uniform(4)},
        ValueError,
        ("uniform(4)", "3 clients", "at most 3", "with_replacement"),
    ),
    "batch size 0": ({"batch_size": lambda: 0}, ValueError, ("batch_size=...) is 0", "at least 1")),
    "batch size -1": ({"batch_size": lambda: -1}, ValueError, ("batch_size=...) is -1", "at least 1")),
    "batch size 2.0": ({"batch_size": lambda: 2.0}, TypeError, ("batch_size=...) is 2.0", "integer")),
    "batch size True": ({"batch_size": lambda: True}, TypeError, ("batch_size=...) is True", "integer")),
    "batch size 'all'": ({"batch_size": lambda: "all"}, TypeError, ("batch_size=...) is 'all'", "integer")),
    "batch size and batches": (
        {"batches": lambda: fjs.local.full_batch()},
        ValueError,
        ("batch_size=2", "FullBatch", "give exactly one"),
    ),
    "neither batch size nor batches": (
        {"batch_size": lambda: None},
        ValueError,
        ("batch_size=None and batches=None", "give exactly one", "batch_size=20"),
    ),
    "batches a number": (
        {"batch_size": lambda: None, "batches": lambda: 20},
        TypeError,
        ("batches is 20", "a Batches", "shuffled(20)"),
    ),
    "rounds 0": ({"rounds": lambda: 0}, ValueError, ("rounds is 0", "at least 1")),
    "rounds -3": ({"rounds": lambda: -3}, ValueError, ("rounds is -3", "at least 1")),
    "rounds 1.5": ({"rounds": lambda: 1.5}, TypeError, ("rounds is 1.5", "integer")),
    "rounds '10'": ({"rounds": lambda: "10"}, TypeError, ("rounds is '10'", "integer")),
    "eval_every 0": ({"eval_every": lambda: 0}, ValueError, ("eval_every is 0", "at least 1")),
    "eval_every 1.0": ({"eval_every": lambda: 1.0}, TypeError, ("eval_every is 1.0", "integer")),
    "task a model": (
        {"task": lambda: fjs.models.LogisticRegression(3)},
        TypeError,
        ("task is LogisticRegression", "a Task", "classification(model)"),
    ),
    "task None": ({"task": lambda: None}, TypeError, ("task is None", "a Task")),
    "cohort a number": ({"cohort": lambda: 10}, TypeError, ("cohort is 10", "a Participation", "uniform(10)")),
    "cohort a factory": (
        {"cohort": lambda: fjs.cohort.uniform},
        TypeError,
        ("cohort is <function", "call it", "uniform(10)"),
    ),
    "work a number": ({"work": lambda: 1}, TypeError, ("work is 1", "a Work", "epochs(1)")),
    "work a batch scheme": ({"work": lambda: fjs.local.shuffled(2)}, TypeError, ("work is Shuffled", "epochs(1)")),
    "layout a name": ({"layout": lambda: "turns"}, TypeError, ("layout is 'turns'", "layout.turns()", "None")),
    "layout a factory": ({"layout": lambda: fjs.layout.turns}, TypeError, ("a Layout", "layout.turns()")),
    "evaluate a factory": (
        {"evaluate": lambda: fjs.per_client},
        TypeError,
        ("evaluate is <function per_client", "call it, per_client(task)"),
    ),
    "evaluate a name": ({"evaluate": lambda: "loss"}, TypeError, ("evaluate is 'loss'", "evaluate(params, dataset)")),
    "algorithm None": ({"algorithm": lambda: None}, TypeError, ("algorithm is None", "a Method", "fedavg(")),
    "algorithm a factory": ({"algorithm": lambda: fjs.fedavg}, TypeError, ("algorithm is <function", "fedavg(")),
    "algorithm an optimiser": ({"algorithm": lambda: sgd(0.1)}, TypeError, ("algorithm is Sgd", "fedavg(")),
    "data set a mapping": (
        {"dataset": lambda: {"x": 1}},
        TypeError,
        ("dataset is {'x': 1}", "a FederatedDataset", "from_ids"),
    ),
    "algorithm and data set exchanged": (
        {"algorithm": lambda: data(), "dataset": lambda: fedavg()},
        TypeError,
        ("algorithm is FederatedDataset", "a Method"),
    ),
    "initial_params of another structure": (
        {"initial_params": lambda: {"w": jnp.zeros(3)}},
        ValueError,
        ("initial_params", "'w'", "the task's parameters", "Dense_0"),
    ),
    "initial_params of another shape": (
        {"initial_params": lambda: {"params": {"Dense_0": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}}},
        ValueError,
        ("initial_params['params']['Dense_0']['kernel']", "(2, 3)", "(3, 3)"),
    ),
    "initial_params of several seeds": (
        {
            "initial_params": lambda: {
                "params": {"Dense_0": {"kernel": jnp.zeros((2, 3, 3)), "bias": jnp.zeros((2, 3))}}
            }
        },
        ValueError,
        ("has shape (2, 3)", "here of shape (3,)", "take the first: jax.tree.map(lambda leaf: leaf[0], ...)"),
    ),
    "initial_params of integers": (
        {"initial_params": lambda: {"params": {"Dense_0": {"kernel": jnp.zeros((3, 3), int), "bias": jnp.zeros(3)}}}},
        TypeError,
        ("initial_params", "int32", "float32"),
    ),
    "a method of classes on a task without any": (
        {
            "algorithm": lambda: fjs.fedlc(client_optimizer=fjs.optim.sgd(0.1)),
            "task": lambda: fjs.functions(lambda key: jnp.zeros(()), lambda params, examples: examples["y"] * params),
        },
        ValueError,
        ("FedLc", "tells classes apart", "classification(model)"),
    ),
    "more classes than outputs": (
        {"task": lambda: fjs.classification(fjs.models.LogisticRegression(2))},
        ValueError,
        ("3 classes", "2 outputs", "num_classes=3"),
    ),
    "classes numbered from 1": (
        {
            "dataset": lambda: fjs.datasets.from_clients(2 * [(np.ones((4, 2)), np.arange(4) % 3 + 1)]),
            "task": lambda: fjs.classification(fjs.models.LogisticRegression(3)),
        },
        ValueError,
        ("4 classes", "3 outputs", "the least label is 1", "from 0, y - 1"),
    ),
    "a local solver that draws": (
        {"algorithm": lambda: fedavg(client_optimizer=optax.noisy_sgd(0.1, key=0))},
        ValueError,
        ("an optimiser draws from a random key", "rng_key", "client.key"),
    ),
    "a server optimiser that draws": (
        {"algorithm": lambda: fedavg(server_optimizer=optax.noisy_sgd(0.1, key=0))},
        ValueError,
        ("an optimiser draws from a random key", "rng_key", "all clients and seeds"),
    ),
    "averaged statistics and a server optimiser": (
        {
            "task": lambda: fjs.classification(BatchNormed()),
            "algorithm": lambda: fjs.fedadam(client_optimizer=fjs.optim.sgd(0.1)),
        },
        ValueError,
        ("batch_stats", "the server optimiser of FedAdam", "keep(method, 'batch_stats')", "GroupNorm"),
    ),
    "labels that are floats": (
        {"dataset": lambda: fjs.datasets.from_clients([{"x": np.ones((2, 3)), "y": np.ones(2)}] * 2)},
        ValueError,
        ("float32", "integers", "y.astype('int32')", "fedjax_sim.regression"),
    ),
    "no labels": (
        {"dataset": lambda: fjs.datasets.from_clients([{"x": np.ones((2, 3))}] * 2)},
        ValueError,
        ("classification needs", "'y'"),
    ),
    "quadratic of other data": ({"task": lambda: fjs.quadratic()}, ValueError, ("'H'", "'e'", "datasets.quadratics")),
    "SCAFFOLD with replacement": (
        {
            "algorithm": lambda: fjs.scaffold(client_optimizer=sgd(0.1)),
            "cohort": lambda: fjs.cohort.with_replacement(2),
        },
        ValueError,
        ("Scaffold", "drawn twice", "cohort.uniform(K)"),
    ),
    "an average that is not allowed": (
        {
            "algorithm": lambda: Sampled(client_optimizer=sgd(0.1)),
            "cohort": lambda: fjs.cohort.uniform(2, average="plain"),
        },
        ValueError,
        ("Sampled", "'plain'", "['sample']"),
    ),
    "too few values over rounds": (
        {"algorithm": lambda: fedavg(client_learning_rate=fjs.rates.over_rounds([1.0]))},
        ValueError,
        ("client_learning_rate", "1 values", "2 rounds", "one a round"),
    ),
    "too few server values over rounds": (
        {"algorithm": lambda: fedavg(server_learning_rate=fjs.rates.over_rounds(np.ones(1)))},
        ValueError,
        ("server_learning_rate", "1 values", "2 rounds", "one a round"),
    ),
    "too few values over clients": (
        {"algorithm": lambda: fedavg(client_learning_rate=fjs.rates.over_clients([1.0, 2.0]))},
        ValueError,
        ("client_learning_rate", "2 values", "3 clients", "one a client"),
    ),
    "too many values over clients": (
        {"algorithm": lambda: fedavg(client_learning_rate=fjs.rates.over_clients(jnp.ones(4)))},
        ValueError,
        ("client_learning_rate", "4 values", "3 clients", "one a client"),
    ),
    "a server rate over clients": (
        {"algorithm": lambda: fedavg(server_learning_rate=fjs.rates.over_clients(jnp.ones(3)))},
        ValueError,
        ("server_learning_rate=over_clients", "no clients", "over_rounds"),
    ),
    "a bare array as client rate": (
        {"algorithm": lambda: fedavg(client_learning_rate=jnp.ones(2))},
        ValueError,
        ("client_learning_rate", "(2,)", "one number", "fedjax_sim.rates"),
    ),
    "a pytree unlike the parameters as client rate": (
        {"algorithm": lambda: fedavg(client_learning_rate={"w": 1.0})},
        ValueError,
        ("client_learning_rate", "'w'", "like the parameters", "Dense_0"),
    ),
    "a pytree as server rate": (
        {"algorithm": lambda: fedavg(server_learning_rate=[1.0, 2.0])},
        ValueError,
        ("server_learning_rate", "one number"),
    ),
    "stacked step sizes outside vmap": (
        {"algorithm": lambda: fedavg(client_optimizer=sgd(jnp.array([0.1, 0.2])))},
        ValueError,
        ("sgd(learning_rate=...)", "(2,)", "jax.vmap"),
    ),
    "stacked strengths of a method inside a wrapper": (
        {"algorithm": lambda: fjs.ema(fjs.fedprox(client_optimizer=sgd(0.1), mu=jnp.array([0.1, 0.2])))},
        ValueError,
        (
            "fedprox(mu=...)",
            "(2,)",
            "jax.vmap(lambda value: train(fedjax_sim.paths.replace(algorithm, {path: value}), dataset, key))(values)",
        ),
    ),
    "stacked radii of a rule": (
        {"algorithm": lambda: fjs.robust(fedavg(), fjs.aggregators.centered_clipping(jnp.array([1.0, 2.0])))},
        ValueError,
        ("centered_clipping(tau=...)", "(2,)", "jax.vmap"),
    ),
    "stacked shares of stragglers": (
        {"work": lambda: fjs.local.stragglers(jnp.array([0.1, 0.2]), 2)},
        ValueError,
        ("stragglers(fraction=...)", "(2,)", "jax.vmap"),
    ),
    "given cohorts with an unknown id": (
        {"cohort": lambda: fjs.cohort.given([[0, 7], [0, 1]])},
        ValueError,
        ("given(cohorts)", "client id 7", "does not have", "dataset.client_ids"),
    ),
    "given cohorts for too few rounds": (
        {"cohort": lambda: fjs.cohort.given([[0, 1]])},
        ValueError,
        ("given(cohorts)", "1 rounds", "the run 2", "one row a round"),
    ),
    "given probabilities of other clients": (
        {"cohort": lambda: fjs.cohort.given([[0, 1], [0, 1]], average="inverse", probability=[0.5, 0.5])},
        ValueError,
        ("given(probability=...) has 2 values for 3 clients", "one a client"),
    ),
    "given probabilities for too few rounds": (
        {"cohort": lambda: fjs.cohort.given([[0, 1], [0, 1]], average="inverse", probability=[[0.5, 0.5, 0.5]])},
        ValueError,
        ("given(probability=...) is [1, 3]", "[2 rounds, 3 clients]"),
    ),
    "given probability 0 of somebody": (
        {"cohort": lambda: fjs.cohort.given([[0, -1], [0, 1]], average="inverse", probability=[[0.5, 0.0, 1.0]] * 2)},
        ValueError,
        ("given(probability) is 0", "client id 1", "round 1", "more than 0"),
    ),
    "given earlier cohorts for too few rounds": (
        {"cohort": lambda: fjs.cohort.given([[0], [1]], earlier=fjs.cohort.given([[0]]))},
        ValueError,
        ("given(cohorts)", "1 rounds", "the run 2"),
    ),
    "given repeats for a method with client state": (
        {
            "cohort": lambda: fjs.cohort.given([[0], [1]], repeats=[[1], [2]]),
            "algorithm": lambda: fjs.scaffold(client_optimizer=sgd(0.1)),
        },
        ValueError,
        ("Scaffold", "clients drawn twice"),
    ),
    "a cohort too small for a method inside a wrapper": (
        {"algorithm": lambda: fjs.ema(fjs.vrl_sgd(client_optimizer=sgd(0.1)))},
        ValueError,
        ("VrlSgd needs everybody", "2 of 3 clients"),
    ),
    "given steps for other clients": (
        {"work": lambda: fjs.local.given_steps([[1, 1], [1, 1]])},
        ValueError,
        ("given_steps(tau) is [2, 2]", "3 clients"),
    ),
    "given steps for too few rounds": (
        {"work": lambda: fjs.local.given_steps([[1, 1, 1]])},
        ValueError,
        ("given_steps(tau) is [1, 3]", "2 rounds"),
    ),
}


@pytest.mark.usefixtures("no_program")
@mostly_simulate
@pytest.mark.parametrize("name", RUNS)
def test_a_run_refuses(name: str, drive: Callable[..., None]) -> None:
    arguments, error, fragments = RUNS[name]
    check(lambda: drive(**{key: make() for key, make in arguments.items()}), error, *fragments)


@pytest.mark.usefixtures("no_program")
@mostly_simulate
@pytest.mark.parametrize("name", TASKS)
def test_a_run_refuses_a_task(name: str, drive: Callable[..., None]) -> None:
    make, error, fragments = TASKS[name]
    check(lambda: drive(task=make()), error, *fragments)


def test_a_refused_task_compiles_nothing() -> None:
    mean = own(lambda p, e: squares(p, e).mean())
    for drive in (through_simulate, through_train, through_jit):
        with pytest.raises(ValueError, match=r"\.mean\(\)"):
            drive(task=mean)
    COMPILED.clear()
    for drive in (through_simulate, through_train, through_jit):
        with pytest.raises(ValueError, match=r"\.mean\(\)"):
            drive(task=mean)
    assert COMPILED == []


@pytest.mark.slow
def test_a_task_is_checked_under_transformations() -> None:
    """Its shapes are known whatever is traced, mapped or differentiated around the run."""
    given = common() | {
        "cohort": fjs.cohort.full(), "batch_size": None, "batches": fjs.local.full_batch(),
        "layout": fjs.layout.stacked(), "adjoint": fjs.adjoints.direct(),
    }  # fmt: skip
    algorithm, dataset = given.pop("algorithm"), given.pop("dataset")
    keys = jax.random.split(jax.random.key(0), 2)

    def final(scale: Any, task: fjs.Task, key: Any) -> jax.Array:
        train = fjs.make_train(**{**given, "task": task})
        return train(algorithm, dataset, key, initial_params={"w": scale * jnp.ones((3,))}).metrics["loss"][-1]

    right, wrong = own(penalty=lambda p: 0.5), own(lambda p, e: squares(p, e).mean())
    transformed = jax.jit(jax.vmap(jax.grad(final), (None, None, 0)), static_argnums=1)
    assert np.isfinite(transformed(0.5, right, keys)).all()
    with pytest.raises(ValueError, match=r"losses_function returns float32\[\]"):
        transformed(0.5, wrong, keys)

    def scaled(scale: Any) -> jax.Array:  # a loss that closes over a traced value
        return final(0.5, own(lambda p, e: scale * squares(p, e)), keys[0])

    assert np.isfinite(jax.jit(jax.vmap(scaled))(jnp.ones(2))).all()


@pytest.mark.slow
def test_a_task_is_traced_once() -> None:
    """The check costs nothing from the second run on."""
    calls = []

    def counted(params: Any, examples: Any) -> jax.Array:
        calls.append(examples["x"].shape)
        return squares(params, examples)

    task = own(counted)
    through_simulate(task=task)
    assert (5, 3) in calls
    calls.clear()
    through_simulate(task=task)
    assert calls == []


def zero(params: Any, dataset: fjs.FederatedDataset) -> jax.Array:
    return jnp.zeros(())


@mostly_simulate
@pytest.mark.parametrize(
    ("evaluate", "error", "fragments"),
    [
        (lambda *at: {"loss": zero(*at)}, ValueError, ("returns 'loss'", "records itself", "choose another")),
        (lambda *at: {"round": zero(*at)}, ValueError, ("returns 'round'", "choose another")),
        (lambda *at: {"test_data_loss": zero(*at)}, ValueError, ("returns 'test_data_loss'", "choose another")),
        (lambda *at: {"accuracy": zero(*at)}, ValueError, ("returns 'accuracy'", "choose another")),
        (lambda *at: [1.0], TypeError, ("returns [1.0]", "{name: array}")),
        (lambda *at: None, TypeError, ("returns None", "{name: array}")),
        (lambda *at: {"norm": "large"}, TypeError, ("'large'", "'norm'", "arrays or numbers")),
        (lambda *at: {3: zero(*at)}, TypeError, ("for 3", "by name")),
    ],
    ids=["loss", "round", "data_loss", "accuracy", "list", "None", "text", "a number as name"],
)
def test_what_evaluate_returns_is_checked(
    drive: Callable[..., None], evaluate: Any, error: type[Exception], fragments: tuple[str, ...]
) -> None:
    """Known only when ``evaluate`` is traced: a second bad run compiles nothing at all, so neither does its program."""
    for _ in range(2):
        COMPILED.clear()
        check(lambda: drive(evaluate=evaluate), error, *fragments)
    if drive is not through_train:  # outside jit, the objective is evaluated first, operation by operation
        assert COMPILED == []


@mostly_simulate
def test_a_record_s_name_is_taken(drive: Callable[..., None]) -> None:
    def evaluate(params: Any, dataset: fjs.FederatedDataset) -> dict[str, jax.Array]:
        return {"cohort_size": zero(params, dataset)}

    test_what_evaluate_returns_is_checked(drive, evaluate, ValueError, ("both called 'cohort_size'", "could be either"))


@pytest.mark.parametrize(
    ("returned", "error", "fragments"),
    [
        ({"seed": 0.0}, ValueError, ("returns 'seed'", "choose another")),
        ({"a\0b": 0.0}, ValueError, (r"returns 'a\x00b'", "printable characters")),
        ({"\ud800": 0.0}, ValueError, ("returns", "printable characters")),
        ({"a" * 70_000: 0.0}, ValueError, ("returns 'aaa", "1 to 200")),
        ({"": 0.0}, ValueError, ("returns ''", "1 to 200")),
        ({"$x$": 0.0}, ValueError, ("returns '$x$'", "without $")),
        ({"norm": 1j}, TypeError, ("1j for 'norm'", "real numbers", ".real")),
        ({"key": jax.random.key(0)}, TypeError, ("for 'key'", "real numbers")),
        ({"n": np.int64(2**40)}, ValueError, ("1099511627776", "'n'", "int32", "return a float")),
        ({"n": 2**70}, ValueError, ("1180591620717411303424", "'n'", "return a float")),
    ],
)
def test_what_evaluate_returns_can_be_kept(returned: dict[str, Any], error: type[Exception], fragments: Any) -> None:
    check(lambda: all_metrics({"": {"loss": jnp.ones(())}}, returned), error, *fragments)
    kept = {"a/b": True, "é ß": np.int64(5), "n" * 200: jnp.bfloat16(1), "test_loss": [1.0]}
    assert list(all_metrics({"": {"loss": jnp.ones(())}}, kept)) == ["loss", *kept]


def test_the_listener_sees_a_compilation() -> None:
    COMPILED.clear()
    jax.jit(lambda x: x * 3 + 1)(jnp.ones(3)).block_until_ready()
    assert COMPILED


def test_a_taken_test_metric_is_refused() -> None:
    tested = clients(test=[(np.ones((1, 3)), [0])] * 3)
    check(lambda: through_jit(dataset=tested, evaluate=lambda *at: {"test_loss": zero(*at)}), ValueError, "'test_loss'")
    twice = own(metrics=lambda p, e: {"test_loss": squares(p, e)})
    check(lambda: through_jit(dataset=tested, task=twice), ValueError, "a metric 'test_loss'", "on the test data")


@pytest.mark.usefixtures("no_program")
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (lambda: 0, "key is 0"),
        (lambda: None, "key is None"),
        (lambda: jax.random.PRNGKey(0), "uint32"),
        (lambda: jax.random.split(jax.random.key(0)), "key<fry>"),
    ],
    ids=["int", "None", "PRNGKey", "two keys"],
)
def test_the_key_is_one_typed_key(key: Callable[[], Any], shown: str) -> None:
    check(lambda: through_train(key=key()), TypeError, shown, "one typed PRNG key", "jax.random.key(0)")


@pytest.mark.usefixtures("no_program")
@pytest.mark.parametrize(
    ("seeds", "error", "fragments"),
    [
        ([], ValueError, ("seeds is empty", "at least one")),
        (-1, ValueError, ("-1", "[0, 2^32)")),
        ([0, -2], ValueError, ("-2", "[0, 2^32)")),
        ([3, 5, np.int64(3)], ValueError, ("seeds has 3 twice", "the same run", "once")),
        (2**32, ValueError, ("4294967296", "[0, 2^32)")),
        (1.0, TypeError, ("seeds is 1.0", "integer", "range(5)")),
        ([0, 1.5], TypeError, ("1.5", "integers")),
        (np.arange(2.0), TypeError, ("0.0", "integers")),
        (True, TypeError, ("True", "integers")),
        ([False], TypeError, ("False", "integers")),
        (None, TypeError, ("seeds is None", "range(5)")),
        ("3", TypeError, ("seeds is '3'", "range(5)")),
    ],
)
def test_seeds(seeds: Any, error: type[Exception], fragments: tuple[str, ...]) -> None:
    check(lambda: through_simulate(seeds=seeds), error, *fragments)


@pytest.mark.usefixtures("no_program")
def test_a_key_is_no_seed_and_progress_is_a_flag() -> None:
    raw = jax.random.PRNGKey(1)
    for key in (jax.random.key(0), jax.random.split(jax.random.key(0)), raw, jax.random.split(raw), np.asarray(raw)):
        check(lambda key=key: through_simulate(seeds=key), TypeError, "seeds is a key", "range(5)", "random.key(s)")
    check(lambda: jax.vmap(lambda seed: through_simulate(seeds=seed))(jax.numpy.arange(2)), TypeError, "make_train")
    check(lambda: through_simulate(progress="yes"), TypeError, "progress is 'yes'", "True, False, or None")


# Of objects that come from no factory the run is the first that looks.
COPIES = {
    "real": ({"algorithm": fjs.fedprox(client_optimizer=sgd(0.1)).replace(mu=-1.0)}, "fedprox(mu=...) is -1.0"),
    "word": (
        {"algorithm": fjs.scaffold(client_optimizer=sgd(0.1)).replace(option="III")},
        "scaffold(option=...) is 'III'",
    ),
    "inside": (
        {"algorithm": fjs.ema(fjs.fedavg(client_optimizer=sgd(0.1).replace(momentum=2.0)))},
        "sgd(momentum=...) is 2.0",
    ),
    "class": (
        {"algorithm": FedProx(client_optimizer=sgd(0.1), mu=fjs.rates.over_rounds([1.0]))},
        "must be a number; a rate",
    ),
    "work": ({"work": fjs.local.steps(1).replace(num_steps=0)}, "steps(num_steps=...) is 0"),
    "two fields": (
        {"work": fjs.local.random_epochs(1, 5).replace(low=9)},
        "random_epochs(9, 5): high must",
    ),
    "evaluate": (
        {"evaluate": fjs.per_client(fjs.classification(fjs.models.LogisticRegression(10))).replace(worst=2.0)},
        "per_client(worst=...) is 2.0",
    ),
    "stop": ({"stop": fjs.stopping.any_of([fjs.stopping.rising().replace(over=0)])}, "rising(over=...) is 0"),
    "client states": ({"client_states": fjs.client_states.on_device().replace(dtype="int3")}, "on_device(dtype=...)"),
    "batches": ({"batch_size": None, "batches": fjs.local.in_order(2).replace(batch_size=0)}, "batch_size=...) is 0"),
}


def positive(what: str, value: Any) -> None:
    if value <= 0:
        raise ValueError(what)


class Watched(FedProx):
    own: Any = fjs.fields.leaf(positive, default=0.1)


class Weighted(type(fjs.quadratic())):  # type: ignore[misc]
    w: Any = fjs.fields.real(default=1.0, low=0.0)


def test_checks_of_ones_own_and_vectors_of_tasks_are_taken() -> None:
    run = {"rounds": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch()}
    data = fjs.datasets.quadratics(num_clients=2, dim=2, seed=0)
    train = fjs.make_train(task=Weighted(w=jnp.ones(2)), **run)
    found = jax.eval_shape(train, Watched(client_optimizer=sgd(0.1)), data, jax.random.key(0))
    assert found.metrics["loss"].shape == (2,)


@pytest.mark.usefixtures("no_program")
@pytest.mark.parametrize("name", COPIES)
def test_values_that_no_factory_has_seen(name: str) -> None:
    changes, message = COPIES[name]
    check(lambda: through_simulate(**changes), (TypeError, ValueError), message)


def test_a_share_is_no_number_of_clients() -> None:
    check(lambda: fjs.cohort.uniform(0.1), TypeError, "num_sampled=...) is 0.1", "fedjax_sim.cohort.independent(0.1)")


# Bad arguments of a factory: no run is needed to see them.
COUNTS: dict[str, Callable[[Any], object]] = {
    "uniform": lambda n: fjs.cohort.uniform(n),
    "with_replacement": lambda n: fjs.cohort.with_replacement(n),
    "steps": lambda n: fjs.local.steps(n),
    "epochs": lambda n: fjs.local.epochs(n),
    "random_epochs low": lambda n: fjs.local.random_epochs(n, 5),
    "random_epochs high": lambda n: fjs.local.random_epochs(1, n),
    "gaussian_steps most": lambda n: fjs.local.gaussian_steps(3, 1, n),
    "stragglers": lambda n: fjs.local.stragglers(0.5, n),
    "shuffled": lambda n: fjs.local.shuffled(n),
    "in_order": lambda n: fjs.local.in_order(n),
    "batches with_replacement": lambda n: fjs.local.with_replacement(n),
    "full_batch": lambda n: fjs.local.full_batch(n),
    "lanes": lambda n: fjs.layout.lanes(n),
    "static_schedule": lambda n: fjs.layout.static_schedule(n),
    "LogisticRegression": lambda n: fjs.models.LogisticRegression(n),
    "MLP": lambda n: fjs.models.MLP(n),
    "MLP hidden": lambda n: fjs.models.MLP(3, (4, n)),
}


def once(names: Any, *values: Any) -> list[tuple[str, Any]]:
    """Each with the first value, and the first of them with the others: what is checked is one function for all."""
    first, *others = names
    return [*((name, values[0]) for name in [first, *others]), *((first, value) for value in values[1:])]


@pytest.mark.parametrize(("name", "value"), once(COUNTS, 0, -2, 1.5, 2.0, True, "3", None))
def test_counts(name: str, value: Any) -> None:
    error = ValueError if type(value) is int else TypeError
    check(lambda: COUNTS[name](value), error, f"is {value!r}", "at least 1")


REALS: dict[str, tuple[Callable[[Any], object], str]] = {
    "sgd learning_rate": (lambda v: sgd(v), "sgd(learning_rate=...)"),
    "sgd momentum": (lambda v: sgd(0.1, momentum=v), "sgd(momentum=...)"),
    "adam learning_rate": (lambda v: fjs.optim.adam(v), "adam(learning_rate=...)"),
    "adam b1": (lambda v: fjs.optim.adam(0.1, b1=v), "adam(b1=...)"),
    "adam b2": (lambda v: fjs.optim.adam(0.1, b2=v), "adam(b2=...)"),
    "adam eps": (lambda v: fjs.optim.adam(0.1, eps=v), "adam(eps=...)"),
    "adam eps_root": (lambda v: fjs.optim.adam(0.1, eps_root=v), "adam(eps_root=...)"),
    "from_optax learning_rate": (
        lambda v: fjs.optim.from_optax("rmsprop", learning_rate=v),
        "from_optax('rmsprop', learning_rate=...)",
    ),
    "mu": (lambda v: fjs.fedprox(client_optimizer=sgd(0.1), mu=v), "fedprox(mu=...)"),
    "client_learning_rate": (lambda v: fedavg(client_learning_rate=v), "FedAvg(client_learning_rate=...)"),
    "server_learning_rate": (lambda v: fedavg(server_learning_rate=v), "FedAvg(server_learning_rate=...)"),
    "weight_decay": (
        lambda v: fjs.classification(fjs.models.MLP(3), weight_decay=v),
        "classification(weight_decay=...)",
    ),
    "fraction": (lambda v: fjs.local.stragglers(v, 2), "stragglers(fraction=...)"),
    "std": (lambda v: fjs.local.gaussian_steps(3, v, 9), "gaussian_steps(std=...)"),
    "over_rounds": (lambda v: fjs.rates.over_rounds([1.0, v]), "over_rounds(values=...)"),
    "over_clients": (lambda v: fjs.rates.over_clients([1.0, v]), "over_clients(values=...)"),
    "inverse_time initial": (lambda v: fjs.rates.inverse_time(initial=v), "inverse_time(initial=...)"),
    "inverse_time decay": (lambda v: fjs.rates.inverse_time(decay=v), "inverse_time(decay=...)"),
    "piecewise initial": (lambda v: fjs.rates.piecewise(v, (2,)), "piecewise(initial=...)"),
    "piecewise factor": (lambda v: fjs.rates.piecewise(1.0, (2,), factor=v), "piecewise(factor=...)"),
}


@pytest.mark.parametrize(("name", "value"), once(REALS, -1, -0.5, NAN, float("inf"), np.float32(-2), "0.1", True, 1j))
def test_reals(name: str, value: Any) -> None:
    make, what = REALS[name]
    real = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    error, rule = (ValueError, "it must be") if real else (TypeError, "a real number")
    shown = repr(float(value)) if real and not name.startswith("over_") else ""
    check(lambda: make(value), error, what, rule, shown)


OPTIONAL = ("sgd momentum", "from_optax learning_rate", "weight_decay", "over_rounds", "over_clients")


@pytest.mark.parametrize("name", [name for name in REALS if name not in OPTIONAL])
def test_reals_are_not_none(name: str) -> None:
    make, what = REALS[name]
    check(lambda: make(None), TypeError, f"{what} is None")


def _without_data() -> dict[str, Any]:
    return {name: value for name, value in common().items() if name not in ("algorithm", "dataset")}


CASES: dict[str, tuple[Callable[[], object], type[Exception], tuple[str, ...]]] = {
    "random_epochs(3, 1)": (
        lambda: fjs.local.random_epochs(3, 1),
        ValueError,
        ("random_epochs(3, 1)", "high must be at least low"),
    ),
    "fraction 1.5": (lambda: fjs.local.stragglers(1.5, 2), ValueError, ("1.5", "[0, 1]")),
    "keep 'no'": (lambda: fjs.local.stragglers(0.5, 2, keep="no"), TypeError, ("keep", "'no'", "True or False")),
    "gaussian mean": (lambda: fjs.local.gaussian_steps(NAN, 1, 5), ValueError, ("mean", "nan", "finite")),
    "momentum 1.0": (lambda: sgd(0.1, momentum=1.0), ValueError, ("sgd(momentum=...) is 1.0", "[0, 1)")),
    "momentum array": (lambda: sgd(0.1, momentum=jnp.array([0.5, 1.0])), ValueError, ("sgd(momentum", "[0, 1)")),
    "adam b1 1.0": (lambda: fjs.optim.adam(0.1, b1=1.0), ValueError, ("adam(b1=...) is 1.0", "[0, 1)")),
    "adam b2 1.5": (lambda: fjs.optim.adam(0.1, b2=1.5), ValueError, ("adam(b2=...) is 1.5", "[0, 1)")),
    "nesterov 'yes'": (lambda: sgd(0.1, 0.9, "yes"), TypeError, ("nesterov", "'yes'", "True or False")),
    "nesterov without momentum": (lambda: sgd(0.1, nesterov=True), ValueError, ("nesterov", "momentum")),
    "schedule as step size": (
        lambda: sgd(optax.linear_schedule(1.0, 0.0, 3)),
        TypeError,
        ("sgd(learning_rate=...)", "client_learning_rate= or server_learning_rate="),
    ),
    "array of text": (lambda: sgd(np.array(["a"])), TypeError, ("sgd(learning_rate=...)", "real number")),
    "NaN in an array": (lambda: sgd(jnp.array([0.1, NAN])), ValueError, ("sgd(learning_rate=...)", "finite")),
    "average 'mean'": (
        lambda: fjs.cohort.uniform(2, average="mean"),
        ValueError,
        ("uniform(average=...) is 'mean'", "known: sample, plain"),
    ),
    "average with replacement": (
        lambda: fjs.cohort.with_replacement(2, average="plain"),
        ValueError,
        ("average='plain'", "leave average=None", "uniform(K"),
    ),
    "given: an id twice": (
        lambda: fjs.cohort.given([[0, 1], [2, 2]]),
        ValueError,
        ("round 1", "twice", "[2, 2]", "once a round", "repeats=1"),
    ),
    "given: inverse": (
        lambda: fjs.cohort.given([[0]], average="inverse"),
        ValueError,
        ("average='inverse'", "no inclusion probability", "give probability="),
    ),
    "given: repeats of another shape": (
        lambda: fjs.cohort.given([[0, 1]], repeats=[[1]]),
        ValueError,
        ("given(repeats) is [1, 1]", "the shape of cohorts, [1, 2]"),
    ),
    "given: repeats of floats": (
        lambda: fjs.cohort.given([[0, 1]], repeats=[[1.0, 2.0]]),
        ValueError,
        ("given(repeats) is float64[1, 2]", "integers", "or one integer"),
    ),
    "given: one repeat of 0": (lambda: fjs.cohort.given([[0]], repeats=0), ValueError, ("repeats", "at least 1")),
    "given: repeats beyond int32": (
        lambda: fjs.cohort.given([[0]], repeats=[[-BIG]]),
        ValueError,
        ("given(repeats)", str(-BIG), "at least -2147483647"),
    ),
    "given: probability 2": (
        lambda: fjs.cohort.given([[0]], probability=2.0),
        ValueError,
        ("given(probability=...) is 2", "[0, 1]"),
    ),
    "given: probability of three axes": (
        lambda: fjs.cohort.given([[0]], probability=np.ones((1, 1, 1))),
        ValueError,
        ("given(probability=...)", "(1, 1, 1)", "[rounds, N]"),
    ),
    "given: earlier is an array": (
        lambda: fjs.cohort.given([[0]], earlier=[[0]]),
        TypeError,
        ("given(earlier) is [[0", "give fedjax_sim.cohort.given(...)"),
    ),
    "given: earlier with other slots": (
        lambda: fjs.cohort.given([[0]], earlier=fjs.cohort.given([[0, 1]])),
        ValueError,
        ("given(earlier) has 2 slots", "have 1", "fill up with -1"),
    ),
    "given: earlier with another average": (
        lambda: fjs.cohort.given([[0]], average="plain", earlier=fjs.cohort.given([[0]])),
        ValueError,
        ("average='plain'", "average=None", "both the same"),
    ),
    "given: floats": (
        lambda: fjs.cohort.given(np.ones((2, 3))),
        ValueError,
        ("float64[2, 3]", "integers", "[rounds, S]"),
    ),
    "given: booleans": (lambda: fjs.cohort.given(np.ones((2, 3), bool)), ValueError, ("bool[2, 3]", "integers")),
    "given: one axis": (lambda: fjs.cohort.given([0, 1]), ValueError, ("[2]", "integers [rounds, S]")),
    "given: ragged": (lambda: fjs.cohort.given([[0, 1], [1]]), ValueError, ("[[0, 1], [1]]", "equally long")),
    "given: None": (lambda: fjs.cohort.given(None), ValueError, ("is None", "integers [rounds, S]")),
    "given: no slots": (lambda: fjs.cohort.given(np.zeros((2, 0), int)), ValueError, ("[2, 0]", "a slot or more")),
    "given: -5": (lambda: fjs.cohort.given([[0, -5]]), ValueError, ("-5", "-1 for a void slot")),
    "given: more than int32": (lambda: fjs.cohort.given([[0, BIG]]), ValueError, (str(BIG), "at most 2147483647")),
    "fedrep: no method": (lambda: fjs.fedrep(None, "head"), TypeError, ("fedrep(base) is None", "give a method")),
    "given_steps: negative": (
        lambda: fjs.local.given_steps([[1, -1]]),
        ValueError,
        ("given_steps(tau)", "-1", "at least 0"),
    ),
    "given_steps: too large": (
        lambda: fjs.local.given_steps(1 << 31),
        ValueError,
        ("given_steps(tau)", "2147483648", "at most 2147483647"),
    ),
    "given_steps: floats": (lambda: fjs.local.given_steps([[1.0, 2.0]]), ValueError, ("float64[1, 2]", "integers")),
    "given_steps: one axis": (lambda: fjs.local.given_steps([1, 2]), ValueError, ("[2]", "[rounds, N]")),
    "given_steps: text": (lambda: fjs.local.given_steps("x"), ValueError, ("'x'", "integers [rounds, N]")),
    "given_steps: bound": (
        lambda: fjs.local.given_steps([[5, 1]], most=2),
        ValueError,
        ("most=2", "largest entry 5"),
    ),
    "given_steps: negative bound": (lambda: fjs.local.given_steps([[5]], most=-2), ValueError, ("-2", "at least 0")),
    "given_steps: traced": (
        lambda: jax.eval_shape(lambda tau: fjs.local.given_steps(tau), jnp.ones((2, 3), jnp.int32)),
        ValueError,
        ("traced", "most=..."),
    ),
    "given_steps: more than int32": (
        lambda: fjs.local.given_steps([[BIG]]),
        ValueError,
        (str(BIG), "at most 2147483647"),
    ),
    "over_rounds: two axes": (
        lambda: fjs.rates.over_rounds([[1.0]]),
        ValueError,
        ("(1, 1)", "one value a round"),
    ),
    "over_clients: no axis": (lambda: fjs.rates.over_clients(1.0), ValueError, ("()", "one value a client")),
    "over_rounds: None": (lambda: fjs.rates.over_rounds(None), TypeError, ("over_rounds(values=...)", "None")),
    "piecewise: fractions": (lambda: fjs.rates.piecewise(1.0, (2.5,)), TypeError, ("2.5", "integer")),
    "piecewise: negative": (lambda: fjs.rates.piecewise(1.0, (-1,)), ValueError, ("-1", "at least 0")),
    "piecewise: a number": (lambda: fjs.rates.piecewise(1.0, 5), TypeError, ("5", "tuple of rounds")),
    "piecewise: text": (lambda: fjs.rates.piecewise(1.0, "ab"), TypeError, ("'ab'", "tuple of rounds")),
    "scaffold option": (
        lambda: fjs.scaffold(client_optimizer=sgd(0.1), option="III"),
        ValueError,
        ("option=...) is 'III'", "known: I, II"),
    ),
    "a method's bounds": (
        lambda: fjs.fedprox(client_optimizer=sgd(0.1), mu=-1.0),
        ValueError,
        ("fedprox(mu=...) is -1.0", "[0, inf)"),
    ),
    "a number as optimiser": (
        lambda: fjs.fedavg(client_optimizer=0.1),
        TypeError,
        ("FedAvg(client_optimizer=...) is 0.1", "optim.sgd(0.1)"),
    ),
    "an object as optimiser": (
        lambda: fjs.fedavg(client_optimizer=object()),
        TypeError,
        ("FedAvg(client_optimizer=...) is <object", "give an optimiser", "optim.sgd(0.1)"),
    ),
    "a factory as optimiser": (
        lambda: fjs.fedavg(client_optimizer=sgd),
        TypeError,
        ("client_optimizer=...) is <function sgd", "call it", "optim.sgd(0.1)"),
    ),
    "optax.MultiSteps": (
        lambda: fjs.fedavg(client_optimizer=optax.MultiSteps(optax.sgd(0.1), 2)),
        TypeError,
        ("client_optimizer", ".gradient_transformation()"),
    ),
    "an optax function as optimiser": (
        lambda: fjs.fedavg(client_optimizer=optax.sgd),
        TypeError,
        ("client_optimizer", "call it", "optax.sgd(0.1)"),
    ),
    "text as server optimiser": (
        lambda: fjs.fedavg(client_optimizer=sgd(0.1), server_optimizer="adam"),
        TypeError,
        ("server_optimizer", "'adam'", "optax.sgd(0.1)"),
    ),
    "no client optimiser": (lambda: fjs.fedavg(), TypeError, ("fedavg(", "missing", "client_optimizer")),
    "an optimiser by position": (
        lambda: fjs.fedavg(sgd(0.1)),
        TypeError,
        ("fedavg(", "positional", "given by its name, fedavg(client_optimizer=...)", "(*, client_optimizer"),
    ),
    "an optimiser in the place of mu": (
        lambda: fjs.fedprox(sgd(0.1)),
        TypeError,
        ("fedprox(", "missing", "given by its name, fedprox(client_optimizer=...)"),
    ),
    "an unknown argument": (
        lambda: fjs.fedprox(client_optimizer=sgd(0.1), nu=1),
        TypeError,
        ("fedprox(", "has no argument 'nu'", "mu=1.0"),
    ),
    "a misspelt argument": (
        lambda: fedavg(client_lerning_rate=1.0),
        TypeError,
        ("has no argument 'client_lerning_rate', did you mean 'client_learning_rate'?",),
    ),
    "lr of a method": (
        lambda: fjs.fedavg(lr=0.1),
        TypeError,
        ("fedavg(...): has no argument 'lr', it is of the optimiser: client_optimizer=fedjax_sim.optim.sgd(0.1);",),
    ),
    "lr": (lambda: sgd(lr=0.1), TypeError, ("sgd(", "has no argument 'lr'", "learning_rate")),
    "replace an unknown field": (
        lambda: fedavg().replace(mu=1.0),
        TypeError,
        ("FedAvg.replace(...)", "no field 'mu'", "client_optimizer, client_learning_rate"),
    ),
    "replace a field inside": (
        lambda: fedavg().replace(**{"client_optimizer.learning_rate": 0.3}),
        TypeError,
        ("'client_optimizer.learning_rate'", "fedjax_sim.paths.replace(given"),
    ),
    "assignment": (
        lambda: setattr(fedavg(), "server_learning_rate", 2.0),
        AttributeError,
        ("FedAvg.server_learning_rate cannot be assigned", "given.replace(server_learning_rate=...)"),
    ),
    "seeds of make_train": (
        lambda: fjs.make_train(**_without_data(), seeds=3),
        TypeError,
        ("make_train(...) has no argument 'seeds'", "jax.random.key(seed)", "jax.vmap"),
    ),
    "method and data of make_train": (
        lambda: fjs.make_train(fedavg(), data(), **_without_data()),  # type: ignore[call-arg]
        TypeError,
        ("make_train(...) takes nothing without a name, and 2 were given", "train(algorithm, dataset, key)"),
    ),
    "method of make_train": (
        lambda: fjs.make_train(algorithm=fedavg(), **_without_data()),
        TypeError,
        ("make_train(...) has no argument 'algorithm'", "train(algorithm, dataset, key)"),
    ),
    "task in the third place": (
        lambda: fjs.simulate(fedavg(), data(), None, rounds=3),  # type: ignore[call-arg,misc]
        TypeError,
        ("simulate(...) takes algorithm and dataset without a name, and 3 were given", "task=..."),
    ),
    "round of simulate": (
        lambda: through_simulate(round=3),
        TypeError,
        ("simulate(...) has no argument 'round'", "did you mean 'rounds'?"),
    ),
    "epochs of sweep": (
        lambda: fjs.sweep(fedavg(), data(), None, epochs=3),  # type: ignore[call-arg,arg-type]
        TypeError,
        ("sweep(...) has no argument 'epochs'", "known: algorithm"),
    ),
    "a name as model": (lambda: fjs.classification("mlp"), TypeError, ("'mlp'", "flax.linen module", "functions")),
    "a class as model": (lambda: fjs.classification(fjs.models.MLP), TypeError, ("is the class MLP", "MLP(...)")),
    "hidden a number": (lambda: fjs.models.MLP(3, 4), TypeError, ("hidden=...) is 4", "tuple of numbers")),
    "start NaN": (lambda: fjs.quadratic(start=NAN), ValueError, ("quadratic(start=...) is nan", "finite")),
    "functions of no functions": (
        lambda: fjs.functions(1, 2),
        TypeError,
        ("init_function=...) is 1", "give a function"),
    ),
    "functions of x and y": (
        lambda: fjs.functions(lambda key: 0.0, lambda w, x, y: w),
        TypeError,
        (
            "functions(losses_function=...) takes (w, x, y)",
            "called with (params, examples)",
            "'y'",
            "{'x': ..., 'y'",
        ),
    ),
    "functions of no key": (
        lambda: fjs.functions(lambda: 0.0, squares),
        TypeError,
        ("functions(init_function=...) takes ()", "called with (key)"),
    ),
    "functions of bad metrics": (
        lambda: fjs.functions(lambda key: 0.0, lambda w, b: w, metrics_function="loss"),
        TypeError,
        ("metrics_function=...) is 'loss'", "or None"),
    ),
    "optax name": (
        lambda: fjs.optim.from_optax("rmsporp", learning_rate=0.1),
        ValueError,
        ("'rmsporp'", "did you mean 'rmsprop'?"),
    ),
    "optax name None": (lambda: fjs.optim.from_optax(None), ValueError, ("None", "known: ")),
    "optax argument": (
        lambda: fjs.optim.from_optax("rmsprop", learning_rat=0.1),
        ValueError,
        ("'learning_rat'", "did you mean 'learning_rate'?"),
    ),
    "optax argument missing": (
        lambda: fjs.optim.from_optax("rmsprop"),
        TypeError,
        ("optax.rmsprop", "missing", "learning_rate"),
    ),
    "optax function that is no optimiser": (
        lambda: fjs.optim.from_optax("constant_schedule", value=0.1),
        ValueError,
        ("optax.constant_schedule", "no optimiser"),
    ),
    "schedule in from_optax": (
        lambda: fjs.optim.from_optax("sgd", learning_rate=optax.constant_schedule(0.1)),
        TypeError,
        ("learning_rate", "client_learning_rate", "bare optax"),
    ),
    "build: a name": (
        lambda: fjs.build({"name": "algorithm.fednvoa"}),
        ValueError,
        ("'algorithm.fednvoa'", "did you mean 'algorithm.fednova'?", "algorithm.scaffold"),
    ),
    "build: a kind": (lambda: fjs.build({"name": "algoritm.fedavg"}), ValueError, ("'algoritm.fedavg'", "fedavg'?")),
    "build: an argument": (
        lambda: fjs.build({"name": "optim.sgd", "arguments": {"learnin_rate": 0.1}}),
        ValueError,
        ("optim.sgd", "'learnin_rate'", "did you mean 'learning_rate'?"),
    ),
    "build: a value": (
        lambda: fjs.build({"name": "optim.sgd", "arguments": {"learning_rate": -1}}),
        ValueError,
        ("-1", "[0, inf)"),
    ),
    "a name of the package": (lambda: fjs.fednvoa, AttributeError, ("'fednvoa'", "did you mean 'fednova'?")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_factory_refuses(name: str) -> None:
    check(*CASES[name][:2], *CASES[name][2])


class SmallRows:
    """What is wrong with examples, by name."""

    x = np.ones((2, 3))
    y = np.array([0, 1])


ROWS = SmallRows()
EXAMPLES: dict[str, tuple[Callable[[], object], str]] = {
    "no clients": (lambda: fjs.datasets.from_clients([]), "no clients.*at least one"),
    "an empty client": (
        lambda: fjs.datasets.from_clients([(ROWS.x, ROWS.y), (ROWS.x[:0], ROWS.y[:0])]),
        "client 1 has no examples: drop this client",
    ),
    "an empty client of a partition": (
        lambda: fjs.datasets.from_partition((ROWS.x, ROWS.y), [[0, 1], []]),
        "client 1 has no examples: drop this client",
    ),
    "a negative label": (
        lambda: fjs.datasets.from_clients([(ROWS.x, [0, -1])]),
        r"client 0 has the label -1, outside \[0, 1\): number the classes from 0",
    ),
    "a label out of range": (
        lambda: fjs.datasets.from_clients([(ROWS.x, ROWS.y), (ROWS.x, [1, 7])], num_classes=3),
        r"client 1 has the label 7, outside \[0, 3\): number the classes from 0",
    ),
    "NaN features": (
        lambda: fjs.datasets.from_clients([(ROWS.x, ROWS.y), (np.array([[1.0, 2, 3], [1, NAN, 3]]), ROWS.y)]),
        "NaN or infinite.*client 1, first in its row 1; clean or drop",
    ),
    "infinite features": (
        lambda: fjs.datasets.from_clients([(np.full((2, 3), np.inf), ROWS.y)]),
        "NaN or infinite.*client 0, first in its row 0; clean or drop",
    ),
    "lengths of one client": (
        lambda: fjs.datasets.from_clients([(ROWS.x, [0, 1, 1])]),
        r"\['y'\] of client 0 has 3 rows but .*\['x'\] has 2: all leaves need one row per example",
    ),
    "lengths of examples and ids": (
        lambda: fjs.datasets.from_ids((ROWS.x, ROWS.y), [0, 0, 1]),
        "2 rows but ids has 3: give one id for each row",
    ),
    "lengths of clients and test": (
        lambda: fjs.datasets.from_clients([(ROWS.x, ROWS.y)], test=[None, None]),
        "test has 2 clients but there are 1: give one entry",
    ),
    "lengths of examples and weights": (
        lambda: data().with_example_weights(np.ones(3)),
        r"shape \(3,\).*one for each of the 11 training examples",
    ),
    "NaN weights": (lambda: data().with_example_weights(np.full(11, NAN)), "must be finite"),
    "test_fraction": (
        lambda: fjs.datasets.from_partition((ROWS.x, ROWS.y), [[0], [1]], test_fraction=1.5),
        r"test_fraction is 1\.5: it must be in \[0, 1\)",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_data_set_refuses(name: str) -> None:
    make, message = EXAMPLES[name]
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        make()


# FedNova and SCAFFOLD II divide by the sum of the local solver's weights: linear solvers only.
def scaled(schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(optax.trace(0.9), optax.scale_by_schedule(schedule), optax.scale(-1.0))


LINEAR: dict[str, Callable[[], Any]] = {
    "sgd": lambda: sgd(0.1),
    "momentum": lambda: sgd(0.1, momentum=0.9),
    "nesterov": lambda: sgd(0.1, momentum=0.9, nesterov=True),
    "stacked step sizes": lambda: sgd(jnp.array([0.1, 0.2]), momentum=0.9),
    "optax.sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "optax.sgd with a schedule": lambda: optax.sgd(optax.linear_schedule(0.1, 0.0, 3)),
    "a chain with a schedule": lambda: scaled(optax.exponential_decay(0.1, 1, 0.9)),
    "weight decay": lambda: optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1)),
    "from_optax": lambda: fjs.optim.from_optax("sgd", learning_rate=0.1, momentum=0.5),
}
NOT_LINEAR: dict[str, tuple[Callable[[], Any], str]] = {
    "adam": (lambda: fjs.optim.adam(0.1), "adam"),
    "adagrad": (lambda: fjs.optim.from_optax("adagrad", learning_rate=0.1), "optax.adagrad"),
    "sign": (lambda: fjs.optim.from_optax("sign_sgd", learning_rate=0.1), "optax.sign_sgd"),
    "optax.adam": (lambda: optax.adam(0.1), "the given optax optimiser"),
    "optax.adagrad": (lambda: optax.adagrad(0.1), "the given optax optimiser"),
    "optax.sign_sgd": (lambda: optax.sign_sgd(0.1), "the given optax optimiser"),
    "clip": (lambda: optax.chain(optax.clip(1.0), optax.sgd(0.1)), "the given optax optimiser"),
    "clip_by_global_norm": (
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        "the given optax optimiser",
    ),
}
by_slope = pytest.mark.parametrize("method", ["fednova", "scaffold"])


@by_slope
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_solvers_that_are_not_linear_are_refused(method: str, name: str) -> None:
    make, shown = NOT_LINEAR[name]
    check(
        lambda: getattr(fjs, method)(client_optimizer=make()),
        ValueError,
        f"{shown} is not linear in the gradients",
        "use sgd",
        "FedAvg",
    )


@by_slope
@pytest.mark.parametrize("name", LINEAR)
def test_linear_solvers_are_accepted(method: str, name: str) -> None:
    assert isinstance(getattr(fjs, method)(client_optimizer=LINEAR[name]()), Algorithm)


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_other_methods_take_any_solver(name: str) -> None:
    solver = NOT_LINEAR[name][0]()
    fjs.fedavg(client_optimizer=solver, server_optimizer=solver)
    fjs.fedprox(client_optimizer=solver)
    fjs.scaffold(client_optimizer=solver, option="I")


def test_traced_hyper_parameters_pass_unchecked() -> None:
    """Their values cannot be looked at; structure still is."""

    def made(value: jax.Array) -> jax.Array:
        algorithm = fjs.fednova(client_optimizer=sgd(value, momentum=value), client_learning_rate=value)
        fjs.fedprox(client_optimizer=fjs.optim.adam(value, b1=value), mu=value)
        fjs.local.stragglers(value, 2)
        return algorithm.client_optimizer.learning_rate

    assert jax.jit(made)(-2.0) == -2.0
    assert jax.grad(made)(-2.0) == 1.0


def noisy_count(noise: Any) -> Algorithm:
    return fjs.dp(fedavg(), noise_multiplier=1.0, quantile=0.5, count_noise=noise)


def clustered(clusters: Any) -> Algorithm:
    return fjs.fedaware(client_optimizer=sgd(1), weights="uniform", clusters=clusters)


TRACED: dict[str, tuple[Callable[[Any], object], Any, Any]] = {
    "rate": (lambda v: fjs.fedavg(client_optimizer=sgd(v)), 0.0, -0.1),
    "rate, NaN": (lambda v: fjs.fedavg(client_optimizer=sgd(v)), 0.1, NAN),
    "momentum": (lambda v: sgd(0.1, momentum=v), 0.99, 1.0),
    "replaced": (lambda v: fjs.fedprox(client_optimizer=sgd(0.1)).replace(mu=v), 0.0, -1e-9),
    "inside": (lambda v: fjs.ema(fjs.clipped(fjs.fedprox(client_optimizer=sgd(0.1), mu=v))), 0.0, -1.0),
    "rates over rounds": (lambda v: fedavg(client_learning_rate=fjs.rates.over_rounds(v)), [1.0, 0.0], [1.0, -1.0]),
    "rates by layer": (lambda v: fedavg(client_learning_rate={"a": 1.0, "b": v}), 1.0, NAN),
    "server's": (lambda v: fjs.fedavg(client_optimizer=sgd(1), server_optimizer=fjs.optim.fedadam(tau=v)), 0.1, 0.0),
    "logits": (lambda v: fjs.reweighted(fedavg(), v), [-1.0, 2.0], [0.0, np.inf]),
    "norm": (lambda v: fjs.clipped(fedavg(), v), np.inf, NAN),
    "norm, negative": (lambda v: fjs.clipped(fedavg(), v), 1.0, -np.inf),
    "noise": (lambda v: fjs.dp(fedavg(), noise_multiplier=v), 0.0, -1.0),
    "noise of the count": (noisy_count, 0.6, 0.5),
    "clusters": (clustered, [0, 2, 1], [0, -1, 1]),
    "clusters, too many": (clustered, [0, 2, 1], [0, 3, 1]),
    "attack": (lambda v: fjs.attacked(fedavg(), [0], fjs.attacks.gaussian(v)), 0.0, -1.0),
    "aggregator": (lambda v: fjs.robust(fedavg(), fjs.aggregators.geometric_median(v)), 0.1, 0.0),
    "probability": (lambda v: fjs.cohort.independent(v, cap=3), [0.0, 0.5, 1.0], [0.0, 0.5, 1.1]),
    "weights": (lambda v: fjs.cohort.weighted(1, v), [0.0, 2.0], [1.0, -1.0]),
    "available": (lambda v: fjs.cohort.available(fjs.cohort.full(), fjs.cohort.bernoulli(v)), 1.0, -0.1),
    "spread": (lambda v: fjs.local.gaussian_steps(3, v, 5), 0.0, -1.0),
    "variance": (lambda v: fjs.local.gaussian_steps(3, most=5, variance=v), 0.0, NAN),
    "stragglers": (lambda v: fjs.local.stragglers(v, 2), 1.0, 1.5),
    "speeds": (lambda v: fjs.local.deadline(1.0, v, 2), [0.0, 2.0], [0.0, -2.0]),
    "window": (lambda v: fjs.local.window(v, 2), 0.0, -1.0),
    "weight decay": (lambda v: fjs.classification(fjs.models.LogisticRegression(3), weight_decay=v), 0.0, -1.0),
    "device": (lambda v: fjs.systems.devices(seconds_per_step=v), [0.0, 1.0], [-1.0, 1.0]),
    "bandwidth": (lambda v: fjs.systems.devices(seconds_per_step=1.0, download=v), 1.0, 0.0),
    "failures": (lambda v: fjs.systems.devices(seconds_per_step=1.0, dropout=v), 1.0, 2.0),
    "fleet": (lambda v: fjs.systems.devices(seconds_per_step=fjs.systems.lognormal(v, 1.0)), 1.0, 0.0),
    "ends": (lambda v: fjs.systems.devices(seconds_per_step=fjs.systems.uniform(1.0, v)), 1.0, 0.5),
    "policy": (lambda v: fjs.systems.devices(seconds_per_step=1.0, policy=fjs.systems.deadline(v)), 1.0, 0.0),
    "alpha": (lambda v: fjs.asynchronous.fedasync(v), 1.0, 1.5),
    "staleness": (lambda v: fjs.asynchronous.fedbuff(2, fjs.asynchronous.hinge(b=v)), 0.0, -1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_traced_values_are_seen_by_the_run(name: str) -> None:
    """What a check would refuse of a concrete value, and nothing else."""
    make, good, bad = TRACED[name]
    good, bad = (np.asarray(value, np.int32 if "clusters" in name else np.float32) for value in (good, bad))
    wrong = jax.vmap(lambda value: unmet((make(value), None), data()))(np.stack([good, bad]))
    assert wrong.tolist() == [False, True]
    if name not in ("replaced", "clusters, too many"):
        with pytest.raises(ValueError, match=r"must be|give|too small"):
            make(bad)
    assert unmet((make(good),), data()) is None  # nothing is traced


def test_traced_example_weights_are_seen_by_the_run() -> None:
    wrong = jax.vmap(lambda weights: unmet((), data().with_example_weights(weights)))
    ones = np.ones(data().num_examples, np.float32)
    assert wrong(np.stack([0 * ones, -ones])).tolist() == [False, True]


@pytest.mark.parametrize(
    "refused", [lambda share: share < 0, lambda share: not isinstance(share, float), lambda share: share.is_integer()]
)
def test_a_check_of_ones_own_that_needs_the_value_is_left_out(refused: Callable[[Any], bool]) -> None:
    class Own(fjs.local.Work):
        share: Any

        def checked(self) -> "Own":
            if refused(self.share):
                raise ValueError
            return self

    seen = jax.vmap(lambda share: unmet((Own(share), sgd(share)), data()))(np.asarray([0.5, -1.0], np.float32))
    assert seen.tolist() == [False, True]  # of sgd


def test_a_run_with_a_bad_traced_value_is_nan() -> None:
    """All of it, the derivative too; the values beside it and a good one run as if nothing were checked."""
    dataset = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(2), layout=fjs.layout.stacked(),
        batches=fjs.local.full_batch(), adjoint=fjs.adjoints.direct(),
    )  # fmt: skip

    def run(mu: Any) -> tuple[jax.Array, Any]:
        result = train(fjs.fedprox(client_optimizer=sgd(0.1), mu=mu), dataset, jax.random.key(0))
        return result.metrics["loss"][-1], result

    mapped = jax.jit(jax.vmap(jax.grad(run, has_aux=True)))
    slopes, results = jax.tree.map(np.asarray, mapped(np.asarray([0.5, -0.5, NAN], np.float32)))
    assert np.isnan(slopes).tolist() == [False, True, True]
    for leaf in jax.tree.leaves(results):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert np.isfinite(leaf[0]).all()
            assert np.isnan(leaf[1:]).all()
    _, good = jax.tree.map(np.asarray, mapped(np.asarray([0.5, 0.5, 0.1], np.float32)))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), results, good)


HUGE = 10**400
NUMBERS: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "huge": (lambda: sgd(HUGE), ("sgd(learning_rate=...)", "400 digits", "1.8e308")),
    "beyond writing": (lambda: sgd(10**5000), ("sgd(learning_rate=...)", "5000 digits")),
    "huge in a list": (lambda: fjs.rates.over_rounds([1.0, HUGE]), ("over_rounds(values=...)", "400 digits")),
    "huge of clients": (lambda: fjs.cohort.independent([HUGE]), ("independent(probability=...)", "400 digits")),
    "huge in a grid": (lambda: fjs.sweeps.grid({"mu": [HUGE]}), ("grid({'mu': ...})", "400 digits")),
    "huge by path": (lambda: fjs.paths.replace(sgd(0.1), {"learning_rate": HUGE}), ("'learning_rate'", "400 digits")),
    "infinite in float32": (lambda: sgd(1e39), ("1e+39", "infinite in float32", "at most 3.4028235e+38")),
    "infinite, an array": (
        lambda: fjs.rates.over_clients(np.asarray([1.0, 1e39])), ("over_clients(values=...)", "infinite in float32"),
    ),
    "infinite in a grid": (lambda: fjs.sweeps.grid({"mu": [1e39]}), ("infinite in float32",)),
    "zero in float32": (
        lambda: fjs.optim.fedadam(tau=1e-60), ("fedadam(tau=...) is 1e-60", "0.0 in float32", "(0, inf)"),
    ),
    "zero in a program": (lambda: fjs.clipped(fedavg(), 1e-40), ("clipped(norm=...)", "0.0 in float32")),
    "one in float32": (lambda: sgd(0.1, momentum=1 - 1e-12), ("momentum", "1.0 in float32", "[0, 1)")),
    "boundary": (lambda: fjs.rates.piecewise(1.0, (BIG,)), ("boundaries", str(BIG), "at most 2147483647")),
    "patience": (lambda: fjs.fedprox(client_optimizer=sgd(1), patience=BIG), ("patience", "at most 2147483647")),
    "buffer": (lambda: fjs.asynchronous.fedbuff(BIG), ("fedbuff(buffer=...)", "at most 2147483647")),
    "iterations": (lambda: fjs.aggregators.geometric_median(iterations=BIG), ("iterations", "at most 2147483647")),
    "clipping": (lambda: fjs.aggregators.centered_clipping(1.0, iterations=BIG), ("iterations", "at most 2147483647")),
    "steps of a solver": (lambda: fjs.adjoints.neumann(max_steps=BIG), ("max_steps", "at most 2147483647")),
    "restart": (lambda: fjs.adjoints.gmres(restart=BIG), ("restart", "at most 2147483647")),
    "shortest vector": (lambda: fjs.min_norm.active_set(max_steps=BIG), ("max_steps", "at most 2147483647")),
    "last models": (lambda: fjs.last_k(fedavg(), BIG), ("last_k(k=...)", "at most 2147483647")),
    "seed of a fleet": (
        lambda: fjs.systems.devices(seconds_per_step=1.0, seed=2**32), ("devices(seed=...)", "at most 4294967295"),
    ),
    "attackers": (lambda: fjs.attacked(fedavg(), np.asarray([2**32 + 1])), ("[4294967297]", "-1 for nobody")),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_program_does_not_hold(name: str) -> None:
    call, fragments = NUMBERS[name]
    check(call, ValueError, *fragments)


def test_rates_of_integer_arrays_are_real() -> None:
    """Else the factor that a rate is multiplied by is cut to 0."""
    one, two = np.asarray(1), jnp.int32(2)

    def at_two(rate: fjs.rates.Rate) -> float:
        return float(rate.at(jnp.int32(2), jnp.int32(0)))

    assert at_two(fjs.rates.inverse_time(one, 0.5)) == 0.5
    assert at_two(fjs.rates.piecewise(two, (1,), 0.5)) == 1.0
    assert at_two(fjs.rates.piecewise(jnp.int32(1), (1, 2), 0.5)) == 0.25
    assert jax.jit(lambda rate: fjs.rates.inverse_time(rate, 0.5).at(jnp.int32(2), jnp.int32(0)))(2) == 1.0


def test_small_numbers_pass_where_zero_does() -> None:
    assert sgd(1e-60).learning_rate == 1e-60
    assert fjs.stopping.converged(1e-60).change == 1e-60  # compared on the host, in double precision


@pytest.mark.usefixtures("x64")
def test_double_precision_holds_more() -> None:
    assert sgd(1e39, momentum=1 - 1e-12).learning_rate == 1e39
    fjs.optim.fedadam(tau=1e-60)


OF_A_LOSS = pytest.mark.skipif(jax.__version_info__ < (0, 7), reason="what a loss is of is not said by eval_shape")


@pytest.mark.parametrize(
    "given", ["hyper-parameter", "state", "model", pytest.param("closure", marks=OF_A_LOSS), "diagnostic"]
)
def test_a_shard_map_that_would_sum_gradients_is_refused(given: str) -> None:
    """Of runs with a rate for each of two devices both were the same one, whose steps were the sums of both."""
    task, data = fjs.quadratic(), fjs.datasets.quadratics(num_clients=2, dim=1, seed=0)
    train = fjs.make_train(task=task, rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1), batch_size=1)
    adapted = fjs.personalise(task, sgd(0.1), fjs.local.steps(1))

    def run(value: jax.Array) -> jax.Array:
        if given == "model":
            return adapted.models(value, data)
        if given == "diagnostic":
            return fjs.diagnostics.client_gradient_moments(task, data, value).variance[None]
        if given == "closure":
            own = fjs.task.functions(
                lambda key: jnp.zeros(1), lambda w, one: value[0] * jnp.sum((w[None] - one["e"]) ** 2, axis=-1)
            )
            part = fjs.make_train(task=own, rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1), batch_size=1)
            return part(fjs.fedavg(client_optimizer=sgd(0.1)), data, jax.random.key(0)).params
        key, method = jax.random.key(0), fjs.fedprox(client_optimizer=sgd(0.1), mu=0.1)
        if given == "state":
            state = jax.tree.map(lambda leaf: leaf * value[0], train(method, data, key).state)
            return train(method, data, key, initial_state=state).params[None]
        return train(method.replace(mu=value[0]), data, key).params[None]

    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("runs",)), jax.sharding.PartitionSpec("runs")
    mapped = functools.partial(jax.shard_map, run, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(ValueError, match=r"varies over the devices.*check_vma=False"):
        jax.eval_shape(mapped(), jnp.ones(1))
    assert jax.eval_shape(mapped(check_vma=False), jnp.ones(1)).dtype == jnp.float32
