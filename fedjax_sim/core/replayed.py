"""Loops of traced lengths whose derivative in reverse mode goes back through what they record, step by step.

Reverse mode cannot pass a ``while_loop``. In the derivative these loops record where each step begins; the way back
takes as many steps as the way there took. They are primitives of their own, as in :mod:`fedjax_sim.core.derived`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad, batching, partial_eval

from fedjax_sim.core.derived import primitive
from fedjax_sim.core.loops import filled, with_static_derivative
from fedjax_sim.core.values import is_float

Leaves = list[Any]
Places = tuple[int, ...]


class Loop(abc.ABC):
    """A program with loops as functions of its operands' leaves; no function may close over traced arrays."""

    @abc.abstractmethod
    def plain(self, leaves: Leaves) -> Leaves:
        """What it computes."""

    @abc.abstractmethod
    def recorded(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        """The same, and the trail of its steps."""

    @abc.abstractmethod
    def pulled(self, leaves: Leaves, trail: Leaves | None, cotangents: Leaves, places: Places) -> Leaves:
        """Cotangents of the leaves in these places, from those of the real numbers among what it computes.

        Without a trail it records one.
        """

    def __repr__(self) -> str:  # as a jaxpr shows it
        return type(self).__name__


def replayed(loop: Loop, operands: Any, static: Callable[[Leaves], Leaves]) -> Any:
    """What ``loop`` computes from the leaves of ``operands``, a list; differentiable in both modes, to any order.

    Where a function of the user's closes over a traced value, its derivative is that of ``static``, the same in loops
    of static lengths: JAX then refuses a derivative in that value, which the rules here would not know of. So it is
    where one tells the host something in order: the primitives here have no effects, so that JAX would not keep it.
    """
    leaves = jax.tree.leaves(operands)
    jaxpr = _traced(loop, False, leaves)[0]
    ordered = any(type(one).__name__.startswith("Ordered") for one in jaxpr.effects)  # JAX says it in no other way
    if ordered or any(isinstance(one, jax.core.Tracer) for one in jaxpr.consts):
        return with_static_derivative(loop.plain, static)(leaves)
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

    def pulled(self, leaves: Leaves, trail: Leaves | None, cotangents: Leaves, places: Places) -> Leaves:
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


# The program: leaves -> values, or values and trail.


def _bind(leaves: Any, loop: Loop, recording: bool) -> Leaves:
    return _run.bind(*leaves, jaxpr=_traced(loop, recording, leaves)[0], loop=loop, recording=recording)


def _ran(*leaves: Any, jaxpr: Any, loop: Loop, recording: bool) -> Leaves:
    return jaxpr_as_fun(jaxpr)(*leaves)


def _run_shapes(*leaves: Any, jaxpr: Any, loop: Loop, recording: bool) -> Leaves:
    return jaxpr.out_avals


def _run_jvp(primals: Leaves, tangents: Leaves, *, jaxpr: Any, loop: Loop, recording: bool) -> tuple[Leaves, Leaves]:
    if not (places := _varying(primals, tangents)):
        values = _run.bind(*primals, jaxpr=jaxpr, loop=loop, recording=recording)
        return values, [_zero(one) for one in values]
    number = _traced(loop, True, primals)[1]
    found = _bind(primals, loop, True)
    values, trail = found[:number], found[number:]
    shapes = tuple(one.to_tangent_aval() for one in _avals(reals(values)))
    form = Form(loop, (tuple(range(len(shapes))), places), 0, len(primals), shapes)
    dots = iter(_derivative.bind(*primals, *trail, *(tangents[i] for i in places), form=form))
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


# Its derivatives, f the real values as a function of the leaves: <c, D^n f(leaves)[u_1, ..., u_n]> is linear in the
# cotangents c and in each of the tangents u. With one of these left open it is what an array there is multiplied with:
# without c the derivative along all u, without a u a gradient, the way back. These are all that there are: to derive
# one adds a tangent, and to transpose closes the open place and opens another.


class Form(NamedTuple):
    """Such a form; what is given to it are leaves, trail, and what is in its places, but for the open one.

    The trail is there for the way back of a first derivative; others record it again, with its derivative.

    Attributes:
      loop: what computes f.
      places: of the values that have a cotangent, and for each tangent of the leaves that have one.
      open: which of these is left open.
      leaves: their number.
      values: the shapes of f.
    """

    loop: Loop
    places: tuple[Places, ...]
    open: int
    leaves: int
    values: tuple[Any, ...]

    def split(self, given: Any) -> tuple[Leaves, Leaves, list[Leaves]]:
        """Leaves, trail, and what is in each place."""
        counts = [0 if n == self.open else len(places) for n, places in enumerate(self.places)]
        end = len(given) - sum(counts)
        rest = iter(given[end:])
        filled_in = [list(itertools.islice(rest, count)) for count in counts]
        return list(given[: self.leaves]), list(given[self.leaves : end]), filled_in


def _derived(*given: Any, form: Form) -> Leaves:
    leaves, trail, (cotangents, *tangents) = form.split(given)

    def values(leaves: Leaves) -> Leaves:
        found = reals(form.loop.plain(leaves))
        return [found[i] for i in form.places[0]]

    def pulled(leaves: Leaves) -> Leaves:
        over = filled([jnp.zeros(one.shape, one.dtype) for one in form.values], form.places[0], cotangents)
        return form.loop.pulled(leaves, trail if first else None, over, form.places[form.open])

    first, function = len(form.places) == 2, values if form.open == 0 else pulled
    for places, tangent in zip(form.places[1:], tangents, strict=True):
        if tangent:
            function = functools.partial(_along, function, places, tangent)
    return function(leaves)


def _along(function: Callable[[Leaves], Leaves], places: Places, tangent: Leaves, leaves: Leaves) -> Leaves:
    def of_varying(varying: Leaves) -> Leaves:
        return function(filled(leaves, places, varying))

    return jax.jvp(of_varying, ([leaves[i] for i in places],), (tangent,))[1]


def _derived_shapes(*given: Any, form: Form) -> Leaves:
    of = form.values if form.open == 0 else [one.to_tangent_aval() for one in given]
    return [of[i] for i in form.places[form.open]]


def _derived_jvp(primals: Leaves, tangents: Leaves, *, form: Form) -> tuple[Leaves, Leaves]:
    leaves, trail, there = form.split(primals)
    leaf_dots, _, dots = form.split(tangents)
    values, terms = _derivative.bind(*primals, form=form), []
    if places := _varying(leaves, leaf_dots):
        more = [leaf_dots[i] for i in places]
        terms.append(_derivative.bind(*leaves, *_flat(there), *more, form=form._replace(places=(*form.places, places))))
    for n, of_n in enumerate(dots):
        if moved := _moved(of_n):
            places = tuple(form.places[n][i] for i in moved)
            moving = form._replace(places=_with(form.places, n, places))
            inside = _with(there, n, [of_n[i] for i in moved])
            terms.append(_derivative.bind(*leaves, *trail, *_flat(inside), form=moving))
    if not terms:
        return values, [_zero(one) for one in values]
    return values, [functools.reduce(ad.add_jaxvals, one) for one in zip(*terms, strict=True)]


def _varying(leaves: Leaves, tangents: Leaves) -> Places:
    """The places of the real numbers that have a tangent."""
    return tuple(i for i in _moved(tangents) if is_float(leaves[i]))


def _moved(tangents: Leaves) -> list[int]:
    return [i for i, one in enumerate(tangents) if not isinstance(one, ad.Zero)]


def _with(all_: Any, n: int, one: Any) -> tuple[Any, ...]:
    return (*all_[:n], one, *all_[n + 1 :])


def _flat(lists: Any) -> Leaves:
    return list(itertools.chain.from_iterable(lists))


def _derived_transposed(cotangents: Leaves, *given: Any, form: Form) -> Leaves:
    leaves, trail, there = form.split(given)
    n = next(n for n, inside in enumerate(there) if any(map(ad.is_undefined_primal, inside)))
    closed = _with(_with(there, form.open, map(ad.instantiate_zeros, cotangents)), n, ())
    found = _derivative.bind(*leaves, *trail, *_flat(closed), form=form._replace(open=n))
    nothing = [[None] * len(one) for one in (leaves, trail, *there)]
    return _flat(_with(nothing, n + 2, found))


def _derived_mapped(given: Leaves, axes: Any, *, form: Form) -> tuple[Leaves, list[int]]:
    """Mapped are all tangents and cotangents, and all leaves of which there are some."""
    size = next(one.shape[axis] for one, axis in zip(given, axes, strict=True) if axis is not None)
    _, trail, there = form.split(axes)
    one_trail = all(axis is None for axis in trail)
    unlike = len(given) - len(_flat(there)) - len(trail) * (not one_trail)
    whole = sorted({*_flat(form.places[1:]), *range(unlike, len(given))})
    given, at = _in_front(given, axes)
    given = filled(given, whole, [batching.bdim_at_front(given[i], at[i], size) for i in whole])
    at = tuple(0 if i in whole else axis for i, axis in enumerate(at[: form.leaves]))
    values = tuple(one.update(shape=(size, *one.shape)) for one in form.values)
    mapped = form._replace(loop=_Mapped(form.loop, at, None if one_trail else 0), values=values)
    found = _derivative.bind(*given, form=mapped)
    return found, [0] * len(found)


_run, _derivative = primitive("replayed", _ran), primitive("replayed_derivative", _derived)
_run.def_abstract_eval(_run_shapes)
_derivative.def_abstract_eval(_derived_shapes)
partial_eval.dce_rules[_run] = _run_used
ad.primitive_jvps[_run] = _run_jvp
ad.primitive_jvps[_derivative] = _derived_jvp
ad.primitive_transposes[_derivative] = _derived_transposed
batching.primitive_batchers[_run] = _run_mapped
batching.primitive_batchers[_derivative] = _derived_mapped
