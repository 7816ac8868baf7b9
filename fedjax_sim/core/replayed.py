"""Loops of traced lengths whose derivative in reverse mode goes back through what they record, step by step.

Reverse mode cannot pass a ``while_loop``. In the derivative these loops record where each step begins; the way back
takes as many steps as the way there took. They are primitives of their own, as in :mod:`fedjax_sim.core.derived`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad, batching, partial_eval

from fedjax_sim.core.derived import primitive
from fedjax_sim.core.loops import filled, jvp_of_varying, with_static_derivative
from fedjax_sim.core.values import is_float

Leaves = list[Any]


class Loop(abc.ABC):
    """A program with loops as functions of its operands' leaves; no function may close over traced arrays."""

    @abc.abstractmethod
    def plain(self, leaves: Leaves) -> Leaves:
        """What it computes."""

    @abc.abstractmethod
    def recorded(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        """The same, and the trail of its steps."""

    @abc.abstractmethod
    def pulled(self, leaves: Leaves, trail: Leaves, cotangents: Leaves, places: tuple[int, ...]) -> Leaves:
        """Cotangents of the leaves in these places, from those of the real numbers among what it computes."""

    @abc.abstractmethod
    def static(self, leaves: Leaves) -> Leaves:
        """The same in loops of static lengths, for derivatives of derivatives."""

    def __repr__(self) -> str:  # as a jaxpr shows it
        return type(self).__name__


def replayed(loop: Loop, operands: Any) -> Any:
    """What ``loop`` computes from the leaves of ``operands``, a list; differentiable in both modes, to any order.

    Where a function of the user's closes over a traced value, it is ``with_static_derivative(plain, static)``: JAX then
    refuses a derivative in that value, which the rules here would not know of. So it is where one tells the host
    something in order: the primitives here have no effects, so that JAX would not keep it.
    """
    leaves = jax.tree.leaves(operands)
    jaxpr = _traced(loop, False, leaves)[0]
    ordered = any(type(one).__name__.startswith("Ordered") for one in jaxpr.effects)  # JAX says it in no other way
    if ordered or any(isinstance(one, jax.core.Tracer) for one in jaxpr.consts):
        plain, static = (lambda *leaves, of=of: of(list(leaves)) for of in (loop.plain, loop.static))
        return with_static_derivative(plain, static)(*leaves)
    return _bind(leaves, loop, False)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Mapped(Loop):
    """A loop under ``vmap``; what is mapped has its axis in front."""

    loop: Loop
    axes: tuple[int | None, ...]  # of the leaves
    trail: int | None = 0

    def plain(self, leaves: Leaves) -> Leaves:
        return jax.vmap(self.loop.plain, (list(self.axes),))(leaves)

    def recorded(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        return jax.vmap(self.loop.recorded, (list(self.axes),))(leaves)

    def static(self, leaves: Leaves) -> Leaves:
        return jax.vmap(self.loop.static, (list(self.axes),))(leaves)

    def pulled(self, leaves: Leaves, trail: Leaves, cotangents: Leaves, places: tuple[int, ...]) -> Leaves:
        pull = jax.vmap(functools.partial(self.loop.pulled, places=places), (list(self.axes), self.trail, 0))
        found = pull(leaves, trail, cotangents)
        return [jnp.sum(one, axis=0) if self.axes[i] is None else one for i, one in zip(places, found, strict=True)]


_TRACED: weakref.WeakKeyDictionary[Loop, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _traced(loop: Loop, recording: bool, leaves: Any) -> Any:
    """The jaxpr, and how many of its results are not trail."""
    avals, traced = _avals(leaves), _TRACED.setdefault(loop, {})
    if (recording, avals) not in traced:
        number = 0

        def run(*leaves: Any) -> Leaves:
            nonlocal number
            values, trail = loop.recorded(list(leaves)) if recording else (loop.plain(list(leaves)), [])
            number = len(values)
            return [*values, *trail]

        shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype, weak_type=one.weak_type) for one in avals]
        traced[recording, avals] = jax.make_jaxpr(run)(*shapes), number
    return traced[recording, avals]


def _avals(leaves: Any) -> tuple[Any, ...]:
    return tuple(leaf if isinstance(leaf, jax.core.ShapedArray) else jax.typeof(leaf) for leaf in leaves)


def _zero(leaf: Any) -> Any:
    return ad.Zero(jax.typeof(leaf).to_tangent_aval())


def reals(tree: Any) -> Leaves:
    """The leaves of real numbers, of which there are derivatives."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)]


def with_reals(tree: Any, values: Leaves) -> Any:
    """``tree`` with other real numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, filled(leaves, [i for i, leaf in enumerate(leaves) if is_float(leaf)], values))


