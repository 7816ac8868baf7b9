"""Passes over all examples: the mean of every value, and its sum for every client, at one model or at its own.

Examples are read in their flat order, without padding, as many at a time as memory allows: inside a compiled program,
over data on the device (or shared by several, each of which reads a part), and from outside, over blocks that the host
sends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.devices import prefetched, rows_within
from fedjax_sim.core.loops import Read, bounded_loop, with_rows
from fedjax_sim.datasets.buckets import InBucket
from fedjax_sim.datasets.federated import FederatedDataset, whole
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import CLIENTS, EVERYWHERE, SHARED_OUT, padded
from fedjax_sim.models.task import Task

ROWS = 8192  # rows a step at most on a CPU: keeps a matrix unit busy
_FEWEST = 256  # rows a step at least of a data set in a bucket, where there are as many and memory for them
_BLOCKS = 16  # of all rows of a bucket: the last block that has examples is as good as full
ROWS_OF_ONE = 256  # of one client at a time: enough to keep a core busy

Sums = dict[str, jax.Array]


class Columns(NamedTuple):
    """What is read row by row."""

    examples: Any  # leaves [rows, ...]
    weights: Any  # [rows] example weights, or None
    owners: Any  # int32[rows], storage positions of their clients, or None in a pass that does not ask


class Block(NamedTuple):
    """Consecutive examples: the columns' rows, and bool[rows], which of them have not come before.

    The last block is moved back to stay inside the data.
    """

    columns: Columns
    fresh: Any


class Pass(NamedTuple):
    """What one pass over all examples finds at a model, or its sums so far.

    Attributes:
      overall: objective F and mean metrics, ``{"loss": F(params), ...}``; see ``Task.with_penalty``. F weights every
        example alike: sum_i p_i F_i.
      clients: sums of the values of every client's examples, {name: [N]} in storage order, the loss without the
        penalty; ``{}`` in a pass that does not ask for them.
    """

    overall: Sums
    clients: Sums


@functools.partial(jax.jit, static_argnames="clients")
def passed(task: Task, params: Any, dataset: FederatedDataset, *, clients: bool) -> Pass:
    """A pass over data on the device; ``clients`` asks for their sums too."""
    return _as_means(task, params, _scanned(task, params, dataset, clients), dataset.num_examples)


def streamed(task: Task, models: list[Any], dataset: HostDataset, *, clients: bool) -> list[Pass]:
    """:func:`passed` of several models in one pass over data on the host."""
    _check_host(task)
    rows = _rows_at_once(task, models[0], dataset.frame.examples, dataset.num_examples)
    ends = np.cumsum(np.asarray(dataset.sizes))
    firsts = range(0, dataset.num_examples, rows)

    def block(number: int) -> Block:
        first = firsts[number]
        start = min(first, dataset.num_examples - rows)
        where = np.arange(start, start + rows)
        owners = np.searchsorted(ends, where, side="right").astype(np.int32) if clients else None
        return jax.device_put(Block(_rows_of(dataset, where, owners), where >= first))

    number = dataset.num_clients if clients else None
    sums = [_empty(task, params, dataset.frame.examples, number) for params in models]
    for sent in prefetched(block, len(firsts)):
        sums = [_added(task, params, of, sent) for params, of in zip(models, sums, strict=True)]
    return [_as_means(task, params, of, dataset.num_examples) for params, of in zip(models, sums, strict=True)]


def mean_values(task: Task, params: Any, dataset: FederatedDataset) -> Sums:
    """Objective F and mean metrics of all examples: a pass's ``overall``."""
    return passed(task, params, dataset, clients=False).overall


def example_owners(dataset: FederatedDataset) -> jax.Array:
    """int32[rows], the storage position of the client that holds each example; of padding rows any."""
    positions = jnp.arange(dataset.num_clients, dtype=jnp.int32)
    rows = dataset.num_rows if isinstance(dataset, InBucket) else dataset.num_examples
    return jnp.repeat(positions, dataset.sizes, total_repeat_length=rows)


def cut(tree: Any, start: jax.Array, rows: int) -> Any:
    """``rows`` rows of the leaves, from ``start`` on."""
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, start, rows), tree)


def _add(task: Task, params: Any, sums: Pass, block: Block) -> Pass:
    """The sums, with those of the block's values."""
    values, owners = _values(task, params, block), block.columns.owners
    return Pass(
        {name: total + jnp.sum(values[name]) for name, total in sums.overall.items()},
        {name: with_rows(of, owners, values[name]) for name, of in sums.clients.items()},
    )


