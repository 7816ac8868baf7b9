"""Participation and averaging: inclusion probabilities, (un)biasedness, passes, slots, availability, messages."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.clients.cohort import AVERAGES
from fedjax_sim.clients.cohort.schemes import least_cap

co = fjs.cohort
SIZES = np.array([1, 2, 3, 10, 4, 6])
N, K = len(SIZES), 2
P = SIZES / SIZES.sum()
DELTA = np.array([0.5, -0.5, 0.2, 1.0, -1.0, 2.0])  # stand-ins for the clients' updates
Q = np.array([0.3, 0.9, 0.5, 0.2, 1.0, 0.6])
X = 3.0  # the model, which scheme II rescales
ROUNDS = 20_000
KEY = jax.random.key(0)
ALWAYS = np.ones((1, N), bool)
TWO = np.arange(2, dtype=np.int32)  # rounds


def quadratics(sizes=SIZES):
    return fjs.datasets.quadratics(num_clients=len(sizes), dim=2, sizes=np.asarray(sizes))


DATA = quadratics()


def updates(scheme, changes_by=None, data=DATA, rounds=ROUNDS):
    """What rounds draw, in one program.

    Returns:
      By name of an average, [rounds]: the update of each round's average of the changes that are given for it.
      [rounds, N]: who took part. [2, N]: the inclusion probabilities of two rounds.
    """
    num_clients = data.num_clients
    changes_by = {name: np.asarray(changes, np.float32) for name, changes in (changes_by or {}).items()}

    def one(t):
        selection = scheme.select(data, KEY, t)
        found = {}
        for average, changes in changes_by.items():
            weights = scheme.weigh(data, selection, selection.present, average, t)
            found[average] = jnp.sum(
                weights.clients * jnp.asarray(changes)[jnp.minimum(selection.indices, num_clients - 1)]
            )
            if weights.shift is not None:
                found[average] += weights.shift * X
        seen = jnp.zeros(num_clients).at[selection.indices].max(selection.present.astype(jnp.float32), mode="drop")
        return found, seen

    @jax.jit
    def all_of(t):
        return jax.vmap(one)(t), jax.vmap(lambda t: scheme.inclusion(data, t))(t[2:4])

    (values, seen), stated = jax.tree.map(np.asarray, all_of(np.arange(rounds, dtype=np.int32)))
    return {average: value.astype(float) for average, value in values.items()}, seen, stated


def score(values, expected):
    """The z-score of a mean; exact where nothing varies."""
    error = values.std() / np.sqrt(len(values))
    return 0.0 if np.allclose(values, expected, atol=1e-5) else (values.mean() - expected) / max(error, 1e-12)


def pair_mean(weights_of):
    """The mean over all pairs of clients, as a uniform cohort of two sees it."""
    pairs = [list(pair) for pair in itertools.combinations(range(N), 2)]
    return np.mean([weights_of(pair) @ DELTA[pair] for pair in pairs])


slow = pytest.mark.slow
MEAN = P @ DELTA  # of an unbiased average
# Schemes, and of averages by name the changes of the clients and what they are in the mean.
STATISTICS = {
    "full": (lambda: co.full(), {"sample": (DELTA, MEAN)}),
    "uniform": (
        lambda: co.uniform(K),
        {
            "inverse": (DELTA, MEAN),
            # One local step of a client whose objective is N p_i F_i is N p_i times the step on F_i.
            "transformed": (N * P * DELTA, MEAN),
            # y_i = x + Delta_i: sum (N/K) p_i y_i - x has the mean sum p_i Delta_i.
            "scheme_ii": (DELTA, MEAN),
            "original": (DELTA, K / N * MEAN),
            "sample": (DELTA, pair_mean(lambda S: SIZES[S] / SIZES[S].sum())),
            "plain": (DELTA, DELTA.mean()),
        },
    ),
    "with_replacement": (lambda: co.with_replacement(3), {"sample": (DELTA, MEAN)}),
    "independent": (lambda: co.independent(0.35), {}),
    "independent, unequal": (
        lambda: co.independent(Q), {"inverse": (DELTA, MEAN), "original": (DELTA, (Q * P) @ DELTA)},
    ),
    # Successive draws: P({i, j}) = w_i w_j / (1 - w_i) + w_j w_i / (1 - w_j), and the mean is plain.
    "weighted": (
        lambda: co.weighted(2),
        {
            "plain": (
                DELTA,
                sum(
                    P[i] * P[j] / (1 - P[i]) * (DELTA[i] + DELTA[j]) / 2
                    for i, j in itertools.permutations(range(N), 2)
                ),
            )
        },
    ),
    "weighted, some never": (lambda: co.weighted(2, [0.0, 1.0, 2.0, 5.0, 0.0, 0.5]), {}),
    "shuffled": (lambda: co.shuffled(4), {"inverse": (DELTA, MEAN)}),
    "shuffled, uniform": (lambda: co.shuffled(3, "uniform"), {}),
    "available": (lambda: co.available(co.uniform(4), co.bernoulli(Q)), {"inverse": (DELTA, MEAN)}),
    "available twice": (
        lambda: co.available(co.available(co.full(), co.bernoulli(Q)), co.bernoulli(0.5)),
        {"original": (DELTA, (Q / 2 * P) @ DELTA)},
    ),
    "available, scheme I": (lambda: co.available(co.with_replacement(3), co.bernoulli(Q)), {}),
}  # fmt: skip


def fast_but(names, rarely):
    return [pytest.param(name, marks=slow if name in rarely else ()) for name in names]


@pytest.mark.parametrize(
    "name",
    fast_but(
        STATISTICS,
        ["independent", "weighted, some never", "shuffled, uniform", "available twice", "available, scheme I"],
    ),
)
def test_inclusion_probabilities_and_mean_updates(name):
    """Unbiased, or biased as predicted."""
    make, averages = STATISTICS[name]
    scheme = make()
    values, seen, stated = updates(scheme, {average: changes for average, (changes, _) in averages.items()})
    # The mean over a pass, for schemes whose rounds differ.
    stated = stated.mean(axis=0) if "shuffled" in name else stated[0]
    error = np.sqrt(np.maximum(stated * (1 - stated), 1e-12) / ROUNDS)
    if "weighted" in name:
        error = np.sqrt(error**2 + stated * (1 - stated) / 2**14)
    assert stated.shape == (N,)
    assert (np.abs(seen.mean(0) - stated) <= 4 * error + 1e-6).all()
    for average, (_, expected) in averages.items():
        assert abs(score(values[average], expected)) < 4, average
        if expected != MEAN:
            assert abs(score(values[average], MEAN)) > 6, average


def test_averages_of_the_papers_are_those_of_uniform_cohorts():
    for average in ("original", "transformed", "scheme_ii"):
        assert getattr(co, average)(K) == co.uniform(K, average=average)
    assert co.weighted(2).average == "plain"


def test_weighted_draws_have_their_distribution():
    weights = np.array([0.0, 3.0, 1.0, 2.0])
    draw = jax.jit(jax.vmap(lambda key: fjs.sampling.choose_weighted(key, jnp.asarray(weights, jnp.float32), 2)))
    rows = np.asarray(draw(jax.random.split(jax.random.key(1), 60_000)))
    for i, j in itertools.permutations(range(1, 4), 2):
        expected = weights[i] / 6 * weights[j] / (6 - weights[i])
        share = np.mean((rows == [i, j]).all(1))
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / len(rows))


def test_fewer_positive_traced_weights_leave_slots_void():
    @jax.jit
    def select(weights):
        return co.weighted(3, weights).select(DATA, KEY, jnp.int32(0))

    indices, count, *_ = select(jnp.asarray([0.0, 0.0, 1.0, 0.0, 0.0, 2.0]))
    assert sorted(np.asarray(indices).tolist()) == [2, 5, N]
    assert int(count.sum()) == 2


ALL = {
    **{name: make for name, (make, _) in STATISTICS.items()},
    "given": lambda: co.given([[5, 0, -1], [1, 2, 3]]),
    "repeated": lambda: co.shuffled(4, "repeated", average="original"),
    "periodic": lambda: co.available(co.uniform(4), co.periodic(3, 2)),
    "trace": lambda: co.available(co.full(average="plain"), co.trace([[True, False] * 3])),
}


RARELY = [
    "full",
    "uniform",
    "independent",
    "independent, unequal",
    "weighted",
    "shuffled, uniform",
    "shuffled",
    "repeated",
    "given",
    "periodic",
    *(n for n in ALL if "available" in n),
]


@pytest.mark.parametrize(
    "name",
    fast_but(ALL, RARELY),
)
def test_storage_order_changes_nothing_and_availability_composes(name):
    scheme = ALL[name]()
    mask = np.array([[True, False, True, True, False, True], [False, True, True, True, True, False]])
    masked = co.available(scheme, co.trace(mask)).fitted(DATA)
    masked.check(DATA, 2)

    @jax.jit
    def drawn(data):
        def one(t):
            both = [(each.select(data, KEY, t), each.inclusion(data, t)) for each in (masked, scheme)]
            return both, scheme.draw(data, KEY, t)

        return jax.vmap(one)(TWO)

    found = jax.tree.map(np.asarray, drawn(DATA))
    jax.tree.map(np.testing.assert_array_equal, found, drawn(DATA.subset([3, 5, 0, 1, 4, 2])))
    ((selection, chance), (plain, plain_chance)), _ = found
    np.testing.assert_array_equal(selection.indices, plain.indices)
    np.testing.assert_array_equal(np.abs(selection.count), plain.drawn)
    there = np.take_along_axis(np.pad(mask, ((0, 0), (0, 1))), plain.indices, axis=1)
    np.testing.assert_array_equal(selection.present, plain.present & there)
    np.testing.assert_allclose(chance, plain_chance * mask, rtol=1e-6)
    assert masked.size(N) == scheme.size(N)
    assert masked.average == scheme.average
    assert masked.replacement == scheme.replacement
    assert masked.may_be_empty
    assert fjs.build(fjs.describe(masked)) is not None


@pytest.mark.parametrize("size", [pytest.param(2, marks=slow), 4, pytest.param(6, marks=slow)])
@pytest.mark.parametrize("passes", ["reshuffled", "repeated", "uniform"])
def test_a_pass_sees_everyone_once(size, passes):
    scheme = co.shuffled(size, passes)
    rounds = -(-N // size)
    draw = jax.jit(jax.vmap(lambda t: scheme.draw(DATA, KEY, t)))(jnp.arange(6 * rounds, dtype=jnp.int32))
    ids = np.asarray(draw.ids).reshape(6, -1)
    seen = [row[row >= 0].tolist() for row in ids]
    counted = 1 if passes == "uniform" else 6
    assert all(sorted(row) == list(range(N)) for row in seen[:counted])
    assert (np.asarray(draw.mask).sum(1).reshape(6, rounds)[:counted, :-1] == size).all()
    assert len({tuple(row) for row in seen}) > 1 if passes != "repeated" else len({tuple(row) for row in seen}) == 1
    if passes == "uniform":
        assert np.asarray(draw.mask)[rounds:].all()  # later cohorts are never short


def test_passes_have_unrelated_orders():
    _, seen, _ = updates(co.shuffled(3))
    first = seen[::2]  # the first half of each pass
    both = np.mean(first[1:, 0] * first[:-1, 0])
    assert abs(both - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(first))


@pytest.mark.parametrize(("clients", "mean"), [(1, 0.5), (10, 0.1), (100, 0.1), (1000, 0.003), (50, 1.0), (7, 0.0)])
def test_the_default_cap_is_the_smallest_safe_one(clients, mean):
    from math import comb, fsum

    def beyond(cap):
        return fsum(comb(clients, c) * mean**c * (1 - mean) ** (clients - c) for c in range(cap + 1, clients + 1))

    cap = least_cap(clients, mean)
    assert beyond(cap) < 1e-12
    assert cap == 1 or beyond(cap - 1) >= 1e-12


def test_unequal_probabilities_have_a_lighter_tail():
    clients = 12
    q = np.linspace(0.0, 0.16, clients)
    exact = np.ones(1)
    for q_i in q:
        exact = np.convolve(exact, [1 - q_i, q_i])
    assert exact[least_cap(clients, q.mean()) + 1 :].sum() < 1e-12


def test_independent_cohorts_are_never_cut():
    data = quadratics(np.ones(100, int))
    scheme = co.independent(0.1).fitted(data)
    assert scheme.size(100) == scheme.cap == least_cap(100, 0.1) < 60
    q = jnp.float32(0.1)

    @jax.jit
    @jax.vmap
    def both(t):  # traced: a small cap cannot be refused
        small = co.independent(jnp.where(t < 0, 0, q), cap=12)
        return [of.select(data, KEY, t) for of in (scheme, small)]

    whole, cut = both(np.arange(500, dtype=np.int32))
    assert not np.asarray(whole.overflow).any()
    drawn = np.asarray(whole.count).sum(1)
    assert drawn.max() > 12
    np.testing.assert_array_equal(np.asarray(cut.overflow), drawn > 12)


@pytest.mark.slow
def test_probabilities_can_be_traced_and_differentiated():
    def mass(q):
        scheme = co.independent(q, cap=N, average="inverse")
        selection = scheme.select(DATA, KEY, jnp.int32(0))
        return jnp.sum(scheme.weigh(DATA, selection, selection.present, "inverse", 0).clients), selection.present

    q = jnp.asarray(Q, jnp.float32)
    (_, present), slope = jax.jit(jax.value_and_grad(mass, has_aux=True))(q)
    drawn = np.zeros(N, bool)
    ids = jax.jit(lambda: co.independent(Q).draw(DATA, KEY, 0).ids)()
    drawn[np.asarray(ids)[: int(present.sum())]] = True
    np.testing.assert_allclose(slope, np.where(drawn, -P / Q**2, 0), rtol=1e-5)


@pytest.mark.slow
def test_traced_ids_that_are_no_client_s_leave_slots_void():
    """Nine is nobody, the second 0 a repeat, -5 and an integer beyond int32 no ids; the run is that of void slots."""

    def run(cohort):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=2, cohort=cohort, work=fjs.local.steps(1),
            batches=fjs.local.full_batch(), eval_every=2,
        )  # fmt: skip
        return train(fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), DATA, KEY)

    given = np.asarray([[[0, 9, 0], [1, 2, -5]], [[3, 9, 9], [5, 4, 5]]])
    void = np.asarray([[[0, -1, -1], [1, 2, -1]], [[3, -1, -1], [5, 4, -1]]])
    mapped = jax.jit(jax.vmap(lambda ids: run(co.given(ids))))
    ours, theirs = mapped(given), mapped(void)
    assert ours.rounds["refused_slots"].tolist() == [[2, 1], [2, 1]]
    assert ours.rounds["refused_slots"].dtype == jnp.int32
    assert theirs.rounds["refused_slots"].tolist() == [[0, 0], [0, 0]]
    jax.tree.map(np.testing.assert_array_equal, (ours.state, ours.metrics), (theirs.state, theirs.metrics))
    np.testing.assert_array_equal(ours.rounds["cohort_size"], [[1, 2], [1, 2]])
    known = co.given(void[0])  # which was checked when it was made
    assert "refused_slots" not in jax.eval_shape(lambda: run(known)).rounds
    with pytest.raises(ValueError, match="client id 9"):
        run(co.given(np.asarray([[0, 9], [1, 2]])))


@pytest.mark.parametrize(
    ("ids", "indices", "refused"),
    [
        (np.asarray([[1, 2**31 + 1, 2**32 - 1]], np.uint32), [1, N, N], 2),
        (np.asarray([[255, 3, 3]], np.uint8), [N, 3, N], 2),
        (np.asarray([[-1, 3, 2]], np.int8), [N, 3, 2], 0),
    ],
    ids=["uint32", "uint8", "int8"],
)
def test_traced_ids_of_other_integers(ids, indices, refused):
    """They are not wrapped round."""

    @jax.jit
    def select(ids):
        given = co.given(ids)
        scheme = co.available(given, co.bernoulli(1.0))
        return scheme.select(DATA, KEY, jnp.int32(0)), given.inclusion(DATA)

    selection, inclusion = select(ids)
    assert selection.indices.tolist() == indices
    assert selection.present.tolist() == [index < N for index in indices]
    assert int(selection.refused) == refused
    assert inclusion.tolist() == [float(i in indices) for i in range(N)]


def test_traced_offsets_are_those_given():
    offsets = np.asarray([0, 1, 2**31 - 1, -4, 2**31 - 2, 7], np.int32)
    known = co.periodic(3, 1, offsets)
    both = jax.jit(lambda offsets: [of.chance(jnp.int32(5), N) for of in (co.periodic(3, 1, offsets), known)])
    np.testing.assert_array_equal(*both(offsets))


@pytest.mark.parametrize(
    ("make", "like", "message"),
    [
        (co.given, np.ones((2, 3), np.float32), r"given\(cohorts\) is float32\[2, 3\]"),
        (co.given, np.ones(3, np.int32), r"given\(cohorts\) is int32\[3\]"),
        (
            lambda offsets: co.periodic(3, 1, offsets),
            np.ones(3, np.float32),
            r"periodic\(offsets=...\) is float32\[3\]",
        ),
        (co.trace, np.ones((2, 3), np.float32), r"trace\(available=...\) is float32\[2, 3\]"),
        (fjs.local.given_steps, np.ones((2, 3), np.float32), r"given_steps\(tau\) is float32\[2, 3\]"),
        (
            lambda who: fjs.attacked(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), who),
            np.ones(3, np.float32),
            "one row of client indices, integers",
        ),
    ],
)
def test_the_type_of_traced_arrays_is_checked(make, like, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jax.eval_shape(make, like)


DROPPED = {  # weights of clients 0 (n = 1), 3 (n = 10) and 5 (n = 6) when client 3 drops out
    "sample": ([1 / 7, 0, 6 / 7], None),
    "plain": ([1 / 2, 0, 1 / 2], None),
    "original": ([P[0], 0, P[5]], None),
    "scheme_ii": ([2 * P[0], 0, 2 * P[5]], 2 * (P[0] + P[3] + P[5]) - 1),  # N / K = 2; it counts as y_3 = x
    "transformed": ([1 / 3, 0, 1 / 3], None),
}


def test_weights_after_a_client_dropped_out():
    @jax.jit
    def weighed():
        found = {}
        for average in DROPPED:
            scheme = co.given([[0, 3, 5, -1]], average=average)
            there = co.available(scheme, co.trace([[True, True, True, False, True, True]]))
            selection, of_there = (each.select(DATA, KEY, jnp.int32(0)) for each in (scheme, there))
            weights = scheme.weigh(DATA, selection, jnp.asarray([True, False, True, True]), average, 0)
            found[average] = weights, there.weigh(DATA, of_there, of_there.present, average, 0), of_there.present
        return found

    for average, (weights, again, present) in weighed().items():
        expected, shift = DROPPED[average]
        np.testing.assert_allclose(weights.clients, [*expected, 0], rtol=1e-6, err_msg=average)
        assert (weights.shift is None) if shift is None else np.isclose(weights.shift, shift)
        assert AVERAGES[average].normalised == bool(np.isclose(np.sum(weights.clients), 1))
        assert AVERAGES[average].models == (shift is not None)
        # Someone who is not available counts like a dropped straggler.
        jax.tree.map(np.testing.assert_array_equal, again, weights)
        assert present.tolist() == [True, False, True, False]


class Halved(co.Participation):
    """Two clients, whose average has half of its weights."""

    def size(self, num_clients):
        return 2

    def select(self, dataset, key, round_):
        return co.Selection(np.array([0, 3], np.int32), np.ones(2, np.int32))

    def weigh(self, dataset, selection, took_part, average, round_):
        whole = super().weigh(dataset, selection, took_part, average, round_)
        return co.Weights(whole.clients / 2, whole.shift)


def test_an_average_of_one_s_own_goes_with_its_scheme():
    always, there = co.trace(ALWAYS), co.trace([[True, True, True, False, True, True]])
    all_there = Halved(), co.available(Halved(), always), co.available(co.available(Halved(), always), always)
    schemes = *all_there, co.available(Halved(), there)
    *found, without = jax.jit(lambda: [scheme.draw(DATA, KEY, 0).weights for scheme in schemes])()
    np.testing.assert_allclose(found, [np.array([1, 10]) / 22] * 3, rtol=1e-6)
    np.testing.assert_allclose(without, [0.5, 0], rtol=1e-6)
    for inside in (Halved(average="inverse"), co.available(co.uniform(2, average="inverse"), always)):
        itself = isinstance(inside, Halved)
        with pytest.raises(ValueError, match="of its own") if itself else contextlib.nullcontext():
            co.available(inside, always)


def test_scheme_one_leaves_x_for_the_dropped():
    @jax.jit
    def weighed():
        scheme = co.with_replacement(8)
        selection = scheme.select(DATA, KEY, jnp.int32(0))
        return selection, scheme.weigh(DATA, selection, selection.indices != 3, "sample", 0)

    selection, weights = jax.tree.map(np.asarray, weighed())
    np.testing.assert_allclose(weights.clients, np.where(selection.indices == 3, 0, selection.count) / 8)
    assert int(selection.count[selection.indices == 3][0]) >= 1


def test_objectives_in_words():
    assert co.uniform(2).objective("plain") == "(1/N) sum F_i"
    assert co.with_replacement(2).objective("plain") == co.full().objective("sample") == "sum p_i F_i"
    assert co.independent(Q).objective("original") == "sum pi_i p_i F_i"
    assert co.available(co.uniform(2), co.bernoulli(0.5)).objective("plain") == "(1/N) sum F_i"
    assert co.available(co.uniform(2), co.bernoulli(Q)).objective("inverse") == "sum p_i F_i"
    assert co.with_replacement(2).averaging("plain").share == "sample"
    assert AVERAGES["transformed"].share == AVERAGES["plain"].share == "plain"
    assert [name for name, meaning in AVERAGES.items() if meaning.scales] == ["transformed"]


def test_periodic_availability():
    of_offsets = co.periodic(3, 1, [0, 1, 2, 3, -1, 0])
    rounds = np.arange(6, dtype=np.int32)
    chances = jax.jit(jax.vmap(lambda t: [of.chance(t, N) for of in (of_offsets, co.periodic(3, 2))]))(rounds)
    at, table = map(np.asarray, chances)
    assert at[2].tolist() == [0, 1, 0, 0, 0, 0]
    assert (table == [[(t + i * 3 // N) % 3 < 2 for i in range(N)] for t in range(6)]).all()


@pytest.mark.slow
def test_availability_draws_are_the_clients_own():
    """Neither the cohort nor a client's slot in it enters."""
    rounds = jnp.arange(200, dtype=jnp.int32)

    def there(scheme):
        return updates(co.available(scheme, co.bernoulli(0.5)), rounds=len(rounds))[1]

    whole, part = there(co.full()), there(co.given(np.tile([5, 2, 0], (len(rounds), 1))))
    np.testing.assert_array_equal(part, whole * [1, 0, 1, 0, 0, 1])


