"""Stateless shuffles and subsets: bijections, uniform, and every example once an epoch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_sim as fjs
from fedjax_sim.core import sampling
from fedjax_sim.core.keys import client_draws


@functools.partial(jax.jit, static_argnums=0)
def keys(count, seed=0):
    return jax.vmap(sampling.permutation_keys)(jax.random.split(jax.random.key(seed), count))


@functools.partial(jax.jit, static_argnums=(0, 1))
def shuffled(most, count, seed, n, number):
    positions = jnp.minimum(jnp.arange(most, dtype=jnp.int32), n - 1)
    return jax.vmap(lambda k: sampling.permute(k, n, positions, number))(keys(count, seed))


def shuffles(n, number, count, seed=0, most=None):
    """[count, n] permutations, in one program for every n up to ``most``."""
    return np.asarray(shuffled(most or n, count, seed, np.int32(n), np.int32(number)))[:, :n]


def test_every_size_is_permuted():
    positions = np.arange(40, dtype=np.int32)

    @jax.jit
    @jax.vmap
    def images(n):
        return sampling.permute(keys(1)[0], n, jnp.minimum(positions, n - 1))

    for n, row in enumerate(np.asarray(images(np.arange(1, 41, dtype=np.int32))), start=1):
        assert sorted(row[:n]) == list(range(n))


@settings(max_examples=20)
@given(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_large_sizes_stay_in_range_and_distinct(n, seed):
    index = np.unique(np.linspace(0, n - 1, 64).astype(np.int64)).astype(np.int32)
    image = np.asarray(permuted(keys(1, np.uint32(seed)), np.int32(n), np.resize(index, 64)))[0]
    assert image.min() >= 0
    assert image.max() < n
    assert len(np.unique(image[: len(index)])) == len(index)


def test_products_are_exact():
    """floor(w b / 2^32) of all pairs of words and bounds near powers of two and anywhere."""
    near = [1 << bit for bit in range(32)]
    numbers = sorted({*near, *(n - 1 for n in near), *(n + 1 for n in near[:31]), 2**32 - 1})
    numbers += np.random.default_rng(0).integers(0, 2**32, 100).tolist()
    words, bounds = np.meshgrid(np.array(numbers, np.uint32), np.array(numbers, np.uint32))
    expected = (words.astype(object) * bounds.astype(object)) >> 32  # Python's integers
    found = jax.jit(sampling._multiply_high)(words, bounds)
    np.testing.assert_array_equal(found, expected.astype(np.uint32))


@pytest.mark.parametrize("n", [3 << 16, 100_003, 2**31 - 1])
def test_large_sizes_are_uniform(n):
    """Where the images of a few places lie among 64 equal parts of the range."""
    draws, index = 40_000, np.array([0, 1, n // 3, n - 1], np.int32)
    image = np.asarray(permuted(keys(draws, n % 97), np.int32(n), index)).ravel()
    parts = np.bincount(image.astype(np.int64) * 64 // n, minlength=64)
    chi2 = np.sum((parts - image.size / 64) ** 2) / (image.size / 64)
    assert abs(chi2 - 63) < 5 * np.sqrt(2 * 63)


@jax.jit
def permuted(round_keys, n, index):
    return jax.vmap(lambda k: sampling.permute(k, n, index))(round_keys)


ORDERS = [(n, number) for n in (2, 3, 4, 5) for number in (0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "number"),
    [pytest.param(*one, marks=() if one in ((2, 3), (3, 0), (4, 3), (5, 0)) else pytest.mark.slow) for one in ORDERS],
)
def test_all_orders_are_equally_likely(n, number):
    draws = 120_000
    rows = shuffles(n, number, draws, seed=n, most=5)
    _, counts = np.unique(rows @ (n ** np.arange(n)), return_counts=True)
    orders = int(np.prod(np.arange(1, n + 1)))
    assert len(counts) == orders
    chi2 = np.sum((counts - draws / orders) ** 2) / (draws / orders)
    assert abs(chi2 - (orders - 1)) < 5 * np.sqrt(2 * (orders - 1))  # five standard deviations of a chi-square


@pytest.mark.slow
def test_positions_and_neighbours_are_uniform():
    n, draws = 60, 60_000
    rows = shuffles(n, 7, draws)
    counts = np.stack([np.bincount(rows[:, j], minlength=n) for j in range(n)])
    chi2, freedom = np.sum((counts - draws / n) ** 2) / (draws / n), (n - 1) ** 2
    assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)
    gaps = np.bincount(((rows[:, 1:] - rows[:, :-1]) % n).ravel(), minlength=n)[1:]
    chi2 = np.sum((gaps - gaps.mean()) ** 2) / gaps.mean()
    assert abs(chi2 - (n - 2)) < 5 * np.sqrt(2 * (n - 2))


def test_epochs_have_their_own_orders():
    first, second = (shuffles(50, number, 4) for number in (0, 1))
    assert (first != second).any(axis=1).all()


def chosen(population, count, draws, seed):
    """[draws, count] subsets."""

    @jax.jit
    def draw():
        return jax.vmap(lambda key: sampling.choose(key, population, count))(
            jax.random.split(jax.random.key(seed), draws)
        )

    return np.asarray(draw())


@pytest.mark.parametrize(("population", "count"), [(10, 3), (300, 250), (7, 7)])
def test_subsets_are_distinct_and_uniform(population, count):
    draws = 4000
    rows = chosen(population, count, draws, seed=1)
    assert all(len(np.unique(row)) == count for row in rows[:200])
    assert rows.min() >= 0
    assert rows.max() < population
    share = np.bincount(rows.ravel(), minlength=population) / draws
    deviation = np.sqrt(count / population * (1 - count / population) / draws)
    assert np.abs(share - count / population).max() <= 5 * deviation


def test_the_first_are_drawn_as_often_as_others():
    """A permutation that leaves one place of 2^16 as it is would draw 17 of them here."""
    rows = chosen(2**28, 256, 4096, seed=2)
    assert np.sum(rows < 256) < 8  # one is expected


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_every_example_once_an_epoch(batch):
    sizes = np.array([1, 4, 9, 30], np.int32)
    scheme = fjs.local.shuffled(batch)
    rows = min(batch, 30)
    per_epoch = [int(scheme.epoch(int(size), rows)) for size in sizes]
    assert per_epoch == [-(-int(size) // rows) for size in sizes]

    @jax.jit
    def positions(steps):
        draws = client_draws(jax.random.key(0), jnp.int32(2), jnp.arange(4, dtype=jnp.int32))
        over = jax.vmap(lambda p, n, k: scheme.positions(p, n, k, rows), (None, None, 0))
        return jax.vmap(over, (0, 0, None))(scheme.prepare(draws), sizes, steps)[:2]

    all_rows, mask = jax.tree.map(np.asarray, positions(np.arange(2 * max(per_epoch), dtype=np.int32)))
    for client, size in enumerate(np.asarray(sizes)):
        orders = []
        for epoch in range(2):
            steps = slice(epoch * per_epoch[client], (epoch + 1) * per_epoch[client])
            seen = all_rows[client, steps][mask[client, steps]]
            assert sorted(seen) == list(range(size))
            orders.append(seen.tolist())
        if size == 30:
            assert orders[0] != orders[1]


# Floyd's algorithm up to 200, the head of a shuffle beyond.
@pytest.mark.parametrize("count", [pytest.param(200, marks=pytest.mark.slow), 201])
def test_subsets_have_the_spread_of_independent_draws(count):
    population, draws = 300, 3000
    rows = chosen(population, count, draws, seed=2)
    counts, share = np.bincount(rows.ravel(), minlength=population), count / population
    chi2 = np.sum((counts - draws * share) ** 2) / (draws * share * (1 - share)) * (population - 1) / population
    assert abs(chi2 - (population - 1)) < 5 * np.sqrt(2 * (population - 1))


@pytest.mark.parametrize("of", [sampling._floyd, sampling._floyd_by_chains])
@pytest.mark.parametrize(("population", "count"), [(2, 1), (5, 4), (9, 8), (40, 33), (300, 200)])
def test_subsets_are_floyd_s(population, count, of):
    """One place after another: the draw, or the place's own last number where the draw is taken."""
    last, rng = np.arange(population - count, population, dtype=np.int32), np.random.default_rng(0)
    draws = np.stack([rng.integers(0, last + 1, dtype=np.int32) for _ in range(30)])
    found = np.asarray(jax.jit(jax.vmap(lambda row: of(row, last)))(draws))
    for row, expected in zip(draws.tolist(), found.tolist(), strict=True):
        taken = []
        for largest, draw in zip(last.tolist(), row, strict=True):
            taken.append(largest if draw in taken else draw)
        assert taken == expected


