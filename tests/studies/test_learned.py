"""Training of learned rules: what is drawn, what a step is, what a directory and a file keep; rules in whole runs."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.studies import learned

pytestmark = pytest.mark.xdist_group("learned")  # one worker compiles what they share

KEY = jax.random.key(3)
RATE, CHANCE, STEPS = "client_optimizer.learning_rate", "cohort.availability.probability", "work.mean"
SGD = fjs.optim.sgd(0.05)
ROUNDS, EVERY = 4, 2
PES = fjs.outer.pes(sigma=0.1, pairs=3)


def quadratics(seed, sizes=None, clients=5):
    sizes = [1 + (seed + i) % 4 for i in range(clients)] if sizes is None else sizes
    return fjs.datasets.quadratics(num_clients=clients, dim=3, scale=1.0, seed=seed, sizes=sizes)


def run(**other):
    return {
        "task": fjs.quadratic(start=1.0), "rounds": ROUNDS, "eval_every": EVERY, "batches": fjs.local.in_order(2),
        "cohort": fjs.cohort.available(fjs.cohort.uniform(3), fjs.cohort.bernoulli(0.9)),
        "work": fjs.local.gaussian_steps(3.0, 1.0, most=6), **other,
    }  # fmt: skip


VARY = {
    RATE: fjs.sweeps.log_uniform(0.01, 0.1), CHANCE: fjs.sweeps.uniform(0.5, 1.0), STEPS: fjs.sweeps.uniform(1.0, 5.0)
}  # fmt: skip
DATA = [quadratics(seed) for seed in range(3)]


def shifted(params, dataset):
    return {"shifted": jnp.sum(params)}


def problem(datasets=DATA, vary=VARY, hidden=3, objective="loss", **other):
    rule = fjs.optim.learned(hidden=hidden, dispersion=True)
    method = fjs.fedlopt(client_optimizer=SGD, server_optimizer=rule)
    return learned.federations(method, datasets, vary=vary, objective=fjs.hyper.mean(objective), **run(**other))


def offset(data, by):
    """Losses that are positive: the constant of every example."""
    examples = dict(data.examples) | {"c": jnp.full(data.num_examples, by)}
    return data.replace(examples=examples)


POSITIVE = [offset(one, 20.0) for one in DATA]


@pytest.fixture(scope="module")
def made():
    return problem(POSITIVE)


@pytest.fixture(scope="module")
def small():
    """No cohort is drawn, so that it compiles in half the time: what an episode is does not depend on that."""
    return fewer()


def fewer(datasets=POSITIVE[:2]):
    vary = {RATE: fjs.sweeps.log_uniform(0.01, 0.1)}
    return problem(datasets, vary=vary, cohort=fjs.cohort.full(), work=fjs.local.steps(2))


@pytest.mark.slow
def test_rounds_have_the_steps_of_the_smallest_probability_that_is_drawn():
    made = problem(vary={"work.p": fjs.sweeps.log_uniform(0.01, 0.5)}, work=fjs.local.geometric(0.5))
    assert made.plan.work.most == fjs.local.geometric(0.01).most > fjs.local.geometric(0.5).most


@pytest.mark.slow
def test_rounds_have_the_slots_of_the_largest_probability_that_is_drawn():
    data, vary = [quadratics(seed, clients=30) for seed in (0, 1)], {"cohort.probability": fjs.sweeps.uniform(0.1, 0.9)}
    made = problem(data, vary=vary, cohort=fjs.cohort.independent(0.1, average="plain"))
    assert made.plan.cohort.cap == fjs.cohort.independent(0.9).size(30) > fjs.cohort.independent(0.1).size(30)
    with pytest.raises(ValueError, match=r"cap=25\) is too small for 30 clients"):
        problem(data, vary=vary, cohort=fjs.cohort.independent(0.1, cap=25, average="plain"))


@pytest.mark.slow
def test_what_is_drawn_is_of_every_federation(made):
    drawn = jax.vmap(lambda key: made.drawn(key)[:2])
    which, values = drawn(jax.random.split(KEY, 6))
    assert {*which.tolist()} == {0, 1, 2}
    for path, of in VARY.items():
        assert ((of.low <= values[path]) & (values[path] < of.high)).all()


@pytest.mark.parametrize("number", [0, *(pytest.param(other, marks=pytest.mark.slow) for other in range(1, 6))])
def test_a_federation_is_the_run_of_what_was_drawn(number, made):
    """Padding, masks and the drawn values change nothing: the loss is that of make_train with them."""
    key = jax.random.split(KEY, 6)[number]

    @jax.jit
    def of_key(problem, theta, key):
        def advanced(state, segment):
            return problem.advance(theta, state, segment)

        losses = jax.lax.scan(advanced, problem.begin(theta, key), jnp.arange(problem.segments))[1]
        return jnp.sum(losses), problem.drawn(key)

    loss, (which, values, own) = of_key(made, made.parameters, key)
    part = run(diagnostics=())
    cohort = fjs.cohort.available(fjs.cohort.uniform(3), fjs.cohort.bernoulli(float(values[CHANCE])))
    work = fjs.local.gaussian_steps(float(values[STEPS]), 1.0, most=6)
    method = fjs.fedlopt(
        client_optimizer=fjs.optim.sgd(float(values[RATE])),
        server_optimizer=fjs.optim.learned(hidden=3, dispersion=True),
    )
    result = jax.jit(fjs.make_train(**part | {"cohort": cohort, "work": work}))(method, POSITIVE[int(which)], own)
    recorded = np.asarray(result.metrics["loss"])
    np.testing.assert_allclose(loss, np.mean(np.log(recorded[1:] / recorded[0])), rtol=1e-4)


@pytest.mark.slow
def test_a_method_that_has_the_task_has_the_one_that_is_drawn():
    data = [fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=20, seed=seed) for seed in (0, 1)]
    method = fjs.feddf(client_optimizer=fjs.optim.learned(hidden=3), public=data[0])
    made = fjs.learned.federations(
        method, data, vary={"task.weight_decay": fjs.sweeps.uniform(2, 3)}, objective=fjs.hyper.mean("loss"), rounds=2,
        task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3), batch_size=5,
        cohort=fjs.cohort.uniform(2), work=fjs.local.steps(1),
    )  # fmt: skip
    plan, _ = made._resolved(made.parameters, KEY)
    assert plan.task.weight_decay == plan.algorithm.task.weight_decay > 2


@pytest.mark.slow
def test_a_log_uniform_value_is_uniform_in_its_logarithm(made):
    values = jax.vmap(lambda key: made.drawn(key)[1])(jax.random.split(KEY, 2000))
    share = np.log(np.asarray(values[RATE]) / 0.01) / np.log(10)
    assert abs(share.mean() - 0.5) < 0.03
    assert abs(np.asarray(values[STEPS]).mean() - 3) < 0.1


def test_what_diverges_counts_as_the_cap(small):
    @jax.jit
    def first(key):
        (key, train), start = small.begin(small.parameters, key)
        broken = train._replace(server=train.server._replace(params=train.server.params * jnp.nan))
        return small.advance(small.parameters, ((key, broken), start), jnp.int32(0))[1]

    assert float(first(KEY)) == 1.0 / small.segments


@pytest.mark.slow
def test_an_episode_is_what_its_key_says(small):
    """One optimiser's step after each window; what a step finds, the next window of all pairs runs at."""
    found = learned.train(small, episodes=2, key=KEY, estimator=PES, optimizer=fjs.optim.sgd(0.1))
    theta, losses, step = small.parameters, [], jax.jit(PES.step)
    for number in range(2):
        particles, loss = jax.jit(PES.begin)(small, theta, jax.random.fold_in(KEY, number)), 0.0
        for _ in range(2):
            particles, one = step(small, theta, particles)
            theta = jax.tree.map(lambda a, b: a - 0.1 * b, theta, one.gradient)
            loss += float(one.value)
        losses.append(loss)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    weights = found.algorithm.server_optimizer.weights
    for name in weights:
        expected = theta[f"server_optimizer.weights.{name}"]
        np.testing.assert_allclose(weights[name], expected, rtol=1e-4, atol=1e-6)
    assert np.abs(weights["bias_2"]).max() > 0


