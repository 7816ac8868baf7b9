"""What a run costs: operations of a gradient, bytes of every method, and the clock of a history."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import systems
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.clients.systems.flops import count
from fedjax_sim.core.descriptions import registered
from fedjax_sim.core.records import RECORDS
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.draw import exchange_cost
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state
from fedjax_sim.engine.solver import Solver
from fedjax_sim.reporting import comparison, curves
from fedjax_sim.reporting.plots import on_one_axis
from fedjax_sim.run.history import History

KEY = jax.random.key(5)
sgd = fjs.optim.sgd


def flops_of(task, dataset, rows):
    params = jax.eval_shape(lambda: task.init(jax.random.key(0), dataset))
    return systems.gradient_flops(task, params, dataset, rows)


def classified(num_classes=7, shape=(11,), count=9):
    rng = np.random.default_rng(2)
    clients = [(rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, num_classes, count))] * 2
    return fjs.datasets.from_clients(clients, num_classes=num_classes)


def test_flops_of_logistic_regression_and_mlp():
    """Two for every multiplication and addition of the products, and a few a logit or unit for all else."""
    B, d, C = 5, 11, 7
    logistic = flops_of(fjs.classification(fjs.models.LogisticRegression(C)), classified(), B)
    products = 2 * B * d * C + 2 * B * d * C  # x W, x' r
    assert products < logistic < products + 25 * B * C
    h1, h2 = 40, 30
    mlp = flops_of(fjs.classification(fjs.models.MLP(C, hidden=(h1, h2))), classified(), B)
    forward = 2 * B * (d * h1 + h1 * h2 + h2 * C)
    backward = forward + 2 * B * (h1 * h2 + h2 * C)  # no derivative to the examples
    assert forward + backward < mlp < forward + backward + 8 * B * (h1 + h2) + 25 * B * C
    decayed = fjs.classification(fjs.models.LogisticRegression(C), weight_decay=1e-3)
    assert logistic + 2 * (d * C + C) <= flops_of(decayed, classified(), B) <= logistic + 6 * (d * C + C)


def of_xla(function, *arguments):
    analysed = jax.jit(function).lower(*arguments).cost_analysis()
    return (analysed[0] if isinstance(analysed, list) else analysed)["flops"]


def test_flops_are_those_of_xla_where_it_can_count():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(6, (3, 3), strides=2)(x))
            x = nn.relu(nn.Conv(8, (3, 3), padding="VALID", feature_group_count=2)(x))
            return nn.Dense(3)(x.mean((1, 2)))

    net, x = Net(), jnp.ones((4, 12, 12, 2))
    params = jax.eval_shape(net.init, KEY, x)

    def loss(params, x):
        return jnp.sum(net.apply(params, x) ** 2)

    ours = count(jax.make_jaxpr(jax.grad(loss))(params, x).jaxpr)
    theirs = of_xla(jax.grad(loss), params, x)
    assert ours == pytest.approx(theirs, rel=0.02)

    # XLA counts the body of a loop once, we as often as it runs.
    def looped(w, x):
        return jnp.sum(jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=10)[0])

    def unrolled(w, x):
        for _ in range(10):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    given = jnp.ones((20, 20)), jnp.ones((4, 20))
    ours = count(jax.make_jaxpr(jax.grad(looped))(*given).jaxpr)
    assert ours == pytest.approx(count(jax.make_jaxpr(jax.grad(unrolled))(*given).jaxpr), rel=0.05)
    assert ours > 5 * of_xla(jax.grad(looped), *given)


def test_a_derivative_counts_alike_in_all_versions_of_jax():
    """tanh, the three of (1 + y) (1 - y), its product and the sum: jax 0.12 has one primitive for the three."""
    assert count(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jnp.tanh(x))))(jnp.ones((6, 7))).jaxpr) == 6 * 42


SCALARS = {"": 0, "a scalar": 1, "a number": 1, "two scalars": 2, "a scalar a leaf": 2}


def sent(name):
    """What a method's record says: models down and up, then single numbers down and up (of a model of two leaves)."""
    sides = RECORDS[f"algorithm.{name}"].sent.partition(" (")[0].split(" / ")
    models, numbers = zip(*[side.partition(" + ")[::2] for side in sides], strict=True)
    return [*map(int, models), *(SCALARS[number] for number in numbers)]


def traffic(algorithm):
    """Bytes down and up of one client, all exchanges of a round; nothing is computed."""
    dataset = classified()
    task = fjs.classification(fjs.models.LogisticRegression(7))
    work, batches = fjs.local.epochs(1), fjs.local.full_batch()
    system = systems.devices(seconds_per_step=1.0)
    asked = Plan(
        task, fjs.cohort.full(), work, batches, fjs.layout.turns(), system=system, algorithm=algorithm, dataset=dataset,
        key=KEY,
    )  # fmt: skip
    plan = resolve(asked, 1)
    found = []

    def trace(key):
        of_key = plan._replace(key=key)
        state = init_state(of_key)
        for phase in of_key.phases():
            sent = phase.method.send(state.server)
            found.append(exchange_cost(of_key, phase, sent, jnp.int32(0), state))

    jax.eval_shape(trace, KEY)
    return sum(cost.bytes_down for cost in found), sum(cost.bytes_up for cost in found)


