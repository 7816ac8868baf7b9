"""Estimators of outer gradients: against their formulas with the same draws, known answers, sums over all draws."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.core.keys import client_draws
from fedjax_sim.studies.outer.problems import Unrolled

pytestmark = pytest.mark.xdist_group("tuning")  # one worker compiles what they share

outer, sgd = fjs.outer, fjs.optim.sgd
RATE = "client_optimizer.learning_rate"
KEY = jax.random.key(3)


class Drift(Unrolled):
    """x <- a x + theta + a draw of the run, loss (x - 1)^2: quadratic in theta."""

    a: jax.Array

    @property
    def segments(self):
        return 6

    def begin(self, parameters, key):
        return key, 2.0 * parameters

    def advance(self, parameters, state, segment):
        key, x = state
        x = self.a * x + parameters + jax.random.normal(jax.random.fold_in(key, segment), (), jnp.result_type(float))
        return (key, x), (x - 1) ** 2


class Debt(Unrolled):
    """Each segment gains theta and owes what was gained before: what truncation sees has the wrong sign."""

    @property
    def segments(self):
        return 8

    def begin(self, parameters, key):
        return jnp.zeros_like(parameters)

    def advance(self, parameters, state, segment):
        return state + parameters, 0.5 * state - parameters


def drift_by_hand(thetas, run, a=0.7):
    """The losses of Drift's segments, the parameters of each given."""
    x, losses = 2.0 * thetas[0], []
    for s, theta in enumerate(thetas):
        x = a * x + theta + float(jax.random.normal(jax.random.fold_in(run, s), (), jnp.float64))
        losses.append((x - 1) ** 2)
    return np.array(losses)


def draws(pairs):
    """The keys of run and direction of each sample of KEY."""
    return [jax.random.split(key) for key in jax.random.split(KEY, pairs)]


def normal(key):
    """What an estimator draws for parameters that are one number."""
    return float(jax.random.normal(jax.random.split(key, 1)[0], (), jnp.float64))


THETA = 0.3


def test_es_is_its_formula(x64):
    found = jax.jit(outer.estimate)(outer.es(sigma=0.2, pairs=3), Drift(jnp.array(0.7)), jnp.array(THETA), KEY)
    each, values = [], []
    for run, drawn in draws(3):
        e = 0.2 * normal(drawn)
        plus, minus = (drift_by_hand([THETA + sign * e] * 6, run).sum() for sign in (1, -1))
        each.append((plus - minus) / (2 * 0.2**2) * e)
        values.append((plus + minus) / 2)
    np.testing.assert_allclose(found.gradient, np.mean(each), rtol=1e-12)
    np.testing.assert_allclose(found.error, np.std(each, ddof=1) / 3**0.5, rtol=1e-10)
    np.testing.assert_allclose(found.value, np.mean(values), rtol=1e-12)


def test_es_in_windows_begins_each_where_the_run_without_perturbations_is(x64):
    found = jax.jit(outer.estimate)(outer.es(0.2, pairs=2, window=3), Drift(jnp.array(0.7)), jnp.array(THETA), KEY)
    each = []
    for run, drawn in draws(2):
        total = 0.0
        for w in (0, 1):
            e = 0.2 * normal(jax.random.fold_in(drawn, w))
            # The start is theta's alone: what begin makes of it is the same for both runs of a pair.
            plus, minus = (drift_from(THETA, THETA + sign * e, run, 3 * w) for sign in (1, -1))
            total += (plus - minus) / (2 * 0.2**2) * e
        each.append(total)
    np.testing.assert_allclose(found.gradient, np.mean(each), rtol=1e-12)