@pytest.fixture(params=["counted", pytest.param("trained", marks=pytest.mark.slow)])
def episodes(request, monkeypatch):
    """What an episode is: itself, or sums that its key goes into, which compile nothing."""

    def counted(problem, estimator, solver, going, key):
        drawn = np.asarray(jax.random.key_data(key)).sum() % 1000 / 1000
        return jax.tree.map(lambda leaf: np.asarray(leaf) + np.asarray(drawn, leaf.dtype), going), drawn - 1

    if request.param == "counted":
        monkeypatch.setattr(learned, "_episode", counted)


@pytest.mark.usefixtures("episodes")
def test_an_interrupted_training_goes_on(small, tmp_path):
    given = {"key": KEY, "estimator": PES, "optimizer": fjs.optim.adam(0.01)}
    whole = learned.train(small, episodes=4, **given)
    assert len({*whole.losses.tolist()}) == 4, "each episode has draws of its own"
    first = learned.train(small, episodes=3, checkpoint=tmp_path, save_every=2, **given)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "round-00000002.safetensors", "round-00000003.safetensors"
    ]  # fmt: skip
    resumed = learned.train(fewer(), episodes=4, checkpoint=tmp_path, **given)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    np.testing.assert_array_equal(first.losses, whole.losses[:3])
    jax.tree.map(np.testing.assert_array_equal, resumed.algorithm, whole.algorithm)
    for other in (
        {"key": jax.random.key(4)},
        {"optimizer": fjs.optim.adam(0.1)},
        {"estimator": PES.replace(sigma=0.2)},
    ):
        with pytest.raises(ValueError, match="of another training"):
            learned.train(small, episodes=5, checkpoint=tmp_path, **given | other)
    swapped = small.plan._replace(dataset=jax.tree.map(lambda leaf: np.asarray(leaf)[::-1], small.plan.dataset))
    with pytest.raises(ValueError, match="datasets"):
        learned.train(small.replace(plan=swapped), episodes=5, checkpoint=tmp_path, **given)
    skipping = small.plan._replace(guard=small.plan.guard.replace(skip=True))
    with pytest.raises(ValueError, match="skip_nonfinite: nothing in the"):
        learned.train(small.replace(plan=skipping), episodes=5, checkpoint=tmp_path, **given)
    with (
        jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
        pytest.raises(ValueError, match=r"generator\.jax_threefry_partitionable: true in the"),
    ):
        learned.train(small, episodes=5, checkpoint=tmp_path, **given)
    with pytest.raises(ValueError, match=r"has finished 4 episodes, and episodes=3 asks for fewer"):
        learned.train(small, episodes=3, checkpoint=tmp_path, **given)
    lock = threading.Lock()
    unknown = optax.GradientTransformation(lambda params: (), lambda g, state, params=None, lock=lock: (g, state))
    with pytest.raises(ValueError, match=r"a training with checkpoints must be known .*optimizer: .*_thread.lock"):
        learned.train(small, episodes=5, checkpoint=tmp_path, **given | {"optimizer": unknown})