def test_aware_around_fedaware_sends_the_change_once():
    local = {"client_optimizer": sgd(0.1)}
    assert traffic(fjs.aware(fjs.fedaware(**local))) == traffic(fjs.fedaware(**local))


def made(name) -> Method:
    more = {
        "feddf": lambda: {"public": classified()}, "fedrod": lambda: {"head": "Dense_0"},
        "fedlopt": lambda: {"server_optimizer": fjs.optim.learned(dispersion=True)},
    }  # fmt: skip
    return getattr(fjs, name)(client_optimizer=sgd(0.1), **more.get(name, dict)())


MODEL = 4 * (11 * 7 + 7)


NOT_ELSEWHERE = (
    "fedavg", "scaffold", "feddane", "fedem", "hypcluster", "heterofl", "fjord", "feddf", "fedlc", "fedntd", "fedrod",
    "fedrs",
)  # fmt: skip


def methods():
    """The methods by name; fast are those of which tests/house/test_documents.py does not count what is sent."""
    made_of = {name: inspect.signature(getattr(fjs, name.partition(".")[2])) for name in registered("algorithm")}
    own = {name.partition(".")[2] for name, call in made_of.items() if "client_optimizer" in call.parameters}
    assert len(own) > 18
    return [
        pytest.param(name, marks=() if name in NOT_ELSEWHERE else pytest.mark.slow)
        for name in sorted(own - {"fedproto"})
    ]


@pytest.mark.parametrize("name", methods())
def test_bytes_of_every_method(name):
    down, up, more_down, more_up = sent(name)
    assert traffic(made(name)) == (down * MODEL + 4 * more_down, up * MODEL + 4 * more_up)


@pytest.mark.slow
def test_bytes_of_variants_and_wrappers():
    # Means of 11 features for 7 classes, and which of them are known, or of how many examples they are.
    assert traffic(made("fedproto")) == (4 * 7 * 11 + 7, 4 * 7 * 11 + 4 * 7)
    variant = fjs.fednova(client_optimizer=sgd(0.1), variance_reduction=True)
    assert traffic(variant) == (2 * MODEL, 2 * MODEL + 8)
    for wrapped in (fjs.ema, fjs.aware, fjs.reweighted):
        assert traffic(wrapped(made("scaffold"))) == (2 * MODEL, 2 * MODEL), wrapped
    warm = fjs.fedaware(client_optimizer=sgd(0.1), warm_up=True, weights="sample")
    assert traffic(warm) == (MODEL, MODEL)


def history(durations, losses, **more):
    durations, losses = np.asarray(durations, float), np.asarray(losses, float)
    rounds = {"duration": durations, "cohort_size": np.ones(durations.shape, int), "bytes_down": 10 * durations,
              "bytes_up": durations, "useful_steps": durations, "computed_steps": durations}  # fmt: skip
    return History(
        evaluated=np.arange(losses.shape[1]) * 2, metrics={"loss": losses, "test_accuracy": 1 - losses / 10},
        rounds={**rounds, **more}, params=(), seeds=list(range(len(losses))), seconds=1.0, compile_seconds=1.0,
        description={},
    )  # fmt: skip


SEVERAL = {
    "ditto": fjs.ditto(client_optimizer=sgd(0.1)),
    "ditto apart": fjs.ditto(client_optimizer=sgd(0.1), personal_steps=1),
    "apfl": fjs.apfl(client_optimizer=sgd(0.1)),
    "fedsam": fjs.fedsam(client_optimizer=sgd(0.1)),
    "mime": fjs.mime(client_optimizer=sgd(0.1)),
    "exact": fjs.perfedavg(client_optimizer=sgd(0.1), form="exact"),
    "first order": fjs.perfedavg(client_optimizer=sgd(0.1), form="first_order"),
    "Hessian-free": fjs.perfedavg(client_optimizer=sgd(0.1), form="hessian_free"),
}


@pytest.mark.slow
def test_gradients_of_a_step_are_those_of_its_operations(monkeypatch):
    """As many as its operations are of FedAvg's, to a third of one."""
    found, step = {}, Solver.step

    def counted(self, sent, slot, progress, k, **how):
        if not self.surveying:
            traced = jax.make_jaxpr(lambda *of: step(self, *of))(sent, slot, progress, k)
            found["of a step"] = count(traced.jaxpr)
        return step(self, sent, slot, progress, k, **how)

    def operations(method):
        jax.eval_shape(train, method, data, KEY)
        return found["of a step"]

    monkeypatch.setattr(Solver, "step", counted)
    task, data = fjs.classification(fjs.models.MLP(10, hidden=(64,))), classified(10, (32,), 20)
    train = fjs.make_train(
        task=task, rounds=1, batch_size=10, work=fjs.local.steps(3), cohort=fjs.cohort.full(), layout=fjs.layout.turns()
    )
    plain = operations(fjs.fedavg(client_optimizer=sgd(0.1)))
    for name, method in SEVERAL.items():
        assert operations(method) / plain == pytest.approx(method.requires.per_step, abs=1 / 3), name


