"""Dynamic loops with a derivative, what they add up, and loops that tell the host where they are.

Reverse mode cannot pass a ``while_loop``, and a function cannot know that it is being differentiated. So a
computation whose cost follows its data is given twice: as a dynamic program, which runs, and as a statically bounded
one with the same result, whose derivative is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental import io_callback

from fedjax_sim.core import trees
from fedjax_sim.core.keys import GENERATOR
from fedjax_sim.core.values import is_float

OnRound = Callable[[int, dict[str, np.ndarray]], object]  # (rounds done, metrics)


class Reached(NamedTuple):
    """Where a run is that tells the host about it.

    Attributes:
      state: of the run.
      told: int32, what the call before returned. The next call takes it, so that calls keep their order: outside of a
        loop nothing else does. ``()`` where nobody is told.
    """

    state: Any
    told: Any = ()


Tell = Callable[[Reached, jax.Array, dict[str, jax.Array]], tuple[Reached, jax.Array]]  # (_, done, metrics) -> _, done


def with_static_derivative(dynamic: Callable[..., Any], static: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs as ``dynamic`` and differentiates as ``static``, in forward and reverse mode, under vmap.

    Both are the same function of the same pytrees. Everything that may carry a derivative must be an argument, not
    closed over. Arguments without a derivative (the data, as a rule) cost the derivative nothing.
    """
    function = jax.custom_jvp(dynamic)

    function.defjvp(lambda primals, tangents: jvp_of_varying(static, primals, tangents), symbolic_zeros=True)
    return function


