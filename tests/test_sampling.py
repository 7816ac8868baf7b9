"""Shuffles and cohorts are what they claim: bijections, uniform, and different from each other."""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.sampling import choose, permutation_keys, permute


@functools.partial(jax.jit, static_argnums=3)
def shuffles(key, n, numbers, width):
    """Images of 0 .. width - 1 under the permutations of these numbers, [len(numbers), width]; n <= width is traced."""
    keys = permutation_keys(key)
    index = jnp.minimum(jnp.arange(width, dtype=jnp.int32), n - 1)
    return jax.vmap(lambda number: permute(keys, n, index, number))(numbers)


@functools.partial(jax.jit, static_argnums=(1, 2))
def many_shuffles(seed, count, n):
    """Shuffles of range(n) with independent keys, [count, n]."""
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.vmap(lambda key: permute(permutation_keys(key), n, jnp.arange(n, dtype=jnp.int32)))(keys)


def chi_square(counts, cells):
    """Pearson's statistic against the uniform distribution, in standard deviations above its mean."""
    expected = counts.sum() / cells
    statistic = (np.square(counts - expected) / expected).sum() + (cells - len(counts)) * expected  # cells never hit
    return (statistic - (cells - 1)) / np.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("number", [0, 1, 12345])
def test_permute_is_a_bijection_for_every_small_size(number):
    numbers = jnp.array([number], jnp.int32)
    for n in range(1, 41):
        (images,) = shuffles(jax.random.key(n), jnp.int32(n), numbers, 40)
        assert sorted(images[:n].tolist()) == list(range(n))


@hypothesis.given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 5000), number=st.integers(0, 2**31 - 1))
@hypothesis.settings(max_examples=60)
def test_permute_is_a_bijection(seed, n, number):
    (images,) = shuffles(jax.random.key(seed), jnp.int32(n), jnp.array([number], jnp.int32), 5000)
    np.testing.assert_array_equal(np.sort(images[:n]), np.arange(n))


def test_permute_is_a_bijection_for_large_sizes():
    for n in (2**16, 2**16 + 1, 10**6 - 7):
        (images,) = shuffles(jax.random.key(n), jnp.int32(n), jnp.array([3], jnp.int32), 10**6)
        np.testing.assert_array_equal(np.sort(images[:n]), np.arange(n))


def test_permute_stays_in_range_at_the_largest_size():
    n = 2**31 - 1
    index = jnp.concatenate([jnp.arange(5000), n - 1 - jnp.arange(5000)]).astype(jnp.int32)
    images = np.asarray(permute(permutation_keys(jax.random.key(0)), n, index))
    assert images.min() >= 0
    assert images.max() < n
    assert len(np.unique(images)) == len(index)
    assert abs(images.mean() / n - 0.5) < 0.02  # 7 standard deviations


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_is_equally_likely(n):
    images = np.asarray(many_shuffles(n, 60_000, n))
    codes = images @ (n ** np.arange(n))
    _, counts = np.unique(codes, return_counts=True)
    cells = len(list(itertools.permutations(range(n))))
    assert len(counts) == cells
    assert chi_square(counts, cells) < 5


def test_every_place_is_equally_likely():
    n, count = 60, 30_000
    images = np.asarray(many_shuffles(0, count, n))
    table = np.zeros((n, n))
    np.add.at(table, (np.arange(n), images), 1)  # where each element goes
    assert abs(chi_square(table.ravel(), n * n)) < 5
    # neighbours do not stay together, in any direction
    gaps = (images[:, 1:] - images[:, :-1]) % n
    assert abs(chi_square(np.bincount(gaps.ravel(), minlength=n)[1:], n - 1)) < 8


def test_epochs_differ_and_their_shuffles_are_unrelated():
    n, epochs = 60, 2000
    images = np.asarray(shuffles(jax.random.key(1), jnp.int32(n), jnp.arange(epochs, dtype=jnp.int32), n))
    assert len(np.unique(images, axis=0)) == epochs
    again = np.asarray(shuffles(jax.random.key(1), jnp.int32(n), jnp.arange(epochs, dtype=jnp.int32), n))
    np.testing.assert_array_equal(images, again)
    # an element keeps its place from one epoch to the next as often as by chance, once in n
    kept = (images[1:] == images[:-1]).sum()
    expected = (epochs - 1) * n / n
    assert abs(kept - expected) < 5 * np.sqrt(expected)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def cohorts(seed, count, population, size):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.vmap(lambda key: choose(key, population, size))(keys)


@pytest.mark.parametrize(
    ("population", "size"),
    [(7, 1), (7, 3), (7, 6), (300, 200), (300, 201), (1000, 250)],  # Floyd's algorithm up to 200, a shuffle beyond
)
def test_choose_draws_distinct_members_uniformly(population, size):
    count = 8_000 if population < 100 else 3_000
    drawn = np.asarray(cohorts(2, count, population, size))
    assert drawn.dtype == np.int32
    assert drawn.min() >= 0
    assert drawn.max() < population
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    # inclusion counts are hypergeometric: their variance is below the binomial's by (N - S) / (N - 1)
    counts = np.bincount(drawn.ravel(), minlength=population)
    share = size / population
    scores = (counts - count * share) / np.sqrt(count * share * (1 - share))
    assert np.abs(scores).max() < 5.5
    expected = population - 1  # of the sum of squares, which has as many degrees of freedom
    assert abs(np.square(scores).sum() - expected) < 6 * np.sqrt(2 * expected)


def test_choose_draws_every_subset_equally_often():
    drawn = np.sort(np.asarray(cohorts(3, 40_000, 7, 3)), axis=1)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 35
    assert chi_square(counts, 35) < 5


def test_choose_everybody():
    assert choose(jax.random.key(0), 5, 5).tolist() == [0, 1, 2, 3, 4]
    assert choose(jax.random.key(0), 1, 1).tolist() == [0]


@pytest.mark.parametrize(("size", "rows"), [(10, 4), (8, 4), (3, 4), (1, 1), (7, 1), (13, 13)])
def test_shuffled_batches_see_every_example_once_an_epoch(size, rows):
    batches = fjs.local.shuffled(rows)
    prepared = jax.tree.map(lambda leaf: leaf[0], batches.prepare(jax.random.split(jax.random.key(size), 1)))
    epoch = batches.epoch(size, rows)
    assert epoch == -(-size // rows)

    @jax.jit
    def positions(steps):
        return jax.vmap(lambda step: batches.positions(prepared, jnp.int32(size), step, rows))(steps)

    drawn, mask = map(np.asarray, positions(jnp.arange(3 * epoch, dtype=jnp.int32)))
    assert drawn.min() >= 0
    assert drawn.max() < size  # padding too: it reads a real example
    orders = []
    for e in range(3):
        steps = slice(e * epoch, (e + 1) * epoch)
        assert mask[steps].sum(axis=1).tolist() == [rows] * (size // rows) + [size % rows] * (size % rows > 0)
        order = drawn[steps][mask[steps]]
        assert sorted(order.tolist()) == list(range(size))
        orders.append(order.tolist())
    if size >= 7:
        assert orders[0] != orders[1] != orders[2]


def test_clients_are_shuffled_independently():
    batches = fjs.local.shuffled(30)
    prepared = batches.prepare(jax.random.split(jax.random.key(4), 2))
    first, second = (np.asarray(batches.positions(prepared[i], jnp.int32(30), jnp.int32(0), 30).rows) for i in range(2))
    assert sorted(first) == sorted(second) == list(range(30))
    assert (first == second).sum() < 10
