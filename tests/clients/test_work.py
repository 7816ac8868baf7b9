"""Local work and batches: exact distributions, deadlines, shares of the data, bounds, messages."""

from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.clients.local import Turn
from fedjax_sim.clients.local.batches import Positions, consecutive, fetch
from fedjax_sim.core.keys import client_draws

local = fjs.local
S, ROUNDS = 10, 4000
IDS = jnp.arange(S, dtype=jnp.int32)
EPOCH = jnp.arange(1, S + 1, dtype=jnp.int32)  # steps of an epoch: client 0 has one, client 9 ten
DATA = fjs.datasets.quadratics(num_clients=S, dim=2)


def turn(t=0, valid=True, epoch=EPOCH):
    draws = client_draws(jax.random.key(0), jnp.asarray(t, jnp.int32), IDS)
    return Turn(draws, jnp.asarray(t, jnp.int32), IDS, IDS, jnp.full(S, valid), epoch)


def steps(*works, **kwargs):
    """[rounds, S] of one, a list of them of several, which are one program."""
    each = jax.vmap(lambda t: [work.steps(turn(t, **kwargs)) for work in works])
    found = [np.asarray(tau) for tau in jax.jit(each)(np.arange(ROUNDS, dtype=np.int32))]
    return found if len(works) > 1 else found[0]


def assert_uniform(counts):
    """A chi-square within five standard deviations."""
    expected, freedom = counts.sum() / len(counts), len(counts) - 1
    chi2 = np.sum((counts - expected) ** 2) / expected
    assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "most"), [("paper", 5), ("code", 4)])
def test_stragglers_draw_uniformly(draw, most):
    epochs = steps(local.stragglers(0.3, 5, draw=draw)) // np.asarray(EPOCH)
    late = epochs < 5
    assert (late.sum(1) <= 3).all()
    counts = np.bincount(epochs.ravel(), minlength=6)[1:6]
    if draw == "code":
        assert (late.sum(1) == 3).all()
        assert_uniform(late.sum(0) / 0.7)  # everybody is as likely to be late; 0.7: late clients exclude each other
    else:
        counts[4] -= 7 * ROUNDS  # the seven who never straggle
    assert_uniform(counts[:most])


@pytest.mark.slow
def test_stragglers_within_an_epoch():
    tau = steps(local.stragglers(1.0, 1, draw="steps"))
    assert (tau >= 1).all()
    assert (tau <= np.asarray(EPOCH)).all()
    for client, most in enumerate(EPOCH.tolist()):
        if most > 1:
            assert_uniform(np.bincount(tau[:, client] - 1, minlength=most))
    assert (steps(local.stragglers(1.0, 2, draw="steps"), epoch=jnp.zeros_like(EPOCH)) == 0).all()


def test_dropped_stragglers_are_dropped_by_their_flag():
    kept, dropped = steps(local.stragglers(0.3, 5), local.stragglers(0.3, 5, keep=False))
    full = 5 * np.asarray(EPOCH)
    assert ((dropped == 0) | (dropped == full)).all()
    assert ((dropped == 0).sum(1) == 3).all()
    lucky = (dropped == 0) & (kept == full)  # flagged, though the draw is E
    assert abs(lucky.sum() - 3 * ROUNDS / 5) < 5 * np.sqrt(3 * ROUNDS * 0.2 * 0.8)


def test_gaussian_steps_by_variance():
    by_variance, by_deviation = local.gaussian_steps(30, variance=16.0, most=60), local.gaussian_steps(30, 4, 60)
    tau, same, few = steps(by_variance, by_deviation, local.gaussian_steps(1, variance=100, most=3))
    np.testing.assert_array_equal(tau, same)
    count = tau.size
    assert abs(tau.mean() - 30) < 4 * 4 / np.sqrt(count)
    assert abs(tau.var() - (16 + 1 / 12)) < 5 * 16 * np.sqrt(2 / count)  # rounding adds 1/12
    assert few.max() == 3