# The program itself: leaves -> values, or values and trail.


def _bind(leaves: Any, loop: Loop, recording: bool) -> Leaves:
    return _run.bind(*leaves, jaxpr=_traced(loop, recording, leaves)[0], loop=loop, recording=recording)


def _ran(*leaves: Any, jaxpr: Any, loop: Loop, recording: bool) -> Leaves:
    return jaxpr_as_fun(jaxpr)(*leaves)


def _run_shapes(*leaves: Any, jaxpr: Any, loop: Loop, recording: bool) -> Leaves:
    return jaxpr.out_avals


def _run_jvp(primals: Leaves, tangents: Leaves, *, jaxpr: Any, loop: Loop, recording: bool) -> tuple[Leaves, Leaves]:
    places = tuple(i for i, one in enumerate(tangents) if not isinstance(one, ad.Zero) and is_float(primals[i]))
    if not places:
        values = _run.bind(*primals, jaxpr=jaxpr, loop=loop, recording=recording)
        return values, [_zero(one) for one in values]
    number = _traced(loop, True, primals)[1]
    found = _bind(primals, loop, True)
    values, trail = found[:number], found[number:]
    like = tuple(one.to_tangent_aval() for one in _avals(reals(values)))
    along = [tangents[i] for i in places]
    dots = iter(_tangent.bind(*primals, *trail, *along, loop=loop, places=places, cut=len(primals), like=like))
    moved = [next(dots) if is_float(one) else _zero(one) for one in values]
    if not recording:
        return values, moved
    return found, [*moved, *map(_zero, trail)]  # derivatives of the trail's readers know of none


