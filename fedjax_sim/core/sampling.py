"""Sampling without replacement at a cost that does not grow with the population.

:func:`permute` is a *stateless permutation*: element j of a shuffle of ``range(n)``, computed from j alone, with n
known only at run time: the swap-or-not shuffle (Hoang, Morris and Rogaway 2012). Unlike a Feistel network it needs
neither a division nor cycle walking, so it has no inner loop and costs the same for every n.
:func:`choose` draws a set of S out of N: Floyd's algorithm (Bentley and Floyd 1987) for small S, above S places in a
row of a stateless permutation.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.keys import ORDER_WORDS, random_words

_ROUNDS = ORDER_WORDS  # 16: chi-square tests over all orders of n <= 7 pass on a million keys; with 10 they would not
_FLOYD_LIMIT = 200  # Floyd compares each draw with all earlier ones, O(S^2); beyond this the permutation is cheaper


def permutation_keys(key: jax.Array) -> jax.Array:
    """Round keys for :func:`permute`, uint32[rounds]: one draw a permutation."""
    return random_words(key, _ROUNDS)


@jax.jit  # integers only: as a call of its own, derivatives and transposition pass it by unread
def permute(round_keys: jax.Array, n: jax.Array | int, index: jax.Array, number: jax.Array | int = 0) -> jax.Array:
    """Images of ``index`` under a keyed permutation of ``range(n)``.

    Round r pairs x with K_r - x (mod n) and swaps the two where a keyed hash of the larger has its top bit set. With
    one key in 2^rounds x stays where it is, whatever n: of a large n, the head has its own places too often.

    Args:
      round_keys: uint32[rounds] of :func:`permutation_keys`.
      n: size, an int32 scalar of at least 1 (may be traced).
      index: int32 array of any shape, each in [0, n).
      number: which permutation of the family of these keys (a client's epoch); int32 scalar.

    Returns:
      int32 array of the shape of ``index``; distinct for distinct indices.
    """
    size = jnp.asarray(n).astype(jnp.uint32)
    tag = _mix(jnp.asarray(number).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    tag = tag ^ (tag >> 15)

    # All rounds' at once: numbers of a round alone would each be a kernel.
    mixed = _mix(round_keys ^ tag)
    pivots = _multiply_high(mixed, size)

    def swap_or_not(x: jax.Array, of_round: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        round_key, pivot = of_round
        partner = pivot + size - x
        partner = jnp.where(partner >= size, partner - size, partner)
        swap = _mix(jnp.maximum(x, partner) ^ round_key) >> 31
        return jnp.where(swap.astype(bool), partner, x), None

    # A loop: a tenth of the program, and faster on a CPU. Unrolled elsewhere, where each round would be some kernels.
    unroll = 1 if jax.default_backend() == "cpu" else True
    image: jax.Array = lax.scan(swap_or_not, index.astype(jnp.uint32), (mixed, pivots), unroll=unroll)[0]
    return image.astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=(1, 2))
def choose(key: jax.Array, population: int, count: int) -> jax.Array:
    """A uniformly drawn subset of ``range(population)``, int32[count], in no particular order.

    Both numbers are static. O(S) for large S = ``count``, O(S^2) tiny steps up to S = 200.
    """
    if count == population:
        return jnp.arange(population, dtype=jnp.int32)
    if count > _FLOYD_LIMIT:
        # From a place drawn: one of 2^16 is left as it is, whatever n, so that the first would be drawn too often.
        words = random_words(key, _ROUNDS + 1)
        place = below(words[-1], population).astype(jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
        place = jnp.where(place < population, place, place - population).astype(jnp.int32)
        return permute(words[:-1], population, place)
    last = np.arange(population - count, population, dtype=np.int32)  # numpy's: constants, no kernels
    draws = below(random_words(key, count), last + 1)
    # The first compiles in half the time of the second, which has no loop, and as many kernels as a few of its turns.
    return _floyd(draws, last) if jax.default_backend() == "cpu" else _floyd_by_chains(draws, last)


def _floyd(draws: jax.Array, last: np.ndarray) -> jax.Array:
    """One place after another takes its draw, in [0, last], or where that is taken its own ``last``; int32[S]."""
    places = np.arange(len(last), dtype=np.int32)

    def insert(chosen: jax.Array, at: tuple[Any, ...]) -> tuple[jax.Array, None]:
        step, draw, last = at
        new = jnp.where(jnp.any(chosen == draw), last, draw)
        return jnp.where(places == step, new, chosen), None

    return lax.scan(insert, jnp.full(last.shape, -1, jnp.int32), (places, draws, last))[0]


def _floyd_by_chains(draws: jax.Array, last: np.ndarray) -> jax.Array:
    """The same, all places at once.

    A draw is taken by an earlier equal one, or as the ``last`` of an earlier place that had to take it. From place to
    place these are chains, which are followed by halves.
    """
    places = np.arange(len(last), dtype=np.int32)
    taken = jnp.any((draws[:, None] == draws[None, :]) & (places[None, :] < places[:, None]), axis=1)
    before = draws - last[0]  # the place whose last the draw is
    before = jnp.where((before >= 0) & (before < places), before, places)
    for _ in range((len(last) - 1).bit_length()):
        taken, before = taken | taken[before], before[before]
    return jnp.where(taken, last, draws)


def happens(words: jax.Array, probability: jax.Array) -> jax.Array:
    """Whether events of these probabilities happen, by words of 32 random bits: bool in the shape of both.

    A real draw in single precision has 23 of them: an event of probability 1e-6 would happen with 1.07e-6.
    """
    probability = probability.astype(jnp.float32)
    # The largest words are rounded up to 2^32, where 1 would miss them.
    return (words.astype(jnp.float32) < probability * 2.0**32) | (probability >= 1)


def choose_weighted(key: jax.Array, weights: jax.Array, count: int) -> jax.Array:
    """``count`` successive draws without replacement, each with P(i) proportional to the weights of those left.

    A client's clock rings after a time that is exponential with rate w_i; the first ``count`` to ring are drawn (the
    Gumbel top-k trick: -log of the times are Gumbel variables shifted by log w_i).

    Args:
      key: PRNG key.
      weights: float[N], non-negative. Where fewer than ``count`` are positive, the rest of the result has weight 0.
      count: static, at most N.

    Returns:
      int32[count], distinct, in the order of the draws. O(N log count).
    """
    weights = lax.stop_gradient(weights)
    words = jax.random.bits(key, weights.shape, jnp.uint32).astype(weights.dtype)
    # From words, not from jax.random.uniform: the small times decide, and they need all 32 bits of resolution.
    time = -jnp.log1p(-jnp.minimum((words + 0.5) * 2**-32, 1 - 2**-24))
    first: jax.Array = lax.top_k(jnp.log(weights) - jnp.log(time), count)[1]
    return first.astype(jnp.int32)


def below(words: jax.Array, bound: jax.Array | np.ndarray | int) -> jax.Array:
    """int32 draws from [0, bound), one a random uint32 word; uneven by at most bound / 2^32."""
    bound = bound if isinstance(bound, jax.Array) else np.asarray(bound)
    return _multiply_high(words, bound.astype(jnp.uint32)).astype(jnp.int32)


def normal(key: jax.Array, like: jax.Array) -> jax.Array:
    """Standard normal draws of the shape and dtype of ``like``, real numbers.

    They are drawn in single precision at least: bfloat16's own are 128 numbers, of mean -0.012, none beyond 2.9.
    """
    return jax.random.normal(key, like.shape, trees.widest(like, jnp.float32)).astype(like.dtype)


def normal_tree(key: jax.Array, like: Any) -> Any:
    """Such draws for the leaves of a pytree, a key of ``jax.random.split(key, ...)`` each."""
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, map(normal, jax.random.split(key, len(leaves)), leaves))


def _mix(value: jax.Array) -> jax.Array:
    """Two multiplications and a shift: enough for the top bit, which is all that is read of it."""
    value = value * jnp.uint32(0x7FEB352D)
    return (value ^ (value >> 15)) * jnp.uint32(0x846CA68B)


def _multiply_high(bits: jax.Array, bound: Any) -> jax.Array:
    """floor(bits * bound / 2^32) of uint32: a draw in [0, bound) without 64-bit integers."""
    half, ones = np.uint32(16), np.uint32(0xFFFF)  # with Python's, NumPy 1 makes int64 of a single uint32
    high, low, bound_high, bound_low = bits >> half, bits & ones, bound >> half, bound & ones
    cross = high * bound_low + ((low * bound_low) >> half)
    return high * bound_high + (cross >> half) + ((low * bound_high + (cross & ones)) >> half)
