"""The sketches of tests/sketches.py against loops by hand, in float64; alone and inside wrappers."""

import functools
import inspect
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import FedAvg
from fedjax_sim.engine.plan import Plan
from tests import sketches
from tests.algorithms.test_golden import follow
from tests.algorithms.test_sweep import N, problem, start
from tests.sketches import Gossip

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("sketches")]

KEY, ETA, STEPS, ROUNDS = jax.random.key(0), 0.05, 3, 3
SGD = fjs.optim.sgd(ETA)
WHOLE = {"batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(average="plain"), "work": fjs.local.steps(STEPS)}


def run(method, data, task, rounds=ROUNDS, initial_params=None, **changes):
    asked = Plan(task=task, **{**WHOLE, **changes})
    return follow(asked, method, data, task.init(KEY, data) if initial_params is None else initial_params, rounds)


def same(found, expected, tolerance=1e-11):
    for path, (a, b) in zip(
        jax.tree_util.tree_leaves_with_path(found),
        zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=str(path[0]))


def close_to(found, expected, tolerance=1e-11):
    """Equal to round-off, with the clients of ``expected`` in a list."""
    same(found, jax.tree.map(lambda *rows: np.stack(rows), *expected), tolerance)


QUADRATIC = fjs.quadratic()


class Quadratic(NamedTuple):
    """F_i(w) = 1/2 w^T H w - e^T w + c."""

    H: np.ndarray
    e: np.ndarray
    c: float

    def __call__(self, w):
        return w @ self.H @ w / 2 - self.e @ w + self.c

    def gradient(self, w):
        return self.H @ w - self.e


@functools.cache
def quadratics():
    return problem()


@functools.cache
def of_quadratics():
    """F_i on all of a client's data, in the order of the ids."""
    data = quadratics()
    weights = np.asarray(data.example_weights)
    rows = [slice(int(data.offsets[i]), int(data.offsets[i] + data.sizes[i])) for i in np.asarray(data.order)]
    parts = [np.asarray(data.examples[name]) for name in ("H", "e", "c")]
    return [Quadratic(*(np.tensordot(weights[i], part[i], 1) / len(weights[i]) for part in parts)) for i in rows]


def first():
    return np.asarray(start())


def mean(arrays):
    return np.mean(arrays, axis=0)


def descend(gradient, y, steps=STEPS, eta=ETA):
    for _ in range(steps):
        y = y - eta * gradient(y)
    return y


def of_fedavg(rounds=ROUNDS):
    x = first()
    for _ in range(rounds):
        x = mean([descend(F.gradient, x) for F in of_quadratics()])
    return x


def test_gossip():
    mixing = np.eye(N) / 2 + (np.roll(np.eye(N), 1, 1) + np.roll(np.eye(N), -1, 1)) / 4
    xs = np.stack([first()] * N)
    for _ in range(ROUNDS):
        xs = mixing @ xs - ETA * np.stack([F.gradient(x) for F, x in zip(of_quadratics(), xs, strict=True)])
    method = Gossip(client_optimizer=SGD, mixing=mixing)
    result = run(method, quadratics(), QUADRATIC, initial_params=start(), work=fjs.local.steps(1))
    same(result.state.clients["x"], xs)
    same(result.params, mean(xs))


@pytest.mark.slow
def test_adamw_carried_over_rounds():
    """A client that takes part in every round goes on where it stopped; one that does not keeps its state."""
    optimizer = fjs.optim.from_optax("adamw", learning_rate=0.02, weight_decay=0.1)
    cohorts = np.array([[3, 10], [3, 21], [10, 3]])
    ids = np.asarray(quadratics().client_ids)[np.asarray(quadratics().order)].tolist()
    x, transform = first(), optimizer.transform()
    states, update = [transform.init(x)] * N, jax.jit(transform.update)
    for cohort in cohorts:
        ends = []
        for i in (ids.index(one) for one in cohort):
            y = x
            for _ in range(STEPS):
                with fjs.optim.third_party():
                    u, states[i] = update(of_quadratics()[i].gradient(y), states[i], y)
                y = y + np.asarray(u)
            ends.append(y)
        x = mean(ends)
    method = fjs.fedavg(client_optimizer=optimizer, keep_optimizer=True)
    cohort = fjs.cohort.given(cohorts, average="plain")
    result = run(method, quadratics(), QUADRATIC, initial_params=start(), cohort=cohort)
    same(result.params, x, 1e-9)
    close_to(jax.tree.leaves(result.state.clients.optimizer), [jax.tree.leaves(s) for s in states], 1e-9)


def test_what_carried_states_and_whole_batches_refuse():
    carried = fjs.fedavg(client_optimizer=SGD, keep_optimizer=True)
    with pytest.raises(ValueError, match="clients drawn twice have no meaning"):
        run(carried, quadratics(), QUADRATIC, cohort=fjs.cohort.with_replacement(3))
    train = fjs.make_train(task=QUADRATIC, rounds=2, **WHOLE, adjoint=fjs.adjoints.implicit())
    with pytest.raises(ValueError, match="keep_optimizer is True"):
        train(carried, quadratics(), KEY)
    # A slope is what the solver moves by from a fresh state.
    momentum = {"client_optimizer": fjs.optim.sgd(0.1, momentum=0.9), "keep_optimizer": True}
    for method in (fjs.scaffold(**momentum), fjs.clipped(fjs.fednova(**momentum)), fjs.scaffnew(**momentum)):
        with pytest.raises(ValueError, match=r"\(keep_optimizer=True\): it divides changes by what its local solver"):
            run(method, quadratics(), QUADRATIC)
    train = fjs.make_train(task=QUADRATIC, rounds=2, **WHOLE)
    jax.eval_shape(train, fjs.scaffold(client_optimizer=SGD, keep_optimizer=True), quadratics(), KEY)
    with pytest.raises(ValueError, match="PerFedAvg needs a whole batch at a time"):
        run(fjs.perfedavg(client_optimizer=SGD), quadratics(), QUADRATIC, batches=fjs.local.full_batch(piece_size=2))


# Inside wrappers

KEEPING = {"ditto": (fjs.ditto, {}), "apfl": (fjs.apfl, {}), "scaffnew": (fjs.scaffnew, {"p": 0.3})}
WRAPPERS = {
    "clipped": lambda base: fjs.clipped(base, norm=1e9),
    "top_k": lambda base: fjs.top_k(base, fraction=1.0),
    "clipped top_k": lambda base: fjs.top_k(fjs.clipped(base, norm=1e9), fraction=1.0),
    "adaptive": lambda base: fjs.adaptively_clipped(base, initial=1e9),
    "ema": lambda base: fjs.ema(base, decay=0.5),
    "reweighted": lambda base: fjs.reweighted(base),
}


def of_base(clients):
    while hasattr(clients, "memory"):
        clients = clients.base
    return clients


FAST_PAIRS = {("scaffnew", "clipped")}  # tests/algorithms/test_personal_methods.py has ditto


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        pytest.param(name, wrapper, marks=[] if (name, wrapper) in FAST_PAIRS else [pytest.mark.slow])
        for name in KEEPING for wrapper in WRAPPERS
    ],
)  # fmt: skip
def test_a_wrapper_that_changes_nothing_leaves_the_clients_as_they_are(name, wrapper):
    cls, more = KEEPING[name]
    method = cls(client_optimizer=SGD, **more)
    plain = _plain(name)
    wrapped = run(WRAPPERS[wrapper](method), quadratics(), QUADRATIC, initial_params=start())
    server = wrapped.state.server
    while hasattr(server, "base"):
        server = server.base
    same(server.params, plain.params, 1e-12)
    for a, b in zip(jax.tree.leaves(of_base(wrapped.state.clients)), jax.tree.leaves(plain.state.clients), strict=True):
        np.testing.assert_array_equal(a, b) if wrapper != "reweighted" else same(a, b, 1e-12)


