"""The measures themselves: pure functions of arrays.

Vectors of all clients or of a cohort's (``vectors``, ``gradients``, ``updates``) are stacks: pytrees with leaves
[S, ...]. ``weights`` are [S], non-negative, with sum 1 over what counts and 0 elsewhere (void slots); ``valid`` is
bool[S], false in void slots.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core import trees


class Moments(NamedTuple):
    """Of vectors v_i with weights p_i and mean m.

    Attributes:
      mean_square: sum p_i |v_i|^2.
      square_of_mean: |m|^2.
      variance: sum p_i |v_i - m|^2; for m = sum p_i v_i the difference of the two, without its cancellation.
    """

    mean_square: jax.Array
    square_of_mean: jax.Array
    variance: jax.Array


def moments(vectors: Any, weights: jax.Array, centre_weights: jax.Array | None = None) -> Moments:
    """Moments of a stack of vectors; ``centre_weights``, [S], are those of the mean m, None for ``weights``."""
    vectors = trees.wide(vectors)  # a mean of half precision is none of vectors that lie close together
    centre = weighted_sum(vectors, weights if centre_weights is None else centre_weights)
    around = jax.tree.map(lambda leaf, m: leaf - m[None], vectors, centre)
    return Moments(
        trees.weighted_sum(weights, squares(vectors)),
        trees.inner(centre, centre),
        trees.weighted_sum(weights, squares(around)),
    )


def dissimilarity(gradients: Any, weights: jax.Array) -> jax.Array:
    """B(x) = sqrt(sum p_i |grad F_i|^2 / |grad F|^2), at least 1 (Li et al. 2020, FedProx, Definition 3).

    1 where all gradients vanish (the client objectives agree there), inf where grad F alone does.
    """
    found = moments(gradients, weights)
    return root_ratio(found.mean_square, found.square_of_mean)


def gradient_variance(gradients: Any, weights: jax.Array, centre_weights: jax.Array | None = None) -> jax.Array:
    """sum p_i |grad F_i - grad F|^2 (Li et al. 2020, FedProx, Corollary 10 and the lower rows of Figures 2 and 6).

    ``centre_weights`` are those of grad F, None for ``weights``.
    """
    return moments(gradients, weights, centre_weights).variance


def lud(updates: Any, weights: jax.Array) -> jax.Array:
    """Local update diversity, the :func:`dissimilarity` of updates (Zeng et al. 2025, FedAWARE, Definition 4.1).

    sqrt(sum l_i |g_i|^2 / |sum l_i g_i|^2), l_i the objective's weights. Updates may have either sign.
    """
    return dissimilarity(updates, weights)


def e_lud(updates: Any, valid: jax.Array) -> jax.Array:
    """Empirical LUD: that of the cohort with weights 1/|S| (FedAWARE, section 5, metrics)."""
    return lud(updates, normalised(valid.astype(jnp.result_type(float))))


def consensus(updates: Any, weights: jax.Array) -> jax.Array:
    """Client consensus rho = |sum l_i g_i|^2, l_i the objective's weights (FedAWARE, Property 4.1)."""
    return moments(updates, weights).square_of_mean


def cosine_matrix(updates: Any, valid: jax.Array) -> jax.Array:
    """cos(g_i, g_j), [S, S]; rows and columns of void slots, and of updates that vanish, are 0."""
    units = _units(updates, valid)
    products = jax.tree.map(lambda leaf: trees.matmul(_rows(leaf), _rows(leaf).T), units)
    return jax.tree.reduce(jnp.add, products)


def coherence(updates: Any, valid: jax.Array) -> jax.Array:
    """Client coherence: the sum of cos(g_i, g_j) over the pairs i < j of the cohort, in O(S d).

    |sum u_i|^2 = sum |u_i|^2 + 2 sum_{i<j} <u_i, u_j> for unit vectors u_i (FedAWARE, appendix B.2).
    """
    units = _units(updates, valid)
    total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), units)
    return (trees.inner(total, total) - trees.inner(units, units)) / 2


def quantiles(values: jax.Array, valid: jax.Array, levels: jax.Array) -> jax.Array:
    """Quantiles [Q] of the valid entries of ``values``, [S]; 0 where nothing is valid, NaN where one of them is.

    They are linear between order statistics; ``levels``, [Q], are in [0, 1].
    """
    ordered = jnp.sort(jnp.where(valid, values, jnp.full_like(values, jnp.inf)))
    last = jnp.maximum(jnp.sum(valid, dtype=jnp.int32) - 1, 0)
    place = trees.as_dtype(levels, values) * last.astype(values.dtype)
    low = jnp.floor(place).astype(jnp.int32)
    part = place - low.astype(values.dtype)
    below, above = ordered[low], ordered[jnp.minimum(low + 1, last)]
    found = jnp.where(jnp.any(valid), below + part * (above - below), jnp.zeros_like(place))
    return jnp.where(jnp.any(valid & jnp.isnan(values)), jnp.full_like(found, jnp.nan), found)


def deviation(values: jax.Array) -> jax.Array:
    """Standard deviation of all of them, with derivative zero (not NaN) where they are equal."""
    return trees.norm(values - jnp.mean(values)) / values.size**0.5


