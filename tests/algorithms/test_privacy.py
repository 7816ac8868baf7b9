"""Clipped changes and noise: runs by hand, bounds, moments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import trees
from fedjax_sim.algorithms import Cohort
from fedjax_sim.algorithms.clipping import WITHIN, clip
from fedjax_sim.algorithms.contract import nobody
from fedjax_sim.algorithms.wrapper import encoded
from fedjax_sim.core import sampling

pytestmark = pytest.mark.usefixtures("x64")

sgd = fjs.optim.sgd
ETA, N, DIM = 0.1, 4, 5
BASE = fjs.fedavg(client_optimizer=sgd(ETA))
COHORTS = np.array([[0, 1, 3], [1, -1, 2], [3, 1, 0]])


def problem():
    rng = np.random.default_rng(1)
    H = np.stack([np.diag(rng.uniform(0.5, 2.0, DIM)) for _ in range(N)])
    return fjs.datasets.quadratics_from(H, rng.standard_normal((N, DIM)) * np.array([[0.1], [1.0], [3.0], [10.0]]))


def run(algorithm, cohort=None, rounds=3):
    train = fjs.make_train(
        task=fjs.quadratic(start=0.5), rounds=rounds, cohort=cohort or fjs.cohort.given(COHORTS),
        work=fjs.local.steps(2), batches=fjs.local.full_batch(), layout=fjs.layout.turns(),
    )  # fmt: skip
    return train(algorithm, problem(), jax.random.key(0))


def by_hand(aggregate):
    """``aggregate(x, changes of the cohort, t)`` over the rounds of COHORTS."""
    data = problem()
    first = np.asarray(data.offsets)
    H, e = np.asarray(data.examples["H"])[first], np.asarray(data.examples["e"])[first]
    x = np.full(DIM, 0.5)
    for t, row in enumerate(COHORTS):
        changes = []
        for i in row[row >= 0]:
            y = x
            for _ in range(2):
                y = y - ETA * (H[i] @ y - e[i])
            changes.append(y - x)
        x = aggregate(x, changes, t)
    return x


def shortened(change, norm):
    return change * min(1.0, norm / np.linalg.norm(change))


# Clipping.


def test_clipping_a_tree():
    rng = np.random.default_rng(0)
    tree = {"a": rng.standard_normal((3, 2)), "b": rng.standard_normal(4)}
    length = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in tree.values()))
    for norm in (0.3 * length, 2 * length, np.inf):
        bounded, within = jax.jit(clip)(tree, norm)
        for name, leaf in tree.items():
            np.testing.assert_allclose(bounded[name], leaf * min(1.0, norm / length), rtol=1e-14)
        assert bool(within) == (norm >= length)


def test_the_derivative_of_clipping_is_finite():
    def value(v, norm):
        return jnp.sum(clip(v, norm)[0] * jnp.arange(1.0, 4.0))

    both = jax.jit(jax.grad(value, (0, 1)))
    v, w = np.array([1.0, -2.0, 2.0]), np.arange(1.0, 4.0)
    for at, norm in ((np.zeros(3), 1.0), (v, np.inf), (v, 5.0)):  # nothing clipped: the identity
        in_v, in_norm = both(at, norm)
        np.testing.assert_array_equal(in_v, w)
        assert in_norm == 0
    in_v, in_norm = both(v, 1.5)  # v C / |v|, |v| = 3
    np.testing.assert_allclose(in_v, 0.5 * (w - v * (v @ w) / 9), rtol=1e-12)
    np.testing.assert_allclose(in_norm, v @ w / 3, rtol=1e-12)


def test_lengths_are_computed_in_single_precision_at_least():
    v = {"a": jnp.full(4096, 0.1, jnp.bfloat16), "b": jnp.full(3, 0.1, jnp.float32)}
    length = np.sqrt(4096 * float(v["a"][0]) ** 2 + 3 * float(v["b"][0]) ** 2)
    _, within = jax.jit(jax.vmap(clip, (None, 0)))(v, length * np.array([0.9995, 1.0005]))
    assert within.tolist() == [False, True]
    assert jax.eval_shape(clip, v, 1.0)[0]["a"].dtype == jnp.bfloat16


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float16, 2e-4), (jnp.bfloat16, 5e-4)])
def test_changes_in_half_precision_are_bounded(dtype, tolerance):
    """Each entry is rounded once; C / |v| = 6e-8 in float16 would make all of them twice as large, or 0."""
    v = jnp.asarray(np.random.default_rng(0).uniform(-6e4, 6e4, 4000), dtype)
    norms = np.array([0.1, 0.2, 30.0, 1000.0])  # entries of normal numbers
    bounded, _ = jax.jit(jax.vmap(clip, (None, 0)))(v, norms)
    lengths = np.linalg.norm(np.asarray(bounded, np.float64), axis=1)
    np.testing.assert_allclose(lengths, norms, rtol=tolerance)


@pytest.mark.slow
def test_a_clipped_run_by_hand():
    """Several bounds at once; infinity changes nothing."""
    norms = np.array([0.2, 0.7, np.inf])
    runs = jax.jit(jax.vmap(lambda norm: run(fjs.clipped(BASE, norm=norm))))(norms)
    fractions = []
    for i, norm in enumerate(norms):

        def aggregate(x, changes, t, norm=norm, i=i):
            if i == 0:
                fractions.append(np.mean([np.linalg.norm(change) > norm for change in changes]))
            return x + np.mean([shortened(change, norm) for change in changes], axis=0)

        np.testing.assert_allclose(runs.params[i], by_hand(aggregate), rtol=1e-12)
    np.testing.assert_allclose(runs.rounds["clipped"][0], fractions, rtol=1e-12)
    assert 0 < np.mean(fractions) <= 1
    np.testing.assert_array_equal(runs.rounds["clipped"][2], 0)


def test_an_adaptive_bound_by_hand():
    gamma, eta, initial = 0.4, 0.5, 0.3
    bounds = [initial]

    def aggregate(x, changes, t):
        norm = bounds[-1]
        share = np.mean([np.linalg.norm(change) <= norm for change in changes])
        bounds.append(norm * np.exp(-eta * (share - gamma)))
        return x + np.mean([shortened(change, norm) for change in changes], axis=0)

    expected = by_hand(aggregate)
    result = jax.jit(run)(fjs.adaptively_clipped(BASE, quantile=gamma, rate=eta, initial=initial))
    np.testing.assert_allclose(result.params, expected, rtol=1e-12)
    np.testing.assert_allclose(result.rounds["clipping_norm"], bounds[:-1], rtol=1e-12)
    np.testing.assert_allclose(result.state.server.extra.norm, bounds[-1], rtol=1e-12)


@pytest.mark.slow
def test_the_bound_finds_its_quantile():
    """With a frozen model the lengths stay; C settles where the fraction gamma is within it."""
    algorithm = fjs.adaptively_clipped(
        fjs.fedavg(client_optimizer=sgd(ETA), server_learning_rate=0.0), quantile=0.5, rate=0.05, initial=1e-2
    )
    result = jax.jit(functools.partial(run, cohort=fjs.cohort.full(), rounds=400))(algorithm)
    assert np.mean(result.rounds["clipped"][200:]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("make", [fjs.scaffold, functools.partial(fjs.feddyn, alpha=0.3)], ids=["scaffold", "feddyn"])
def test_server_and_clients_agree_on_what_was_clipped(make):
    """c = mean c_j and b = mean b_j: both are computed from the clipped change."""
    result = jax.jit(run)(fjs.clipped(make(client_optimizer=sgd(ETA)), norm=0.2))
    assert result.rounds["clipped"].max() > 0
    np.testing.assert_allclose(result.state.server.base.extra, np.mean(result.state.clients, axis=0), atol=1e-13)


# Noise.


def cohort_of(key, size, expected, slots=6):
    valid = np.arange(slots) < size
    return Cohort(
        indices=jnp.where(valid, jnp.arange(slots), 10).astype(jnp.int32), valid=jnp.asarray(valid),
        weights=jnp.asarray(np.where(valid, 1 / max(size, 1), 0.0)), size=jnp.int32(size), num_clients=10,
        mass=jnp.asarray(1.0), round=jnp.int32(0), key=key, expected=jnp.asarray(expected),
    )  # fmt: skip


def released(algorithm, key, size=3, within=2.0):
    """x and the bound after a round in which the clipped changes summed to (1, ..., 8)."""
    server = algorithm.init(jnp.zeros(8), jnp.full(10, 0.1))
    got = {"delta": jnp.arange(1.0, 9.0), WITHIN: jnp.asarray(within)}
    new = algorithm.update(server, got, cohort_of(key, size, 2.5))
    return algorithm.model(new), new.extra.norm


def moments(algorithm, count=4000, **more):
    keys = jax.random.split(jax.random.key(5), count)
    draws = jax.jit(jax.vmap(lambda key: released(algorithm, key, **more)))(keys)
    return jax.tree.map(np.asarray, draws)


def assert_normal(draws, mean, std):
    """Mean, standard deviation and independence of the columns, to six standard errors."""
    count = len(draws)
    assert (np.abs(draws.mean(axis=0) - mean) < 6 * std / np.sqrt(count)).all()
    assert (np.abs(draws.std(axis=0) - std) < 6 * std / np.sqrt(2 * count)).all()
    correlation = np.corrcoef(draws.T) - np.eye(draws.shape[1])
    assert np.abs(correlation).max() < 6 / np.sqrt(count)


def test_the_noise_is_z_c_over_the_expected_cohort():
    """Of the sum over whoever came, divided by the number expected."""
    draws, norms = moments(fjs.dp(BASE, norm=0.4, noise_multiplier=1.5))
    assert_normal(draws, np.arange(1.0, 9.0) / 2.5, 1.5 * 0.4 / 2.5)
    np.testing.assert_array_equal(norms, 0.4)


def test_noise_in_low_precision_is_normal():
    """Drawn in bfloat16 it would be 128 numbers of mean -0.012, none beyond 2.9: what lies further out tells."""
    like, key = {"w": jnp.zeros(10**6, jnp.bfloat16)}, jax.random.key(2)
    for noise in (sampling.normal_tree(key, like), fjs.attacks.gaussian(1.0).tampered(like, key)):
        drawn = np.asarray(noise["w"], np.float64)
        assert noise["w"].dtype == jnp.bfloat16
        assert abs(drawn.mean()) < 6e-3  # six standard errors
        assert abs(drawn.std() - 1) < 6e-3
        assert np.abs(drawn).max() > 4


def test_noise_in_low_precision_is_z_c_over_the_expected_cohort():
    """To 6 standard errors: z C = 1.0039 in bfloat16 is 1, and 1 / 300 less by 0.2 %."""
    algorithm, count = fjs.dp(BASE, norm=1.0, noise_multiplier=1.0039), 10**6
    server = algorithm.init(jnp.zeros(count, jnp.bfloat16), jnp.full(10, 0.1))
    got = {"delta": jnp.zeros(count, jnp.bfloat16), WITHIN: jnp.asarray(2.0)}
    update = jax.jit(lambda key: algorithm.model(algorithm.update(server, got, cohort_of(key, 3, 300.0))))
    model = update(jax.random.key(5))
    assert model.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.std(np.asarray(model, np.float64)), 1.0039 / 300, rtol=4.2e-3)


def test_the_split_with_a_noisy_count():
    z, sigma, gamma, eta = 1.2, 0.9, 0.3, 0.2
    algorithm = fjs.dp(BASE, norm=0.4, noise_multiplier=z, quantile=gamma, rate=eta, count_noise=sigma)
    draws, norms = moments(algorithm)
    for_changes = (z**-2 - (2 * sigma) ** -2) ** -0.5  # Andrew et al. 2021, Theorem 1
    assert_normal(draws, np.arange(1.0, 9.0) / 2.5, for_changes * 0.4 / 2.5)
    share = gamma - np.log(norms / 0.4) / eta
    both = np.column_stack([share, draws[:, 0]])
    assert_normal(both, [0.5 + (2 - 3 / 2) / 2.5, 1 / 2.5], np.array([sigma / 2.5, for_changes * 0.4 / 2.5]))


def test_noise_is_the_round_s_own():
    algorithm = fjs.dp(BASE)
    release = jax.jit(lambda seed: released(algorithm, jax.random.key(seed))[0])
    np.testing.assert_array_equal(release(1), release(1))
    assert np.abs(np.subtract(release(2), release(1))).min() > 1e-6


def test_a_private_run_without_noise_by_hand():
    """Equal weights, whatever the clients' sizes."""

    def aggregate(x, changes, t):
        return x + sum(shortened(change, 0.5) for change in changes) / np.sum(COHORTS[t] >= 0)

    result = jax.jit(run)(fjs.dp(BASE, norm=0.5, noise_multiplier=0.0))
    np.testing.assert_allclose(result.params, by_hand(aggregate), rtol=1e-12)


