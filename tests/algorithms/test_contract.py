"""The contract of an algorithm is rich enough for methods of other shapes than the package's own.

Each method here is a sketch of a few lines, checked against a few lines of numpy in every layout: statistics over all
clients' single updates, and clients that start from different old models.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import Client, Cohort, FedAvg, Mean, Requires, Sent, Share, Stack, Sum
from fedjax_sim.engine.layout.base import Bounds
from fedjax_sim.engine.solver import Slot, Solver
from tests import reference

KEY = jax.random.key(11)
N, DIM, SIZES = 6, 7, [1, 2, 5, 3, 1, 4]
ETA = 0.1
COHORTS = np.array([[0, 2, 3, 5], [4, -1, 1, 0], [1, 3, -1, 5], [5, 4, 1, 2]])
TAU = np.array(
    [[1, 2, 3, 4, 5, 2], [3, 5, 1, 1, 4, 2], [2, 1, 3, 0, 1, 2], [4, 1, 6, 2, 3, 3]]
)  # client 3: dropped once

LAYOUTS = {"turns": fjs.layout.turns(), "stacked": fjs.layout.stacked(), "lanes": fjs.layout.lanes(2)}


def each_layout(*fast):
    """Of the layouts those that are named run every time."""
    slow = [() if name in fast else pytest.mark.slow for name in LAYOUTS]
    cases = zip(LAYOUTS.items(), slow, strict=True)
    return pytest.mark.parametrize("layout", [pytest.param(one, id=name, marks=mark) for (name, one), mark in cases])


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


# Coordinate-wise median (Yin et al. 2018): an average that is not a weighted sum.


class Median(FedAvg):
    """x <- x + eta_g median_S (y_i - x), coordinate by coordinate, over the clients that took part."""

    def finish(self, delta, y, sent, c_i, client):
        return {"delta": Stack(delta)}, c_i

    def update(self, server, got, cohort):
        deltas = jnp.where(cohort.valid[:, None], got["delta"], jnp.nan)
        return self.server_step(server, jnp.nanmedian(deltas, axis=0), cohort)


@pytest.mark.slow
@each_layout("lanes")
def test_coordinate_wise_median(x64, layout):
    xs, _ = run(Median(client_optimizer=sgd(), server_learning_rate=0.8), layout)
    _, _, x, clients = problem()
    for t, cohort in enumerate(COHORTS):
        S = reference.members(cohort, TAU[t])
        deltas = [reference.solve(clients[i], x, TAU[t, i], ETA)[0] - x for i in S]
        x = x + 0.8 * np.median(deltas, axis=0)
        assert_equal(xs[t + 1], x)


# FedBuff (Nguyen et al. 2022): updates that started from different old models, aggregated together.


@each_layout("stacked")
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
            share=data.shares[who], relative_size=N * data.shares[who], learning_rate=jnp.ones(2), key=keys,
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
        return algorithm.update(server, sums, cohort)

    ids, steps = jnp.asarray(who, jnp.int32), jnp.asarray(tau, jnp.int32)
    after = step(algorithm.init(jnp.asarray(x0), data.shares), jnp.asarray(old), ids, steps, jnp.asarray(weights))
    deltas = [reference.solve(clients[i], start, k, ETA)[0] - start for i, start, k in zip(who, old, tau, strict=True)]
    assert_equal(after.params, x0 + 0.9 * weights @ np.array(deltas))


@pytest.mark.parametrize(
    ("one", "other"),
    [*itertools.combinations((Mean, Share, Sum, Stack), 2)],
)
def test_messages_of_two_kinds_are_two_structures(one, other):
    """Else a branch of ``lax.cond`` would send what the other one does, in the other one's way."""
    value = jnp.float32(1.0)
    assert jax.tree.structure(one(value)) != jax.tree.structure(other(value))
    with pytest.raises(TypeError, match="branch"):
        jax.lax.cond(True, lambda: one(value), lambda: other(value))


def test_a_message_counts_for_what_was_sent():
    """Whatever its sum is of."""
    assert [Mean(jnp.zeros(3, jnp.int8)).size, Sum(jnp.ones(3, bool)).size, Sum(1).size] == [3, 3, 4]
    assert Mean({"a": jnp.zeros(2), "b": np.int8(1)}).size == 9
    assert Sum(jnp.zeros(3, jnp.int32)).nbytes is None
    small = Sum(jnp.int8(1))  # of which 128 are more than an int8 holds
    assert (small.value.dtype, small.size) == (jnp.int32, 1)


class Counting(FedAvg):
    """Messages and states that are integers, truths and Python's numbers."""

    requires = Requires(survey=True)

    def init(self, params, shares):
        return super().init(params, shares)._replace(extra={name: 0 * value for name, value in EXPECTED.items()})

    def init_client(self, params):
        return {"visits": 0, "last": 0.0}

    def survey(self, F, sent, c_i, client):
        return F.mean(F.examples > 0)

    def finish(self, delta, y, sent, c_i, client):
        steps = {"steps": Mean(client.steps), "share": Share(client.steps), "each": Stack(client.steps)}
        counts = {"late": Sum(client.steps > 2), "sent": Sum(1), "positive": Mean(client.survey)}
        return {"delta": Mean(delta), **steps, **counts}, {"visits": c_i["visits"] + 1, "last": 1.0}

    def update(self, server, got, cohort):
        found = got | {"each": fjs.trees.weighted_sum(cohort.weights, got["each"])}
        return super().update(server, got, cohort)._replace(extra={name: found[name] for name in EXPECTED})

    def report(self, server):
        return server.extra


EXPECTED = {"steps": 3.0, "share": 3.0, "each": 3.0, "late": 2, "sent": 4, "positive": 0.6}  # by sizes: 1 + 4 + 9 + 16


@pytest.mark.parametrize("layout", ["turns", pytest.param("stacked", marks=pytest.mark.slow)])
def test_integers_are_averaged_as_real_numbers_and_truths_are_counted(layout):
    task = fjs.functions(lambda key: jnp.zeros(()), lambda x, examples: (x - examples) ** 2)
    train = fjs.make_train(
        task=task, rounds=2, cohort=fjs.cohort.full(), work=fjs.local.given_steps(np.tile([1, 2, 3, 4], (2, 1))),
        batches=fjs.local.in_order(4), layout=LAYOUTS[layout],
    )  # fmt: skip
    data = fjs.datasets.from_clients([np.arange(size, dtype=np.float32) for size in (1, 2, 3, 4)])
    result = jax.jit(train)(Counting(client_optimizer=fjs.optim.sgd(0.1)), data, KEY)
    for name, value in EXPECTED.items():
        np.testing.assert_allclose(result.rounds[name], [value] * 2, rtol=1e-6, err_msg=name)
    assert result.state.clients["visits"].tolist() == [2] * 4
