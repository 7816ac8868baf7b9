"""What an aggregation rule is: one vector made of S, of which some may be void and some may be anything.

A vector is a pytree; S of them are a *stack*, leaves [S, ...]. Rules are pure functions of stacks, so they work on any
stack of one's own too: ``fedjax_sim.aggregators.median().of(stack)``.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described


class Present(NamedTuple):
    """Which slots of a stack hold a vector.

    Attributes:
      valid: bool[S].
      weights: [S], 0 in void slots; they sum to 1 (to 0 where no slot is valid).
      indices: int32[S], distinct numbers of the valid vectors (their clients), by which ties are broken.
      size: int32, number of valid slots.
    """

    valid: jax.Array
    weights: jax.Array
    indices: jax.Array
    size: jax.Array


class Combined(NamedTuple):
    """What a rule makes of a stack.

    Attributes:
      value: the vector.
      state: what the rule keeps from round to round, ``()`` for nothing.
      report: numbers by name for the record of the round.
    """

    value: Any
    state: Any
    report: dict[str, jax.Array]


class Aggregator(Described):
    """Base of the rules.

    Attributes:
      weighted: whether the vectors' weights enter; the other rules count every vector once.
    """

    weighted: ClassVar[bool] = False

    def check(self, slots: int) -> None:
        """Raises ``ValueError`` where a stack of ``slots`` vectors is too small for the rule."""

    def init(self, params: Any) -> Any:
        """The rule's state before the first round, for vectors like ``params``."""
        return ()

    def unreported(self) -> dict[str, jax.Array]:
        """The report before the first round: zeros."""
        return {}

    def combine(self, stack: Any, who: Present, state: Any = ()) -> Combined:
        """The aggregate of the valid vectors, which are finite; void ones are zero.

        Args:
          stack: pytree of leaves [S, ...].
          who: which of them count.
          state: see :meth:`init`.
        """
        raise TypeError(f"{type(self).__name__} must define combine(stack, who, state)")

    def of(self, stack: Any, *, valid: Any = None, weights: Any = None) -> Any:
        """The aggregate of a stack of one's own.

        Args:
          stack: pytree of leaves [S, ...]. Vectors that are not finite are left out.
          valid: bool[S]; None for all.
          weights: non-negative numbers [S]; None for equal ones.

        Raises:
          ValueError: too few vectors for the rule.
        """
        stack = jax.tree.map(jnp.asarray, stack)
        slots = len(jax.tree.leaves(stack)[0])
        self.check(slots)
        one = jax.tree.map(lambda leaf: leaf[0], stack)
        stack, who = finite(stack, present(slots, valid, weights))
        return self.combine(stack, who, self.init(one)).value


def present(slots: int, valid: Any = None, weights: Any = None) -> Present:
    """All ``slots`` slots, or the ``valid`` ones, with equal or the given weights (normalised here)."""
    dtype = jnp.result_type(float)
    mask = jnp.ones((slots,), bool) if valid is None else jnp.asarray(valid, bool)
    mass = jnp.ones((slots,), dtype) if weights is None else jnp.asarray(weights).astype(dtype)
    return among(mask, mass, jnp.arange(slots, dtype=jnp.int32))


def among(valid: jax.Array, weights: jax.Array, indices: jax.Array) -> Present:
    """The valid slots, with weights that sum to 1."""
    weights = jnp.where(valid, weights, jnp.zeros_like(weights))
    total = jnp.sum(weights)
    weights = weights / jnp.where(total > 0, total, jnp.ones_like(total))
    return Present(valid, weights, indices, jnp.sum(valid, dtype=jnp.int32))


def finite(stack: Any, who: Present) -> tuple[Any, Present]:
    """The stack without the vectors that are not finite, which any server can tell; they become void slots of zeros."""
    slots = len(who.valid)

    def of_leaf(leaf: jax.Array) -> jax.Array:
        return jnp.all(jnp.isfinite(leaf.reshape(slots, -1)), axis=1)

    valid = who.valid & jnp.all(jnp.stack([of_leaf(leaf) for leaf in jax.tree.leaves(stack)]), axis=0)
    cleaned = jax.tree.map(lambda leaf: jnp.where(column(valid, leaf), leaf, jnp.zeros_like(leaf)), stack)
    return cleaned, among(valid, who.weights, who.indices)


def column(values: jax.Array, leaf: jax.Array) -> jax.Array:
    """``values``, [S], in the shape [S, 1, ...] of a leaf."""
    return values.reshape(-1, *[1] * (leaf.ndim - 1))


def weighted_sum(weights: jax.Array, stack: Any) -> Any:
    """sum_i weights_i v_i; a weight of 0 takes nothing."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        return jnp.sum(column(weights.astype(leaf.dtype), leaf) * leaf, axis=0)

    return jax.tree.map(of_leaf, stack)


def distances(stack: Any, vector: Any) -> jax.Array:
    """|v_i - vector| over all leaves together, [S], in the default float type; derivative 0 at 0."""
    dtype = jnp.result_type(float)

    def of_leaf(leaf: jax.Array, at: jax.Array) -> jax.Array:
        apart = (leaf - at[None]).astype(dtype)
        return jnp.sum(jnp.square(apart).reshape(len(leaf), -1), axis=1)

    squares: jax.Array = jax.tree.reduce(jnp.add, jax.tree.map(of_leaf, stack, vector))
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, jnp.ones_like(squares))), jnp.zeros_like(squares))


def number(value: Any) -> jax.Array:
    """A real number of a report."""
    return jnp.asarray(value, jnp.result_type(float))


def slots_of(stack: Any) -> int:
    """S."""
    return int(np.shape(jax.tree.leaves(stack)[0])[0])
