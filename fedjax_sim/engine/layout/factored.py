"""Clients that never hold a first kernel of their own: they train its coordinates in their examples.

:mod:`fedjax_sim.models.coordinates` has the algebra. Of a round's clients the kernel W of the layer that reads the
examples is needed three times, each time for all of them at once: the products X W_0 before they begin, the products of
each client's examples with each other, and the sum of their changes, X^T A + (sum alpha) W_0, when all are done. In
between a step costs B w H operations in that layer, w the client's examples, where it costs 2 B d H and three passes
over d H numbers with a kernel of its own, d the inputs.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count, leaf
from fedjax_sim.core.loops import with_static_derivative
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.layout.base import Bounds, Layout, LocalResult, Run
from fedjax_sim.engine.layout.coordinates import CoordinateSolver, in_their_place, not_linear
from fedjax_sim.engine.layout.turns import turns
from fedjax_sim.engine.solver import Slot, Solver
from fedjax_sim.models.coordinates import InCoordinates, Layer, layer_of_examples

_ROWS = 512  # of a product over the cohort's examples: such products run at two thirds of the rate of large ones


def _check_inner(what: str, value: Any) -> None:
    if not isinstance(value, Layout) or isinstance(value, Factored):
        raise TypeError(f"{what} is {shown(value)}: give the layout that clients run in, fedjax_sim.layout.turns()")


class Factored(Layout):
    """Another layout, in which clients train the first dense layer in the coordinates of their own examples.

    The result is that of the other layout up to round-off. It is for affine methods (FedAvg, FedProx, FedNova, and the
    server optimisers on top of FedAvg) with local ``sgd``, and models whose examples go through a dense layer first; it
    pays where clients take several epochs and have fewer examples than the layer has inputs. Clients with more than
    ``width`` examples train as in the other layout. A derivative is the other layout's.

    Args:
      inner: the other layout, of one device.
      width: w, examples of the largest client that trains in coordinates; None for all clients, as far as that is less
        than the layer's inputs.

    Raises:
      ValueError: (before a run) a method, solver, model or run that has no such coordinates.
    """

    inner: Layout = leaf(_check_inner, default=turns())
    width: int | None = count(default=None)

    def run(self, solver: Solver, sent: Any, states: Any, slots: Slot, bounds: Bounds) -> LocalResult:
        plain: Run = functools.partial(self.inner.run, bounds=bounds)
        layer = coordinates_of(solver, sent, states)
        if isinstance(layer, str) or not bounds.reverse:
            return plain(solver, sent, states, slots)
        largest = solver.dataset.max_size
        width = _width(min(self.width or largest, largest, layer.inputs - 2), layer, sent.params)

        def factored(solver: Solver, sent: Any, states: Any, slots: Slot) -> LocalResult:
            near = slots.client.size <= width
            result = _run(self.inner, solver, layer, width, sent, states, _only(slots, near), bounds)
            if width >= largest:
                return result
            rest = plain(solver, sent, states, _only(slots, ~near))
            stacks = trees.select(near, result.stacks, rest.stacks)
            return LocalResult(trees.add(result.sums, rest.sums), stacks, rest.clients, result.computed + rest.computed)

        return with_static_derivative(factored, plain)(solver, sent, states, slots)


def coordinates_of(solver: Solver, sent: Any, states: Any) -> Layer | str:
    """The layer whose kernel clients can train in coordinates; else why there is none."""
    why = not_linear(solver, sent, states)
    if why is not None:
        return why
    layer = layer_of_examples(solver.task, sent.params, solver.dataset.examples)
    if not isinstance(layer, str) and layer.inputs < 4:
        return f"its first layer has {layer.inputs} inputs"
    return layer


class _Rows(NamedTuple):
    """The examples of a cohort, client after client without a gap; R rows, a bound."""

    first: jax.Array  # int32[S], each client's first row
    total: jax.Array  # int32, rows that there are
    at: jax.Array  # int32[R], where each row's example is stored
    who: jax.Array  # int32[R], its client's slot
    place: jax.Array  # int32[R], its number among the client's examples


def _run(
    inner: Layout, solver: Solver, layer: Layer, width: int, sent: Any, states: Any, slots: Slot, bounds: Bounds
) -> LocalResult:
    """The local work of clients of up to ``width`` examples."""
    params, dataset = sent.params, solver.dataset
    kernel = layer.kernel(params)
    rows = _rows(slots, width, dataset, bounds)

    def received(at: jax.Array) -> Any:
        return layer.received(solver.task, params, dataset.examples["x"].at[at].get(mode="clip"))

    def multiplied(start: jax.Array, at: jax.Array, first: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(start, received(at) @ kernel, first, 0)

    start = _over_rows(rows, multiplied, jnp.zeros((len(rows.at), layer.outputs), kernel.dtype))
    examples = {name: leaf[rows.at] for name, leaf in dataset.examples.items() if name != "x"}
    examples |= {"start": start, "place": rows.place, "products": _products(rows, slots, width, received, kernel.dtype)}
    weights = dataset.example_weights
    own = dataset.replace(examples=examples, example_weights=None if weights is None else weights[rows.at])
    at_start = jnp.zeros((width + 1, layer.outputs), kernel.dtype).at[-1].set(1)
    task: Any = InCoordinates(task=solver.task, layer=layer)  # type: ignore[arg-type]
    result = inner.run(
        CoordinateSolver(solver.algorithm, task, solver.batches, own, solver.watch),
        sent._replace(params=layer.with_kernel(params, at_start)), states, slots._replace(offset=rows.first), bounds,
    )  # fmt: skip

    def kernel_of(coordinates: jax.Array) -> jax.Array:
        """sum_i X_i^T a_i + (sum_i alpha_i) W_0 of [S, w + 1, H]."""

        def added(total: jax.Array, at: jax.Array, first: jax.Array) -> jax.Array:
            who, place = (lax.dynamic_slice_in_dim(leaf, first, len(at)) for leaf in (rows.who, rows.place))
            live = (first + jnp.arange(len(at), dtype=jnp.int32) < rows.total)[:, None]
            a, x = jnp.where(live, coordinates[who, place], 0), jnp.where(live, received(at), 0)
            moved: jax.Array = lax.dot_general(a, x, (((0,), (0,)), ((), ())))
            return total + moved

        total = _over_rows(rows, added, jnp.zeros(kernel.shape[::-1], kernel.dtype))
        return total.T + kernel * jnp.sum(coordinates[:, -1], axis=0)[None]

    return in_their_place(result, kernel_of)


def _rows(slots: Slot, width: int, dataset: FederatedDataset, bounds: Bounds) -> _Rows:
    """The rows of the clients that take part."""
    sizes = jnp.where(slots.client.steps > 0, slots.client.size, 0)
    number, ends = len(sizes), jnp.cumsum(sizes, dtype=jnp.int32)
    most = number * width
    if bounds.distinct:
        most = min(most, dataset.largest_total(min(number, dataset.num_clients)))
    most = -(-most // _ROWS) * _ROWS
    row, first = jnp.arange(most, dtype=jnp.int32), ends - sizes
    who = jnp.minimum(jnp.searchsorted(ends, row, side="right"), number - 1).astype(jnp.int32)
    place = jnp.clip(row - first[who], 0, width - 1)
    last = trees.as_dtype(jax.tree.leaves(dataset.examples)[0].shape[0] - 1, place)
    return _Rows(first, ends[-1], jnp.minimum(slots.offset[who] + place, last), who, place)


def _over_rows(rows: _Rows, body: Any, carry: Any) -> Any:
    """``carry = body(carry, at, first)`` over all rows, some at a time: on a CPU no more than there are."""
    if jax.default_backend() != "cpu":
        return body(carry, rows.at, jnp.int32(0))

    def block(number: jax.Array, carry: Any) -> Any:
        first = number * _ROWS
        return body(carry, lax.dynamic_slice_in_dim(rows.at, first, _ROWS), first)

    return lax.fori_loop(jnp.int32(0), (rows.total + _ROWS - 1) // _ROWS, block, carry)


def _products(rows: _Rows, slots: Slot, width: int, received: Any, dtype: Any) -> jax.Array:
    """The products of each client's examples with each other, [R, w + 1]."""
    widths = sorted({max(width // 4, 1), max(width // 2, 1), width})  # most clients are far smaller than the largest

    def own(most: int, first: jax.Array, size: jax.Array) -> jax.Array:
        number = jnp.arange(most, dtype=jnp.int32)
        x = received(rows.at[jnp.minimum(first + number, len(rows.at) - 1)])
        # Rows beyond are somebody else's, and may be anything.
        x = jnp.where((number < size)[:, None], x, 0)
        return jnp.pad(x @ x.T, ((0, width - most), (0, width + 1 - most)))

    def client(products: jax.Array, slot: Any) -> tuple[jax.Array, None]:
        first, size, live = slot
        kind = sum(((size > one).astype(jnp.int32) for one in widths[:-1]), start=jnp.int32(0))
        nobody = jnp.zeros((width, width + 1), products.dtype)
        branches: list[Any] = [*(functools.partial(own, most) for most in widths), lambda first, size: nobody]
        found = lax.switch(jnp.where(live, kind, len(widths)), branches, first, size)
        # One after another, so that the rows of zeros after a client's are overwritten by the next one's.
        return lax.dynamic_update_slice_in_dim(products, found, first, 0), None

    live = slots.client.steps > 0
    empty = jnp.zeros((len(rows.at) + width, width + 1), dtype)
    return lax.scan(client, empty, (rows.first, slots.client.size, live))[0][: len(rows.at)]


def _width(asked: int, layer: Layer, params: Any) -> int:
    """The width, larger where the coordinates would have the shape of another array of the model."""
    shapes = {jnp.shape(one) for one in jax.tree.leaves(params)}
    return next(width for width in itertools.count(asked) if (width + 1, layer.outputs) not in shapes)


def _only(slots: Slot, chosen: jax.Array) -> Slot:
    """The cohort with all other slots void."""
    return slots._replace(client=slots.client._replace(steps=jnp.where(chosen, slots.client.steps, 0)))


factored = factory("layout.factored", Factored)
