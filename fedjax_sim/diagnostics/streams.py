"""Exact losses, gradients and curvatures of very many clients in the memory of one.

Clients are read piece after piece, in one flat order, while what is needed of each is folded into sums at its last
piece: the clients' gradients never exist side by side. All loops have a static bound, and so a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_sim.clients.local.batches import batches_in, consecutive, fetch
from fedjax_sim.core import sampling, trees
from fedjax_sim.core.devices import check_not_summed
from fedjax_sim.core.loops import Read, bounded_loop, sorted_places
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.measures import Moments, root_ratio
from fedjax_sim.models.passes import example_owners
from fedjax_sim.models.task import Batch, Task
from fedjax_sim.optim import third_party

_GRADIENT_ROWS = 512  # rows per gradient: bounds the memory of the backward pass, also of convolutional models

OfBatch = Callable[[Any, Batch], Any]


class Piece(NamedTuple):
    """Some consecutive examples of one client."""

    slot: jax.Array  # int32, the client's place in the list that is read
    batch: Batch  # the examples
    part: jax.Array  # share of the client's examples, count / n_i
    last: jax.Array  # whether it is the client's last piece


def read_clients(
    body: Callable[[Any, Piece, Any], Any],
    constants: Any,
    carry: Any,
    dataset: FederatedDataset,
    positions: jax.Array,
    valid: jax.Array,
) -> Any:
    """``carry = body(constants, piece, carry)`` for every piece of every listed client, client after client.

    It takes as many turns as there are pieces; its derivative runs a static bound. ``constants`` is all else that
    ``body`` reads and that may carry a derivative; ``positions``, int32[S], are storage positions, of which those are
    read that are ``valid``, bool[S]: they must be distinct.
    """
    check_not_summed("the diagnostic", (constants, dataset))
    slots = min(len(positions), dataset.num_clients)
    rows = min(_GRADIENT_ROWS, dataset.max_size, max(16, -(-dataset.num_examples // dataset.num_clients)))
    bound = (dataset.largest_total(slots) + slots * (rows - 1)) // rows
    pieces = jnp.where(valid, batches_in(dataset.sizes[positions], rows), 0)
    ends = jnp.cumsum(pieces, dtype=jnp.int32)

    def step(k: jax.Array, constants: Any, carry: Any) -> Any:
        given, dataset, positions, ends = constants
        slot = jnp.minimum(sorted_places(ends, k, side="right"), len(positions) - 1)
        size = dataset.sizes[positions[slot]]
        of_client = batches_in(size, rows)
        number = jnp.minimum(k - (ends[slot] - of_client), of_client - 1)  # beyond the end: what is not folded in
        where = consecutive(size, jnp.maximum(number, 0), rows)
        sharded = dataset.placement is not None and dataset.placement.sharded
        serial = jax.default_backend() == "cpu" and not sharded
        batch = fetch(dataset, dataset.offsets[positions[slot]], size, where, serial=serial)
        dtype = batch.weights.dtype
        piece = Piece(slot, batch, batch.count.astype(dtype) / size.astype(dtype), number == of_client - 1)
        return trees.select(k < ends[-1], body(given.value, piece, carry), carry)

    loop = bounded_loop(jax.checkpoint(step), bound)
    return loop(ends[-1], (Read.of(constants), dataset, positions, ends), carry)


def _nothing(params: Any) -> Any:
    """Where the sum of a client's gradients begins, in single precision at least."""
    return trees.wide(trees.zeros_like(params))


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
    weights = dataset.shares if weights is None else weights
    centre_weights = weights if centre_weights is None else centre_weights

    def of_batch(params: Any, batch: Batch) -> Any:
        return jax.grad(task.batch_loss)(params, batch)

    centre = mean_over_examples(of_batch, params, dataset, centre_weights)
    zero = jnp.zeros_like(trees.inner(centre, centre))

    def body(given: Any, piece: Piece, carry: Any) -> Any:
        task, params, centre, weights = given
        gradient, mean_square, variance = carry
        new = trees.wide(jax.grad(task.batch_loss)(params, piece.batch))
        gradient = trees.add_scaled(gradient, piece.part, new)
        around = trees.subtract(gradient, centre)
        weight = jnp.where(piece.last, weights[piece.slot], 0).astype(zero.dtype)
        mean_square = mean_square + weight * trees.inner(gradient, gradient)
        variance = variance + weight * trees.inner(around, around)
        return trees.scale(jnp.where(piece.last, 0, 1), gradient), mean_square, variance

    carry = (_nothing(params), zero, zero)
    _, mean_square, variance = read_clients(body, (task, params, centre, weights), carry, dataset, *everyone(dataset))
    return Moments(mean_square, trees.inner(centre, centre), variance)