def test_a_rule_in_a_file_is_the_same_to_the_last_bit(tmp_path):
    rule = fjs.optim.learned("parameter", hidden=5, dispersion=True)
    rule = rule.replace(weights={name: array + 1 / 3 for name, array in rule.weights.items()})
    path = tmp_path / "rule.safetensors"
    learned.save(rule, path)
    found = learned.load(path)
    assert fjs.describe(found) == fjs.describe(rule)
    assert jax.tree.structure(found) == jax.tree.structure(rule)
    jax.tree.map(np.testing.assert_array_equal, found.weights, rule.weights)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        learned.load(path)
    with pytest.raises(TypeError, match=r"give a fedjax_sim\.optim"):
        learned.save(SGD, path)


@pytest.mark.slow
def test_training_finds_longer_steps():
    """Clients that go a hundredth of the way: a server that has learned goes further, in runs of ``simulate`` too."""
    data = quadratics(0, clients=3)
    one = problem([offset(data, 8.0)], vary={RATE: fjs.sweeps.log_uniform(0.002, 0.003)})
    trained = learned.train(
        one, episodes=30, key=KEY, estimator=fjs.outer.pes(sigma=0.1, pairs=3), optimizer=fjs.optim.adam(0.05)
    )
    assert trained.losses[-5:].mean() < trained.losses[:5].mean() - 0.005
    start, end = (
        fjs.simulate(fjs.paths.replace(method, {RATE: 0.0025}), data, **run(), progress=False).final("loss")
        for method in (problem().algorithm(problem().parameters), trained.algorithm)
    )
    assert end < start


