"""A cohort of one step each as one gradient: that of the weighted loss of all examples that it sees.

Where every client takes one step from the same x, along its gradient g_i, and what it reports is a sum of multiples of
x and g_i, what the server hears of the cohort is

    sum_i (alpha_i x + a_i g_i) = (sum_i alpha_i) x + gradient in x of sum_i a_i F_i,

one pass forward and one backward over all batches side by side, without a gradient or a model for each client. The
numbers alpha_i and a_i are found by the method itself: its clients run with the *coordinates* (1, 0) in the place of x
and (0, 1) in that of their gradients, and so report (alpha_i, a_i), with their rates, momenta, proximal terms, scales
and weights in them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.clients.local.batches import InOrder
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import leaf
from fedjax_sim.core.loops import sorted_places, with_static_derivative
from fedjax_sim.core.values import shown
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, Run, left_shapes
from fedjax_sim.engine.layout.coordinates import CoordinateSolver, in_their_place, not_linear
from fedjax_sim.engine.layout.factored import Factored
from fedjax_sim.engine.layout.stacked import stacked
from fedjax_sim.engine.solver import Slot, Solver
from fedjax_sim.models.task import Batch, Task
from fedjax_sim.optim.rates import Rate

# Numbers in the examples of one pass, up to which a larger one is faster: beyond, what is in between leaves the caches.
_NUMBERS = 1 << 20


def _check_inner(what: str, value: Any) -> None:
    if not isinstance(value, Layout) or isinstance(value, (Factored, Pooled)):
        raise TypeError(f"{what} is {shown(value)}: give the layout of single clients, fedjax_sim.layout.stacked()")


class Pooled(Layout):
    """One gradient for the whole cohort, where every client takes at most one step.

    The result is that of the other layout up to round-off. It is for affine methods (FedAvg, FedProx, FedNova, the
    server optimisers on top of FedAvg, large-batch SGD) with local ``sgd``, and any model without running statistics.
    In a round in which the sum is not finite the other layout runs too, and says which clients it was. A derivative is
    the other layout's.

    Args:
      inner: the other layout, of one device.

    Raises:
      ValueError: (before a run) a method, solver, model or run of which it is not true.
    """

    inner: Layout = leaf(_check_inner, default=stacked())

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        plain: Run = functools.partial(self.inner.run, bounds=bounds)
        if not bounds.reverse or not_pooled(solver, sent, states, bounds) is not None:
            return plain(solver, sent, states, slots)

        def pooled(solver: Solver, sent: Any, states: Any, slots: Slot) -> LocalResult:
            result = _run(solver, sent, states, slots, bounds)

            def one_by_one(found: LocalResult) -> LocalResult:
                each = plain(solver, sent, states, slots)
                return each._replace(computed=found.computed + each.computed)

            def again(turn: jax.Array, found: LocalResult) -> LocalResult:
                return lax.cond(turn == 0, one_by_one, lambda found: found, found)

            # A loop, because vmap computes both sides of a choice; and a choice in it, because XLA computes before a
            # loop what is the same at all its turns.
            failed = jnp.where(trees.all_finite(result.sums), 0, 1).astype(jnp.int32)
            return lax.fori_loop(jnp.int32(0), failed, again, result)

        return with_static_derivative(pooled, plain)(solver, sent, states, slots)


def not_pooled(solver: Solver, sent: Any, states: Any, bounds: Bounds) -> str | None:
    """Why a cohort's work is not one gradient; None where it is."""
    method, batches, dataset = solver.algorithm, solver.batches, solver.dataset
    why = not_linear(solver, sent, states, surveying=True)
    if why is not None:
        return why
    pieces = batches.pieces(dataset.max_size, batches.rows(dataset)) if method.requires.steps else bounds.per_client
    if bounds.per_client > pieces:
        return f"clients may take {bounds.per_client // pieces} local steps"
    if solver.task.statistics(sent.params) is not None:
        return "the model has running statistics, which a batch moves"
    if len({one.dtype for one in jax.tree.leaves(sent.params)}) > 1:
        return "the model has parameters of several types"
    rate = method.client_learning_rate
    if not isinstance(rate, Rate) and not (jax.tree_util.all_leaves([rate]) and jnp.ndim(rate) == 0):
        return "the learning rate is not one number for all parameters"
    return None


