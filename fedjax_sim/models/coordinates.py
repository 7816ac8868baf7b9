"""A dense layer that reads the examples, in the coordinates of one client's examples.

The gradient in the kernel of z = x W is sum_j x_jᵀ delta_j over a batch, delta_j the derivative in z_j. So a client
whose steps are linear in its gradients, in y and in the start W_0 never leaves

    W = alpha W_0 + sum_j x_jᵀ a_j,      j over its n_i examples, a_j [H],

and what it computes of W needs no W: z_l = alpha (x_l W_0) + sum_j (x_l x_jᵀ) a_j. Its *coordinates* are the rows
a_1 .. a_w and a last row with alpha in every entry, one array [w + 1, H] in the kernel's place; those of W_0 are zeros
with a last row of ones. A gradient's coordinates are the delta_j in the rows of its batch, and the sums and multiples
of a method and its optimiser are those of the coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_sim.core.fields import static
from fedjax_sim.models.calling import dense_layers, intercepted
from fedjax_sim.models.contract import MaybeArray, Task
from fedjax_sim.models.dense import dot_general
from fedjax_sim.models.supervised import Supervised


class Layer(NamedTuple):
    """The layer that reads the examples; static.

    Attributes:
      path: of its parameters among the model's, ``("Dense_0",)``.
      inputs: d, the rows of its kernel.
      outputs: H, the columns.
      shape: of the features of one example.
      dtype: of the features, by name.
    """

    path: tuple[str, ...]
    inputs: int
    outputs: int
    shape: tuple[int, ...]
    dtype: str

    def kernel(self, params: Any) -> Any:
        """Its kernel in the model's parameters."""
        for name in ("params", *self.path, "kernel"):
            params = params[name]
        return params

    def with_kernel(self, params: Any, kernel: Any) -> Any:
        """The model's parameters with another array in its place."""
        leaves = flatten_dict(params)
        return unflatten_dict({**leaves, ("params", *self.path, "kernel"): kernel})

    def received(self, task: Any, params: Any, x: jax.Array) -> Any:
        """What it receives for features x, [B, d]."""
        # In training, as steps call the model; neither parameters nor a key reach it.
        _, layers = dense_layers(task.model, params, x, jax.random.key(0))
        return next(one.received for one in layers if one.path == self.path)

    def losses(self, task: Supervised, params: Any, examples: Any, key: MaybeArray, products: jax.Array) -> jax.Array:
        """The losses of a task, [B], where its products x W, [B, H], are given."""

        def answer(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            if context.module.path != self.path or context.method_name != "__call__":
                return call(*args, **kwargs)
            if not context.module.use_bias:
                return products
            return products + context.module.get_variable("params", "bias")[None]

        with intercepted(answer):
            return task.losses(params, examples, key)


def layer_of_examples(task: Task, params: Any, examples: Any) -> Layer | str:
    """The dense layer through which alone the model reads the examples; else why there is none.

    It is looked for in the traced program, so that any module that flattens, scales or converts its features before a
    ``flax.linen.Dense`` has one. ``params`` and ``examples`` may be shapes.
    """
    if not isinstance(task, Supervised) or task.joint:
        return f"{type(task).__name__} is no task of a flax module"
    for name in ("batch_loss", "batch_mean", "penalty"):
        if getattr(type(task), name) is not getattr(Supervised, name):
            return f"{type(task).__name__} has a {name} of its own"
    if task.statistics(params) is not None:
        return "the model has running statistics, which a batch moves"
    x = examples["x"]
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((3, *leaf.shape[1:]), leaf.dtype), examples)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    found: list[Any] = []

    def received(x: Any, params: Any, key: Any) -> Any:
        found[:] = dense_layers(task.model, params, x, key)[1]
        return [one.received for one in found if one.received is not None]

    inner = jax.make_jaxpr(received)(some["x"], shapes, key).jaxpr
    own = _reached(inner, inner.invars[1:])
    alone = dict(zip((id(one) for one in found if one.received is not None), inner.outvars, strict=True))
    paths = [one.path for one in found]
    for one in found:
        dense, dtypes = one.layer, {leaf.dtype for leaf in jax.tree.leaves(shapes)}
        plain = dense.dot_general in (None, dot_general) and (dense.precision, dense.dot_general_cls) == (None, None)
        reads = id(one) in alone and id(alone[id(one)]) not in own and len(alone[id(one)].aval.shape) == 2
        if not (reads and plain and paths.count(one.path) == 1 and dense.dtype is None and len(dtypes) == 1):
            continue
        if alone[id(one)].aval.dtype not in dtypes:
            continue
        layer = Layer(one.path, alone[id(one)].aval.shape[1], one.shape[1], tuple(x.shape[1:]), str(x.dtype))
        products = jax.ShapeDtypeStruct((3, layer.outputs), dtypes.pop())

        def losses(read: Any, others: Any, params: Any, key: Any, products: Any) -> Any:
            x, kernel = read
            return layer.losses(task, layer.with_kernel(params, kernel), {**others, "x": x}, key, products)  # noqa: B023

        read, others = (some["x"], layer.kernel(shapes)), {name: some[name] for name in some if name != "x"}
        outer = jax.make_jaxpr(losses)(read, others, shapes, key, products).jaxpr
        if _reached(outer, outer.invars[:2]).isdisjoint(map(id, outer.outvars)):
            return layer
    return f"no flax.linen.Dense of {type(task.model).__name__} is all that reads the examples"


