"""The contract of an algorithm is rich enough for methods of other shapes than the package's own.

Each method here is a sketch of a few lines, checked against a few lines of numpy in every layout: two exchanges a
round, a hyper-parameter steered by the objective, statistics over all clients' single updates, a memory of all clients
on the server, and clients that start from different old models.
"""

import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import fedjax_sim as fjs
from fedjax_sim.algorithms import Algorithm, Client, Cohort, Sent
from fedjax_sim.layout.base import Bounds
from fedjax_sim.local.solver import Slot, Solver

KEY = jax.random.key(11)
N, DIM, SIZES = 6, 7, [1, 2, 5, 3, 1, 4]
ETA = 0.1
COHORTS = np.array([[0, 2, 3, 5], [4, -1, 1, 0], [1, 3, -1, 5], [5, 4, 1, 2]])
TAU = np.array(
    [[1, 2, 3, 4, 5, 2], [3, 5, 1, 1, 4, 2], [2, 1, 3, 0, 1, 2], [4, 1, 6, 2, 3, 3]]
)  # client 3: dropped once

every_layout = pytest.mark.parametrize(
    "layout", [fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)], ids=["turns", "stacked", "lanes"]
)


@functools.cache
def problem():
    rng = np.random.default_rng(4)
    root = rng.standard_normal((N, DIM, DIM))
    H, e, x0 = (
        root @ root.swapaxes(1, 2) / DIM + 0.3 * np.eye(DIM),
        rng.standard_normal((N, DIM)),
        rng.standard_normal(DIM),
    )
    return H, e, x0, [reference.QuadraticClient(*client) for client in zip(H, e, SIZES, strict=True)]


def objective(x):
    """F = sum p_i F_i."""
    H, e, _, _ = problem()
    return sum(size * (x @ A @ x / 2 - b @ x) for size, A, b in zip(SIZES, H, e, strict=True)) / sum(SIZES)


def run(algorithm, layout, cohort=None):
    H, e, x0, _ = problem()
    train = fjs.make_train(
        task=fjs.quadratic(),
        rounds=len(TAU),
        cohort=cohort or fjs.cohort.given(COHORTS),
        work=fjs.local.given_steps(TAU),
        batches=fjs.local.full_batch(piece_size=3),
        layout=layout,
        evaluate=lambda x, _: {"x": x},
    )
    data = fjs.datasets.quadratics_from(H, e, sizes=SIZES)
    result = jax.jit(train)(algorithm, data, KEY, initial_params=jnp.asarray(x0))
    return np.asarray(result.metrics["x"]), result


def assert_equal(actual, expected, tolerance=1e-9):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def sgd():
    return fjs.optim.sgd(ETA)


# FedDANE (Li et al. 2019): two exchanges a round, with two cohorts.


class DaneSent(NamedTuple):
    params: Any
    gradient: Any


class Gradients(Algorithm):
    """Phase 1: the cohort S1 returns grad F_i(x); the server keeps their weighted mean."""

    takes_steps: ClassVar[bool] = False

    @property
    def needs(self):
        return frozenset({"anchor"})

    def finish(self, y, sent, c_i, local, client):
        return {"gradient": client.anchor}, c_i

    def aggregate(self, server, sums, cohort):
        return server._replace(extra=sums["gradient"])


class FedDane(Algorithm):
    """Phase 2: the cohort S2 steps along g + (mean gradient - grad F_i(x)) + mu (y - x)."""

    mu: Any = 0.5

    @property
    def needs(self):
        return frozenset({"anchor"})

    def phases(self):
        return Gradients(client_optimizer=self.client_optimizer), self

    def init(self, params, num_clients):
        return super().init(params, num_clients)._replace(extra=jnp.zeros_like(params))

    def broadcast(self, server):
        return DaneSent(server.params, server.extra)

    def proximal(self, sent):
        return self.mu

    def direction(self, g, y, sent, local, client):
        return g + (sent.gradient - client.anchor)


@functools.cache
def dane_cohorts():
    """S1 and S2 of every round, ids [2, rounds, 3]."""
    H, e, _, _ = problem()
    data = fjs.datasets.quadratics_from(H, e, sizes=SIZES)
    draws = jax.jit(jax.vmap(lambda key, t: fjs.cohort.uniform(3).draw(data, key, t).ids, (None, 0)))
    rounds = jnp.arange(len(TAU), dtype=jnp.int32)
    return np.array([draws(key, rounds) for key in (jax.random.fold_in(KEY, 1), KEY)])