@functools.cache
def _plain(name):
    cls, more = KEEPING[name]
    return run(cls(client_optimizer=SGD, **more), quadratics(), QUADRATIC, initial_params=start())


@pytest.mark.slow  # tests/algorithms/test_privacy.py has such a run by hand
def test_privacy_without_noise_is_fedavg():
    method = fjs.dp(FedAvg(client_optimizer=SGD), norm=1e9, noise_multiplier=0.0)
    same(run(method, quadratics(), QUADRATIC, initial_params=start()).params, of_fedavg(), 1e-12)


def test_the_inner_wrapper_comes_first():
    """``top_k(clipped(...))`` clips the whole change and then sends its largest entry."""
    x = first()
    sent = []
    for delta in (descend(F.gradient, x) - x for F in of_quadratics()):
        clipped = min(1, 0.05 / np.linalg.norm(delta)) * delta
        sent.append(np.where(np.arange(len(x)) == np.argmax(np.abs(clipped)), clipped, 0))
    method = fjs.top_k(fjs.clipped(FedAvg(client_optimizer=SGD), norm=0.05), fraction=0.1, feedback=False)
    found = run(method, quadratics(), QUADRATIC, rounds=1, initial_params=x)
    same(found.params - x, mean(sent), 1e-12)


# Layouts, derivatives


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_hyper_gradients_through_what_clients_keep(name):
    cls, more = KEEPING[name]
    field = {"ditto": "lam", "apfl": "alpha"}[name]
    train, data, x0 = fjs.make_train(task=QUADRATIC, rounds=ROUNDS, eval_every=ROUNDS, **WHOLE), quadratics(), start()
    losses = of_quadratics()

    @jax.jit
    @jax.value_and_grad
    def loss(value):
        method = cls(client_optimizer=SGD, **{**more, field: value})
        result = train(method, data, KEY, initial_params=x0)
        kept = jax.vmap(method.personal, (None, 0))(result.state.server, result.state.clients)
        return sum(F(row) for F, row in zip(losses, kept, strict=True)) + losses[0](result.params)

    at, step = 0.4, 1e-5
    central = (loss(at + step)[0] - loss(at - step)[0]) / (2 * step)
    np.testing.assert_allclose(loss(at)[1], central, rtol=1e-7)


@pytest.mark.slow  # tests/algorithms/test_personal_methods.py has ditto
@pytest.mark.parametrize("name", ["ditto", "scaffnew"])
def test_layouts_agree(name):
    cls, more = KEEPING[name]
    method = cls(client_optimizer=SGD, **more)
    results = [
        run(method, quadratics(), QUADRATIC, initial_params=start(), layout=layout, work=fjs.local.epochs(1),
            batches=fjs.local.in_order(2))
        for layout in (fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2), fjs.layout.static_schedule(2))
    ]  # fmt: skip
    for other in results[1:]:
        same((other.params, other.state), (results[0].params, results[0].state), 1e-10)


def test_none_is_longer_than_twenty_lines():
    """Of what it says: without signatures, decorators, docstrings and empty lines."""
    for name, cls in inspect.getmembers(sketches, inspect.isclass):
        if cls.__module__ != sketches.__name__:
            continue
        lines = inspect.getsource(cls).split('"""', 2)[2].splitlines()
        said = [line for line in lines if line.strip() and not re.match(r"\s*(def |@|class )", line)]
        assert len(said) <= 20, (name, len(said))
