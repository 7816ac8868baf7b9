"""Passes over all examples: the mean of every value, and its sum for every client.

Examples are read in their flat order, without padding, as many at a time as memory allows. The same steps run inside
a compiled program, over data on the device (or shared by several, each of which reads a part), and from outside, over
blocks that the host sends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.memory import rows_within
from fedjax_sim.core.prefetch import prefetched
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import CLIENTS, EVERYWHERE, SHARED_OUT, padded
from fedjax_sim.models.task import Task

_ROWS = 8192  # rows a step at most: keeps a matrix unit busy

Sums = dict[str, jax.Array]


class Columns(NamedTuple):
    """What is read row by row: the first three fields of a :class:`Block`, for all rows at hand."""

    examples: Any
    weights: Any
    owners: Any


class Block(NamedTuple):
    """Consecutive examples.

    Attributes:
      examples: leaves [rows, ...].
      weights: [rows] example weights, or None.
      fresh: bool[rows], false for rows that came before: the last block is moved back to stay inside the data.
      owners: int32[rows], storage positions of their clients, or None in a pass that does not ask.
    """

    examples: Any
    weights: Any
    fresh: Any
    owners: Any


@jax.jit
def mean_values(task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    """Objective F and mean metrics over the flat data: ``{"loss": F(params), ...}``; see ``Task.with_penalty``.

    Args:
      task: what is learned.
      params: parameters.
      dataset: training or test examples; F weights every example alike (sum_i p_i F_i).
    """
    return _as_means(task, params, _scanned(add_to_total, task, params, dataset), dataset.num_examples)


@jax.jit
def client_sums(task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    """Sums of the values of every client's examples, {name: [N]} in storage order; the loss without the penalty."""
    return _scanned(_add_to_clients, task, params, dataset)


def streamed_mean_values(task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    """:func:`mean_values` of several models in one pass over data on the host."""
    sums = _streamed(add_to_total, task, models, dataset)
    return [_as_means(task, params, of, dataset.num_examples) for params, of in zip(models, sums, strict=True)]


def streamed_client_sums(task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    """:func:`client_sums` of several models in one pass over data on the host."""
    return _streamed(_add_to_clients, task, models, dataset)


def example_owners(dataset: FederatedDataset) -> jax.Array:
    """int32[n], the storage position of the client that holds each example."""
    positions = jnp.arange(dataset.num_clients, dtype=jnp.int32)
    return jnp.repeat(positions, dataset.sizes, total_repeat_length=dataset.num_examples)


Add = Callable[[Task, Any, Sums, Block], Sums]


def add_to_total(task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    """The sums by name, with those of the block's values."""
    return {name: sums[name] + jnp.sum(value) for name, value in _values(task, params, block).items()}


def _add_to_clients(task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    return {name: sums[name].at[block.owners].add(value) for name, value in _values(task, params, block).items()}


def _values(task: Task, params: Any, block: Block) -> Sums:
    values = task.values(params, block.examples, block.weights)
    return {name: jnp.where(block.fresh, value, jnp.zeros_like(value)) for name, value in values.items()}


def _scanned(add: Add, task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    owners = example_owners(dataset) if add is _add_to_clients else None
    columns = Columns(dataset.examples, dataset.example_weights, owners)
    n, placement = dataset.num_examples, dataset.placement
    if placement is None:
        return _pass_over(add, task, params, columns, jnp.int32(0), jnp.int32(n), n, dataset.num_clients)
    length = padded(n, placement.parts) // placement.parts
    if placement.sharded:
        # The rows of the padding are there already; what goes with them is made as long.
        extra = length * placement.parts - n
        columns = columns._replace(
            weights=jax.tree.map(lambda leaf: jnp.pad(leaf, (0, extra)), columns.weights),
            owners=jax.tree.map(lambda leaf: jnp.pad(leaf, (0, extra)), columns.owners),
        )

    def part(task: Task, params: Any, columns: Columns) -> Sums:
        begin = lax.axis_index(CLIENTS).astype(jnp.int32) * length
        start = jnp.int32(0) if placement.sharded else jnp.minimum(begin, n)
        end = start + jnp.clip(n - begin, 0, length)
        sums = _pass_over(add, task, params, columns, start, end, length, dataset.num_clients)
        return jax.tree.map(lambda total: lax.psum(total, CLIENTS), sums)  # type: ignore[no-any-return]

    rows = SHARED_OUT if placement.sharded else EVERYWHERE
    return placement.map(part, (EVERYWHERE, EVERYWHERE, rows), EVERYWHERE)(task, params, columns)  # type: ignore[no-any-return]


def _pass_over(
    add: Add, task: Task, params: Any, columns: Columns, begin: jax.Array, end: jax.Array, length: int, num_clients: int
) -> Sums:
    """The sums over the rows ``begin`` to ``end - 1`` of the columns, at most ``length``."""
    present = jax.tree.leaves(columns.examples)[0].shape[0]
    rows = _rows_at_once(task, params, columns.examples, length)

    @jax.checkpoint
    def step(task: Task, params: Any, columns: Columns, sums: Sums, first: jax.Array, end: jax.Array) -> Sums:
        start = jnp.minimum(first, present - rows)

        def cut(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, start, rows)

        places = start + jnp.arange(rows, dtype=jnp.int32)
        examples, weights, owners = jax.tree.map(cut, columns)
        return add(task, params, sums, Block(examples, weights, (places >= first) & (places < end), owners))

    empty = _empty(add, task, params, columns.examples, num_clients)
    if rows == length:
        return step(task, params, columns, empty, begin, end)  # type: ignore[no-any-return]
    firsts = begin + jnp.arange(0, length, rows, dtype=jnp.int32)
    return lax.scan(lambda sums, first: (step(task, params, columns, sums, first, end), None), empty, firsts)[0]


def _streamed(add: Add, task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    rows = _rows_at_once(task, models[0], dataset.frame.examples, dataset.num_examples)
    ends = np.cumsum(np.asarray(dataset.sizes))
    firsts = range(0, dataset.num_examples, rows)

    def block(number: int) -> Block:
        first = firsts[number]
        start = min(first, dataset.num_examples - rows)
        where = np.arange(start, start + rows)
        owners = np.searchsorted(ends, where, side="right").astype(np.int32) if add is _add_to_clients else None
        weights = None if dataset.example_weights is None else dataset.example_weights[where]
        return jax.device_put(Block(dataset.take(where), weights, where >= first, owners))  # type: ignore[no-any-return]

    sums = [_empty(add, task, params, dataset.frame.examples, dataset.num_clients) for params in models]
    for sent in prefetched(block, len(firsts)):
        sums = [_jitted(add, task, params, of, sent) for params, of in zip(models, sums, strict=True)]
    return sums


@functools.partial(jax.jit, static_argnums=0)
def _jitted(add: Add, task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    return add(task, params, sums, block)


def _rows_at_once(task: Task, params: Any, examples: Any, n: int) -> int:
    return rows_within(task.values, params, examples, most=min(n, _ROWS))


def _empty(add: Add, task: Task, params: Any, examples: Any, num_clients: int) -> Sums:
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), examples)
    shapes = jax.eval_shape(task.values, params, one)
    shape = (num_clients,) if add is _add_to_clients else ()
    return {name: jnp.zeros(shape, value.dtype) for name, value in shapes.items()}


def _as_means(task: Task, params: Any, sums: Sums, n: int) -> Sums:
    return task.with_penalty(params, {name: total / n for name, total in sums.items()})