def test_geometric_rounds_are_of_one_length_for_all():
    # Pearson's chi-square over the lengths 1 .. 8 and the rest; the longest round is not cut off by the bound
    p, work = 0.3, local.geometric(0.3)
    tau, short, certain = steps(work, local.geometric(0.3, most=4), local.geometric(1.0))
    assert (tau == tau[:, :1]).all()
    assert tau.min() == 1
    assert tau.max() < work.most
    chances = np.append(p * (1 - p) ** np.arange(8), (1 - p) ** 8)
    counts = np.bincount(np.minimum(tau[:, 0], 9), minlength=10)[1:]
    chi2 = np.sum((counts - ROUNDS * chances) ** 2 / (ROUNDS * chances))
    assert abs(chi2 - 8) < 5 * np.sqrt(16)
    np.testing.assert_array_equal(short, np.minimum(tau, 4))
    assert (certain == 1).all()

    @jax.jit
    def of_others():
        now, order = turn(3), np.array([4, 1, 0, 9, 8, 2, 3, 7, 6, 5])
        there = now._replace(valid=now.valid.at[0].set(False))
        moved = jax.tree.map(lambda leaf: leaf[order] if leaf.ndim else leaf, there)
        return work.steps(moved), now.draws.work[1]

    # the coin is that of the lowest id who is there, in whatever slot
    found, word = of_others()
    expected = 1 + np.floor(np.log((int(word) + 0.5) / 2**32) / np.log1p(-0.3))
    assert found.tolist() == [expected] * S


def test_a_bound_that_was_found_is_found_again_for_another_probability():
    """That of a larger one would cut rounds short without a word; one that was given stays."""
    for p in (0.9, 0.01):
        assert fjs.paths.replace(local.geometric(0.3), {"p": p}).most == local.geometric(p).most
    assert local.geometric(0.01).most > 20 * local.geometric(0.9).most
    assert fjs.paths.replace(local.geometric(0.3, most=4), {"p": 0.01}).most == 4
    with pytest.raises(ValueError, match="no end"):
        fjs.paths.replace(local.geometric(0.3), {"p": 0.0})
    traced = jax.eval_shape(lambda p: fjs.paths.replace(local.geometric(0.3), {"p": p}).checked(), 0.2)
    assert traced.most == local.geometric(0.3).most


def test_a_round_at_the_bound_has_the_probability_of_all_longer_ones():
    p, work = 0.3, local.geometric(0.3, most=4)

    @jax.jit
    @jax.vmap
    def drawn(t):
        now = turn(t)
        return work.steps(now)[0], work.log_probability(now)

    taken, logs = map(np.asarray, drawn(np.arange(40, dtype=np.int32)))
    found = dict(zip(taken.tolist(), logs.tolist(), strict=True))
    expected = {1: p, 2: p * (1 - p), 3: p * (1 - p) ** 2, 4: (1 - p) ** 3}
    assert found == {tau: pytest.approx(np.log(chance), rel=1e-6) for tau, chance in expected.items()}


def test_who_is_not_there_is_no_straggler():
    late = local.stragglers(0.5, 2, keep=False)
    there = np.arange(S) % 5 != 0
    assert (((steps(late, valid=there) == 0) & there).sum(axis=1) == 4).all()  # half of the eight