@pytest.mark.slow
def test_noise_is_added_when_nobody_comes():
    nobody = fjs.cohort.independent(0.02, average="plain")
    private = jax.jit(functools.partial(run, cohort=nobody, rounds=2))(fjs.dp(BASE, norm=1.0, noise_multiplier=0.5))
    assert private.rounds["cohort_size"].tolist() == [0, 0]
    moved = np.diff(np.stack([np.full(DIM, 0.5), np.asarray(private.params)]), axis=0)
    assert np.abs(moved).min() > 1e-3
    assert np.abs(moved).max() < 6 * np.sqrt(2) * 0.5 / (0.02 * N)


def test_the_length_of_a_message_is_bounded_whatever_is_inside():
    @functools.partial(jax.jit, static_argnums=0)
    def finished(inside):
        sent, y = BASE.send(BASE.init(jnp.zeros(8), jnp.full(10, 0.1))), jnp.full(8, 3.0)
        client = nobody()._replace(key=jax.random.key(3))
        delta, c_i, _ = encoded(inside, y, sent, inside.init_client(jnp.zeros(8)), client)
        messages, _ = fjs.dp(inside, norm=0.7).finish(delta, y, sent, c_i, client)
        return trees.norm(messages["delta"].value), messages[WITHIN].value

    for inside in (BASE, fjs.top_k(BASE, 0.5), fjs.random_k(BASE, 0.3), fjs.quantised(BASE, bits=2)):
        length, within = finished(inside)
        np.testing.assert_allclose(length, 0.7, rtol=1e-12)
        assert within == 0


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (fjs.scaffold, r"dp\(scaffold\(...\)\): its clients send 'control' besides their change"),
        (fjs.fednova, "'normalised', 'slope'"),
        (fjs.feddyn, "'sum'"),
        (fjs.fedcm, "'momentum'"),
        (fjs.afl, r"reads single clients' messages \(loss\)"),
        (fjs.qfedavg, "'scale', 'step'"),
        (fjs.fedaware, "reads single clients. messages"),
        (fjs.feddane, "an exchange of their own"),
        (fjs.fedproto, "its clients report in an exchange of their own"),
        (functools.partial(fjs.fedprox, adaptive=True), "the objective over all clients' data, without noise"),
    ],
    ids=["scaffold", "fednova", "feddyn", "fedcm", "afl", "qfedavg", "fedaware", "feddane", "fedproto", "fedprox"],
)
def test_methods_that_would_release_more_are_refused(base, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(run, fjs.dp(base(client_optimizer=sgd(ETA))))


def test_aware_around_dp_is_refused():
    """Its steps would follow the changes of single clients."""
    for private in (fjs.dp(BASE), fjs.top_k(fjs.dp(BASE))):
        with pytest.raises(ValueError, match=r"aware\(dp\(...\)\): .* neither clipped nor with noise"):
            fjs.aware(private)


def test_bad_input():
    for norm in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"clipped\(norm=...\) is"):
            fjs.clipped(BASE, norm=norm)
    with pytest.raises(TypeError, match=r"clipped\(norm=...\) is None"):
        fjs.clipped(BASE, norm=None)
    with pytest.raises(ValueError, match="it must be finite"):
        fjs.dp(BASE, norm=np.inf)
    with pytest.raises(ValueError, match=r"adaptively_clipped\(quantile=...\) is 1.2"):
        fjs.adaptively_clipped(BASE, quantile=1.2)
    with pytest.raises(ValueError, match="the base is clipped already, by Clipped"):
        fjs.adaptively_clipped(fjs.ema(fjs.clipped(BASE)))
    with pytest.raises(ValueError, match=r"dp\(base\): the base is clipped already"):
        fjs.dp(fjs.clipped(BASE))
    with pytest.raises(ValueError, match=r"dp\(noise_multiplier=...\) is -1"):
        fjs.dp(BASE, noise_multiplier=-1)
    with pytest.raises(ValueError, match="give count_noise"):
        fjs.dp(BASE, quantile=0.5)
    with pytest.raises(ValueError, match=r"dp\(count_noise=0.5\) is too small for noise_multiplier=1.0"):
        fjs.dp(BASE, quantile=0.5, count_noise=0.5)
    with pytest.raises(ValueError, match=r"give quantile=0.5 too"):
        fjs.dp(BASE, count_noise=1.0)
    with pytest.raises(ValueError, match=r"Dp cannot average by 'sample'.*one client can change.*average='plain'"):
        jax.eval_shape(functools.partial(run, cohort=fjs.cohort.uniform(2, average="sample")), fjs.dp(BASE))
    with pytest.raises(ValueError, match=r"Dp has each client once.* drawn twice have no meaning"):  # it keeps no state
        jax.eval_shape(functools.partial(run, cohort=fjs.cohort.with_replacement(2)), fjs.dp(BASE))
    with pytest.raises(ValueError, match=r"clipped\(norm=...\) has shape \(2,\)"):
        jax.eval_shape(run, fjs.clipped(BASE, norm=np.ones(2)))
