"""What models say of all examples, kept example by example, and the scores that a task makes of that."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.devices import rows_within
from fedjax_sim.core.loops import bounded_loop
from fedjax_sim.datasets.federated import FederatedDataset, whole
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.models.passes import ROWS, ROWS_OF_ONE, Clients, Sums, example_owners, mean_values, streamed_mean_values
from fedjax_sim.models.task import Task


class Scores(NamedTuple):
    """What a task's scores are, by name.

    Attributes:
      overall: of all examples together, scalars.
      clients: of every client's examples, float[N] in storage order; NaN where it is not defined.
      defined: bool[N], where the client's labels allow a score.
    """

    overall: Sums
    clients: Sums
    defined: Sums


def scores(task: Task, params: Any, dataset: FederatedDataset | HostDataset) -> Scores:
    """The task's scores at one model; nothing where it has none."""
    if not task.scores:
        return Scores({}, {}, {})
    if isinstance(dataset, HostDataset):
        return _scored(task, *_streamed(task, params, dataset), dataset.frame)  # type: ignore[no-any-return]
    data = whole(dataset)
    return _scored(task, _said(task, params, data), task.labels(data.examples), data)  # type: ignore[no-any-return]


def overall_values(task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    """Objective, mean metrics and scores of all examples by name."""
    return {**mean_values(task, params, dataset), **scores(task, params, dataset).overall}


def streamed_overall_values(task: Task, models: list[Any], dataset: HostDataset) -> list[Sums]:
    """:func:`overall_values` of several models on data on the host."""
    means = streamed_mean_values(task, models, dataset)
    return [of | scores(task, params, dataset).overall for of, params in zip(means, models, strict=True)]


def personal_scores(task: Task, clients: Clients, dataset: FederatedDataset | HostDataset) -> Sums:
    """The task's scores of every client at its own model, {name: [N]} in storage order."""
    if not task.scores:
        return {}
    if isinstance(dataset, HostDataset):
        raise ValueError(
            "the scores of clients' own models need their test examples on the device, and this data set is on the "
            "host: use dataset.on_device(), or a task without scores"
        )
    data = whole(dataset)

    def add(index: jax.Array, found: jax.Array) -> jax.Array:
        return said_of_client(task, data, clients.personal(index), index, found, data.offsets[data.order[index]])

    some = jax.eval_shape(clients.personal, jnp.int32(0))
    found = lax.fori_loop(jnp.int32(0), jnp.int32(data.num_clients), add, nothing_said(task, some, data))
    return _scored(task, found, task.labels(data.examples), data).clients  # type: ignore[no-any-return]


def tuned_scores(task: Task, said: jax.Array, valid: jax.Array, before: Sums, dataset: FederatedDataset) -> Sums:
    """The same from what each client's model says, [N, max_size, C] by client index; ``before`` of who is not valid."""
    data = whole(dataset)
    owners = example_owners(data)
    index = jnp.zeros_like(data.order).at[data.order].set(jnp.arange(data.num_clients, dtype=data.order.dtype))
    rows = jnp.arange(data.num_examples, dtype=jnp.int32) - data.offsets[owners]
    found = _scored(task, said[index[owners], rows], task.labels(data.examples), data).clients
    return {name: jnp.where(valid[index], value, before[name]) for name, value in found.items()}


def nothing_said(task: Task, params: Any, data: FederatedDataset, rows: int | None = None) -> jax.Array:
    """Zeros for what the task's model says of this many examples (None: of all), [rows, ..., C]."""
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), data.examples)
    like = jax.eval_shape(_probabilities, task, params, some)
    return jnp.zeros((data.num_examples if rows is None else rows, *like.shape[1:]), like.dtype)


def said_of_client(
    task: Task, data: FederatedDataset, params: Any, index: jax.Array, into: jax.Array, at: jax.Array | int = 0
) -> jax.Array:
    """``into`` with what the client's model says of its examples, in the rows that begin with ``at``."""
    position = data.order.at[index].get(mode="clip")
    size = data.sizes[position]
    rows = rows_within(task.outputs, params, data.examples, most=min(data.max_size, ROWS_OF_ONE))

    def add(k: jax.Array, given: Any, into: jax.Array) -> jax.Array:
        task, data, params, offset, size, at = given
        row = k * rows + jnp.arange(rows, dtype=jnp.int32)
        said = _probabilities(
            task, params, jax.tree.map(lambda leaf: leaf.at[offset + row].get(mode="clip"), data.examples)
        )
        return into.at[jnp.where(row < size, at + row, len(into))].set(said, mode="drop")

    loop = bounded_loop(add, -(-data.max_size // rows))
    return loop(-(-size // rows), (task, data, params, data.offsets[position], size, jnp.int32(at)), into)  # type: ignore[no-any-return]


def _said(task: Task, params: Any, data: FederatedDataset) -> jax.Array:
    """What one model says of all examples, in the flat order."""
    n = data.num_examples
    rows = rows_within(task.outputs, params, data.examples, most=min(n, ROWS))

    def block(found: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
        start = jnp.minimum(first, n - rows)  # moved back to stay inside the data

        def cut(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, start, rows)

        said = _probabilities(task, params, jax.tree.map(cut, data.examples))
        return lax.dynamic_update_slice_in_dim(found, said, start, 0), None

    return lax.scan(block, nothing_said(task, params, data), jnp.arange(0, n, rows, dtype=jnp.int32))[0]


def _streamed(task: Task, params: Any, dataset: HostDataset) -> tuple[jax.Array, jax.Array]:
    """What one model says of all examples on the host, block by block, and their labels."""
    n = dataset.num_examples
    rows = rows_within(task.outputs, params, dataset.frame.examples, most=min(n, ROWS))
    said, labels = [], []
    for first in range(0, n, rows):
        block = dataset.take(np.arange(first, min(first + rows, n)), rows)
        said.append(np.asarray(_jitted(task, params, block)))
        labels.append(np.asarray(task.labels(block)))
    return jnp.asarray(np.concatenate(said)[:n]), jnp.asarray(np.concatenate(labels)[:n])


def _probabilities(task: Task, params: Any, examples: Any) -> jax.Array:
    said = task.probabilities(task.outputs(params, examples))
    return said if jnp.finfo(said.dtype).bits >= 32 else said.astype(jnp.float32)


_jitted = jax.jit(_probabilities)


@jax.jit
def _scored(task: Task, said: jax.Array, labels: jax.Array, data: FederatedDataset) -> Scores:
    """The scores from what is said of each example in the flat order; labels may have axes of their own."""
    classes = said.shape[-1]
    owners = jnp.repeat(example_owners(data), labels.size // len(labels), total_repeat_length=labels.size)
    p, y = said.reshape(-1, classes), labels.reshape(-1).astype(jnp.int32)
    found = Scores({}, {}, {})
    for score in task.scores:
        found.overall[score.name] = score.of_groups(p, y, jnp.zeros_like(owners), 1)[0]
        found.clients[score.name] = score.of_groups(p, y, owners, data.num_clients)
        found.defined[score.name] = score.defined(y, classes, owners, data.num_clients)
    return found