@pytest.mark.slow
def test_deadline():
    speeds = np.array([0.0, 0.09, 1.0, 30.0, 30.0, 1e9, 2.5, 3.0, 3.1, 0.7])
    now = jax.jit(turn)()
    tau = local.deadline(10.0, speeds, 3).steps(now)
    assert tau.tolist() == [0, 0, 9, 12, 15, 18, 21, 24, 27, 7]
    assert local.deadline(10.0, speeds, 3, keep=False).steps(now).tolist() == [0, 0, 9, 12, 15, 18, 21, 24, 27, 0]
    # 0.1 s at 30 steps a second are 3 steps in floating point too; one number serves everybody.
    assert local.deadline(0.1, 30, 9).steps(now).tolist() == [3] * S
    assert all(int(local.deadline(0.1, 10 * k, 999).steps(now)[0]) == k for k in range(1, 200))
    work = jax.jit(lambda seconds, speeds: local.deadline(seconds, speeds, 3).steps(now))
    assert work(10.0, speeds.astype(np.float32)).tolist() == tau.tolist()  # both can be traced
    assert local.deadline(1, 1, 3).most_steps(7) == 21
    assert local.deadline(1, 1, 3).most_total(2, 10, 7) == 30


def with_sizes(sizes):
    return fjs.datasets.quadratics(num_clients=len(sizes), dim=2, sizes=np.asarray(sizes))


@pytest.mark.parametrize("share", [1 / 3, 1.0, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.2, 0.07))])
def test_a_share_of_the_examples_sees_each_once_an_epoch(share):
    sizes = [1, 2, 5, 6, 10, 23, 40]
    data, scheme = with_sizes(sizes), local.fraction(share)
    rows = scheme.rows(data)
    exact = [ceil(round(share * n, 9)) for n in sizes]
    assert rows == max(exact)
    per_epoch = [scheme.epoch(n, rows) for n in sizes]
    assert per_epoch == [ceil(n / b) for n, b in zip(sizes, exact, strict=True)]
    assert max(per_epoch) <= scheme.most_in_epoch(data)
    assert sum(sorted(per_epoch)[-3:]) <= scheme.most_in_epochs(data, 3)
    ids, n, k = (np.asarray(given, np.int32) for given in (range(len(sizes)), sizes, range(2 * max(per_epoch))))

    @jax.jit
    def positions(ids, n, k):
        prepared = scheme.prepare(client_draws(jax.random.key(0), jnp.int32(2), ids))
        over = jax.vmap(lambda p, size, step: scheme.positions(p, size, step, rows), (None, None, 0))
        return scheme.epoch(n, rows), *jax.vmap(over, (0, 0, None))(prepared, n, k)[:2]

    in_a_program, where, mask = map(np.asarray, positions(ids, n, k))
    np.testing.assert_array_equal(in_a_program, per_epoch)
    for i, size in enumerate(sizes):
        taken = mask[i].sum(1)
        epochs = [slice(e * per_epoch[i], (e + 1) * per_epoch[i]) for e in range(2)]
        for epoch in epochs:
            assert sorted(where[i, epoch][mask[i, epoch]]) == list(range(size))
            assert (taken[epoch][:-1] == exact[i]).all()
        if size == 40:
            assert (where[i, epochs[0]][mask[i, epochs[0]]] != where[i, epochs[1]][mask[i, epochs[1]]]).any()


def test_a_fifth_of_the_examples_makes_five_steps():
    scheme = local.fraction(0.2)
    assert [scheme.epoch(n, 1) for n in range(5, 200, 5)] == [5] * 39
    assert scheme.epoch(6, 1) < scheme.epoch(5, 1)  # not monotone: its bounds are not those of the largest client
    assert scheme.most_in_epoch(with_sizes([5, 6])) == 5
    assert scheme.most_in_epochs(with_sizes([5, 6, 5]), 2) == 10
    assert scheme.epoch(2**31 - 8, 1) == 5  # n times the numerator need not fit 32 bits
    assert int(local.fraction(0.999).epoch(jnp.int32(2**30), 1)) == 2


def test_examples_with_replacement_are_drawn_anew_at_each_step():
    scheme = local.with_replacement(8)

    @jax.jit
    def drawn(steps):
        prepared = scheme.prepare(turn().draws)[0]
        return jax.vmap(lambda step: scheme.positions(prepared, jnp.int32(1000), step, 8).rows)(steps)

    assert len(np.unique(drawn(np.arange(40, dtype=np.int32)))) > 200  # of 320, 274 expected


