"""Exact gradients and losses of very many clients in the memory of one.

Clients are read piece after piece, in one flat order, while what is needed of each is folded into sums at its last
piece: the clients' gradients never exist side by side. All loops have a static bound, and so a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.clients.local.batches import Positions, batches_in, fetch
from fedjax_sim.core import trees
from fedjax_sim.core.loops import bounded_loop
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.measures import Moments
from fedjax_sim.models.evaluation import example_owners
from fedjax_sim.models.task import Batch, Task

_GRADIENT_ROWS = 512  # rows per gradient: bounds the memory of the backward pass, also of convolutional models

OfBatch = Callable[[Any, Batch], Any]


class Piece(NamedTuple):
    """Some consecutive examples of one client.

    Attributes:
      slot: int32, the client's place in the list that is read.
      batch: the examples.
      part: share of the client's examples, count / n_i.
      last: whether it is the client's last piece.
    """

    slot: jax.Array
    batch: Batch
    part: jax.Array
    last: jax.Array


def read_clients(
    body: Callable[[Any, Piece, Any], Any],
    constants: Any,
    carry: Any,
    dataset: FederatedDataset,
    positions: jax.Array,
    valid: jax.Array,
) -> Any:
    """``carry = body(constants, piece, carry)`` for every piece of every listed client, client after client.

    It takes as many turns as there are pieces; its derivative runs the static bound of a list of distinct clients.

    Args:
      body: folds a piece into the carry.
      constants: all else that ``body`` reads and that may carry a derivative.
      carry: pytree of arrays.
      dataset: the clients' examples.
      positions: int32[S], storage positions, distinct where ``valid``.
      valid: bool[S], which of them are read.
    """
    slots = min(len(positions), dataset.num_clients)
    rows = min(_GRADIENT_ROWS, dataset.max_size, max(16, -(-dataset.num_examples // dataset.num_clients)))
    bound = (dataset.largest_total(slots) + slots * (rows - 1)) // rows
    pieces = jnp.where(valid, batches_in(dataset.sizes[positions], rows), 0)
    ends = jnp.cumsum(pieces, dtype=jnp.int32)

    def step(k: jax.Array, constants: Any, carry: Any) -> Any:
        given, dataset, positions, ends = constants
        slot = jnp.minimum(jnp.searchsorted(ends, k, side="right").astype(jnp.int32), len(positions) - 1)
        size = dataset.sizes[positions[slot]]
        of_client = batches_in(size, rows)
        number = jnp.minimum(k - (ends[slot] - of_client), of_client - 1)  # beyond the end: what is not folded in
        place = jnp.maximum(number, 0) * rows + jnp.arange(rows, dtype=jnp.int32)
        where = Positions(place, place < size)
        batch = fetch(dataset, dataset.offsets[positions[slot]], size, where, contiguous=True)
        dtype = batch.weights.dtype
        piece = Piece(slot, batch, batch.count.astype(dtype) / size.astype(dtype), number == of_client - 1)
        return trees.select(k < ends[-1], body(given, piece, carry), carry)

    loop = bounded_loop(jax.checkpoint(step), bound)
    return loop(ends[-1], (constants, dataset, positions, ends), carry)


def everyone(dataset: FederatedDataset) -> tuple[jax.Array, jax.Array]:
    """``(positions, valid)`` of all clients, in storage order."""
    return jnp.arange(dataset.num_clients, dtype=jnp.int32), jnp.ones((dataset.num_clients,), bool)


def client_gradient_moments(
    task: Task,
    dataset: FederatedDataset,
    params: Any,
    *,
    weights: jax.Array | None = None,
    centre_weights: jax.Array | None = None,
) -> Moments:
    """Moments of the exact gradients grad F_i of all clients at one model, in O(d) memory.

    Two passes: grad F of the flat data, then client after client.

    Args:
      task: F_i, with its penalty.
      dataset: training examples, with their weights.
      params: x.
      weights: [N] in storage order, of the averages, sum 1; None for p_i = n_i / n.
      centre_weights: likewise, of grad F; None for ``weights``.
    """
    if weights is None:
        weights = dataset.shares
    centre_weights = weights if centre_weights is None else centre_weights

    def of_batch(params: Any, batch: Batch) -> Any:
        return jax.grad(task.batch_loss)(params, batch)

    centre = mean_over_examples(of_batch, params, dataset, centre_weights)
    zero = jnp.zeros_like(trees.inner(centre, centre))

    def body(given: Any, piece: Piece, carry: Any) -> Any:
        task, params, centre, weights = given
        gradient, mean_square, variance = carry
        new = jax.grad(task.batch_loss)(params, piece.batch)
        gradient = trees.add_scaled(gradient, piece.part, new)
        around = trees.subtract(gradient, centre)
        weight = jnp.where(piece.last, weights[piece.slot], 0).astype(zero.dtype)
        mean_square = mean_square + weight * trees.inner(gradient, gradient)
        variance = variance + weight * trees.inner(around, around)
        return trees.scale(jnp.where(piece.last, 0, 1), gradient), mean_square, variance

    carry = (trees.zeros_like(params), zero, zero)
    _, mean_square, variance = read_clients(body, (task, params, centre, weights), carry, dataset, *everyone(dataset))
    return Moments(mean_square, trees.inner(centre, centre), variance)


def mean_over_examples(of: OfBatch, params: Any, dataset: FederatedDataset, weights: jax.Array | None = None) -> Any:
    """sum_i w_i times the full-data value of a client, as one pass over the flat data.

    Args:
      of: ``of(params, batch)``: a value that is linear in the batch's mean (a gradient of its loss, penalty included).
      params: passed on.
      dataset: the examples.
      weights: w_i, [N] in storage order, sum 1; None for p_i.
    """
    n, rows = dataset.num_examples, min(dataset.num_examples, _GRADIENT_ROWS)
    relative = None
    if weights is not None:
        relative = trees.as_dtype(weights, dataset.shares) / dataset.shares
    owners = example_owners(dataset)

    def of_slice(params: Any, first: jax.Array) -> Any:
        start = jnp.minimum(first, n - rows)  # moved back to stay inside; rows already counted weigh nothing
        absolute = start + jnp.arange(rows, dtype=jnp.int32)
        fresh = absolute >= first
        factors = jnp.ones((rows,), jnp.result_type(float))
        if dataset.example_weights is not None:
            factors = lax.dynamic_slice_in_dim(dataset.example_weights, start, rows)
        if relative is not None:
            factors = factors * trees.as_dtype(relative, factors)[owners[absolute]]
        factors = jnp.where(fresh, factors, jnp.zeros_like(factors))
        examples = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows), dataset.examples)
        count = jnp.sum(fresh, dtype=jnp.int32)
        value = of(params, Batch(examples, factors, count))
        return trees.scale(count.astype(jnp.result_type(float)) / n, value)

    def step(total: Any, first: jax.Array) -> tuple[Any, None]:
        return trees.add(total, jax.checkpoint(of_slice)(params, first)), None

    if rows == n:
        return of_slice(params, jnp.int32(0))
    empty = trees.zeros_like(jax.eval_shape(of_slice, params, jnp.int32(0)))
    return lax.scan(step, empty, jnp.arange(0, n, rows, dtype=jnp.int32))[0]