@pytest.mark.slow
@pytest.mark.parametrize("layout", [fjs.layout.stacked(), fjs.layout.lanes(2)])
def test_as_client_optimizer_steps_are_masked(layout, x64):
    """Clients side by side take as many steps as one after the other."""
    rule = fjs.optim.learned("parameter", hidden=3)
    draw = np.random.default_rng(1)
    rule = rule.replace(weights={k: jnp.asarray(0.5 * draw.standard_normal(s)) for k, s in rule.shapes().items()})
    method = fjs.fedavg(client_optimizer=rule, client_learning_rate=0.05)
    tau = np.array([[1, 4, 2, 0, 3]] * 2)
    given = run(rounds=2, eval_every=1, work=fjs.local.given_steps(tau), cohort=fjs.cohort.full(), diagnostics=())
    turns, other = (
        jax.jit(fjs.make_train(**given, layout=one))(method, DATA[0], KEY) for one in (fjs.layout.turns(), layout)
    )
    np.testing.assert_allclose(turns.params, other.params, rtol=1e-10)
    assert np.abs(np.asarray(turns.params) - 1).max() > 1e-3


@pytest.mark.slow
def test_a_run_with_a_rule_is_described_and_verified():
    rule = fjs.optim.learned(hidden=3, dispersion=True)
    method = fjs.fedlopt(client_optimizer=fjs.optim.learned(hidden=3), client_learning_rate=0.05, server_optimizer=rule)
    history = fjs.simulate(method, DATA[0], **run(), progress=False)
    described = fjs.build(history.description["algorithm"])
    jax.tree.map(np.testing.assert_array_equal, described, method)
    assert np.isfinite(history.final("loss")).all()
    assert fjs.verify(history)


@pytest.mark.slow
def test_what_is_refused(made):
    with pytest.raises(ValueError, match="nothing to learn"):
        learned.federations(fjs.fedavg(client_optimizer=SGD), DATA, **run())
    with pytest.raises(ValueError, match="more than sizes and values"):
        problem([*DATA, quadratics(0, clients=4)])
    with pytest.raises(ValueError, match="at least one"):
        problem([])
    with pytest.raises(ValueError, match="more of it is better"):
        problem(objective="test_accuracy")
    with pytest.raises(ValueError, match="no hyper-parameter"):
        problem(vary={"client_optimizer.rate": fjs.sweeps.uniform(0, 1)})
    with pytest.raises(ValueError, match="probability"):
        problem(vary={CHANCE: fjs.sweeps.uniform(0.5, 2.0)})
    with pytest.raises(TypeError, match="log_uniform"):
        problem(vary={RATE: (0.1, 0.2)})
    with pytest.raises(ValueError, match="multiple"):
        problem(rounds=5)
    with pytest.raises(ValueError, match="several data sets"):
        problem(evaluate=shifted)
    with pytest.raises(ValueError, match="several data sets"):
        problem(layout=fjs.layout.mesh(1))
    with pytest.raises(FloatingPointError, match="not positive"):
        learned.train(fewer([offset(one, -50.0) for one in DATA[:2]]), episodes=1, key=KEY, estimator=PES)
    with pytest.raises(TypeError, match="federations"):
        learned.train(DATA[0], episodes=1, key=KEY)
    with pytest.raises(TypeError, match="pes"):
        learned.train(made, episodes=1, key=KEY, estimator=fjs.outer.es())
    with pytest.raises(ValueError, match="window"):
        learned.train(made, episodes=1, key=KEY, estimator=fjs.outer.pes(window=4))