def gini(values: jax.Array) -> jax.Array:
    """Gini coefficient sum_ij |v_i - v_j| / (2 N sum v_i): 0 for equal values; 0 where their sum is 0."""
    count = values.size
    ranks = jnp.arange(1, count + 1, dtype=values.dtype) * 2 - (count + 1)
    ordered = jnp.sort(values)  # less the smallest, which the ranks leave out: what all have would be round-off
    return quotient(trees.inner(ranks, ordered - ordered[0]), count * jnp.sum(values))


def jain(values: jax.Array) -> jax.Array:
    """Jain's fairness index (sum v_i)^2 / (N sum v_i^2): 1 for equal values (zeros too), 1/N at the other end."""
    squared = jnp.sum(jnp.square(values))
    index = quotient(jnp.square(jnp.sum(values)), values.size * squared)
    return jnp.where(squared == 0, jnp.ones_like(squared), index)


def chi_square(p: jax.Array, w: jax.Array) -> jax.Array:
    """chi^2(p || w) = sum (p_i - w_i)^2 / w_i (Wang et al. 2020, Theorem 2); inf where w_i = 0 < p_i.

    p are the weights of the objective and w those of the surrogate, [S]. Slots in which both are 0 count nothing.
    """
    missing = (w == 0) & (p != 0)
    terms = quotient(jnp.square(p - w), w)
    return jnp.where(jnp.any(missing), jnp.full_like(terms[0], jnp.inf), jnp.sum(terms))


def relative_variance(w: jax.Array, accumulation: jax.Array, effective_steps: jax.Array) -> jax.Array:
    """A = m tau_eff sum w_i^2 |a_i|_2^2 / |a_i|_1^2 (Wang et al. 2020, eq. 10).

    |a_i|_1 is taken as sum_k a_ik, its value for a_i >= 0, which the paper supposes: w_i is the weight of
    G_i a_i / sum_k a_ik in the server's step whatever the signs. m counts the clients that took a step.

    Args:
      w: [S], weights of the surrogate.
      accumulation: a_i, [S, most].
      effective_steps: tau_eff.
    """
    square, one = jnp.sum(jnp.square(accumulation), axis=1), jnp.sum(accumulation, axis=1)
    clients = jnp.sum(square > 0, dtype=jnp.int32).astype(w.dtype)
    terms = jnp.square(w) * trees.as_dtype(quotient(square, jnp.square(one)), w)
    return clients * trees.as_dtype(effective_steps, w) * jnp.sum(terms)


def root_ratio(above: jax.Array, below: jax.Array) -> jax.Array:
    """sqrt(above / below) of non-negative numbers; 1 for 0/0, inf where ``below`` alone is 0."""
    none, vanishes = above == 0, below == 0  # NaN is neither, and stays
    ratio = jnp.where(none, jnp.ones_like(above), above) / jnp.where(vanishes, 1, below)
    root = jnp.where(none & ~vanishes, jnp.zeros_like(ratio), jnp.sqrt(ratio))
    return jnp.where(vanishes & (above > 0), jnp.full_like(above, jnp.inf), root)


def normalised(weights: jax.Array) -> jax.Array:
    """``weights`` over their sum; as they are where that is 0."""
    return quotient(weights, jnp.sum(weights))


def mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """The mean of ``values`` by ``weights``; 0 where these are."""
    return trees.inner(normalised(weights), values)


def relative(values: jax.Array, weights: jax.Array) -> jax.Array:
    """``values`` over their mean by ``weights``; 1 where that is 0."""
    middle = mean(values, weights)
    return jnp.where(middle == 0, jnp.ones_like(values), quotient(values, middle))


def weighted_sum(vectors: Any, weights: jax.Array) -> Any:
    """sum p_i v_i of a stack."""
    return trees.weighted_sum(weights, vectors)


def squares(vectors: Any) -> jax.Array:
    """|v_i|^2 of a stack, [S]."""
    parts = jax.tree.map(lambda leaf: jnp.sum(jnp.square(_rows(leaf)), axis=1), vectors)
    return jax.tree.reduce(jnp.add, parts)


def _units(vectors: Any, valid: jax.Array) -> Any:
    """v_i / |v_i| where that is defined, else 0; leaves [S, d]."""
    square = squares(vectors)
    real = valid & (square > 0)
    factor = jnp.where(real, 1 / jnp.sqrt(jnp.where(real, square, jnp.ones_like(square))), jnp.zeros_like(square))
    return jax.tree.map(lambda rows: rows * trees.as_dtype(factor, rows)[:, None], jax.tree.map(_rows, vectors))


def _rows(leaf: jax.Array) -> jax.Array:
    return trees.wide(leaf.reshape(leaf.shape[0], -1))  # for squares, as trees.inner


def quotient(above: jax.Array, below: jax.Array) -> jax.Array:
    """above / below, and 0 where below is 0."""
    zero = below == 0
    return jnp.where(zero, jnp.zeros_like(above), above / jnp.where(zero, jnp.ones_like(below), below))