def mean_over_examples(of: OfBatch, params: Any, dataset: FederatedDataset, weights: jax.Array | None = None) -> Any:
    """sum_i w_i times the full-data value of a client, as one pass over the flat data, in single precision at least.

    ``of(params, batch)`` must be linear in the batch's mean (a gradient of its loss, penalty included); ``weights`` w_i
    are [N] in storage order, with sum 1, or None for p_i.
    """
    n, rows = dataset.num_examples, min(dataset.num_examples, _GRADIENT_ROWS)
    relative = None if weights is None else trees.as_dtype(weights, dataset.shares) / dataset.shares
    owners = example_owners(dataset)

    def of_slice(params: Any, first: jax.Array) -> Any:
        start = jnp.minimum(first, n - rows)  # moved back to stay inside; rows already counted weigh nothing
        absolute = start + jnp.arange(rows, dtype=jnp.int32)
        fresh, factors = absolute >= first, jnp.ones((rows,), jnp.result_type(float))
        if dataset.example_weights is not None:
            factors = lax.dynamic_slice_in_dim(dataset.example_weights, start, rows)
        if relative is not None:
            factors = factors * trees.as_dtype(relative, factors)[owners[absolute]]
        factors = jnp.where(fresh, factors, jnp.zeros_like(factors))
        examples = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows), dataset.examples)
        count = jnp.sum(fresh, dtype=jnp.int32)
        value = trees.wide(of(params, Batch(examples, factors, count)))
        return trees.scale(count.astype(jnp.result_type(float)) / n, value)

    def step(total: Any, first: jax.Array) -> tuple[Any, None]:
        return trees.add(total, jax.checkpoint(of_slice)(read.value, first)), None

    if rows == n:
        return of_slice(params, jnp.int32(0))
    empty, read = trees.zeros_like(jax.eval_shape(of_slice, params, jnp.int32(0))), Read.of(params)
    return lax.scan(step, empty, jnp.arange(0, n, rows, dtype=jnp.int32))[0]


def cohort_losses(
    task: Task, dataset: FederatedDataset, params: Any, indices: jax.Array, valid: jax.Array
) -> jax.Array:
    """F_i(x) of the clients with these indices, [S]; 0 where not ``valid``."""
    positions = dataset.order.at[indices].get(mode="clip")

    def body(given: Any, piece: Piece, losses: jax.Array) -> jax.Array:
        task, params = given
        loss = task.batch_loss(params, piece.batch)
        return losses.at[piece.slot].add((loss * piece.part.astype(loss.dtype)).astype(losses.dtype))

    losses = jnp.zeros((len(positions),), jnp.result_type(float))
    return read_clients(body, (task, params), losses, dataset, positions, valid)


def client_inexactness(
    task: Task, dataset: FederatedDataset, params: Any, updates: Any, client: Any, mu: Any = 0.0
) -> jax.Array:
    """gamma_i of every client of a cohort at x = ``params`` with ``updates`` y_i - x, [S]; 0 in void slots."""
    slots = len(client.steps)
    valid = client.steps > 0
    positions = dataset.order.at[client.index].get(mode="clip")
    scale = jnp.ones((slots,), jnp.result_type(float)) if client.scale is None else client.scale
    zero = jnp.zeros_like(trees.inner(params, params))

    def body(given: Any, piece: Piece, carry: Any) -> Any:
        task, params, updates, scale, mu = given
        at_start, at_end, starts, ends = carry
        update = jax.tree.map(lambda leaf: leaf[piece.slot], updates)
        part = piece.part * scale[piece.slot].astype(piece.part.dtype)

        def gradient(x: Any) -> Any:
            return trees.wide(jax.grad(task.batch_loss)(x, piece.batch))

        at_start = trees.add_scaled(at_start, part, gradient(params))
        at_end = trees.add_scaled(at_end, part, gradient(trees.add(params, update)))
        solved = trees.add_scaled(at_end, mu, trees.wide(update))
        starts = starts.at[piece.slot].set(trees.inner(at_start, at_start))  # the last piece has the last word
        ends = ends.at[piece.slot].set(trees.inner(solved, solved))
        rest = jnp.where(piece.last, 0, 1)
        return trees.scale(rest, at_start), trees.scale(rest, at_end), starts, ends

    none = jnp.zeros((slots,), zero.dtype)
    carry = (_nothing(params), _nothing(params), none, none)
    constants = (task, params, updates, scale, jnp.asarray(mu))
    _, _, starts, ends = read_clients(body, constants, carry, dataset, positions, valid)
    return jnp.where(ends == 0, jnp.zeros_like(ends), root_ratio(ends, starts))