@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        ("ditto", 2 * 3),
        pytest.param("ditto apart", 3 + 1, marks=pytest.mark.slow),
        pytest.param("mime", 2 + 2 * 3, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_a_step_are_recorded_and_take_their_time(name, gradients):
    found = fjs.simulate(
        SEVERAL[name], classified(count=20), task=fjs.classification(fjs.models.LogisticRegression(7)), rounds=2,
        eval_every=2, batch_size=10, cohort=fjs.cohort.full(), work=fjs.local.steps(3),
        system=systems.devices(seconds_per_step=1.0),
    )  # fmt: skip
    assert found.rounds["useful_steps"].tolist() == [[2 * gradients] * 2]
    assert found.rounds["computed_steps"].tolist() == [[2 * gradients] * 2]
    np.testing.assert_allclose(found.rounds["duration"], [[gradients] * 2])


def test_clock_of_a_history():
    kept = history([[1, 2, 3, 4], [10, 10, 10, 10]], [[9.0, 5.0, 1.0], [9.0, 8.0, 7.0]])
    np.testing.assert_array_equal(kept.virtual_time, [[0, 3, 10], [0, 20, 40]])
    np.testing.assert_array_equal(kept.bytes, [[0, 33, 110], [0, 220, 440]])
    np.testing.assert_array_equal(kept.time_to("loss", 5.0), [3, np.inf])
    np.testing.assert_array_equal(kept.time_to("test_accuracy", 0.19), [3, 20])
    np.testing.assert_array_equal(kept.time_to("duration", 3.0), [6, 10])  # a record of every round
    np.testing.assert_array_equal(kept.rounds_to("loss", 5.0), [2, np.inf])
    del kept.rounds["duration"]
    with pytest.raises(ValueError, match="did not record virtual time"):
        kept.time_to("loss", 5.0)
    kept.rounds["virtual_time"] = np.ones((2, 4))  # the diagnostic is a clock too
    np.testing.assert_array_equal(kept.virtual_time, [[0, 2, 4]] * 2)
    with pytest.raises(ValueError, match="it must be one of 'round', 'virtual_time', 'bytes'"):
        kept.plot("loss", against="virtual_tim")


def test_comparison_against_time(tmp_path):
    slow, fast = (history([[k, 2 * k, k, k], [k, k, k, k]], [[9.0, 5.0, 1.0], [9.0, 8.0, 7.0]]) for k in (30, 10))
    figure = comparison({"p": {"slow": slow, "fast": fast}}, tmp_path / "time.png", against="virtual_time")
    assert (tmp_path / "time.png").stat().st_size > 10_000
    losses, accuracies = figure.axes
    assert accuracies.get_xlabel() == "virtual time (s)"
    assert [line.get_xdata()[-1] for line in losses.get_lines()] == [120, 40]


@pytest.mark.usefixtures("pyplot")
def test_curves_against_time():
    kept = history([[1, 2, 3, 4], [10, 10, 10, 10]], [[9.0, 5.0, 1.0], [9.0, 8.0, 7.0]])
    axis, values = on_one_axis(kept.virtual_time, kept["loss"], np.zeros(2, bool))
    np.testing.assert_array_equal(axis, [0, 3, 10])  # until the first seed ends
    np.testing.assert_array_equal(values, [[9, 5, 1], [9, 9, 9]])
    axis, values = on_one_axis(kept.virtual_time, kept["loss"], np.array([True, False]))
    np.testing.assert_array_equal(axis, [0, 3, 10, 20, 40])  # the first seed was stopped: its last value holds
    np.testing.assert_array_equal(values, [[9, 5, 1, 1, 1], [9, 9, 9, 8, 7]])
    axis, values = on_one_axis(kept.virtual_time, kept["loss"], np.zeros(2, bool))
    other = history([[1, 1, 1, 1]], [[9.0, np.nan, np.nan]])
    ax = curves({"a": kept, "b": other}, "loss", against="virtual_time")
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), axis)
    np.testing.assert_array_equal(line.get_ydata(), values.mean(axis=0))
    assert line.get_drawstyle() == "steps-post"
    assert ax.get_xlabel() == "virtual time (s)"
    assert len(ax.get_lines()[1].get_xdata()) == 1  # the seed that diverged ends where it did
    assert kept.plot("loss", against="bytes").get_xlabel() == "communication (bytes)"
    assert kept.plot("loss").get_lines()[0].get_drawstyle() == "default"
