"""Devices: distributions, durations and the server's policies against closed forms."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_sim as fjs
from fedjax_sim import systems
from fedjax_sim.clients.systems.base import Reports

KEY = jax.random.key(5)
RNG = np.random.default_rng(8)
N = 6
IDS = np.array([3, 10, 11, 40, 41, 90])
FREE = systems.Cost(0.0, 0.0)


def test_quantiles(x64):
    u = jnp.asarray(RNG.uniform(0.001, 0.999, 400))
    pairs = [
        (systems.lognormal(3.0, 0.7), scipy.stats.lognorm(0.7, scale=3.0).ppf(u)),
        (systems.uniform(1.0, 5.0), scipy.stats.uniform(1.0, 4.0).ppf(u)),
        (systems.exponential(2.0), scipy.stats.expon(scale=2.0).ppf(u)),
        (systems.half_normal(2.0), scipy.stats.halfnorm(scale=2.0).ppf(u)),
        (systems.pareto(0.5, 1.7), scipy.stats.pareto(1.7, scale=0.5).ppf(u)),
        (systems.empirical([3.0, 1.0, 7.0]), np.array([3.0, 1.0, 7.0])[(np.asarray(u) * 3).astype(int)]),
    ]
    distributions = [distribution for distribution, _ in pairs]
    found = jax.jit(lambda all_, u: [one.quantile(u) for one in all_])(distributions, u)
    for quantiles, (distribution, expected) in zip(found, pairs, strict=True):
        np.testing.assert_allclose(quantiles, expected, rtol=1e-12, err_msg=str(distribution))
    slope = jax.jit(jax.grad(lambda median: jnp.sum(systems.lognormal(median, 0.7).quantile(u))))(3.0)
    assert slope == pytest.approx(float(np.sum(pairs[0][1])) / 3.0)


def test_draws_are_finite_at_both_ends_and_even():
    ends = np.asarray([0, 2**32 - 1], np.uint32)
    names = ("lognormal", "exponential", "half_normal", "pareto")
    made = [
        fjs.build({"name": f"quantity.{name}", "arguments": dict.fromkeys(_arguments(name), 1.0)}) for name in names
    ]
    for drawn in jax.jit(lambda ends: [one.draw(ends) for one in made])(ends):
        assert drawn.dtype == jnp.float32
        assert np.isfinite(drawn).all()
        assert (np.asarray(drawn) > 0).all()
    words = jax.random.bits(KEY, (100_000,), jnp.uint32)
    assert scipy.stats.kstest(np.asarray(jax.jit(systems.uniform(0.0, 1.0).draw)(words)), "uniform").pvalue > 1e-3


def test_each_of_very_many_values_is_as_likely():
    """Of a million, 23 bits of a word drew some an eighth more often than others."""
    number = 1_000_000
    first = (np.arange(number) * 2**32 + number - 1) // number  # the first word of each value
    values = systems.empirical(np.arange(number, dtype=np.float32))
    drawn = jax.jit(values.draw)(np.append(first, first[1:] - 1).astype(np.uint32))
    np.testing.assert_array_equal(drawn, np.append(np.arange(number), np.arange(number - 1)))


def _arguments(name):
    return {"lognormal": ("median", "sigma"), "pareto": ("scale", "shape"), "exponential": ("mean",)}.get(
        name, ("scale",)
    )


@jax.jit
def _times(system, *arguments):
    return system.times(*arguments)


def times(system, steps, *, key=KEY, t=0, cost=FREE, index=None, ids=IDS):
    index = jnp.arange(len(ids), dtype=jnp.int32) if index is None else jnp.asarray(index, jnp.int32)
    return _times(system, index, jnp.asarray(ids, jnp.int32), jnp.asarray(steps, jnp.int32), key, jnp.int32(t), cost)


def test_times_of_devices(x64):
    steps = np.array([1, 5, 0, 7, 2, 3])
    each, up = RNG.uniform(0.1, 2, N), RNG.uniform(10, 1000, N)
    system = systems.devices(seconds_per_step=each, download=200.0, upload=up, latency=0.25)
    found = times(system, steps, cost=systems.Cost(1000, 500))
    np.testing.assert_allclose(found.compute, steps * each, rtol=1e-15)
    np.testing.assert_allclose(found.download, np.full(N, 0.25 + 1000 / 200), rtol=1e-15)
    np.testing.assert_allclose(found.upload, 0.25 + 500 / up, rtol=1e-15)
    np.testing.assert_allclose(found.total, found.download + found.compute + found.upload)
    counted = systems.devices(flops_per_second=each)
    assert counted.counts_flops
    assert not system.counts_flops
    cost = systems.Cost(0.0, 0.0, 30.0)
    np.testing.assert_allclose(times(counted, steps, cost=cost).compute, steps * 30 / each, rtol=1e-15)


@pytest.mark.slow
def test_draws_belong_to_the_client_id(x64):
    steps = np.full(N, 3)
    system = systems.devices(
        seconds_per_step=systems.lognormal(1.0, 1.0), upload=systems.pareto(10.0, 1.2), seed=4,
        jitter=systems.uniform(0.5, 1.5), network_jitter=systems.exponential(1.0), dropout=0.5,
    )  # fmt: skip
    plain = system.replace(jitter=None, network_jitter=None)
    cost = systems.Cost(0.0, 100.0)
    fleet_of = jax.jit(lambda system, ids: system.drawn(jnp.arange(len(ids), dtype=jnp.int32), ids))
    fleet = fleet_of(system, jnp.asarray(IDS, jnp.int32))
    still = times(plain, steps, cost=cost)
    np.testing.assert_allclose(still.compute, 3 * fleet.seconds_per_step, rtol=1e-12)
    np.testing.assert_allclose(still.upload, 100 / fleet.upload, rtol=1e-12)
    # The fleet is the same in every run and round, whoever else is asked; another seed's is another.
    np.testing.assert_array_equal(times(plain, steps, cost=cost, key=jax.random.key(9), t=7).compute, still.compute)
    order = RNG.permutation(N)
    moved = times(plain, steps, cost=cost, ids=IDS[order], index=order)
    np.testing.assert_array_equal(moved.total, np.asarray(still.total)[order])
    assert not np.isclose(fleet_of(system.replace(seed=5), jnp.asarray(IDS, jnp.int32)).upload, fleet.upload).any()
    # Jitter and failures are those of (run, round, client).
    jittered = times(system, steps, cost=cost)
    factor = np.asarray(jittered.compute / still.compute)
    assert ((factor > 0.5) & (factor < 1.5)).all()
    assert np.unique(factor.round(12)).size == N
    np.testing.assert_array_equal(times(system, steps, cost=cost).total, jittered.total)
    assert not np.allclose(times(system, steps, cost=cost, t=1).compute, jittered.compute)
    index = jnp.arange(N, dtype=jnp.int32)
    ids = jnp.asarray(IDS, jnp.int32)

    @jax.jit
    def fails(dropout):
        failing = system.replace(dropout=dropout)
        return jax.vmap(lambda t: failing.failed(index, ids, KEY, t))(jnp.arange(2000, dtype=jnp.int32))

    assert abs(float(fails(0.5).mean()) - 0.5) < 4 * 0.5 / math.sqrt(2000 * N)
    assert not fails(0.0).any()
    assert fails(1.0).all()


LOTS = RNG.permutation(N).astype(np.uint32)


def reports(valid, failed, steps, seconds, each):
    return Reports(*map(jnp.asarray, (valid, failed, IDS, steps, seconds, each, LOTS)))


def cohorts(count=30):
    """Random cohorts of all kinds: void slots, failures, ties, fixed costs besides the steps."""
    for _ in range(count):
        valid, failed = RNG.random(N) < 0.8, RNG.random(N) < 0.3
        steps, each = RNG.integers(1, 9, N), RNG.choice([0.1, 0.3, 0.5, 1.0], N)
        fixed = RNG.choice([0.0, 0.2, 1.0], N)
        yield valid, failed & valid, steps, fixed + steps * each, each


def test_rare_failures_are_as_rare_as_they_should_be(monkeypatch):
    """Of 2^32 words those below p 2^32 fail: with 24 of the bits, one in 2^30 came as often as one in 2^24."""
    words, n = jnp.array([0, 3, 4, 255], jnp.uint32), jnp.arange(4, dtype=jnp.int32)
    system = systems.devices(1.0, dropout=2.0**-30)
    module = sys.modules[type(system).__module__]
    monkeypatch.setattr(module, "_words", lambda key, ids, number: jnp.stack([words] * number, axis=1))
    assert system.failed(n, n, KEY, jnp.int32(0)).tolist() == [True, True, False, False]


def test_waiting_for_all(x64):
    close = jax.jit(systems.wait_for_all().close)
    for valid, failed, steps, seconds, each in cohorts():
        closed = close(reports(valid, failed, steps, seconds, each))
        np.testing.assert_array_equal(closed.reported, valid & ~failed)
        assert closed.duration == (seconds[valid].max() if valid.any() else 0)
        np.testing.assert_array_equal(closed.steps, steps)


@pytest.mark.parametrize("keep", [False, True])
def test_deadline(x64, keep):
    close = jax.jit(systems.deadline(2.0, keep=keep).close)
    kept = 0
    for valid, failed, steps, seconds, each in cohorts():
        closed = close(reports(valid, failed, steps, seconds, each))
        # Partial work, step by step.
        fits = [max([k for k in range(tau + 1) if s - (tau - k) * e <= 2 + 1e-9], default=0)
                for tau, s, e in zip(steps, seconds, each, strict=True)]  # fmt: skip
        fits = np.asarray(fits) if keep else np.where(seconds <= 2 + 1e-9, steps, 0)
        reported = valid & ~failed & (fits > 0)
        np.testing.assert_array_equal(closed.reported, reported)
        np.testing.assert_array_equal(np.where(reported, closed.steps, 0), np.where(reported, fits, 0))
        arrival = seconds - (steps - fits) * each
        late = 2.0 if (valid & ~reported).any() else arrival[reported].max(initial=0)
        assert closed.duration == pytest.approx(late)
        kept += int((reported & (fits < steps)).sum())
    assert (kept > 0) == keep


def test_deadline_without_time_for_steps(x64):
    """Steps that take no time cannot be left out to be in time."""
    closed = jax.jit(systems.deadline(1.0, keep=True).close)(
        reports([True] * N, [False] * N, [3] * N, [0.5, 1.0, 1.1, 2.0, 0.0, 9.0], [0.0] * N)
    )
    np.testing.assert_array_equal(closed.reported, [True, True, False, False, True, False])


def test_the_first_to_report(x64):
    close = jax.jit(systems.first(3).close)
    for valid, failed, steps, seconds, each in cohorts():
        closed = close(reports(valid, failed, steps, seconds, each))
        alive = np.flatnonzero(valid & ~failed)
        first = alive[np.lexsort((LOTS[alive], seconds[alive]))][:3]
        expected = np.isin(np.arange(N), first)
        np.testing.assert_array_equal(closed.reported, expected)
        waits = seconds[first].max() if len(first) == 3 else seconds[valid].max(initial=0)
        assert closed.duration == pytest.approx(waits)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: systems.devices(), ValueError, "give exactly one of them"),
        (lambda: systems.devices(1.0, 1e9), ValueError, "give exactly one of them"),
        (lambda: systems.devices(-1.0), ValueError, r"seconds_per_step=.* is -1.0: it must be in \[0, inf\)"),
        (lambda: systems.devices(flops_per_second=0.0), ValueError, r"it must be in \(0, inf\)"),
        (lambda: systems.devices(1.0, dropout=1.5), ValueError, r"dropout=.* is 1.5: it must be in \[0, 1\]"),
        (lambda: systems.devices(1.0, upload="fast"), TypeError, "it must be a real number"),
        (lambda: systems.devices(1.0, upload=systems.first(3)), TypeError, "it must be a real number"),
        (lambda: systems.devices(1.0, jitter=0.1), TypeError, "it must be a Distribution, for instance"),
        (lambda: systems.devices(1.0, policy=3.0), TypeError, "wait_for_all"),
        (lambda: systems.uniform(3, 2), ValueError, "high must be at least low"),
        (lambda: systems.empirical([]), ValueError, "at least one number"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()
