"""Robust rules, simulated attackers and poisoned labels, against numpy and scipy."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import aggregators, attacks
from fedjax_sim.algorithms import contract
from fedjax_sim.algorithms.aggregators import _krum_scores as krum_scores
from fedjax_sim.algorithms.aggregators import present
from fedjax_sim.algorithms.contract import Cohort
from fedjax_sim.algorithms.stacks import middle, sorted_rows
from tests.worked_studies import at_smoke_size

sgd = fjs.optim.sgd
SLOTS = 10
RULES = {
    "mean": aggregators.mean(),
    "median": aggregators.median(),
    "trimmed_mean": aggregators.trimmed_mean(0.25),
    "krum": aggregators.krum(2),
    "multi_krum": aggregators.multi_krum(2),
    "geometric_median": aggregators.geometric_median(iterations=300),
    "centered_clipping": aggregators.centered_clipping(1.5, iterations=3),
}


def vectors(seed=0, ties=False):
    """A stack of two leaves, and which slots hold a vector."""
    rng = np.random.default_rng(seed)
    stack = {"b": rng.standard_normal((SLOTS, 2)), "w": rng.standard_normal((SLOTS, 3, 2))}
    if ties:
        stack = jax.tree.map(np.round, stack)
    return stack, rng.permutation(np.arange(SLOTS) % 4 > 0)


def masked(stack, valid):
    return jax.tree.map(lambda leaf: np.where(valid.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), stack)


def flat(stack):
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(stack)], axis=1)


@jax.jit
def every_rule(stack, valid, weights):
    return {name: rule.of(stack, valid=valid, weights=weights) for name, rule in RULES.items()}


def apply(stack, valid=None, weights=None):
    """Every rule's answer as one vector, all of one program."""
    valid = np.ones(SLOTS, bool) if valid is None else valid
    weights = np.ones(SLOTS) if weights is None else weights
    found = every_rule(stack, valid, weights)
    return {name: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(value)]) for name, value in found.items()}


# The rules by hand.


def krum_by_hand(x, f):
    n = len(x)
    squares = ((x[:, None] - x[None, :]) ** 2).sum(axis=2)
    scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
    return np.argsort(scores, kind="stable"), np.array(scores)


def by_hand(name, x, weights):
    """The rule on the rows of ``x``, of which all are valid."""
    n = len(x)
    if name == "mean":
        return weights @ x / weights.sum()
    if name == "median":
        return np.median(x, axis=0)
    if name == "trimmed_mean":
        cut = int(np.floor(0.25 * n))
        return np.sort(x, axis=0)[cut : n - cut].mean(axis=0)
    if name == "krum":
        return x[krum_by_hand(x, 2)[0][0]]
    if name == "multi_krum":
        return x[krum_by_hand(x, 2)[0][: n - 2]].mean(axis=0)
    if name == "geometric_median":
        optimize = pytest.importorskip("scipy.optimize")
        found = optimize.minimize(
            lambda z: weights @ np.linalg.norm(x - z, axis=1), x.mean(axis=0), method="BFGS", options={"gtol": 1e-10}
        )
        return found.x
    v = np.zeros(x.shape[1])
    for _ in range(3):
        apart = x - v
        v = v + np.mean(apart * np.minimum(1, 1.5 / np.linalg.norm(apart, axis=1))[:, None], axis=0)
    return v


@pytest.mark.usefixtures("x64")
def test_rules_against_numpy_with_void_slots():
    for seed, ties in ((0, False), (1, False), (2, True)):
        stack, valid = vectors(seed, ties)
        stack = masked(stack, valid)
        weights = np.random.default_rng(seed).uniform(0.5, 1.5, SLOTS)
        found, unweighted = apply(stack, valid, weights), apply(stack, valid)
        order = np.random.default_rng(9).permutation(SLOTS)
        moved = apply({key: leaf[order] for key, leaf in stack.items()}, valid[order], weights[order])
        for name, rule in RULES.items():
            if ties and name in ("krum", "multi_krum"):
                continue  # several answers
            tolerance = 1e-6 if name == "geometric_median" else 1e-12
            expected = by_hand(name, flat(stack)[valid], weights[valid])
            np.testing.assert_allclose(found[name], expected, atol=tolerance, err_msg=name)
            np.testing.assert_allclose(moved[name], expected, atol=tolerance, err_msg=name)
            if not rule.weighted:  # every vector counts once
                np.testing.assert_array_equal(found[name], unweighted[name])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("slots", [1, 2, 3, 8, 13])
