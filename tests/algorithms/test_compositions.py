"""Methods, server optimisers, wrappers, cohorts, work and batches go together as their papers allow, in one program."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from tests import reference

sgd = fjs.optim.sgd

METHODS = {
    "adaptive": lambda **server: fjs.fedprox(client_optimizer=sgd(0.05), mu=0.3, adaptive=True, **server),
    "fednova": lambda **server: fjs.fednova(client_optimizer=sgd(0.05, momentum=0.5), mu=0.2, **server),
    "fednova-vr": lambda **server: fjs.fednova(client_optimizer=sgd(0.05), variance_reduction=True, **server),
    "scaffold": lambda **server: fjs.scaffold(client_optimizer=sgd(0.05), **server),
    "feddane": lambda **server: fjs.feddane(client_optimizer=sgd(0.05), mu=0.2, **server),
    "fedcm": lambda **server: fjs.fedcm(client_optimizer=sgd(0.05), alpha=0.5, **server),
}
SERVERS = {
    "none": lambda: None,
    "momentum": lambda: sgd(0.5, momentum=0.5),
    "yogi": lambda: fjs.optim.fedyogi(tau=0.1),
    "ams": lambda: fjs.optim.fedams(eps=0.1),
}
WRAPPERS = {
    "bare": lambda method: method,
    "aware": lambda method: fjs.aware(method),
    "ema of aware": lambda method: fjs.ema(fjs.aware(method), decay=0.5),
}
COHORTS = {
    "independent": lambda: fjs.cohort.independent(0.6),
    "shuffled": lambda: fjs.cohort.shuffled(4),
    "weighted": lambda: fjs.cohort.weighted(4),
    "available": lambda: fjs.cohort.available(fjs.cohort.uniform(5), fjs.cohort.bernoulli(0.7)),
}
WORK = {
    "stragglers": lambda: fjs.local.stragglers(0.5, 3),
    "dropped": lambda: fjs.local.stragglers(0.5, 3, keep=False),
    "deadline": lambda: fjs.local.deadline(1.5, np.linspace(1.0, 4.0, 8), 3),
    "gaussian": lambda: fjs.local.gaussian_steps(3, 2, 7),
}
BATCHES = {
    "fraction": lambda: fjs.local.fraction(0.4),
    "full": lambda: fjs.local.full_batch(4),
}
AXES = (METHODS, SERVERS, WRAPPERS, COHORTS, WORK, BATCHES)


def pairs_of(row):
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(AXES)), 2)}


def covering():
    """Rows of one choice an axis, such that any two choices of two axes meet in a row (greedily)."""
    rng = np.random.default_rng(0)
    pairs = set()
    for (i, a), (j, b) in itertools.combinations(enumerate(AXES), 2):
        pairs |= {(i, x, j, y) for x in a for y in b}
    rows = []
    while pairs:
        candidates = [tuple(str(rng.choice(list(axis))) for axis in AXES) for _ in range(60)]
        i, x, j, y = min(pairs)
        candidates = [tuple(x if k == i else y if k == j else one for k, one in enumerate(row)) for row in candidates]

        best = max(candidates, key=lambda row: len(pairs_of(row) & pairs))
        pairs -= pairs_of(best)
        rows.append(best)
    return rows


def data():
    rng = np.random.default_rng(1)
    clients = [(rng.standard_normal((n, 3)), rng.integers(0, 3, n)) for n in (3, 9, 5, 12, 4, 7, 1, 6)]
    return fjs.datasets.from_clients(clients, num_classes=3)


TASK = fjs.classification(fjs.models.LogisticRegression(3), weight_decay=1e-3)


# The first rows cover most of the pairs.
ROWS = [
    pytest.param(row, id="/".join(row), marks=pytest.mark.slow if number < 10 else pytest.mark.nightly)
    for number, row in enumerate(covering())
]


@pytest.mark.parametrize("row", ROWS)
def test_any_two_go_together(row):
    method, server, wrapper, cohort, work, batches = row
    made = METHODS[method](server_optimizer=SERVERS[server]())
    algorithm = WRAPPERS[wrapper](made)
    train = fjs.make_train(
        task=TASK, rounds=4, cohort=COHORTS[cohort](), work=WORK[work](), batches=BATCHES[batches](), eval_every=4,
    )  # fmt: skip
    result = jax.jit(train)(algorithm, data(), jax.random.key(0))
    loss = np.asarray(result.metrics["loss"])
    assert np.isfinite(loss).all()
    assert loss[-1] != loss[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert (result.rounds["computed_steps"] == result.rounds["useful_steps"]).all()


@pytest.mark.nightly  # every day the README's block runs this composition
def test_fednova_vr_yogi_aware_with_stragglers_and_independent_clients():
    algorithm = fjs.aware(
        fjs.fednova(
            client_optimizer=sgd(0.05, momentum=0.5),
            mu=0.1,
            variance_reduction=True,
            server_optimizer=fjs.optim.fedyogi(tau=0.1),
            server_learning_rate=0.3,
        )
    )
    common = {
        "task": TASK, "rounds": 6, "eval_every": 3, "batch_size": 3, "work": fjs.local.stragglers(0.5, 3),
        "cohort": fjs.cohort.independent(0.5, average="plain"), "diagnostics": ["e_lud"],
    }  # fmt: skip
    history = fjs.simulate(algorithm, data(), **common, seeds=range(2))
    assert (history["loss"][:, -1] < history["loss"][:, 0]).all()
    assert history.rounds["e_lud"].shape == (2, 6)
    # d is the projection's direction: its length is recorded, and positive once somebody has been seen
    assert (history.rounds["min_norm"][:, -1] > 0).all()
    train = fjs.make_train(**common)

    def final(algorithm):
        return train(algorithm, data(), jax.random.key(0)).metrics["loss"][-1]

    gradient = jax.jit(jax.grad(final))(algorithm)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(gradient))
    assert gradient.base.mu != 0
    assert gradient.base.server_optimizer.beta2 != 0
    assert gradient.alpha != 0


@pytest.mark.slow
def test_fedprox_with_server_momentum_and_scheme_i(x64):
    """Against numpy: the draws with their multiplicities, the proximal steps, m <- beta m + Delta."""
    rng = np.random.default_rng(2)
    N, dim, rounds, K = 5, 3, 4, 6
    H = np.array([np.eye(dim) * (1 + i) for i in range(N)])
    e, sizes = rng.standard_normal((N, dim)), [1, 2, 4, 3, 2]
    dataset = fjs.datasets.quadratics_from(H, e, sizes=sizes)
    clients = [reference.QuadraticClient(*client) for client in zip(H, e, sizes, strict=True)]
    tau = rng.integers(1, 5, (rounds, N))
    cohort, key = fjs.cohort.with_replacement(K), jax.random.key(5)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=rounds, cohort=cohort, work=fjs.local.given_steps(tau),
        batches=fjs.local.full_batch(), evaluate=lambda x, _: {"x": x},
    )  # fmt: skip
    algorithm = fjs.fedprox(client_optimizer=sgd(0.05), mu=0.7, server_optimizer=sgd(0.9, momentum=0.6))
    x0 = rng.standard_normal(dim)
    ours = jax.jit(train)(algorithm, dataset, key, initial_params=jnp.asarray(x0)).metrics["x"]
    x, m, multiple = x0, np.zeros(dim), 0
    drawn = jax.jit(jax.vmap(lambda t: cohort.draw(dataset, key, t)))(np.arange(rounds, dtype=np.int32))
    for t, (ids, weights) in enumerate(zip(np.asarray(drawn.ids), np.asarray(drawn.weights), strict=True)):
        delta = np.zeros(dim)
        for i, weight in zip(ids, weights, strict=True):
            if i >= 0:
                delta += weight * (reference.solve(clients[i], x, tau[t, i], 0.05, mu=0.7)[0] - x)
                multiple += weight > 1.5 / K
        m = 0.6 * m + delta
        x = x + 0.9 * m
        np.testing.assert_allclose(ours[t + 1], x, rtol=1e-9, atol=1e-9)
    assert multiple


@pytest.mark.slow
def test_a_local_solver_that_counts_gradients_negatively_is_reported():
    # momentum 0.9 with eta mu = 0.4: some a_k < 0
    algorithm = fjs.fednova(client_optimizer=sgd(0.4, momentum=0.9), mu=1.0)
    run = {
        "dataset": fjs.datasets.quadratics(num_clients=2, dim=2, seed=0), "task": fjs.quadratic(), "rounds": 1,
        "cohort": fjs.cohort.full(), "work": fjs.local.steps(9), "batches": fjs.local.full_batch(),
    }  # fmt: skip
    with pytest.warns(UserWarning, match="negative weight"):
        history = fjs.simulate(algorithm, **run)
    assert history.rounds["lowest_weight"].min() < 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fjs.simulate(fjs.fednova(client_optimizer=sgd(0.4, momentum=0.9)), **run)