ERRORS = {
    "name": (
        lambda: co.uniform(2, average="mean"),
        ValueError,
        ("uniform(average=...) is 'mean'", "known: sample, plain,", "inverse"),
    ),
    "given, inverse": (lambda: co.given([[0]], average="inverse"), ValueError, ("'inverse'", "not drawn", "'sample'")),
    "weighted, inverse": (lambda: co.weighted(2, average="inverse"), ValueError, ("simulation", "independent")),
    "weighted, scalar": (lambda: co.weighted(2, 1.0), ValueError, ("1.0", "give one a client")),
    "weighted, negative": (lambda: co.weighted(1, [1.0, -1.0]), ValueError, ("weighted(weights=...)", "[0, inf)")),
    "weighted, zeros": (lambda: co.weighted(2, [1.0, 0.0]), ValueError, ("1 positive", "at most 1")),
    "weighted, too small": (lambda: co.weighted(2, np.asarray([1.0, 1e-60])), ValueError, ("1 positive", "at most 1")),
    "weighted, count": (lambda: co.weighted(7).check(DATA, 1), ValueError, ("weighted(7)", "at most 6")),
    "shuffled, count": (lambda: co.shuffled(7).check(DATA, 1), ValueError, ("shuffled(7)", "at most 6")),
    "shuffled, passes": (lambda: co.shuffled(2, "uniforn"), ValueError, ("'uniforn'", "did you mean 'uniform'")),
    "independent, None": (lambda: co.independent(None), TypeError, ("independent(probability=...)", "None")),
    "independent, table": (lambda: co.independent(np.ones((2, 3))), ValueError, ("(2, 3)", "one a client")),
    "independent, length": (lambda: co.independent([0.5] * 3).check(DATA, 1), ValueError, ("3 values", "6 clients")),
    "independent, small cap": (lambda: co.independent(Q, cap=5), ValueError, ("cap=5", "6 clients", "at least 6")),
    "independent, fitted": (lambda: co.independent(0.5, cap=5).fitted(DATA), ValueError, ("cap=5", "at least 6")),
    "independent, checked": (lambda: co.independent(0.5, cap=5).check(DATA, 1), ValueError, ("cap=5", "biases")),
    "independent, traced": (
        lambda: jax.eval_shape(lambda q: co.independent(q).select(DATA, KEY, jnp.int32(0)), 0.5),
        ValueError,
        ("traced", "cap=..."),
    ),
    "available, scheme": (
        lambda: co.available(3, co.bernoulli(0.5)),
        TypeError,
        ("available(scheme=...) is 3", "a Participation", "uniform(10)"),
    ),
    "available, what": (
        lambda: co.available(co.full(), 0.5),
        TypeError,
        ("is 0.5", "an Availability", "bernoulli(0.9)"),
    ),
    "available, average": (
        lambda: co.available(co.full(), co.bernoulli(0.5), average="plain"),
        ValueError,
        ("'plain'", "None", "give it there"),
    ),
    "bernoulli": (lambda: co.bernoulli(-0.1), ValueError, ("bernoulli(probability=...)", "[0, 1]")),
    "bernoulli, length": (
        lambda: co.available(co.full(), co.bernoulli([0.5])).check(DATA, 1),
        ValueError,
        ("1 values for 6", "one a client"),
    ),
    "periodic, on": (lambda: co.periodic(3, 4), ValueError, ("periodic(3, on=4)", "at most the period")),
    "periodic, floats": (lambda: co.periodic(3, 1, [0.5]), ValueError, ("float64[1]", "an integer a client")),
    "periodic, length": (lambda: co.periodic(3, 1, [1, 2]).check(DATA, 1), ValueError, ("2 values", "6 clients")),
    "trace, numbers": (lambda: co.trace([[1, 0]]), ValueError, ("int64[1, 2]", "True and False")),
    "trace, empty": (lambda: co.trace(np.zeros((0, 2), bool)), ValueError, ("bool[0, 2]", "a round or more")),
    "trace, clients": (lambda: co.trace([[True]]).check(DATA, 1), ValueError, ("is [1, 1]", "6 clients")),
    "trace, rounds": (
        lambda: co.trace(ALWAYS, repeat=False).check(DATA, 2),
        ValueError,
        ("is [1, 6]", "2 rounds"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_messages(name):
    make, error, parts = ERRORS[name]
    with pytest.raises(error) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


def test_a_weighted_cohort_has_the_probability_of_its_draws_one_after_the_other():
    """Each is drawn from those that are left: sum_k log w_k / (w_k + all that come later or never)."""
    scheme = co.weighted(4, np.arange(1.0, N + 1))

    @jax.jit
    @jax.vmap
    def drawn(t):
        return scheme.select(DATA, KEY, t).indices, scheme.log_probability(DATA, KEY, t)

    for order, found in zip(*map(np.asarray, drawn(np.arange(5, dtype=np.int32))), strict=True):
        left, expected = 21.0, 0.0
        for client in order:
            expected += np.log((client + 1) / left)
            left -= client + 1
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [[1e8, 1.0, 1.0, 2.0], [1.0, 1e-8, 3e-8, 2e-8]])
def test_the_log_probability_of_a_draw_that_one_client_outweighs(weights):
    """What is left for the later draws is small beside the sum of all weights, whose digits it does not share."""
    data = fjs.datasets.quadratics_from(np.ones((4, 1, 1)), np.zeros((4, 1)))

    def log_probability(weights):
        return fjs.cohort.weighted(3, weights).log_probability(data, KEY, jnp.int32(0))

    order = np.asarray(fjs.cohort.weighted(3, jnp.asarray(weights)).select(data, KEY, jnp.int32(0)).indices)
    left, expected = np.array(weights), 0.0
    for client in order:
        expected += np.log(left[client] / left.sum())
        left[client] = 0
    found, slope = jax.jit(jax.value_and_grad(log_probability))(jnp.asarray(weights))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(slope).all()
    assert np.isfinite(jax.grad(log_probability)(jnp.array([1.0, 1.0, 0.0, 0.0]))).all()  # two are drawn with no weight