def test_sorting_network(slots):
    x = np.random.default_rng(slots).integers(-3, 4, (slots, 50)).astype(float)
    np.testing.assert_array_equal(sorted_rows(jnp.asarray(x)), np.sort(x, axis=0))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta", [0.0, 0.29, 0.49])
def test_trimmed_mean_cuts_what_it_says(beta):
    x = np.random.default_rng(3).standard_normal((100, 4))
    combine = jax.jit(lambda x, valid: aggregators.trimmed_mean(beta).combine(x, present(100, valid)))
    for count in (1, 2, 10, 100):
        valid = np.arange(100) < count
        cut = int(np.floor(round(beta * count, 9)))
        expected = np.sort(x[:count], axis=0)[cut : count - cut].mean(axis=0)
        combined = combine(np.where(valid[:, None], x, 0), valid)
        assert int(combined.report["trimmed"]) == cut
        np.testing.assert_allclose(combined.value, expected, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_krum_scores_and_its_ties():
    stack, valid = vectors(seed=4)
    expected = krum_by_hand(flat(stack)[valid], 1)[1]
    scores = np.asarray(jax.jit(krum_scores, static_argnums=2)(stack, present(SLOTS, valid), 1))
    np.testing.assert_allclose(scores[valid], expected, rtol=1e-10)
    assert np.isinf(scores[~valid]).all()
    # two nearest neighbours of each other have the same score: the smaller index wins, wherever it is stored
    pair, combine = np.array([[0.0], [1.0], [9.0]]), jax.jit(aggregators.krum(0).combine)
    for turned in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        who = present(3)._replace(indices=jnp.asarray(turned, jnp.int32))
        combined = combine(pair[turned], who)
        assert int(combined.report["krum_selected"]) == 0
        assert combined.value[0] == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_gap_of_the_geometric_median_bounds_the_error():
    stack, valid = vectors(seed=5)
    x = flat(stack)[valid]
    who = present(SLOTS, valid, np.linspace(1, 2, SLOTS))
    weights = np.asarray(who.weights)[valid]

    def distance(z):
        return weights @ np.linalg.norm(x - z, axis=1)

    best = distance(by_hand("geometric_median", x, weights))
    gaps, rules = [], [aggregators.geometric_median(iterations=iterations) for iterations in (1, 5, 200)]
    for combined in jax.jit(lambda *given: [rule.combine(*given) for rule in rules])(masked(stack, valid), who):
        z = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(combined.value)])
        np.testing.assert_allclose(combined.report["median_distance"], distance(z), rtol=1e-12)
        gap = float(combined.report["median_gap"])
        assert distance(z) - best <= gap + 1e-12
        gaps.append(gap)
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6
    # one vector holds more than half of the weight: it is the median, where the objective has no derivative
    heavy = apply(stack, weights=np.r_[12.0, np.ones(SLOTS - 1)])["geometric_median"]
    np.testing.assert_allclose(heavy, flat(stack)[0], atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_breakdown():
    """Two of ten vectors lie: only the mean follows them."""
    stack, _ = vectors(seed=6)
    honest = flat(stack)[2:]
    for lie in (1e6, -1e6, 1e200, np.inf, np.nan):
        lying = jax.tree.map(lambda leaf, lie=lie: np.r_[np.full_like(leaf[:2], lie), leaf[2:]], stack)
        found = apply(lying)
        mean = np.mean(honest, axis=0) * 0.8 + lie / 5 if np.isfinite(lie) else np.mean(honest, axis=0)
        np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
        for name in ("median", "trimmed_mean", "krum", "multi_krum"):
            assert (found[name] >= honest.min(axis=0)).all(), name
            assert (found[name] <= honest.max(axis=0)).all(), name
        for name in ("geometric_median", "centered_clipping"):  # bounded, but pulled
            assert np.linalg.norm(found[name] - honest.mean(axis=0)) < 3, name
        if np.isfinite(lie):
            np.testing.assert_allclose(found["multi_krum"], honest.mean(axis=0), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_derivatives_of_rules():
    """Those of finite differences; finite where values tie, where slots are void, and where nobody is there."""
    stack, valid = vectors(seed=7)
    x = flat(stack)[:, :3] * valid[:, None]
    rules = RULES | {"geometric_median": aggregators.geometric_median(iterations=8)}
    weights = np.linspace(1, 2, SLOTS)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def both(x, valid):
        found = {name: rule.of(x[name], valid=valid, weights=weights) for name, rule in rules.items()}
        values = {name: jnp.sum(np.cos(np.arange(3.0)) * value**2) for name, value in found.items()}
        return sum(values.values()), values

    def gradients(x, valid):
        return both(x, valid)[0]

    def values(x, valid):
        return both(x, valid)[1]

    def each(x):
        return dict.fromkeys(rules, x)

    direction = np.random.default_rng(8).standard_normal(x.shape) * valid[:, None]
    ahead, behind = (values(each(x + step * direction), valid) for step in (1e-6, -1e-6))
    found = gradients(each(x), valid)
    nobody = np.zeros(SLOTS, bool)
    special = [gradients(each(np.ones_like(x)), valid), gradients(each(0 * x), valid), gradients(each(0 * x), nobody)]
    for name in rules:
        expected = (ahead[name] - behind[name]) / 2e-6
        np.testing.assert_allclose(np.sum(found[name] * direction), expected, rtol=1e-6, err_msg=name)
        assert all(np.isfinite(one[name]).all() for one in special), name
        assert values(each(0 * x), nobody)[name] == 0
    for name in ("mean", "median", "trimmed_mean"):  # equal values share the derivative
        shares = np.asarray(special[0][name]) / (2 * np.cos(np.arange(3.0)))
        counts = np.asarray(weights) * valid if name == "mean" else valid
        np.testing.assert_allclose(shares, np.tile((counts / counts.sum())[:, None], 3), rtol=1e-12)


def test_equal_values_share_the_derivative_of_the_median():
    x, valid = jnp.array([1.0, 2, 9, 2, 7])[:, None], jnp.array([True, True, True, True, False])
    found = jax.jit(jax.grad(lambda x: middle(x, valid, jnp.int32(1))[0]))(x)
    assert found[:, 0].tolist() == [0, 0.5, 0, 0.5, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_median_does_not_ask_whether_numbers_that_are_computed_twice_are_equal():
    """XLA rounded the changes in two ways; none was the middle one, and the value of a model jumped by 0.07."""
    data = fjs.datasets.quadratics(num_clients=6, dim=5, sizes=[1, 3, 2, 4, 2, 3], seed=0)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=2, eval_every=2, cohort=fjs.cohort.full(), work=fjs.local.steps(1),
        batches=fjs.local.full_batch(), layout=fjs.layout.stacked(),
    )  # fmt: skip

    def model(at):
        honest = fjs.robust(fjs.fedavg(client_optimizer=sgd(at["rate"])), aggregators.median())
        method = fjs.attacked(honest, np.array([0, 1]), attacks.little_is_enough(z=at["z"]))
        return jnp.sum(train(method, data, jax.random.key(1), initial_params=at["x"]).params)

    rng = np.random.default_rng(0)
    points = {"rate": rng.uniform(0.05, 0.2, 12), "z": rng.uniform(0.3, 0.9, 12), "x": rng.standard_normal((12, 5))}
    plain = jax.jit(lambda points: jax.lax.map(model, points))(points)
    beside = jax.jit(lambda points: jax.lax.map(jax.value_and_grad(model), points)[0])(points)
    np.testing.assert_allclose(beside, plain, rtol=1e-12)


@pytest.mark.slow
def test_rules_of_integers_are_those_of_real_numbers():
    x, ones = np.random.default_rng(1).integers(-9, 9, (SLOTS, 4)), np.ones(SLOTS)
    whole, real = every_rule(x, ones > 0, ones), every_rule(x.astype(np.float32), ones > 0, ones)
    for name, value in real.items():
        np.testing.assert_array_equal(whole[name], value, err_msg=name)


class Counting(fjs.algorithms.FedAvg):
    """Clients that say how many steps they took."""

    def init(self, params, shares):
        return super().init(params, shares)._replace(extra=jnp.int32(0))

    def finish(self, delta, y, sent, c_i, client):
        return super().finish(delta, y, sent, c_i, client)[0] | {"steps": fjs.algorithms.Sum(client.steps)}, c_i

    def update(self, server, got, cohort):
        return super().update(server, got, cohort)._replace(extra=got["steps"])


@pytest.mark.slow
def test_integers_that_clients_send():
    """Their median, four times; what attackers make of theirs, to the nearest."""
    data = fjs.datasets.quadratics_from(np.ones((4, 1, 1)), np.ones((4, 1)))
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.full(), batches=fjs.local.full_batch(),
        work=fjs.local.given_steps(np.array([[1, 2, 3, 9]])),
    )  # fmt: skip
    counting, attacks = Counting(client_optimizer=fjs.optim.sgd(0.1)), fjs.attacks
    for method, expected in (
        (fjs.robust(counting, aggregators.median()), 4 * 2.5),
        (fjs.attacked(counting, [3], attacks.inner_product(0.5)), 1 + 2 + 3 - 0.5 * 2),
        (fjs.attacked(counting, [3], attacks.sign_flip(0.4)), 1 + 2 + 3 - round(0.4 * 9)),
        (fjs.attacked(counting, [3], attacks.little_is_enough(1.0)), 1 + 2 + 3 + round(2 - (2 / 3) ** 0.5)),
    ):
        sent = jax.jit(train)(method, data, jax.random.key(0)).state.server.base.extra
        assert (sent.dtype, int(sent)) == (jnp.int32, expected)


def test_a_trimmed_mean_in_half_precision_is_finite_where_the_sum_is_not():
    rule, x = aggregators.trimmed_mean(0.1), np.random.default_rng(0).uniform(4000, 5000, (21, 2)).astype(np.float16)
    found, slope = jax.jit(jax.value_and_grad(lambda x: rule.of(x)[0]))(jnp.asarray(x))
    kept = np.sort(x.astype(float), axis=0)[2:-2]
    np.testing.assert_allclose(found.astype(float), kept[:, 0].mean(), rtol=2e-3)
    np.testing.assert_allclose(np.sort(slope[:, 0].astype(float))[4:], 1 / 17, rtol=2e-3)


@pytest.mark.slow
def test_rules_in_low_precision_and_mapped():
    x = np.random.default_rng(1).standard_normal((SLOTS, 4))
    ones = np.ones(SLOTS, np.float32)
    for name, value in every_rule(x.astype(jnp.bfloat16), ones > 0, ones).items():
        assert value.dtype == jnp.bfloat16, name
        assert np.isfinite(value.astype(jnp.float32)).all(), name
    rule, x = aggregators.geometric_median(iterations=50), x.astype(np.float32)
    mapped = jax.jit(jax.vmap(lambda nu: rule.replace(nu=nu).of(x)))(np.array([1e-6, 100.0], np.float32))
    np.testing.assert_allclose(mapped[1], np.mean(x, axis=0), atol=1e-5)  # all distances count alike
    assert np.abs(mapped[0] - mapped[1]).max() > 1e-2


# Methods.

N, DIM, ETA = 7, 3, 0.1
SIZES = [1, 3, 2, 4, 2, 5, 3]
TAU = np.array([[3, 1, 2, 4, 1, 2, 3], [1, 2, 0, 3, 2, 1, 1], [2, 2, 1, 1, 0, 0, 0]])  # clients are dropped
ATTACKERS = [1, 5]


def problem():
    rng = np.random.default_rng(0)
    hessians = np.stack([np.diag(rng.uniform(0.5, 1.5, DIM)) for _ in range(N)])
    return fjs.datasets.quadratics_from(hessians, rng.standard_normal((N, DIM)), sizes=SIZES)


def run(algorithm, cohort=None, layout=None, rounds=3):
    train = fjs.make_train(
        task=fjs.quadratic(start=0.5), rounds=rounds, cohort=cohort or fjs.cohort.full(),
        work=fjs.local.given_steps(TAU), batches=fjs.local.full_batch(4), layout=layout,
    )  # fmt: skip
    return train(algorithm, problem(), jax.random.key(0))


jitted = jax.jit(run, static_argnames=("rounds", "layout"))


def fedavg(**more):
    return fjs.fedavg(client_optimizer=sgd(ETA), **more)


def path_by_hand(combine, tamper=lambda deltas, attack: deltas, clients=ATTACKERS):
    """Three rounds of FedAvg: ``combine(deltas, sizes)`` of what ``tamper`` makes of the deltas of those present."""
    data = problem()
    first = np.asarray(data.offsets)
    H, e = np.asarray(data.examples["H"])[first], np.asarray(data.examples["e"])[first]
    x = np.full(DIM, 0.5)
    for tau in TAU:
        y = np.tile(x, (N, 1))
        for i in range(N):
            for _ in range(tau[i]):
                y[i] = y[i] - ETA * (H[i] @ y[i] - e[i])
        here = tau > 0
        deltas = tamper((y - x)[here], np.isin(np.arange(N), clients)[here])
        x = x + combine(deltas, np.array(SIZES)[here])
    return x


def median_of(deltas, sizes):
    return np.median(deltas, axis=0)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_a_run_by_hand():
    """Clients drop out of the second and third round: the median is of those who are left."""
    flipped = jitted(fjs.robust(fjs.attacked(fedavg(), ATTACKERS, attacks.sign_flip(30.0))))
    expected = path_by_hand(median_of, lambda deltas, attack: np.where(attack[:, None], -30 * deltas, deltas))
    np.testing.assert_allclose(flipped.params, expected, rtol=1e-12)
    assert flipped.rounds["attackers"].tolist() == [2, 2, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_trimming_nothing_changes_nothing():
    plain = fjs.cohort.full(average="plain")
    base = fedavg(server_optimizer=sgd(0.9, momentum=0.5))
    moved = 0.0

    def mean_with_momentum(deltas, sizes):
        nonlocal moved
        moved = 0.5 * moved + np.mean(deltas, axis=0)
        return 0.9 * moved

    alone = jitted(fjs.robust(base, aggregators.trimmed_mean(0.0)), plain).params
    np.testing.assert_allclose(alone, path_by_hand(mean_with_momentum), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_attacks_by_nobody_change_nothing():
    expected = jitted(fedavg()).params
    for attack, nobody in ((attacks.scaling(100.0), None), (attacks.little_is_enough(1.0), [-1])):
        np.testing.assert_allclose(jitted(fjs.attacked(fedavg(), nobody, attack)).params, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fednova", "feddane"])
def test_the_mean_rule_is_the_base_method(method):
    """Also what the base weighs itself, and in each of several exchanges, and weighted by n_i."""
    base = getattr(fjs, method)(client_optimizer=sgd(ETA))
    robust = jitted(fjs.robust(base, aggregators.mean())).params
    np.testing.assert_allclose(robust, jitted(base).params, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_the_mean_of_what_the_base_weighs_by_n_i_is_its_sum():
    """SCAFFOLD's c stays sum_j p_j c_j: the weights of the rule do not come on top of the base's."""
    method = fjs.robust(fjs.scaffold(client_optimizer=sgd(ETA)), aggregators.mean())
    state = jitted(method, fjs.cohort.full(average="sample"), rounds=1).state
    expected = np.array(SIZES) / np.sum(SIZES) @ state.clients
    np.testing.assert_allclose(state.server.base.extra, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_sums_of_one_s_own_are_protected_too():
    """One client's control variate of 1e9 does not move SCAFFOLD's c."""
    base = fjs.scaffold(client_optimizer=sgd(ETA))
    liar = fjs.attacked(base, [2], attacks.gaussian(1e9))
    assert np.abs(jitted(liar).params).max() > 1e6
    assert np.abs(jitted(fjs.robust(liar)).params).max() < 10


# Attacks.


def little(z):
    def tamper(deltas, attack):
        honest = deltas[~attack]
        return np.where(attack[:, None], honest.mean(axis=0) - z * honest.std(axis=0), deltas)

    return tamper


def inner(deltas, attack):
    return np.where(attack[:, None], -0.7 * deltas[~attack].mean(axis=0), deltas)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("attack", "tamper"),
    [
        (attacks.scaling(-4.0), lambda deltas, attack: np.where(attack[:, None], -4 * deltas, deltas)),
        (attacks.little_is_enough(1.2), little(1.2)),
        (attacks.inner_product(0.7), inner),
    ],
    ids=["scaling", "little", "inner"],
)
def test_attacks_by_hand_inside_and_outside(attack, tamper):
    alone = jitted(fjs.attacked(fedavg(), ATTACKERS, attack))
    weighted = path_by_hand(lambda deltas, sizes: sizes @ deltas / sizes.sum(), tamper)
    np.testing.assert_allclose(alone.params, weighted, rtol=1e-12)
    if isinstance(attack, attacks.InnerProduct):
        return
    expected = path_by_hand(median_of, tamper)
    inside = jitted(fjs.robust(fjs.attacked(fedavg(), ATTACKERS, attack)))
    outside = jitted(fjs.attacked(fjs.robust(fedavg()), ATTACKERS, attack))
    np.testing.assert_allclose(inside.params, expected, rtol=1e-12)
    np.testing.assert_allclose(outside.params, expected, rtol=1e-12)
    assert inside.rounds["attackers"].tolist() == outside.rounds["attackers"].tolist() == [2, 2, 1]


@pytest.mark.usefixtures("x64")
def test_the_server_knows_the_shares_of_attackers():
    """SCAFFOLD's c weighs by p_j what they say, which is made of the c_j of the others as these sent them."""
    liars = fjs.attacked(fjs.scaffold(client_optimizer=sgd(ETA)), ATTACKERS, attacks.inner_product(0.7))
    state = jitted(liars, fjs.cohort.full(average="sample"), rounds=1).state
    said = inner(np.asarray(state.clients), np.isin(np.arange(N), ATTACKERS))
    np.testing.assert_allclose(state.server.base.extra, np.array(SIZES) / np.sum(SIZES) @ said, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_two_kinds_of_attackers_and_layouts():
    """The outer one knows what the inner one sends; a wrapper in between changes nothing."""
    first = fjs.attacked(fedavg(), [1], attacks.scaling(-4.0))
    both = fjs.robust(fjs.ema(fjs.attacked(first, [3], attacks.inner_product(0.7)), 0.5))

    def tamper(deltas, attack):
        scaled = np.where(attack[:, None], -4 * deltas, deltas)
        last = np.array([here == 3 for here in np.flatnonzero(TAU[row[0]] > 0)])
        row[0] += 1
        return np.where(last[:, None], -0.7 * scaled[~last].mean(axis=0), scaled)

    row = [0]
    expected = path_by_hand(median_of, tamper, clients=[1])
    for layout in (fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)):
        result = jitted(both, layout=layout)
        np.testing.assert_allclose(both.model(result.state.server), expected, rtol=1e-12)
        assert result.rounds["attackers"].tolist() == [2, 2, 2]


@pytest.mark.usefixtures("x64")
def test_the_rule_for_z():
    stats = pytest.importorskip("scipy.stats")
    x = np.random.default_rng(2).standard_normal((50, 4))
    agreed = jax.jit(attacks.little_is_enough().agreed)
    for lying in (0, 10, 24, 30):
        attackers = np.arange(50) < lying
        message = agreed(x, ~attackers, attackers)
        supporters = 50 // 2 + 1 - lying
        z = stats.norm.ppf(np.clip((50 - lying - supporters) / (50 - lying), 0.5, 1))
        expected = x[lying:].mean(axis=0) - z * x[lying:].std(axis=0)
        if lying < 26:
            np.testing.assert_allclose(message, expected, rtol=1e-9)
        assert np.isfinite(message).all()


@pytest.mark.slow
def test_noise_is_the_client_s_and_the_round_s():
    message = {"a": jnp.zeros(4000), "b": jnp.ones((3,))}
    attack = attacks.gaussian(2.0, keep=1.0)
    one, again, other = (attack.tampered(message, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one["a"], again["a"])
    assert abs(float(jnp.std(one["a"])) - 2.0) < 4 * 2.0 / np.sqrt(2 * 4000)  # four standard errors
    assert not np.any(one["a"] == other["a"])
    assert not np.any(one["a"][:3] == one["b"] - 1)
    np.testing.assert_array_equal(attacks.gaussian(0.0).tampered(message, jax.random.key(0))["b"], 0)


@pytest.mark.usefixtures("x64")
def test_what_is_sent_once_has_one_noise():
    """FedDyn's server reads a change for its mean, and for b: x moves by both."""
    liars = fjs.attacked(fjs.feddyn(client_optimizer=sgd(ETA)), list(range(N)), attacks.gaussian(1.0))
    state = jitted(liars, fjs.cohort.full(average="plain"), rounds=1).state
    b = np.asarray(state.server.base.extra)
    assert np.abs(b).min() > 1e-3
    np.testing.assert_allclose(state.server.base.params, 0.5 + 2 * b, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_noise_is_the_exchange_s():
    """Mime's gradients and changes are sent by one cohort: with one noise for both, steps of 1 would take it back."""
    data = fjs.datasets.quadratics_from(np.stack([np.eye(2)] * 2), np.eye(2))
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1),
        batches=fjs.local.full_batch(), layout=fjs.layout.turns(),
    )  # fmt: skip
    mime = fjs.mime(client_optimizer=sgd(1.0), server_optimizer=None)
    liars = fjs.attacked(mime, [0, 1], attacks.gaussian(1e3, keep=1.0))
    assert np.abs(jax.jit(train)(liars, data, jax.random.key(0)).params).min() > 10


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_attackers_and_factors_are_leaves():
    """All attackers and strengths are one program, and derivatives reach them."""

    def final(clients, factor):
        attacked = fjs.attacked(fedavg(), [0, 0], attacks.scaling(1.0))
        attacked = attacked.replace(clients=clients, attack=attacked.attack.replace(factor=factor))
        return jnp.sum(run(fjs.robust(attacked, aggregators.trimmed_mean(0.2)), rounds=2).params)

    clients, factors = jnp.array([[1, 5], [3, -1]]), jnp.array([0.9, 1.1])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(final, argnums=1)))(clients, factors)
    for who, factor, value, slope in zip(clients, factors, values, slopes, strict=True):
        ahead, behind = (jitted_final(final)(who, factor + step) for step in (1e-6, -1e-6))
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(value, (ahead + behind) / 2, rtol=1e-8)


@functools.cache
def jitted_final(final):
    return jax.jit(final)


# Who attacks, and poisoned labels.


def labelled():
    return fjs.datasets.synthetic(0.5, 0.5, num_clients=10, max_size=30, seed=0, test_fraction=0.2)


@pytest.mark.slow
def test_draws_of_attackers():
    data = labelled()
    few = attacks.draw_attackers(data, 0.29, seed=3)
    assert len(few) == 2
    assert len(attacks.draw_attackers(data, 0.3, seed=3)) == 3
    more = attacks.draw_attackers(data, 0.7, seed=3)
    assert len(more) == 7
    assert set(few) < set(more)
    np.testing.assert_array_equal(more, attacks.draw_attackers(data.subset(np.arange(10)[::-1]), 0.7, seed=3))
    drawn = {tuple(attacks.draw_attackers(data, 0.5, seed)) for seed in range(20)}
    assert len(drawn) > 10
    assert attacks.draw_attackers(data, 0.0).size == 0
    assert attacks.draw_attackers(data, 1.0).tolist() == list(range(10))


def test_flipped_labels():
    data = labelled()
    changed = data.subset([4, 2, 9, 0, 1, 3, 5, 6, 8, 7])
    for one in (data, changed):
        poisoned = fjs.datasets.flip_labels(one, [2, 7])
        for position in range(10):
            index = int(np.flatnonzero(np.asarray(one.order) == position)[0])
            before, after = one.client(position)["y"], poisoned.client(position)["y"]
            np.testing.assert_array_equal(after, 9 - before if index in (2, 7) else before)
        np.testing.assert_array_equal(poisoned.test.examples["y"], one.test.examples["y"])
        assert poisoned.examples["x"] is one.examples["x"]
    turned = fjs.datasets.flip_labels(data, [0], labels=(np.arange(10) + 1) % 10)
    place = int(data.order[0])
    np.testing.assert_array_equal(turned.client(place)["y"], (data.client(place)["y"] + 1) % 10)


def test_random_labels():
    data = labelled()
    one, moved = (
        fjs.datasets.random_labels(data_, [1, 4], seed=2) for data_ in (data, data.subset(np.arange(10)[::-1]))
    )
    for index in range(10):
        first, second = one.client(int(one.order[index]))["y"], moved.client(int(moved.order[index]))["y"]
        np.testing.assert_array_equal(first, second)
        changed = np.any(first != data.client(int(data.order[index]))["y"])
        assert changed == (index in (1, 4))
    assert set(np.asarray(one.examples["y"])) <= set(range(10))


def test_descriptions_of_poisoned_data():
    poisoned = fjs.datasets.flip_labels(labelled(), [2, 7])
    rebuilt = fjs.build(json.loads(json.dumps(fjs.describe(poisoned))))
    np.testing.assert_array_equal(rebuilt.examples["y"], poisoned.examples["y"])
    assert fjs.describe(poisoned)["arguments"]["data"]["name"] == "dataset.synthetic"


# Messages.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aggregators.trimmed_mean(0.5), r"trimmed_mean\(beta=...\) is 0.5: it must be in \[0, 0.5\)"),
        (lambda: aggregators.krum(-1), r"krum\(f=...\) is -1"),
        (lambda: aggregators.multi_krum(1, 0), r"multi_krum\(m=...\) is 0"),
        (lambda: aggregators.geometric_median(0.0), r"nu=...\) is 0"),
        (lambda: aggregators.centered_clipping(-1.0), r"tau=...\) is -1"),
        (lambda: aggregators.krum(3).of(np.zeros((8, 2))), r"at least 2 f \+ 3 = 9 slots.*has 8.*f <= 2"),
        (lambda: fjs.robust(fedavg(), "median"), r"rule='median'\): give a rule"),
        (lambda: fjs.robust(fjs.robust(fedavg())), "one average to replace"),
        (
            lambda: fjs.robust(fjs.feddane(client_optimizer=sgd(0.1)), aggregators.centered_clipping()),
            "feddane.*two kinds of messages",
        ),
        (lambda: fjs.attacked(fedavg(), [0.2]), r"draw_attackers\(data, 0.2"),
        (lambda: fjs.attacked(fedavg(), 3), "one row of client indices"),
        (lambda: fjs.aware(fjs.attacked(fedavg(), [3])), r"put attacked outside, attacked\(aware\(...\), ...\)"),
        (lambda: fjs.aware(fjs.robust(fjs.attacked(fedavg(), [3]))), "remember what they really changed"),
        (lambda: fjs.attacked(fedavg(), [3], "flip"), r"attack='flip'\): give an attack"),
        (lambda: attacks.sign_flip(-1.0), r"sign_flip\(factor=...\) is -1"),
        (lambda: attacks.draw_attackers(labelled(), 1.5), r"fraction=...\) is 1.5"),
        (lambda: attacks.draw_attackers(10, 0.5), "give a data set"),
        (lambda: fjs.datasets.flip_labels(labelled(), [10]), "integers from 0 to 9"),
        (lambda: fjs.datasets.flip_labels(labelled(), [0.5]), "integers"),
        (lambda: fjs.datasets.flip_labels(labelled(), [0], labels=[0, 1]), "each of the 10 classes"),
        (lambda: fjs.datasets.flip_labels(fjs.datasets.quadratics(3, 2), [0]), "no labels to change"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("algorithm", "cohort", "message"),
    [
        (lambda: fjs.robust(fedavg()), fjs.cohort.full(average="sample"), "median counts every client once"),
        (
            lambda: fjs.robust(fedavg(), aggregators.geometric_median()),
            fjs.cohort.full(average="original"),
            "weights sum to 1",
        ),
        (lambda: fjs.robust(fedavg()), fjs.cohort.with_replacement(3), "Robust"),
        (lambda: fjs.robust(fedavg(), aggregators.krum(3)), None, "at least 2 f . 3 = 9 slots.*has 7"),
        (
            lambda: fjs.robust(fjs.fedaware(client_optimizer=sgd(0.1))),
            None,
            r"robust\(fedaware\(...\)\): fedaware weighs",
        ),
        (lambda: fjs.robust(fjs.qfedavg(client_optimizer=sgd(0.1))), fjs.cohort.full(), "qfedavg weighs its clients"),
        (lambda: fjs.robust(fjs.aware(fedavg())), None, "aware weighs its clients itself or asks"),
        (lambda: fjs.robust(fjs.reweighted(fedavg(), np.zeros(N))), None, "reweighted weighs"),
        (
            lambda: fjs.robust(fjs.fednova(client_optimizer=sgd(0.1)), aggregators.centered_clipping()),
            None,
            r"messages are \['normalised', 'slope'\]",
        ),
        (lambda: fjs.attacked(fedavg(), [7]), None, r"has \[7\]: clients are numbered 0 to 6"),
    ],
)
def test_what_has_no_meaning_is_refused(algorithm, cohort, message):
    made = algorithm()
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: run(made, cohort).params)


def test_aware_hears_the_lies_that_robust_hears():
    """Attackers agree outside of aware, the sums are made inside of it."""
    inside = fjs.aware(fjs.robust(fedavg(), aggregators.mean()), weights="uniform").checked()
    method = fjs.attacked(inside, [1], attacks.inner_product(2.0)).checked()
    slots, third = jnp.arange(3, dtype=jnp.int32), jnp.full((3,), 1 / 3)
    cohort = Cohort(
        slots, jnp.ones(3, bool), third, jnp.int32(3), 3, jnp.ones(()), round=jnp.int32(0), key=jax.random.key(0)
    )

    @jax.jit
    def moved(changes):
        def sent(change, index):
            return method.finish(change, x, method.send(server), (), contract.nobody()._replace(index=index))[0]

        x = jnp.zeros(2)
        server = method.init(x, third)
        messages = {name: one.value for name, one in jax.vmap(sent)(changes, slots).items()}
        return method.update(server, messages, cohort)

    remembered = moved(jnp.array([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])).base.extra.momenta  # half of x - y_i
    np.testing.assert_allclose(remembered, [[-0.5, 0.0], [0.5, 0.5], [0.0, -0.5]], atol=1e-7)


# The study.


def test_the_committed_study_holds_its_claims():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "studies" / "results" / "byzantine.json"
    accuracy = json.loads(path.read_text())["accuracy"]
    even, skewed = (
        {rule: {attack: np.mean(cell, axis=1) for attack, cell in by.items()} for rule, by in accuracy[clients].items()}
        for clients in ("even clients", "skewed clients")
    )
    assert even["mean"]["scaling x100"][1] < 0.15  # two liars of twenty
    assert min(cell.min() for rule, by in even.items() if rule != "mean" for cell in by.values()) > 0.85
    assert skewed["Krum"]["label flip"][0] < 0.7 < skewed["median"]["label flip"][0] < skewed["mean"]["label flip"][0]
    assert skewed["median"]["sign flip x3"][-1] < 0.6 < 0.85 < skewed["multi-Krum"]["sign flip x3"][-1]
    assert max(by["a little is enough"][-1] for rule, by in skewed.items() if rule != "mean") < 0.75


@pytest.mark.nightly
def test_the_study_runs(tmp_path):
    result = at_smoke_size("byzantine", tmp_path)
    by_rule = result["accuracy"]["even clients"]
    assert np.mean(by_rule["mean"]["sign flip x3"][-1]) < 0.1 < np.mean(by_rule["median"]["sign flip x3"][-1])