def _values(task: Task, params: Any, block: Block) -> Sums:
    columns = block.columns
    if task.joint:
        group = block.fresh.astype(jnp.int32) if columns.owners is None else columns.owners
        values = task.values(params, columns.examples, columns.weights, group)
    else:
        values = task.values(params, columns.examples, columns.weights)
    return {name: jnp.where(block.fresh, value, jnp.zeros_like(value)) for name, value in values.items()}


def _scanned(task: Task, params: Any, dataset: FederatedDataset, clients: bool) -> Pass:
    dataset = whole(dataset) if task.joint else dataset
    owners = example_owners(dataset) if task.joint or clients else None
    each = dataset.num_clients if clients else None
    columns = Columns(dataset.examples, dataset.example_weights, owners)
    n, placement = dataset.num_examples, dataset.placement
    if isinstance(dataset, InBucket):
        length, some = dataset.num_rows, dataset.num_rows // _BLOCKS
        return _pass_over(task, params, columns, jnp.int32(0), jnp.asarray(n), length, each, most=some)
    if placement is None:
        return _pass_over(task, params, columns, jnp.int32(0), jnp.int32(n), n, each)
    length = padded(n, placement.parts) // placement.parts
    if placement.sharded:
        # The rows of the padding are there already; what goes with them is made as long.
        extra = length * placement.parts - n
        beside = jax.tree.map(lambda leaf: jnp.pad(leaf, (0, extra)), (columns.weights, columns.owners))
        columns = Columns(columns.examples, *beside)

    def part(task: Task, params: Any, columns: Columns) -> Pass:
        begin = lax.axis_index(CLIENTS).astype(jnp.int32) * length
        start = jnp.int32(0) if placement.sharded else jnp.minimum(begin, n)
        end = start + jnp.clip(n - begin, 0, length)
        sums = _pass_over(task, params, columns, start, end, length, each)
        return jax.tree.map(lambda total: lax.psum(total, CLIENTS), sums)

    rows = SHARED_OUT if placement.sharded else EVERYWHERE
    return placement.map(part, (EVERYWHERE, EVERYWHERE, rows), EVERYWHERE)(task, params, columns)


def _pass_over(
    task: Task,
    params: Any,
    columns: Columns,
    begin: jax.Array,
    end: jax.Array,
    length: int,
    num_clients: int | None,
    *,
    most: int | None = None,
) -> Pass:
    """The sums over the rows ``begin`` to ``end - 1`` of the columns, at most ``length``; see :func:`_empty`.

    ``most`` rows at a time, and none beyond the end; None for all ``length`` rows, as many at a time as memory allows.
    """
    present = jax.tree.leaves(columns.examples)[0].shape[0]
    at_once = length if most is None else min(max(most, _FEWEST), length)
    rows = length if task.joint else _rows_at_once(task, params, columns.examples, at_once)

    @jax.checkpoint
    def step(task: Task, params: Any, columns: Columns, sums: Pass, first: jax.Array, end: jax.Array) -> Pass:
        start = jnp.minimum(first, present - rows)
        places = start + jnp.arange(rows, dtype=jnp.int32)
        return _add(task, params, sums, Block(cut(columns, start, rows), (places >= first) & (places < end)))

    empty = _empty(task, params, columns.examples, num_clients)
    if rows == length:
        return step(task, params, columns, empty, begin, end)
    if most is not None:
        blocks = (end - begin + rows - 1) // rows
        return lax.fori_loop(
            jnp.int32(0), blocks, lambda k, sums: step(task, params, columns, sums, begin + k * rows, end), empty
        )
    firsts, read = begin + jnp.arange(0, length, rows, dtype=jnp.int32), Read.of(params)
    return lax.scan(lambda sums, first: (step(task, read.value, columns, sums, first, end), None), empty, firsts)[0]


def _rows_of(dataset: HostDataset, where: np.ndarray, owners: np.ndarray | None = None) -> Columns:
    weights = None if dataset.example_weights is None else dataset.example_weights[where]
    return Columns(dataset.take(where), weights, owners)


_added = jax.jit(_add)


def _rows_at_once(task: Task, params: Any, examples: Any, n: int) -> int:
    return rows_within(task.values, params, examples, most=most_rows(n))


def most_rows(n: int) -> int:
    """How many of ``n`` rows a step may have where memory allows: an accelerator has steps that cost their start."""
    return min(n, ROWS) if jax.default_backend() == "cpu" else n