def drift_from(before, within, run, first, a=0.7):
    """The loss of three segments from ``first``, with one parameter until there and another from there on."""
    x = 2.0 * before
    losses = []
    for s in range(first + 3):
        theta = before if s < first else within
        x = a * x + theta + float(jax.random.normal(jax.random.fold_in(run, s), (), jnp.float64))
        losses.append((x - 1) ** 2 if s >= first else 0.0)
    return sum(losses)


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_pes_is_algorithm_1(window, x64):
    problem, theta = Drift(jnp.array(0.7)), jnp.array(THETA)
    pes = outer.pes(sigma=0.2, pairs=3, window=window)
    found = jax.jit(outer.estimate)(pes, problem, theta, KEY)
    each = []
    for run, drawn in draws(3):
        es = [0.2 * normal(jax.random.fold_in(drawn, w)) for w in range(6 // window)]
        runs = [drift_by_hand([THETA + sign * es[s // window] for s in range(6)], run) for sign in (1, -1)]
        differences = (runs[0] - runs[1]).reshape(-1, window).sum(axis=1)
        each.append(np.sum(differences / (2 * 0.2**2) * np.cumsum(es)))
    np.testing.assert_allclose(found.gradient, np.mean(each), rtol=1e-11)
    np.testing.assert_allclose(found.error, np.std(each, ddof=1) / 3**0.5, rtol=1e-10)


def of_debt(*estimators):
    """L = theta (T(T-1)/4 - T): dL/dtheta = 6, and -8 within segments."""
    key, theta = jax.random.key(0), np.array(0.1)
    return jax.jit(lambda: [outer.estimate(one, Debt(), theta, key) for one in estimators])()


def test_truncation_has_the_wrong_sign(x64):
    *cut, exact = of_debt(outer.truncated(1), outer.truncated(4), outer.truncated(8), outer.exact())
    assert [one.gradient for one in cut] == pytest.approx([-8.0, -2.0, 6.0])
    assert exact.gradient == pytest.approx(6.0)
    assert exact.error is None


@pytest.mark.slow
def test_estimators_where_truncation_has_the_wrong_sign(x64):
    drawn = [outer.pes(0.3, pairs=4000), outer.es(0.3, pairs=4000), outer.forward_gradient(4000)]
    *found, biased = of_debt(*drawn, outer.es(0.3, pairs=4000, window=1))
    for one in found:
        assert abs(one.gradient - 6) < 4 * one.error < 3
    assert abs(biased.gradient + 8) < 4 * biased.error < 3


def test_forward_gradient_is_the_slope_along_each_direction(x64):
    theta = {"a": jnp.array([0.3, -1.0]), "b": jnp.array(2.0)}

    def loss(theta, key):
        return jnp.sum(theta["a"] ** 2) * theta["b"] + jax.random.normal(key, (), jnp.float64)

    found = jax.jit(lambda key: outer.estimate(outer.forward_gradient(2), loss, theta, key))(KEY)
    slopes = np.array([2 * 0.3 * 2, -2.0 * 2, 1.09])
    each = []
    for _, drawn in draws(2):
        keys = jax.random.split(drawn, 2)
        v = np.append(jax.random.normal(keys[0], (2,), jnp.float64), jax.random.normal(keys[1], (), jnp.float64))
        each.append(slopes @ v * v)
    np.testing.assert_allclose(np.append(found.gradient["a"], found.gradient["b"]), np.mean(each, axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [
        outer.forward_gradient(1),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (outer.es(pairs=1), outer.pes(pairs=1))),
    ],
    ids=lambda estimator: estimator.factory_name(),
)
def test_directions_of_half_precision_are_normal(estimator):
    """bfloat16's own draws have the mean -0.012, which all parameters share, and end at 2.9 deviations."""
    theta = jnp.zeros(4_000, jnp.bfloat16)
    loss = lambda u, key: jnp.sum(u.astype(jnp.float32))
    v = np.asarray(jax.jit(lambda: outer.estimate(estimator, loss, theta, KEY))().gradient, float)  # times a number
    assert abs(v).max() > 3 * v.std()


@pytest.mark.slow
def test_windows_of_pes_add_up_to_a_whole_run(x64):
    problem, theta = Drift(jnp.array(0.7)), jnp.array(THETA)
    pes = outer.pes(sigma=0.2, pairs=3, window=2)
    particles, found = pes.begin(problem, theta, KEY), []
    for _ in range(3):
        particles, one = jax.jit(pes.step)(problem, theta, particles)
        found.append(one)
    whole = jax.jit(outer.estimate)(pes, problem, theta, KEY)
    np.testing.assert_allclose(sum(one.gradient for one in found), whole.gradient, rtol=1e-12)
    np.testing.assert_allclose(sum(one.value for one in found), whole.value, rtol=1e-12)


# Federated runs.

DATA = {"num_clients": 4, "dim": 2, "sizes": [1, 2, 3, 2], "seed": 0}


def common(**changed):
    return {
        "task": fjs.quadratic(start=1.0), "rounds": 4, "eval_every": 2, "batches": fjs.local.in_order(1),
        "cohort": fjs.cohort.uniform(2), "work": fjs.local.steps(2),
    } | changed  # fmt: skip


def test_objectives_read_what_is_recorded():
    """The mean has nothing of the start, which no parameter reaches."""
    result = types.SimpleNamespace(
        metrics={"loss": jnp.array([9.0, 1.0, 4.0])}, rounds={"drift": jnp.array([2.0, 5.0])}
    )
    found = [fjs.hyper.mean("loss")(result), *(fjs.hyper.final(name)(result) for name in ("loss", "drift"))]
    assert np.array(found).tolist() == [2.5, 4.0, 5.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "method"),
    [
        ("mean", fjs.fedavg), ("mean", fjs.scaffold), ("final", fjs.scaffold),
    ],
)  # fmt: skip
def test_the_exact_gradient_of_a_run_is_that_of_make_train(objective, method, x64):
    data, run = fjs.datasets.quadratics(**DATA), common()
    algorithm = method(client_optimizer=sgd(0.02))
    read = getattr(fjs.hyper, objective)("loss")
    problem = outer.federated(algorithm, data, over=[RATE], objective=read, **run)
    found = jax.jit(outer.estimate)(outer.exact(), problem, problem.parameters, KEY)

    def loss(u):
        varied = fjs.paths.replace(algorithm, {RATE: jnp.exp(u)})
        return read(fjs.make_train(**run)(varied, data, KEY))

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.log(0.02))
    np.testing.assert_allclose(found.value, value, rtol=1e-12)
    np.testing.assert_allclose(found.gradient[RATE], gradient, rtol=1e-9)
    assert problem.values(problem.parameters)[RATE] == pytest.approx(0.02)


@pytest.mark.slow
def test_what_an_asynchronous_server_does_is_a_part_of_the_run(x64):
    """As in a sweep, and in a tuning without an estimator."""
    data, algorithm = fjs.datasets.quadratics(**DATA), fjs.fedavg(client_optimizer=sgd(0.02))
    name, scheme = "asynchronous.alpha", fjs.asynchronous.fedasync(0.6)
    devices = fjs.systems.devices(seconds_per_step=[1.0, 2.0, 3.5, 5.0])
    run = common(rounds=3, eval_every=3, asynchronous=scheme, system=devices)
    read = fjs.hyper.mean("loss")
    problem = outer.federated(algorithm, data, over={name: fjs.hyper.identity()}, objective=read, **run)
    found = jax.jit(outer.estimate)(outer.exact(), problem, problem.parameters, KEY)

    def loss(alpha):
        return read(fjs.make_train(**run | {"asynchronous": scheme.replace(alpha=alpha)})(algorithm, data, KEY))

    np.testing.assert_allclose(found.gradient[name], jax.jit(jax.grad(loss))(0.6), rtol=1e-9)
    assert abs(found.gradient[name]) > 1e-3
    assert "asynchronous" not in made()._subject.description()["run"]  # as checkpoints of trainings have it


def test_a_probability_that_stays_says_how_many_slots_a_cohort_has():
    chance = fjs.cohort.independent(1e-5)
    assert made(cohort=chance).plan.cohort.cap == chance.size(4) < 4
    with pytest.raises(ValueError, match="give cap"):
        made(over=["cohort.probability"], cohort=chance)


@pytest.mark.slow
def test_truncation_of_a_run_s_end_is_the_adjoint_s(x64):
    data, run = fjs.datasets.quadratics(**DATA), common()
    algorithm, read = fjs.fedavg(client_optimizer=sgd(0.02)), fjs.hyper.final("loss")
    problem = outer.federated(algorithm, data, over={RATE: fjs.hyper.identity()}, objective=read, **run)
    found = jax.jit(outer.estimate)(outer.truncated(1), problem, problem.parameters, KEY)
    train = fjs.make_train(**run, adjoint=fjs.adjoints.truncated(2))
    wanted = jax.jit(jax.grad(lambda algorithm: read(train(algorithm, data, KEY))))(algorithm)
    np.testing.assert_allclose(found.gradient[RATE], wanted.client_optimizer.learning_rate, rtol=1e-9)


@pytest.mark.slow
def test_forward_mode_runs_the_loops_as_they_are(x64):
    """One parameter: (g v) v over g is v^2, the same for all g; a smaller bound of the loops is no part of it."""
    data, algorithm = fjs.datasets.quadratics(**DATA), fjs.fedavg(client_optimizer=sgd(0.02))
    problem = outer.federated(algorithm, data, over=[RATE], objective=fjs.hyper.mean("loss"), **common())
    assert not problem.forwards().plan.schedule.reverse
    assert problem.plan.schedule.reverse
    found = jax.jit(outer.estimate)(outer.forward_gradient(1), problem, problem.parameters, KEY)
    ((run, drawn),) = draws(1)
    exact = jax.jit(outer.estimate)(outer.exact(), problem, problem.parameters, run)
    np.testing.assert_allclose(found.gradient[RATE], exact.gradient[RATE] * normal(drawn) ** 2, rtol=1e-9)


@pytest.mark.slow
def test_values_that_a_check_refuses_are_nan():
    data, algorithm = fjs.datasets.quadratics(**DATA), fjs.fedprox(client_optimizer=sgd(0.02), mu=0.1)
    problem = outer.federated(
        algorithm, data, over={"mu": fjs.hyper.identity()}, objective=fjs.hyper.mean("loss"), **common()
    )
    value = jax.jit(outer.estimate)(outer.es(0.01, pairs=1), problem, {"mu": jnp.float32(-1.0)}, KEY).value
    assert np.isnan(value)


@pytest.mark.slow
def test_tune_follows_an_estimator():
    data, algorithm = fjs.datasets.quadratics(**DATA), fjs.fedavg(client_optimizer=sgd(0.005))
    tuned = fjs.tune(
        algorithm, data, over=[RATE], objective=fjs.hyper.mean("loss"), estimator=outer.pes(0.1, pairs=4), steps=6,
        seeds=range(2), **common(),
    )  # fmt: skip
    assert tuned.description["estimator"] == fjs.describe(outer.pes(0.1, pairs=4))
    rates = tuned.hyper[RATE][0]
    assert rates[-1] > rates[0]
    assert (tuned.gradients[RATE] != 0).all()
    again = tuned.gradients[RATE][0]
    assert len(set(again.tolist())) == len(again)  # each step has draws of its own


# What is drawn.


def probabilities(scheme, part, keys=400, **more):
    """{what is drawn: log p} of a scheme over many keys, alone in a run of one round."""
    data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)

    def drawn(key):
        if part == "cohort":
            found, inside = [], scheme
            while inside is not None:  # in which sense somebody is not available is drawn too
                found.append(inside.select(data, key, jnp.int32(0))[:2])
                inside = getattr(inside, "scheme", None)
            return found, scheme.log_probability(data, key, jnp.int32(0))
        ids = data.client_ids
        everybody = jnp.arange(3, dtype=jnp.int32)
        turn = Turn(client_draws(key, jnp.int32(0), ids), jnp.int32(0), everybody, ids, everybody < 2, everybody + 1)
        return scheme.steps(turn)[:2], scheme.log_probability(turn)

    outcomes, logs = jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(1), keys))
    rows = np.concatenate([np.asarray(leaf).reshape(keys, -1) for leaf in jax.tree.leaves(outcomes)], axis=1)
    found = {}
    for row, log in zip(rows, np.asarray(logs), strict=True):
        assert found.setdefault(tuple(row.tolist()), log) == pytest.approx(log, rel=1e-5)
    return found


SCHEMES = {
    "independent": (fjs.cohort.independent([0.3, 0.5, 0.8], cap=3), "cohort", 8),
    "certain": (fjs.cohort.independent([0.0, 0.5, 1.0], cap=3), "cohort", 2),
    "weighted": (fjs.cohort.weighted(2, [1.0, 2.0, 3.0]), "cohort", 6),
    "weighted_without_one": (fjs.cohort.weighted(2, [1.0, 0.0, 3.0]), "cohort", 2),
    "available": (
        fjs.cohort.available(fjs.cohort.independent(0.5, cap=3), fjs.cohort.bernoulli([0.4, 0.7, 0.6])), "cohort", 27,
    ),
    "twice_available": (
        fjs.cohort.available(
            fjs.cohort.available(fjs.cohort.full(), fjs.cohort.bernoulli([0.4, 0.7, 1.0])), fjs.cohort.bernoulli(0.5)
        ), "cohort", 18,
    ),
    "geometric": (fjs.local.geometric(0.4, most=4), "work", 4),
    "gaussian": (fjs.local.gaussian_steps(2.0, 1.0, most=3), "work", 9),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ("certain", "twice_available") else ()) for name in SCHEMES],
)
def test_the_probabilities_of_all_draws_sum_to_one(name):
    scheme, part, number = SCHEMES[name]
    found = probabilities(scheme, part)
    assert len(found) == number
    np.testing.assert_allclose(sum(np.exp(list(found.values()))), 1, rtol=1e-5)