def spectral_norm(apply: Callable[[jax.Array], jax.Array], start: jax.Array, iterations: int) -> jax.Array:
    """The largest |eigenvalue| of a symmetric operator, by Lanczos with full reorthogonalisation.

    A lower bound; exact when ``iterations`` reach the dimension (or the number of distinct eigenvalues). ``start``,
    [d], must not be orthogonal to the eigenvector: a random vector of any length.
    """
    dim = start.size
    steps = min(iterations, dim)
    tiny = 10 * float(jnp.finfo(start.dtype).eps)

    def step(carry: Any, k: jax.Array) -> tuple[Any, Any]:
        basis, vector, scale = carry
        basis = basis.at[k].set(vector)
        image = apply(vector)
        alpha = trees.inner(vector, image)
        for _ in range(2):  # twice is enough (Parlett): once leaves a part of the size of the round-off / beta
            image = image - trees.matmul(basis.T, trees.matmul(basis, image))
        beta = trees.norm(image)
        scale = jnp.maximum(scale, jnp.maximum(jnp.abs(alpha), beta))
        live = beta > tiny * scale  # else the space is invariant: zero rows add the eigenvalue 0 and nothing more
        beta = jnp.where(live, beta, jnp.zeros_like(beta))
        following = jnp.where(live, image / jnp.where(live, beta, jnp.ones_like(beta)), jnp.zeros_like(image))
        return (basis, following, scale), (alpha, beta)

    first = start / trees.norm(start)
    carry = (jnp.zeros((steps, dim), start.dtype), first, jnp.zeros((), start.dtype))
    _, (alphas, betas) = lax.scan(step, carry, jnp.arange(steps, dtype=jnp.int32))
    tridiagonal = jnp.diag(alphas) + jnp.diag(betas[:-1], 1) + jnp.diag(betas[:-1], -1)
    with third_party():
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(tridiagonal)))


def hessian_difference(
    task: Task, dataset: FederatedDataset, params: Any, key: jax.Array, iterations: int, num_clients: int | None
) -> jax.Array:
    """delta(x) = max_i ||hess F_i(x) - hess F(x)||, F = sum p_i F_i (Karimireddy et al. 2020, SCAFFOLD, (A2)).

    Matrix-free: clients in turn, ``iterations`` Hessian-vector products of the whole data each, O(iterations d) memory.
    """
    flat, unravel = ravel_pytree(params)
    which, noise = jax.random.split(key)
    count = dataset.num_clients if num_clients is None else num_clients
    positions = dataset.order[sampling.choose(which, dataset.num_clients, count)]
    always = jnp.ones((1,), bool)

    def product(task: Task, params: Any, batch: Batch, vector: Any) -> Any:
        return jax.jvp(lambda x: jax.grad(task.batch_loss)(x, batch), (params,), (vector,))[1]

    def body(given: Any, piece: Piece, total: Any) -> Any:
        task, params, vector = given
        return trees.add_scaled(total, piece.part, trees.wide(product(task, params, piece.batch, vector)))

    def norm_of(_: None, drawn: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        position, key = drawn

        def difference(vector: jax.Array) -> jax.Array:
            direction = unravel(vector.astype(flat.dtype))
            own = read_clients(body, (task, params, direction), _nothing(params), dataset, position[None], always)
            mean = mean_over_examples(lambda x, batch: product(task, x, batch, direction), params, dataset)
            return ravel_pytree(trees.subtract(own, mean))[0].astype(vector.dtype)

        # Of models in half precision too: orthogonal vectors and eigenvalues need more digits than products with them.
        start = jax.random.normal(key, flat.shape, trees.widest(flat, jnp.float32))
        return None, spectral_norm(difference, start, iterations)

    return jnp.max(lax.scan(norm_of, None, (positions, jax.random.split(noise, count)))[1])