def jvp_of_varying(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """``jax.jvp`` where tangents may be symbolic zeros, or None for them: what has one stays a constant."""
    structure: Any
    leaves, structure = jax.tree.flatten(primals)
    flat_tangents = structure.flatten_up_to(tangents)
    places = [i for i, one in enumerate(flat_tangents) if one is not None and not isinstance(one, SymbolicZero)]

    def of_varying(*values: Any) -> Any:
        return function(*jax.tree.unflatten(structure, filled(leaves, places, values)))

    return jax.jvp(of_varying, [leaves[i] for i in places], [flat_tangents[i] for i in places])


def filled(leaves: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The leaves with others in these places."""
    new = dict(zip(places, values, strict=True))
    return [new.get(i, leaf) for i, leaf in enumerate(leaves)]


def bounded_loop(body: Callable[[jax.Array, Any, Any], Any], bound: int) -> Callable[[jax.Array, Any, Any], Any]:
    """``loop(count, constants, carry)``: ``carry = body(k, constants, carry)`` for k = 0 .. count - 1, differentiable.

    ``body`` must leave the carry as it is for k >= count: the derivative runs it ``bound`` times, at least ``count``.
    """

    def dynamic(count: jax.Array, constants: Any, carry: Any) -> Any:
        return lax.fori_loop(0, count, lambda k, c: body(k, constants, c), carry)

    def static(count: jax.Array, constants: Any, carry: Any) -> Any:
        def step(c: Any, k: jax.Array) -> tuple[Any, None]:
            return body(k, constants, c), None

        return lax.scan(step, carry, jnp.arange(bound, dtype=count.dtype))[0]

    return with_static_derivative(dynamic, static)


class Read(struct.PyTreeNode):
    """A tree that the turns of a loop read, so that its derivative is summed in single precision at least.

    The derivative of what a loop reads is a sum over its turns, in the dtype of what is read: in half precision it
    would stop growing at a few hundred turns, as the sums of :class:`Total` would.
    """

    held: Any
    dtypes: tuple[Any, ...] = struct.field(pytree_node=False)  # of the tree's leaves

    @classmethod
    def of(cls, tree: Any) -> Read:
        """Of a tree; made outside of the loop."""
        return cls(trees.unhalved(tree), tuple(jnp.result_type(leaf) for leaf in jax.tree.leaves(tree)))

    @property
    def value(self) -> Any:
        """The tree; read within the loop."""
        return _of_dtypes(self.held, self.dtypes)


class Total(struct.PyTreeNode):
    """A sum of many trees, in single precision at least: in half precision it stops growing at a few hundred terms."""

    sums: Any
    dtypes: tuple[Any, ...] = struct.field(pytree_node=False)  # of the terms' leaves

    @classmethod
    def zero(cls, tree: Any) -> Total:
        """The sum of no trees of these shapes and dtypes (arrays or ``jax.ShapeDtypeStruct``)."""

        def zeros(leaf: Any) -> jax.Array:
            return jnp.zeros(leaf.shape, trees.widest(leaf, jnp.float32) if is_float(leaf) else leaf.dtype)

        return cls(jax.tree.map(zeros, tree), tuple(leaf.dtype for leaf in jax.tree.leaves(tree)))

    def add(self, tree: Any) -> Total:
        """The sum with one more tree."""
        return self.replace(sums=jax.tree.map(lambda x, y: x + y.astype(x.dtype), self.sums, tree))

    @property
    def value(self) -> Any:
        """The sum in the dtypes of its terms."""
        return _of_dtypes(self.sums, self.dtypes)


def _of_dtypes(tree: Any, dtypes: tuple[Any, ...]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    each = zip(leaves, dtypes, strict=True)
    return jax.tree.unflatten(
        structure, [leaf if jnp.result_type(leaf) == dtype else leaf.astype(dtype) for leaf, dtype in each]
    )


@custom_vmap
def longest(count: jax.Array) -> jax.Array:
    """``count``, and under ``vmap`` the largest of all: for loops that all can run together, masked beyond their own.

    A loop whose end differs along a vmapped axis would choose between old and new carry after every turn.
    """
    return count


@longest.def_vmap
def _longest_of_all(axis_size: int, in_batched: list[bool], count: jax.Array) -> tuple[jax.Array, bool]:
    return longest(jnp.max(count) if in_batched[0] else count), False


def sorted_places(ordered: jax.Array, wanted: jax.Array, side: str = "left") -> jax.Array:
    """``jnp.searchsorted(ordered, wanted, side)``, int32, without a loop of small kernels on an accelerator."""
    method = "scan" if jax.default_backend() == "cpu" else "scan_unrolled"
    return jnp.searchsorted(ordered, wanted, side=side, method=method).astype(jnp.int32)


_STRETCH = 64  # values of one owner that are summed before they are added to its others
_FEW = 8  # values that are added one by one


def with_rows(sums: jax.Array, owners: jax.Array, values: jax.Array) -> jax.Array:
    """``sums``, [N], with each of the values, [n], added to that of its owner, int32[n].

    One after the other loses digits: of a million values of log 10 the mean came out 1 % too small. Where an owner's
    values lie together, all but some at the ends are summed as a tree.
    """
    owners, values = _in_stretches(owners, values)
    return sums.at[owners].add(values)


def _in_stretches(owners: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same sums in other terms: one for each stretch of values of one owner, and 0 in the place of these."""
    if len(values) < _FEW:
        return owners, values
    stretch = min(_STRETCH, len(values))
    whole = len(values) // stretch * stretch
    of, each = (leaf[:whole].reshape(-1, stretch) for leaf in (owners, values))
    alike, zeros = jnp.all(of == of[:, :1], axis=1, keepdims=True), jnp.zeros_like(each)
    of_stretches = _in_stretches(of[:, 0], jnp.sum(jnp.where(alike, each, zeros), axis=1))
    rest = jnp.where(alike, zeros, each).reshape(-1), values[whole:]
    return jnp.concatenate([of_stretches[0], owners]), jnp.concatenate([of_stretches[1], *rest])


def counted(count: jax.Array) -> Callable[..., tuple[Any, Any]]:
    """``lax.scan(body, carry, ts)`` of which only the first ``count`` iterations run; zeros for the rows beyond.

    For forward programs: ``count``, int32, may be any traced number up to ``len(ts)``, and one program serves all. The
    ``ts`` are consecutive integers.
    """

    def scan(body: Callable[..., tuple[Any, Any]], carry: Any, ts: jax.Array) -> tuple[Any, Any]:
        def iteration(i: jax.Array, reached: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, ys = reached
            carry, y = body(carry, ts[0] + i)
            return carry, jax.tree.map(lambda all_, new: lax.dynamic_update_index_in_dim(all_, new, i, 0), ys, y)

        shapes: Any = jax.eval_shape(body, carry, ts[0])[1]
        empty = jax.tree.map(lambda leaf: jnp.zeros((len(ts), *leaf.shape), leaf.dtype), shapes)
        return lax.fori_loop(jnp.int32(0), count, iteration, (carry, empty))

    return scan


def draw_alone(tree: Any) -> bool:
    """Whether batches of the keys in a tree draw what each key does alone.

    XLA's own generators draw under ``vmap`` for all keys from the first, so that the others do not matter.
    """
    keys = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return all(jax.random.key_impl(key) == GENERATOR["jax_default_prng_impl"] for key in keys)


def over_leading_axis(function: Callable[[Any], Any], xs: Any) -> Any:
    """``function`` of each row of ``xs``: in turn on a CPU, where vmapped dynamic loops would wait for the slowest.

    Elsewhere side by side, but for keys that do not draw alone.
    """
    if jax.default_backend() == "cpu" or not draw_alone(xs):
        return lax.map(function, xs)
    return jax.vmap(function)(xs)


def silent(reached: Reached, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Reached, jax.Array]:
    """The :data:`Tell` that tells nobody."""
    return reached, done


def teller(on_round: OnRound) -> Tell:
    """The identity on ``(reached, done)`` that calls ``on_round(done, metrics)`` on the host as the program gets there.

    One call under any number of ``vmap``, with the metrics' axes in front; none where the state is differentiated: a
    derivative passes it as if it were not there. What uses the ``done`` that is returned runs after the call, and so do
    the calls with the ``Reached`` that is returned.
    """

    def call(done: Any, metrics: dict[str, Any], told: Any) -> np.ndarray:
        on_round(int(done), {name: np.asarray(value) for name, value in metrics.items()})
        return np.asarray(done, np.int32)

    # JAX repeats a callback for every lane of a vmap, so there is a rule of its own. The state goes through it because
    # the oldest supported version drops what nobody uses, and some use the state only.
    @custom_vmap
    def fire(reached: Reached, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Reached, jax.Array]:
        told = io_callback(call, jax.ShapeDtypeStruct((), jnp.int32), done, metrics, reached.told)
        return Reached(reached.state, told), told

    @fire.def_vmap
    def _(size: int, batched: Any, reached: Reached, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Any, Any]:
        return fire(reached, done, metrics), (Reached(batched[0].state, False), False)

    @jax.custom_jvp
    def tell(reached: Reached, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Reached, jax.Array]:
        return fire(reached, done, metrics)

    @tell.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return primals[:2], tangents[:2]

    return tell