class _Coordinates(Task):
    """A task in whose model's place are two numbers, of the start and of the gradient there."""

    def coordinates(self, params: Any) -> Any:
        """They are all that is left of the model."""
        return params

    def batch_loss(self, params: Any, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        return params[1]


def _run(solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
    params, dataset = sent.params, solver.dataset
    dtype = jax.tree.leaves(params)[0].dtype
    # Of the data nothing is read but sizes: every client has one batch.
    nothing = dataset.replace(examples=jnp.zeros((dataset.max_size,)), example_weights=None)
    in_one: Any = InOrder(batch_size=dataset.max_size)
    client = slots.client._replace(
        slope=_of_model(slots.client.slope, params), step_size=_of_model(slots.client.step_size, params)
    )
    result = stacked().run(
        CoordinateSolver(solver.algorithm, _Coordinates(), in_one, nothing, solver.watch),
        sent._replace(params=jnp.array([1, 0], dtype)), states,
        slots._replace(client=client, offset=jnp.zeros_like(slots.offset)), Bounds(1, len(slots.offset)),
    )  # fmt: skip

    def total(coordinates: jax.Array) -> Any:
        """(sum_i alpha_i) x + sum_i a_i g_i, of [S, 2]."""
        moved = _gradient(solver, params, slots, coordinates[:, 1], bounds)
        return trees.add_scaled(moved, jnp.sum(coordinates[:, 0]), params)

    # A number for each array of the model is one number here.
    result, like = in_their_place(result, total), left_shapes(solver, sent, states, slots).values
    sums = jax.tree.map(lambda one, all_: jax.tree.map(lambda _: one, all_), result.sums, like)
    return result._replace(sums=sums, computed=_computed(solver, slots, bounds))


def _gradient(solver: Solver, params: Any, slots: Slot, weights: jax.Array, bounds: Bounds) -> Any:
    """The gradient of sum_i a_i F_i in x, some micro-steps at a time, one client's after the other's."""
    slots = slots._replace(client=slots.client._replace(scale=None))  # that of F_i is in a_i
    counts, size, single = solver.micro_steps(slots), len(slots.offset), bounds.per_client == 1
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    total = jnp.int32(size) if single else ends[-1]
    most = _at_once(solver, size if single else bounds.per_cohort)

    def taken(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The slots and the numbers k of micro-steps; where clients have one at most, void slots have one too."""
        if single:
            return jnp.minimum(at, size - 1), jnp.zeros_like(at)
        slot = jnp.minimum(sorted_places(ends, at, side="right"), size - 1)
        return slot, at - (ends[slot] - counts[slot])

    def block(first: jax.Array) -> Any:
        at = first + jnp.arange(most, dtype=jnp.int32)
        slot, k = taken(at)
        own, a = jax.tree.map(lambda leaf: leaf[slot], (slots, jnp.where(counts > 0, weights, 0)))

        def weighted(params: Any) -> jax.Array:
            def one(slot: Slot, k: jax.Array) -> tuple[jax.Array, jax.Array]:
                F, part = solver.examined(slot, solver.draw(slot, k))
                return F(params), part

            losses, parts = jax.vmap(one)(own, k)
            each = trees.as_dtype(jnp.where(at < total, a, 0), losses)
            if solver.in_pieces or solver.surveying:
                each = each * trees.as_dtype(parts, losses)
            return jnp.sum(each * losses)

        return jax.grad(weighted)(params)

    if single and most == size:
        return block(jnp.int32(0))

    def add(turn: jax.Array, moved: Any) -> Any:
        return trees.add(moved, block(turn * most))

    return lax.fori_loop(jnp.int32(0), (total + most - 1) // most, add, trees.zeros_like(params))


def _computed(solver: Solver, slots: Slot, bounds: Bounds) -> jax.Array:
    """Micro-steps that the passes have."""
    size, single = len(slots.offset), bounds.per_client == 1
    total = jnp.int32(size) if single else jnp.sum(solver.micro_steps(slots), dtype=jnp.int32)
    most = _at_once(solver, size if single else bounds.per_cohort)
    return (total + most - 1) // most * most


def _at_once(solver: Solver, total: int) -> int:
    """How many of ``total`` micro-steps one pass has, all passes equally many."""
    dataset = solver.dataset
    numbers: int = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(dataset.examples))
    most: int = max(1, _NUMBERS // max(1, numbers * solver.batches.rows(dataset)))
    total = max(1, total)
    return -(-total // -(-total // most))


def _of_model(numbers: Any, params: Any) -> Any:
    """One number in the place of a tree of them like the model."""
    structure: Any = jax.tree.structure(params)
    return jax.tree.map(
        lambda tree: jax.tree.leaves(tree)[0], numbers, is_leaf=lambda tree: jax.tree.structure(tree) == structure
    )


pooled = factory("layout.pooled", Pooled)