def _empty(task: Task, params: Any, examples: Any, num_clients: int | None = None) -> Pass:
    """Sums of nothing; None for a pass that does not ask for clients'."""
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), examples)
    dtypes = {name: value.dtype for name, value in jax.eval_shape(task.values, params, one).items()}
    overall = {name: jnp.zeros((), dtype) for name, dtype in dtypes.items()}
    each = dtypes.items() if num_clients is not None else ()
    return Pass(overall, {name: jnp.zeros((num_clients,), dtype) for name, dtype in each})


def _as_means(task: Task, params: Any, sums: Pass, n: Any) -> Pass:
    # As XLA divides by a number that it knows, so that the bits are the same.
    traced = isinstance(n, jax.Array)
    means = {
        name: total * (1 / jnp.asarray(n, total.dtype)) if traced else total / n for name, total in sums.overall.items()
    }
    return sums._replace(overall=task.with_penalty(params, means))


def client_means(task: Task, params: Any, sums: Sums, sizes: jax.Array) -> Sums:
    """Means of the sums over this many examples each; NaN where there are none."""
    means = {name: total / jnp.maximum(sizes, 1).astype(total.dtype) for name, total in sums.items()}
    means = task.with_penalty(params, means)
    return {name: jnp.where(sizes > 0, mean, jnp.full_like(mean, jnp.nan)) for name, mean in means.items()}


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

    def in_turn(self) -> Callable[[Any], Any]:
        """:meth:`personal`, for a loop over the clients."""
        server = Read.of(self.server)
        return lambda index: self._replace(server=server.value).personal(index)


def personal_values(task: Task, clients: Clients, dataset: FederatedDataset | HostDataset) -> Sums:
    """Mean values of every client at its own model, {name: [N]} in storage order; NaN for a client without examples."""
    if isinstance(dataset, HostDataset):
        found, order = _personal_streamed(task, clients, dataset), dataset.frame.order
    else:
        data, order, personal = whole(dataset), dataset.order, clients.in_turn()
        found = lax.map(
            lambda index: values_of_client(task, data, personal(index), index),
            jnp.arange(data.num_clients, dtype=jnp.int32),
        )
    return {name: jnp.zeros_like(values).at[order].set(values) for name, values in found.items()}


def values_of_client(task: Task, dataset: FederatedDataset, params: Any, index: jax.Array) -> Sums:
    """Mean values of the client ``index`` at a model of its own, scalars by name; NaN without examples."""
    position = dataset.order.at[index].get(mode="clip")
    size = dataset.sizes[position]
    most = min(dataset.max_size, ROWS_OF_ONE)
    rows = dataset.max_size if task.joint else rows_within(task.values, params, dataset.examples, most=most)

    def add(k: jax.Array, given: Any, sums: Pass) -> Pass:
        task, dataset, read, offset, size = given
        first = offset + k * rows
        start = jnp.minimum(first, dataset.num_examples - rows)  # moved back to stay inside the data
        place = start + jnp.arange(rows, dtype=jnp.int32)
        mine = (place >= first) & (place < offset + size)
        columns = cut(Columns(dataset.examples, dataset.example_weights, None), start, rows)
        return _add(task, read.value, sums, Block(columns, mine))

    loop = bounded_loop(add, -(-dataset.max_size // rows))
    given = (task, dataset, Read.of(params), dataset.offsets[position], size)
    sums = loop(-(-size // rows), given, _empty(task, params, dataset.examples))
    return client_means(task, params, sums.overall, size)


def _check_host(task: Task) -> None:
    if task.joint:
        raise ValueError(
            f"{type(task).__name__.lower()} compares all of a client's examples, and data on the host come in blocks: "
            "use dataset.on_device()"
        )


def _personal_streamed(task: Task, clients: Clients, dataset: HostDataset) -> Sums:
    _check_host(task)
    sizes = np.asarray(dataset.sizes).astype(np.int64)
    offsets = np.cumsum(sizes) - sizes
    rows = min(dataset.max_size, ROWS_OF_ONE)
    found = []
    for index, position in enumerate(np.asarray(dataset.frame.order)):
        params = _personal(clients, np.int32(index))
        sums = _empty(task, params, dataset.frame.examples)
        for first in range(0, sizes[position], rows):
            where = first + np.arange(rows)
            mine = where < sizes[position]
            where = offsets[position] + np.minimum(where, sizes[position] - 1)
            block = jax.device_put(Block(_rows_of(dataset, where), mine))
            sums = _added(task, params, sums, block)
        found.append(client_means(task, params, sums.overall, jnp.int32(sizes[position])))
    return {name: jnp.stack([values[name] for values in found]) for name in found[0]}


_personal = jax.jit(Clients.personal)
