"""Passes over all examples: the mean of every value, and its sum for every client.

Examples are read in their flat order, without padding, as many at a time as memory allows. The same steps run inside
a compiled program, over data on the device, and from outside, over blocks that the host sends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.chunks import rows_within
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.prefetch import prefetched
from fedjax_sim.task import Task

_ROWS = 8192  # rows a step at most: keeps a matrix unit busy

Sums = dict[str, jax.Array]


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
    """Objective F and mean metrics over the flat data: ``{"loss": F(params), ...}``.

    Args:
      task: what is learned.
      params: parameters.
      dataset: training or test examples; F weights every example alike (sum_i p_i F_i).
    """
    return _as_means(task, params, _scanned(_add_to_total, task, params, dataset), dataset.num_examples)


@jax.jit
def client_sums(task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    """Sums of the values of every client's examples, {name: [N]} in storage order; the loss without the penalty."""
    return _scanned(_add_to_clients, task, params, dataset)


def streamed_mean_values(task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    """:func:`mean_values` of several models in one pass over data on the host."""
    sums = _streamed(_add_to_total, task, models, dataset)
    return [_as_means(task, params, of, dataset.num_examples) for params, of in zip(models, sums, strict=True)]


def streamed_client_sums(task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    """:func:`client_sums` of several models in one pass over data on the host."""
    return _streamed(_add_to_clients, task, models, dataset)


def example_owners(dataset: FederatedDataset) -> jax.Array:
    """int32[n], the storage position of the client that holds each example."""
    positions = jnp.arange(dataset.num_clients, dtype=jnp.int32)
    return jnp.repeat(positions, dataset.sizes, total_repeat_length=dataset.num_examples)


Add = Callable[[Task, Any, Sums, Block], Sums]


def _add_to_total(task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    return {name: sums[name] + jnp.sum(value) for name, value in _values(task, params, block).items()}


def _add_to_clients(task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    return {name: sums[name].at[block.owners].add(value) for name, value in _values(task, params, block).items()}


def _values(task: Task, params: Any, block: Block) -> Sums:
    values = task.values(params, block.examples, block.weights)
    return {name: jnp.where(block.fresh, value, jnp.zeros_like(value)) for name, value in values.items()}


def _scanned(add: Add, task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    n = dataset.num_examples
    rows = _rows_at_once(task, params, dataset.examples, n)
    owners = example_owners(dataset) if add is _add_to_clients else None

    @jax.checkpoint
    def step(task: Task, params: Any, dataset: FederatedDataset, sums: Sums, first: jax.Array) -> Sums:
        start = jnp.minimum(first, n - rows)

        def cut(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, start, rows)

        fresh = start + jnp.arange(rows, dtype=jnp.int32) >= first
        examples, weights, of = jax.tree.map(cut, (dataset.examples, dataset.example_weights, owners))
        return add(task, params, sums, Block(examples, weights, fresh, of))

    empty = _empty(add, task, params, dataset)
    if rows == n:
        return step(task, params, dataset, empty, jnp.int32(0))  # type: ignore[no-any-return]
    firsts = jnp.arange(0, n, rows, dtype=jnp.int32)
    return lax.scan(lambda sums, first: (step(task, params, dataset, sums, first), None), empty, firsts)[0]


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

    sums = [_empty(add, task, params, dataset.frame) for params in models]
    for sent in prefetched(block, len(firsts)):
        sums = [_jitted(add, task, params, of, sent) for params, of in zip(models, sums, strict=True)]
    return sums


@functools.partial(jax.jit, static_argnums=0)
def _jitted(add: Add, task: Task, params: Any, sums: Sums, block: Block) -> Sums:
    return add(task, params, sums, block)


def _rows_at_once(task: Task, params: Any, examples: Any, n: int) -> int:
    return rows_within(task.values, params, examples, most=min(n, _ROWS))


def _empty(add: Add, task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), dataset.examples)
    shapes = jax.eval_shape(task.values, params, one)
    shape = (dataset.num_clients,) if add is _add_to_clients else ()
    return {name: jnp.zeros(shape, value.dtype) for name, value in shapes.items()}


def _as_means(task: Task, params: Any, sums: Sums, n: int) -> Sums:
    return task.with_penalty(params, {name: total / n for name, total in sums.items()})