def _run_used(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
    """Nothing is recorded for nobody: the way there, where a derivative computes it again before its way back."""
    equation = given[-1]  # newer versions of JAX first say which operands are live
    if not any(used):
        return [False] * len(equation.invars), None
    loop, leaves = equation.params["loop"], [one.aval for one in equation.invars]
    plain, number = _traced(loop, False, leaves)
    if not any(used[number:]):
        params = {"jaxpr": plain, "loop": loop, "recording": False}
        equation = equation.replace(outvars=equation.outvars[:number], params=params)
    return [True] * len(equation.invars), equation


def _run_mapped(leaves: Leaves, axes: Any, *, jaxpr: Any, loop: Loop, recording: bool) -> tuple[Leaves, list[int]]:
    leaves, at = _in_front(leaves, axes)
    found = _bind(leaves, _Mapped(loop, at), recording)
    return found, [0] * len(found)


def _in_front(leaves: Leaves, axes: Any) -> tuple[Leaves, tuple[int | None, ...]]:
    moved = [one if axis is None else jnp.moveaxis(one, axis, 0) for one, axis in zip(leaves, axes, strict=True)]
    return moved, tuple(None if axis is None else 0 for axis in axes)


# Its derivative along some of its leaves: leaves, trail, tangents -> tangents of the real values. The trail is there
# for the way back.


def _split(given: Any, cut: int, last: int) -> tuple[Leaves, Leaves, Leaves]:
    """Leaves, trail, and what comes after it."""
    end = len(given) - last
    return list(given[:cut]), list(given[cut:end]), list(given[end:])


def _along(function: Callable[[Leaves], Leaves], leaves: Leaves, places: tuple[int, ...]) -> Any:
    """The real values as a function of the leaves in these places, and these."""

    def of(varying: Leaves) -> Leaves:
        return reals(function(filled(leaves, places, varying)))

    return of, [leaves[i] for i in places]


def _tangents(*given: Any, loop: Loop, places: tuple[int, ...], cut: int, like: Any) -> Leaves:
    leaves, _, along = _split(given, cut, len(places))
    of, at = _along(loop.plain, leaves, places)
    return jax.jvp(of, (at,), (along,))[1]


def _tangents_transposed(cotangents: Leaves, *given: Any, loop: Loop, places: Any, cut: int, like: Any) -> Leaves:
    leaves, trail, _ = _split(given, cut, len(places))
    back = [ad.instantiate_zeros(one) for one in cotangents]
    found = _pull.bind(*leaves, *trail, *back, loop=loop, places=places, cut=cut, number=len(back))
    return [*[None] * (len(given) - len(places)), *found]


def _tangents_jvp(primals: Leaves, tangents: Leaves, *, loop: Loop, places: Any, cut: int, like: Any) -> Any:
    def static(leaves: Leaves, along: Leaves) -> Leaves:
        of, at = _along(loop.static, leaves, places)
        return jax.jvp(of, (at,), (along,))[1]

    values = _tangent.bind(*primals, loop=loop, places=places, cut=cut, like=like)
    return values, _of_static(static, primals, tangents, cut, len(places))


def _of_static(static: Any, primals: Leaves, tangents: Leaves, cut: int, last: int) -> Leaves:
    """The tangents of ``static(leaves, what comes after the trail)``."""
    trail = range(cut, len(primals) - last)
    along = [
        None if isinstance(one, ad.Zero) or i in trail or not is_float(primals[i]) else one
        for i, one in enumerate(tangents)
    ]

    def of(*given: Any) -> Leaves:
        leaves, _, after = _split(given, cut, last)
        return static(leaves, after)

    if all(one is None for one in along):
        return [ad.Zero(jax.core.ShapedArray(one.shape, one.dtype)) for one in jax.eval_shape(of, *primals)]
    return jvp_of_varying(of, tuple(primals), tuple(along))[1]


def _tangents_mapped(given: Leaves, axes: Any, *, loop: Loop, places: Any, cut: int, like: Any) -> Any:
    size, given, mapped = _all_mapped(given, axes, loop, places, cut, len(places))
    like = tuple(one.update(shape=(size, *one.shape)) for one in like)
    found = _tangent.bind(*given, loop=mapped, places=places, cut=cut, like=like)
    return found, [0] * len(found)


def _all_mapped(given: Leaves, axes: Any, loop: Loop, places: Any, cut: int, last: int) -> tuple[int, Leaves, _Mapped]:
    """The axis' size, what is given and the loop, all mapped of which there are tangents or cotangents."""
    size = next(one.shape[axis] for one, axis in zip(given, axes, strict=True) if axis is not None)
    end = len(given) - last
    one_trail = all(axis is None for axis in axes[cut:end])
    whole = [*places, *range(cut if not one_trail else end, len(given))]
    given, at = _in_front(given, axes)
    given = filled(given, whole, [batching.bdim_at_front(given[i], at[i], size) for i in whole])
    of_leaves = filled(at[:cut], places, [0] * len(places))
    return size, given, _Mapped(loop, tuple(of_leaves), None if one_trail else 0)


# The way back: leaves, trail, cotangents of the real values -> cotangents of the leaves in some places.


def _pulled(*given: Any, loop: Loop, places: tuple[int, ...], cut: int, number: int) -> Leaves:
    return loop.pulled(*_split(given, cut, number), places)


def _pull_shapes(*given: Any, loop: Loop, places: tuple[int, ...], cut: int, number: int) -> Leaves:
    return [given[i].to_tangent_aval() for i in places]


def _pulled_transposed(cotangents: Leaves, *given: Any, loop: Loop, places: Any, cut: int, number: int) -> Leaves:
    leaves, trail, back = _split(given, cut, number)
    like = tuple(one.aval for one in back)  # a pull is linear, and the transpose of the derivative
    along = [ad.instantiate_zeros(one) for one in cotangents]
    found = _tangent.bind(*leaves, *trail, *along, loop=loop, places=places, cut=cut, like=like)
    return [*[None] * (len(given) - number), *found]


def _pull_jvp(primals: Leaves, tangents: Leaves, *, loop: Loop, places: Any, cut: int, number: int) -> Any:
    def static(leaves: Leaves, cotangents: Leaves) -> Leaves:
        of, at = _along(loop.static, leaves, places)
        return jax.vjp(of, at)[1](cotangents)[0]

    values = _pull.bind(*primals, loop=loop, places=places, cut=cut, number=number)
    return values, _of_static(static, primals, tangents, cut, number)


def _pull_mapped(given: Leaves, axes: Any, *, loop: Loop, places: Any, cut: int, number: int) -> Any:
    _, given, mapped = _all_mapped(given, axes, loop, places, cut, number)
    found = _pull.bind(*given, loop=mapped, places=places, cut=cut, number=number)
    return found, [0] * len(found)


_run, _tangent, _pull = (
    primitive("replayed", _ran),
    primitive("replayed_tangent", _tangents),
    primitive("replayed_pull", _pulled),
)
_run.def_abstract_eval(_run_shapes)
_tangent.def_abstract_eval(lambda *_, like, **__: list(like))
_pull.def_abstract_eval(_pull_shapes)
partial_eval.dce_rules[_run] = _run_used
ad.primitive_jvps[_run] = _run_jvp
ad.primitive_jvps[_tangent] = _tangents_jvp
ad.primitive_jvps[_pull] = _pull_jvp
ad.primitive_transposes[_tangent] = _tangents_transposed
ad.primitive_transposes[_pull] = _pulled_transposed
batching.primitive_batchers[_run] = _run_mapped
batching.primitive_batchers[_tangent] = _tangents_mapped
batching.primitive_batchers[_pull] = _pull_mapped
