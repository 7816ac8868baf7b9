"""Where two features meet: clients that are not finite, stale or lying, and what a private sum must not allow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import asynchronous, attacks, systems
from fedjax_sim.run.verification import verify

pytestmark = pytest.mark.usefixtures("x64")

sgd = fjs.optim.sgd
N, BAD = 6, 2


def rates(*bad, normal=1.0):
    """Client learning rates with which the clients ``bad`` overflow in their second step."""
    return fjs.rates.over_clients(np.where(np.isin(np.arange(N), bad), 1e200, normal))


def fedavg(*bad, **changes):
    return fjs.fedavg(client_optimizer=sgd(0.1), client_learning_rate=rates(*bad), **changes)


def run(algorithm, rounds=2, **changes):
    settings = {
        "task": fjs.quadratic(start=0.5),
        "cohort": fjs.cohort.full(),
        "work": fjs.local.steps(2),
        "batches": fjs.local.full_batch(),
    }
    data = fjs.datasets.quadratics(num_clients=N, dim=4, seed=1)
    return fjs.simulate(algorithm, data, rounds=rounds, **settings | changes)


class TestPrivateSums:
    def test_what_is_not_finite_counts_as_zero(self):
        method = fjs.dp(fedavg(BAD), norm=0.1, noise_multiplier=0.0)
        both, others = (fjs.local.given_steps(np.where(np.arange(N) == BAD, of, 2)[None], most=2) for of in (2, 0))
        history = run(method, rounds=1, work=both)
        assert np.isfinite(history.params).all()
        assert history.divergences == []
        without = run(fjs.dp(fedavg(), norm=0.1, noise_multiplier=0.0), rounds=1, work=others)
        np.testing.assert_allclose(history.params, without.params, rtol=1e-12)
        assert history.rounds["clipped"][0, 0] >= 1 / N  # it is not "within the norm"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"work": fjs.local.stragglers(0.5, 3)}, r"with work Stragglers.* one client changes what others do"),
            (
                {"system": systems.devices(seconds_per_step=1.0, policy=systems.first(3))},
                r"with system policy First.* one client changes",
            ),
        ],
    )
    def test_clients_must_not_depend_on_each_other(self, changes, message):
        with pytest.raises(ValueError, match=message):
            run(fjs.ema(fjs.dp(fedavg(), norm=0.1), decay=0.5), **changes)

    def test_one_bound_is_enough(self):
        with pytest.raises(ValueError, match="the base is clipped already, by Dp"):
            fjs.clipped(fjs.dp(fedavg()), norm=1.0)


class TestAsynchronous:
    def test_fedasync_cannot_clip_what_no_client_knows(self):
        with pytest.raises(ValueError, match=r"Clipped cannot be asynchronous: .*fedasync.*use fedbuff"):
            run(
                fjs.clipped(fedavg(), 1.0), asynchronous=asynchronous.fedasync(),
                system=systems.devices(seconds_per_step=1.0),
            )  # fmt: skip

    @pytest.mark.slow
    def test_a_skipped_message_leaves_the_others_their_own_staleness(self):
        # Two in flight, and the slow one overflows: the buffer of two then holds one message that counts.
        seconds = np.where(np.arange(N) == BAD, 2.5, 1.0)
        common = {
            "cohort": fjs.cohort.uniform(3, average="plain"),
            "system": systems.devices(seconds_per_step=jnp.asarray(seconds)),
            "asynchronous": asynchronous.fedbuff(buffer=2, staleness=asynchronous.polynomial(2.0)),
            "rounds": 12,
            "evaluate": lambda x, _: {"x": x},
        }
        history = run(fedavg(BAD), skip_nonfinite=True, **common)
        skipped = history.rounds["nonfinite_clients"][0]
        met = np.flatnonzero(skipped == 1)
        assert met.size
        x = history["x"][0]
        for t in met:
            ids, stale = history["client_ids"][0, t], history["client_staleness"][0, t]
            kept = int(np.flatnonzero(ids != BAD)[0])
            data = fjs.datasets.quadratics(num_clients=N, dim=4, seed=1)
            row = int(np.asarray(data.offsets)[np.asarray(data.order)[ids[kept]]])
            H, e = (np.asarray(data.examples[name])[row] for name in ("H", "e"))
            start = x[t - stale[kept]]
            y = start
            for _ in range(2):
                y = y - 0.1 * (H @ y - e)
            np.testing.assert_allclose(x[t + 1], x[t] + (1 + stale[kept]) ** -2.0 * (y - start), rtol=1e-9, atol=1e-12)


class TestRobust:
    def test_a_round_without_a_finite_message_changes_nothing(self):
        rate = fjs.rates.over_rounds(np.array([1.0, 1e200, 1.0]))
        method = fjs.robust(fjs.fedavgm(client_optimizer=sgd(0.1), client_learning_rate=rate, momentum=0.9))
        history = run(method, rounds=3, evaluate=lambda x, _: {"x": x}, on_divergence="stop")
        x = history["x"][0]
        assert history.stops == {}
        np.testing.assert_array_equal(x[2], x[1])
        assert (x[3] != x[2]).all()

    @pytest.mark.parametrize(
        "attack",
        [pytest.param(attacks.inner_product(0.5), marks=pytest.mark.slow), attacks.little_is_enough(1.0)],
        ids=["inner_product", "little_is_enough"],
    )
    def test_an_attacker_s_own_work_is_not_in_what_they_agree_on(self, attack):
        found = run(fjs.attacked(fedavg(BAD), [BAD], attack), rounds=1)
        same = run(fjs.attacked(fedavg(), [BAD], attack), rounds=1)
        np.testing.assert_allclose(found.params, same.params, rtol=1e-12)

    @pytest.mark.parametrize(
        ("count", "lying", "positive"), [(10, 4, True), (10, 6, False), (9, 5, False), (10, 1, False)]
    )
    def test_little_is_enough_without_supporters(self, count, lying, positive):
        attackers = np.arange(count) < lying
        stack = {"x": np.random.default_rng(0).standard_normal((count, 3))}
        agreed = jax.jit(attacks.little_is_enough().agreed)(stack, ~attackers, attackers)["x"]
        mean = stack["x"][lying:].mean(axis=0)
        assert (np.asarray(agreed) < mean).all() if positive else np.allclose(agreed, mean)


def test_tiny_changes_are_quantised_to_finite_numbers():
    change = {"w": jnp.asarray([1e-37, -3e-38, 0.0], jnp.float32)}
    for scale in ("max", "l2"):
        sent = fjs.quantised(fedavg(), bits=32, scale=scale).compress(change, jax.random.key(0))["w"]
        assert np.isfinite(sent).all()
        np.testing.assert_allclose(sent, change["w"], atol=1e-37 if scale == "l2" else 1e-43)


@pytest.mark.slow
def test_a_point_of_a_sweep_is_verified_without_its_models():
    data = fjs.datasets.quadratics(num_clients=N, dim=4, seed=1)
    result = fjs.sweep(
        fedavg(), data, fjs.sweeps.grid({"server_learning_rate": [0.5, 1.0]}), task=fjs.quadratic(), rounds=2,
        cohort=fjs.cohort.uniform(3), work=fjs.local.steps(2), batches=fjs.local.full_batch(),
    )  # fmt: skip
    found = verify(result.at(0), tolerance=1e-9)
    assert found.passed
    assert "final models were not kept" in str(found)


def test_every_without_a_directory_is_refused():
    with pytest.raises(ValueError, match=r"every=10 without checkpoint=\.\.\."):
        run(fedavg(), every=10)


@pytest.mark.slow
@pytest.mark.usefixtures("pyplot")
def test_figures_hold_what_a_stopped_seed_had():
    history = run(
        fedavg(), rounds=30, cohort=fjs.cohort.uniform(3), seeds=range(4), stop=fjs.stopping.converged(2e-3),
        system=systems.devices(seconds_per_step=1.0),
    )  # fmt: skip
    assert 0 < len(history.stops) <= 4
    duration = history.plot("duration").get_lines()[0].get_ydata()
    np.testing.assert_allclose(duration, 2.0)  # two steps a round, also in the mean with those that stopped
    last = history.plot("loss", against="virtual_time").get_lines()[0].get_xdata()[-1]
    assert last == history.virtual_time[:, -1].max()