@pytest.mark.parametrize("serial", [True, False])
def test_a_batch_at_the_end_of_the_data_has_its_own_examples_in_their_places(serial):
    """Clients of 3 and 2 examples, batches of 4: noise that a task draws for a row must not depend on the storage."""
    data = fjs.datasets.from_clients([{"x": np.arange(3.0)}, {"x": np.arange(3.0, 5.0)}])
    place = np.arange(4, dtype=np.int32)
    drawn = Positions(place, place < 2)
    batch = jax.jit(lambda: fetch(data, jnp.int32(3), jnp.int32(2), drawn, serial=serial))()
    assert np.asarray(batch.examples["x"]).tolist() == [3.0, 4.0, 4.0, 4.0]
    assert np.asarray(batch.weights).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert float(batch.count) == 2


def test_a_batch_in_stored_order_is_the_same_read_as_a_slice():
    """Of whole batches one slice; padding is the client's own, not what is stored behind it."""
    data = fjs.datasets.from_clients([{"x": np.arange(5.0)}, {"x": np.arange(5.0, 12.0)}])

    @jax.jit
    def read(offset, size, number):
        where = consecutive(size, number, 3)
        turned = where._replace(rows=where.rows[::-1])  # as a scheme of one's own may
        ways = (fetch(data, offset, size, one, serial=True) for one in (where, turned))
        return *(one.examples["x"] for one in ways), fetch(data, offset, size, where).examples["x"]

    cases = np.array([(*client, number) for client in ((0, 5), (5, 7)) for number in range(3)], np.int32)
    mapped = jax.vmap(read)(*cases.T)
    for i, (offset, size, number) in enumerate(cases):
        place = offset + np.minimum(3 * number + np.arange(3), size - 1)
        for of_slice, of_turned, of_rows in (read(offset, size, number), [leaf[i] for leaf in mapped]):
            np.testing.assert_array_equal(of_slice, place)
            np.testing.assert_array_equal(of_turned, place[::-1])
            np.testing.assert_array_equal(of_rows, place)
    whole = jax.make_jaxpr(lambda k: fetch(data, k, k + 5, consecutive(k + 5, k, 3), serial=True))(np.int32(0))
    choice = next(one for one in whole.eqns if one.primitive.name == "cond")
    assert any("scan" not in str(branch) and "dynamic_slice" in str(branch) for branch in choice.params["branches"])


@pytest.mark.parametrize("make", [local.shuffled, local.in_order, local.with_replacement, local.full_batch])
def test_bounds_of_an_epoch(make):
    sizes = [1, 3, 4, 9, 17]
    data, scheme = with_sizes(sizes), make(4)
    per_epoch = sorted(scheme.epoch(n, scheme.rows(data)) for n in sizes)
    assert scheme.most_in_epoch(data) == per_epoch[-1]
    for slots in range(1, 6):
        assert sum(per_epoch[-slots:]) <= scheme.most_in_epochs(data, slots) <= slots * per_epoch[-1]


@pytest.mark.slow
def test_traced_steps_that_cannot_be_meant_drop_the_client():
    """Below 0 and above ``most``; the run is that of zeros in their place."""

    def run(tau):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=2, cohort=fjs.cohort.full(), work=local.given_steps(tau, most=3),
            batches=local.full_batch(), eval_every=2,
        )  # fmt: skip
        return train(fjs.fednova(client_optimizer=fjs.optim.sgd(0.1)), DATA, jax.random.key(0))

    tau = np.asarray([[1, 2, 3, 4, -1, 0, 1, 1, 1, 1], [3, 3, 3, 2**31 - 1, -(2**31), -7, 1, 1, 1, 1]], np.int32)
    wrong = (tau < 0) | (tau > 3)
    jitted = jax.jit(run)
    ours, theirs = jitted(tau), jitted(np.where(wrong, 0, tau))
    assert ours.rounds["refused_slots"].tolist() == [2, 3]
    assert theirs.rounds["refused_slots"].tolist() == [0, 0]
    jax.tree.map(np.testing.assert_array_equal, (ours.state, ours.metrics), (theirs.state, theirs.metrics))
    np.testing.assert_array_equal(ours.rounds["useful_steps"], np.where(wrong, 0, tau).sum(1))
    unsigned = jax.jit(lambda tau: local.given_steps(tau, most=3).steps(turn()))
    assert unsigned(np.full((1, S), 2**32 - 1, np.uint32)).tolist() == [-1] * S