@every_layout
def test_feddane_in_two_phases(x64, layout):
    xs, result = run(FedDane(client_optimizer=sgd(), mu=0.7), layout, fjs.cohort.uniform(3))
    # S1 is drawn from a key of its own, S2 from the run's: as every other method's cohort
    first, second = dane_cohorts()
    assert (np.sort(first) != np.sort(second)).any()
    _, _, x, clients = problem()
    useful = []
    for t in range(len(TAU)):
        # tau belongs to phase 2: nobody is dropped from phase 1
        S1, S2 = [int(i) for i in first[t]], reference.members(second[t], TAU[t])
        gradients = np.array([clients[i].full_gradient(x) for i in S1])
        mean = reference.cohort_weights(clients, S1, "sample") @ gradients
        ends = [
            reference.solve(clients[i], x, TAU[t, i], ETA, mu=0.7, correction=mean - clients[i].full_gradient(x))[0]
            for i in S2
        ]
        x = reference.cohort_weights(clients, S2, "sample") @ np.array(ends)
        assert_equal(xs[t + 1], x)
        pieces = [-(-size // 3) for size in SIZES]
        useful.append(sum(pieces[i] for i in S1) + sum(pieces[i] * (1 + TAU[t, i]) for i in S2))
    assert result.rounds["useful_steps"].tolist() == useful


# FedProx with adaptive mu (Li et al. 2020, section 5.3.2): a hyper-parameter in the server's state.


class Steering(NamedTuple):
    mu: Any
    falls: Any
    before: Any


class ProxSent(NamedTuple):
    params: Any
    mu: Any


class AdaptiveProx(Algorithm):
    """mu + 0.1 when F rises; max(mu - 0.1, 0) after five falls in a row (two here: the runs are short)."""

    mu: Any = 0.0
    patience: int = 2

    @property
    def needs(self):
        return frozenset({"objective"})

    def init(self, params, num_clients):
        start = Steering(jnp.asarray(self.mu), jnp.int32(0), jnp.full_like(params[0], jnp.inf))
        return super().init(params, num_clients)._replace(extra=start)

    def broadcast(self, server):
        return ProxSent(server.params, server.extra.mu)

    def proximal(self, sent):
        return sent.mu

    def before(self, server, objective):
        return server._replace(extra=server.extra._replace(before=objective))

    def after(self, server, objective):
        mu, falls, before = server.extra
        rise = objective > before
        falls = jnp.where(rise, 0, falls + 1)
        relax = falls == jnp.int32(self.patience)
        mu = jnp.where(rise, mu + 0.1, jnp.where(relax, jnp.maximum(mu - 0.1, 0.0), mu))
        return server._replace(extra=Steering(mu, jnp.where(relax, 0, falls), objective))


@every_layout
def test_fedprox_with_adaptive_mu(x64, layout):
    # a server step of 2.2 makes F rise and fall
    xs, result = run(AdaptiveProx(client_optimizer=sgd(), mu=0.3, server_learning_rate=2.2), layout)
    _, _, x, clients = problem()
    mu, falls, before, path = 0.3, 0, objective(x), []
    for t, cohort in enumerate(COHORTS):
        S = reference.members(cohort, TAU[t])
        ends = np.array([reference.solve(clients[i], x, TAU[t, i], ETA, mu=mu)[0] for i in S])
        x = x + 2.2 * (reference.cohort_weights(clients, S, "sample") @ (ends - x))
        assert_equal(xs[t + 1], x)
        if objective(x) > before:
            mu, falls = mu + 0.1, 0
        else:
            falls += 1
            if falls == 2:
                mu, falls = max(mu - 0.1, 0.0), 0
        before = objective(x)
        path.append(round(mu, 3))
    assert_equal(result.state.server.extra.mu, mu)
    assert_equal(result.state.server.extra.before, objective(x))
    assert path == [0.3, 0.4, 0.4, 0.3]  # a rise and two falls in a row


# FedAWARE: the server remembers a momentum of every client and steps along the shortest vector of their hull.


class Memory(NamedTuple):
    m: Any
    seen: Any
    weights: Any


def shortest_weights(m, seen):
    """argmin over the simplex of |sum lambda_i m_i|^2, clients not seen left out: projected gradient steps."""
    gram = m @ m.T
    step = 1 / jnp.trace(gram)

    def project(v):
        """Euclidean projection onto the simplex over the seen clients (sort and threshold)."""
        v = jnp.where(seen, v, -jnp.inf)
        u = -jnp.sort(-v)
        excess = (jnp.cumsum(jnp.where(jnp.isfinite(u), u, 0.0)) - 1) / jnp.arange(1.0, len(v) + 1)
        count = jnp.sum(u > excess)
        return jnp.where(seen, jnp.maximum(v - excess[count - 1], 0.0), 0.0)

    start = project(jnp.zeros(len(m)))
    return jax.lax.fori_loop(0, 4000, lambda _, weights: project(weights - step * (gram @ weights)), start)


class FedAware(Algorithm):
    """m_i <- (1 - a) m_i + a (x - y_i) for i in S; x <- x - eta_g sum lambda_i m_i."""

    memory: Any = 0.5
    stacked: ClassVar[tuple[str, ...]] = ("moved",)

    def init(self, params, num_clients):
        empty = Memory(jnp.zeros((num_clients, *params.shape)), jnp.zeros(num_clients, bool), jnp.zeros(num_clients))
        return super().init(params, num_clients)._replace(extra=empty)

    def finish(self, y, sent, c_i, local, client):
        return {"moved": sent.params - y}, c_i

    def aggregate(self, server, sums, cohort):
        at = cohort.indices  # N in void slots: dropped below
        old = server.extra.m.at[at].get(mode="clip")
        m = server.extra.m.at[at].set((1 - self.memory) * old + self.memory * sums["moved"], mode="drop")
        seen = server.extra.seen.at[at].set(True, mode="drop")
        weights = shortest_weights(m, seen)
        return self.server_step(server._replace(extra=Memory(m, seen, weights)), -(weights @ m), cohort)


def shortest_in_hull(vectors):
    """The exact shortest vector, by trying every face: the affine minimum of a face that lies inside it."""
    best = None
    for count in range(1, len(vectors) + 1):
        for face in itertools.combinations(range(len(vectors)), count):
            gram = vectors[list(face)] @ vectors[list(face)].T
            weights = np.linalg.lstsq(gram, np.ones(count), rcond=None)[0]
            weights = weights / weights.sum()
            point = weights @ vectors[list(face)]
            if (weights >= 0).all() and (best is None or point @ point < best @ best):
                best = point
    return best


@every_layout
def test_fedaware_remembers_every_client(x64, layout):
    xs, result = run(FedAware(client_optimizer=sgd()), layout)
    _, _, x, clients = problem()
    m, seen = np.zeros((N, DIM)), set()
    for t, cohort in enumerate(COHORTS):
        for i in reference.members(cohort, TAU[t]):
            m[i] = 0.5 * m[i] + 0.5 * (x - reference.solve(clients[i], x, TAU[t, i], ETA)[0])
            seen.add(i)
        x = x - shortest_in_hull(m[sorted(seen)])
        assert_equal(xs[t + 1], x, 1e-7)
    assert seen == set(range(N))
    assert_equal(result.state.server.extra.m, m, 1e-7)
    weights = np.asarray(result.state.server.extra.weights)
    assert weights.sum() == pytest.approx(1)
    assert (weights > 1e-9).sum() > 1  # more than one client bears the step


# Coordinate-wise median (Yin et al. 2018): an average that is not a weighted sum.


class Median(Algorithm):
    """x <- x + eta_g median_S (y_i - x), coordinate by coordinate, over the clients that took part."""

    stacked: ClassVar[tuple[str, ...]] = ("delta",)

    def aggregate(self, server, sums, cohort):
        deltas = jnp.where(cohort.valid[:, None], sums["delta"], jnp.nan)
        return self.server_step(server, jnp.nanmedian(deltas, axis=0), cohort)


@every_layout
def test_coordinate_wise_median(x64, layout):
    xs, _ = run(Median(client_optimizer=sgd(), server_learning_rate=0.8), layout)
    _, _, x, clients = problem()
    for t, cohort in enumerate(COHORTS):
        S = reference.members(cohort, TAU[t])
        deltas = [reference.solve(clients[i], x, TAU[t, i], ETA)[0] - x for i in S]
        x = x + 0.8 * np.median(deltas, axis=0)
        assert_equal(xs[t + 1], x)


# FedBuff (Nguyen et al. 2022): updates that started from different old models, aggregated together.


@every_layout
def test_a_buffered_asynchronous_step(x64, layout):
    # x <- x + eta_g (1/K) sum_k s_k (y_k - x^(old)_k), s = 1 / sqrt(1 + staleness), K = 2
    H, e, x0, clients = problem()
    who, tau, staleness = np.array([1, 4]), np.array([3, 5]), np.array([0.0, 3.0])
    weights = 1 / np.sqrt(1 + staleness) / 2
    old = np.array([x0 + 0.1, x0 - 1.0])
    data = fjs.datasets.quadratics_from(H, e, sizes=SIZES)
    algorithm = fjs.fedavg(client_optimizer=sgd(), server_learning_rate=0.9)
    solver = Solver(algorithm, fjs.quadratic(), fjs.local.full_batch(piece_size=3), data)

    @jax.jit
    def step(server, old, who, tau, weights):
        keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(who)
        client = Client(
            index=who, id=data.client_ids[who], size=data.sizes[who], steps=tau, weight=weights,
            share=data.shares[who], learning_rate=jnp.ones(2), slope=(), anchor=(), mean_loss=(), key=keys,
        )  # fmt: skip
        slots = Slot(client, data.offsets[who], (), keys)

        def one(start, slot):
            """A cohort of one, which received an older model."""
            alone = jax.tree.map(lambda leaf: leaf[None], slot)
            return layout.run(solver, Sent(start), (), alone, Bounds(per_client=10, per_cohort=10)).sums

        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(one)(old, slots))
        cohort = Cohort(
            indices=who, valid=jnp.ones(2, bool), weights=weights, size=jnp.int32(2), num_clients=N,
            mass=jnp.sum(weights), round=jnp.int32(0), key=KEY,
        )  # fmt: skip
        return algorithm.aggregate(server, sums, cohort)

    ids, steps = jnp.asarray(who, jnp.int32), jnp.asarray(tau, jnp.int32)
    after = step(algorithm.init(jnp.asarray(x0), N), jnp.asarray(old), ids, steps, jnp.asarray(weights))
    deltas = [reference.solve(clients[i], start, k, ETA)[0] - start for i, start, k in zip(who, old, tau, strict=True)]
    assert_equal(after.params, x0 + 0.9 * weights @ np.array(deltas))