def _reached(jaxpr: Any, sources: list[Any]) -> Any:
    """Variables of a program that depend on the sources; what is called inside depends on all that it is given."""
    reached = set(map(id, sources))
    for equation in jaxpr.eqns:
        if not reached.isdisjoint(map(id, equation.invars)):
            reached |= set(map(id, equation.outvars))
    return reached


class InCoordinates(Task):
    """A task whose examples are in the coordinates of their client: for local steps alone.

    Its examples are those of the task without ``"x"``, and

      start:    [n, H], x_l W_0;
      products: [n, w + 1], the products x_l x_jᵀ with the client's w examples, and a last 0;
      place:    int32[n], l among the client's examples.

    Attributes:
      task: the task.
      layer: the layer that reads the examples.
    """

    task: Supervised
    layer: Layer = static()

    def coordinates(self, params: Any) -> jax.Array:
        """They stand in the kernel's place."""
        return self.layer.kernel(params)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        own = dict(examples)
        place, start, rows = (own.pop(name) for name in ("place", "start", "products"))
        products = _products(self.layer.kernel(params), rows, start, place)
        # It is never read: the layer is given its products.
        own["x"] = jnp.zeros((len(start), *self.layer.shape), self.layer.dtype)
        return self.layer.losses(self.task, params, own, key, products)

    def penalty(self, params: Any) -> jax.Array | None:
        # The gradient of lambda |w|^2 is 2 lambda w in any coordinates; the value is nobody's.
        return self.task.penalty(params)


@jax.custom_vjp
def _products(a: jax.Array, rows: jax.Array, start: jax.Array, place: jax.Array) -> jax.Array:
    """x W for a batch, [B, H]; its derivative in the coordinates a is the coordinates of the derivative in W."""
    return rows @ a + start * a[-1][None]


def _forward(a: jax.Array, rows: jax.Array, start: jax.Array, place: jax.Array) -> Any:
    return _products(a, rows, start, place), (place, len(a))


def _backward(saved: Any, derivative: jax.Array) -> Any:
    place, length = saved
    # A product, not a scatter: an example that is drawn twice adds twice, and the loop has one kernel more, not many.
    own = jnp.arange(length, dtype=place.dtype)[:, None] == place[None]
    return own.astype(derivative.dtype) @ derivative, None, None, None


_products.defvjp(_forward, _backward)
