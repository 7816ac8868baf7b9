"""What the clients' own models are worth to them: passes in which every client has a model of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.loops import bounded_loop
from fedjax_sim.core.memory import rows_within
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import whole
from fedjax_sim.models.evaluation.passes import Block, Sums, add_to_total
from fedjax_sim.models.task import Task

_ROWS = 256  # examples of one client at a time at most: enough to keep a core busy


class Clients(NamedTuple):
    """What an evaluation may know of the clients: ``evaluate(params, dataset, clients)``.

    Clients are in the order of their ids: row i is the client stored at ``dataset.order[i]``.

    Attributes:
      method: the method.
      server: its state.
      states: what it keeps for each client, leaves [N, ...]; ``()`` for nothing.
      visited: bool[N], who has taken part in a round so far, of methods with personal models; else None.
    """

    method: Any
    server: Any
    states: Any
    visited: Any

    def personal(self, index: Any) -> Any:
        """The model that the client ``index`` would use itself."""
        return self.method.personal(self.server, jax.tree.map(lambda leaf: leaf[index], self.states))


def personal_values(task: Task, clients: Clients, dataset: FederatedDataset | HostDataset) -> Sums:
    """Mean values of every client at its own model, {name: [N]} in storage order; NaN for a client without examples.

    Args:
      task: what is learned.
      clients: whose models.
      dataset: training or test examples.
    """
    if isinstance(dataset, HostDataset):
        found, order = _streamed(task, clients, dataset), dataset.frame.order
    else:
        found, order = _mapped(task, clients, dataset), dataset.order
    return {name: jnp.zeros_like(values).at[order].set(values) for name, values in found.items()}


def values_of_client(task: Task, dataset: FederatedDataset, params: Any, index: jax.Array) -> Sums:
    """Mean values of the client ``index`` at a model of its own, scalars by name; NaN without examples."""
    position = dataset.order.at[index].get(mode="clip")
    size = dataset.sizes[position]
    rows = rows_within(task.values, params, dataset.examples, most=min(dataset.max_size, _ROWS))

    def add(k: jax.Array, given: Any, sums: Sums) -> Sums:
        task, dataset, params, offset, size = given
        first = offset + k * rows
        start = jnp.minimum(first, dataset.num_examples - rows)  # moved back to stay inside the data
        place = start + jnp.arange(rows, dtype=jnp.int32)
        mine = (place >= first) & (place < offset + size)

        def cut(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, start, rows)

        examples, weights = jax.tree.map(cut, (dataset.examples, dataset.example_weights))
        return add_to_total(task, params, sums, Block(examples, weights, mine, None))

    loop = bounded_loop(add, -(-dataset.max_size // rows))
    given = (task, dataset, params, dataset.offsets[position], size)
    sums = loop(-(-size // rows), given, _zeros(task, params, dataset.examples))
    return _means(task, params, sums, size)


def _mapped(task: Task, clients: Clients, dataset: FederatedDataset) -> Sums:
    data = whole(dataset)
    indices = jnp.arange(data.num_clients, dtype=jnp.int32)
    return lax.map(lambda index: values_of_client(task, data, clients.personal(index), index), indices)  # type: ignore[no-any-return]


def _streamed(task: Task, clients: Clients, dataset: HostDataset) -> Sums:
    sizes = np.asarray(dataset.sizes).astype(np.int64)
    offsets = np.cumsum(sizes) - sizes
    rows = min(dataset.max_size, _ROWS)
    found = []
    for index, position in enumerate(np.asarray(dataset.frame.order)):
        params = _personal(clients, np.int32(index))
        sums = _zeros(task, params, dataset.frame.examples)
        for first in range(0, sizes[position], rows):
            where = first + np.arange(rows)
            mine = where < sizes[position]
            where = offsets[position] + np.minimum(where, sizes[position] - 1)
            weights = None if dataset.example_weights is None else dataset.example_weights[where]
            sums = _added(task, params, sums, jax.device_put(Block(dataset.take(where), weights, mine, None)))
        found.append(_means(task, params, sums, jnp.int32(sizes[position])))
    return {name: jnp.stack([values[name] for values in found]) for name in found[0]}


_added = jax.jit(add_to_total)


@jax.jit
def _personal(clients: Clients, index: jax.Array) -> Any:
    return clients.personal(index)


def _zeros(task: Task, params: Any, examples: Any) -> Sums:
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), examples)
    shapes = jax.eval_shape(task.values, params, one)
    return {name: jnp.zeros((), shape.dtype) for name, shape in shapes.items()}


def _means(task: Task, params: Any, sums: Sums, size: jax.Array) -> Sums:
    means = {name: total / jnp.maximum(size, 1).astype(total.dtype) for name, total in sums.items()}
    means = task.with_penalty(params, means)
    return {name: jnp.where(size > 0, mean, jnp.full_like(mean, jnp.nan)) for name, mean in means.items()}