@pytest.mark.slow
def test_the_score_s_gradient_is_that_of_the_expectation_over_all_cohorts(x64):
    """Every cohort of one round, each by a key that draws it: sum_S p (L dlog p + dL) is d/dq sum_S p L."""
    data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    algorithm = fjs.fedavg(client_optimizer=sgd(0.1))
    run = common(
        rounds=1, eval_every=1, cohort=fjs.cohort.independent([0.3, 0.45, 0.8], cap=3, average="inverse"),
        batches=fjs.local.full_batch(),
    )  # fmt: skip
    problem = outer.federated(
        algorithm, data, over={"cohort.probability": fjs.hyper.identity()}, objective=fjs.hyper.final("loss"), **run
    )
    u = problem.parameters

    def of_key(key):
        value, path = jax.value_and_grad(lambda u: problem.advance(u, problem.begin(u, key), jnp.int32(0))[1])(u)
        log, score = jax.value_and_grad(lambda u: problem.log_probability(u, key))(u)
        return log, score["cohort.probability"], value, path["cohort.probability"]

    found = jax.jit(jax.vmap(of_key))(jax.random.split(jax.random.key(0), 200))
    logs, scores, values, paths = (np.asarray(leaf) for leaf in found)
    _, first = np.unique(np.round(logs, 9), return_index=True)
    assert len(first) == 8
    p = np.exp(logs[first])
    estimated = np.sum(p[:, None] * (values[first, None] * scores[first] + paths[first]), axis=0)

    # In numpy: where one client alone goes from where all start, and the loss, constants left out.
    clients = [{name: np.mean(leaf, axis=0) for name, leaf in data.client(i).items()} for i in range(3)]
    start = np.ones(2)

    def moved(client):
        y = start
        for _ in range(2):
            y = y - 0.1 * (client["H"] @ y - client["e"])
        return y - start

    moves = [moved(client) for client in clients]

    def expectation(q):
        total = 0.0
        for members in itertools.product([False, True], repeat=3):
            weights = np.asarray(data.shares) * members / q  # p_i / q_i
            x = start + sum(weight * move for weight, move in zip(weights, moves, strict=True))
            losses = [x @ client["H"] @ x / 2 - client["e"] @ x for client in clients]
            total += np.prod(np.where(members, q, 1 - q)) * (np.asarray(data.shares) @ losses)
        return total

    q, h = np.array([0.3, 0.45, 0.8]), 1e-5
    wanted = [(expectation(q + h * e) - expectation(q - h * e)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(estimated, wanted, rtol=1e-6)


@pytest.mark.parametrize("baseline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_score_with_and_without_the_mean_of_the_others(baseline, x64):
    """A coin of probability theta; L = 2 theta + 3 if it falls: d/dtheta E L = 5."""

    def coin(theta, key):
        falls = jax.random.uniform(key, (), jnp.float64) < theta
        return 2 * theta + jnp.where(falls, 3.0, 0.0), jnp.where(falls, jnp.log(theta), jnp.log1p(-theta))

    theta = jnp.array(0.4)
    found = jax.jit(lambda key: outer.estimate(outer.score(5, baseline=baseline), coin, theta, key))(KEY)
    losses, scores = [], []
    for key in jax.random.split(KEY, 5):
        falls = float(jax.random.uniform(key, (), jnp.float64)) < 0.4
        losses.append(0.8 + 3 * falls)
        scores.append(1 / 0.4 if falls else -1 / 0.6)
    losses = np.array(losses)
    others = (losses.sum() - losses) / 4 if baseline else 0
    each = (losses - others) * np.array(scores) + 2
    np.testing.assert_allclose(found.gradient, each.mean(), rtol=1e-12)
    many = jax.jit(lambda key: outer.estimate(outer.score(4000, baseline=baseline), coin, theta, key))(KEY)
    assert abs(many.gradient - 5) < 4 * many.error < 1


# Errors.

BAD = {
    "estimator": (lambda run: outer.estimate("es", run, run.parameters, KEY), TypeError, "the estimator is 'es'"),
    "objective": (lambda run: outer.estimate(outer.es(), 3, jnp.ones(2), KEY), TypeError, "the objective is 3"),
    "integers": (lambda run: outer.estimate(outer.es(), run, jnp.arange(2), KEY), TypeError, "give real numbers"),
    "no_number": (
        lambda run: outer.estimate(outer.es(), lambda u, key: u, jnp.ones(2), KEY), TypeError, "must return one real",
    ),
    "window": (
        lambda run: outer.estimate(outer.pes(window=3), run, run.parameters, KEY), ValueError, "has 2 segments",
    ),
    "one_run": (lambda run: outer.estimate(outer.score(1), run, run.parameters, KEY), ValueError, "two or more"),
    "nothing_drawn": (
        lambda run: outer.estimate(outer.score(), run, run.parameters, KEY), ValueError, "of what is drawn",
    ),
    "no_log": (
        lambda run: outer.estimate(outer.score(), lambda u, key: jnp.sum(u), jnp.ones(2), KEY), TypeError,
        "loss, log_probability",
    ),
    "sigma": (lambda run: outer.es(sigma=0.0), ValueError, "must be in"),
    "rounds": (lambda run: made(rounds=5), ValueError, "must be a multiple of it"),
    "metric": (lambda run: made(objective=fjs.hyper.mean("lss")), ValueError, "nothing of that name"),
    "of_results": (lambda run: made(objective=lambda result: 0), TypeError, "a segment adds"),
    "path": (lambda run: made(over=["mu"]), ValueError, "mu"),
    "deterministic": (
        lambda run: outer.estimate(
            outer.score(),
            made(over=["work.seconds"], work=fjs.local.deadline(2.0, 1.0, 2)), {"work.seconds": jnp.float32(0.7)}, KEY,
        ), TypeError, "deadline: the probability",
    ),
}  # fmt: skip


def made(objective=None, over=(RATE,), **changed):
    data, algorithm = fjs.datasets.quadratics(**DATA), fjs.fedavg(client_optimizer=sgd(0.02))
    read = fjs.hyper.mean("loss") if objective is None else objective
    return outer.federated(algorithm, data, over=over, objective=read, **common(**changed))


@pytest.fixture(scope="module")
def run():
    return made()


@pytest.mark.parametrize("name", BAD)
def test_errors(name, run):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call(run)