ERRORS = {
    "draw": (lambda: local.stragglers(0.5, 2, draw="codes"), ValueError, ("'codes'", "did you mean 'code'")),
    "draw of nothing": (lambda: local.stragglers(0.5, 1, draw="code"), ValueError, ("E - 1 = 0", "draw='paper'")),
    "neither": (lambda: local.gaussian_steps(3, most=5), TypeError, ("std", "variance", "exactly one")),
    "both": (lambda: local.gaussian_steps(3, 1, 5, 1), ValueError, ("std=1.0", "variance=1.0", "exactly one")),
    "variance": (
        lambda: local.gaussian_steps(3, most=5, variance=-1),
        ValueError,
        ("(variance=...)", "-1", "[0, inf)"),
    ),
    "no most": (lambda: local.gaussian_steps(3, 1), TypeError, ("(most=...) is None", "at least 1")),
    "coins": (lambda: local.geometric([0.1, 0.2]), ValueError, ("(2,)", "one for all clients")),
    "coin that never falls": (lambda: local.geometric(0.0), ValueError, ("geometric(p=0)", "no end", "most=")),
    "coin traced": (lambda: jax.eval_shape(local.geometric, 0.2), ValueError, ("traced p", "most=")),
    "speeds": (lambda: local.deadline(1, [1, -1], 1), ValueError, ("deadline(speeds=...)", "[0, inf)")),
    "speeds table": (lambda: local.deadline(1, np.ones((2, 2)), 1), ValueError, ("(2, 2)", "one a client")),
    "length": (lambda: local.deadline(1, [1, 2], 1).check(DATA, 1), ValueError, ("2 values for 10", "one a client")),
    "share 0": (lambda: local.fraction(0), ValueError, ("fraction(share=...)", "at least 1/1000")),
    "share traced": (lambda: jax.eval_shape(local.fraction, 0.2), TypeError, ("traced", "give a number")),
}


@pytest.mark.parametrize("name", ERRORS)
def test_messages(name):
    make, error, parts = ERRORS[name]
    with pytest.raises(error) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "made",
    [
        local.gaussian_steps(20, variance=20, most=50),
        local.geometric(0.2),
        local.stragglers(0.5, 3, draw="code"),
        local.deadline(2, [1.0, 2.0], 4, keep=False),
        local.fraction(0.2),
    ],
    ids=lambda made: type(made).__name__,
)
def test_descriptions(made):
    assert fjs.describe(fjs.build(fjs.describe(made))) == fjs.describe(made)


def test_random_epochs_are_uniform():
    drawn, left = np.divmod(steps(local.random_epochs(2, 5)), np.asarray(EPOCH))
    assert not left.any()
    counts = np.bincount(drawn.ravel(), minlength=6)
    assert counts[2:].sum() == drawn.size
    assert_uniform(counts[2:])


def test_copies_of_given_steps_have_the_most_of_theirs():
    work = local.given_steps([[1, 2]]).replace(tau=np.array([[5, 1]])).checked()
    assert work.most == 5
    with pytest.raises(ValueError, match=r"most=2\) is below the largest entry 5"):
        local.given_steps([[1, 2]], most=2).replace(tau=np.array([[5, 1]])).checked()