def test_all_subsets_are_equally_likely():
    draws = 40_000
    rows = np.sort(chosen(7, 3, draws, seed=3), axis=1)
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == 35
    chi2 = np.sum((counts - draws / 35) ** 2) / (draws / 35)
    assert abs(chi2 - 34) < 5 * np.sqrt(2 * 34)


def test_orders_of_successive_epochs_are_unrelated():
    n, epochs = 60, 2000
    index = np.arange(n, dtype=np.int32)

    @jax.jit
    def images(numbers):
        return jax.vmap(lambda number: sampling.permute(keys(1)[0], n, index, number))(numbers)

    rows = np.asarray(images(np.arange(epochs, dtype=np.int32)))
    assert len(np.unique(rows, axis=0)) == epochs
    kept = np.sum(rows[1:] == rows[:-1])  # an example keeps its place once in n epochs
    assert abs(kept - (epochs - 1)) < 5 * np.sqrt(epochs - 1)


def test_rare_events_have_their_probability() -> None:
    """All 32 bits of a word count: those of a real draw would make 9 / 2^23 of 1e-6."""
    edge = 1e-6 * 2**32
    words = np.array([0, int(edge) - 1, int(edge) + 1, 2**32 - 1], np.uint32)
    assert sampling.happens(words, np.float32(1e-6)).tolist() == [True, True, False, False]
    assert sampling.happens(words, np.float32(1)).all()
    assert not sampling.happens(words, np.float32(0)).any()
