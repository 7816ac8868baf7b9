"""Values that are found without a derivative, and have a rule for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Rule = Callable[[Any, Any, Any, Any], Any]


def primitive(name: str, function: Callable[..., list[Any]]) -> Primitive:
    """A primitive that computes what ``function`` does, to be given its other rules."""
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(function)
    made.to_lojax = function  # for jaxprs with JAX's primitives of a higher level: jnp.searchsorted is one in jax 0.12
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=True))
    return made


def with_derivative(rule: Rule, found: Any, of: Any, others: Any = ()) -> Any:
    """``found``, whose tangent along that of ``of`` is ``rule(found, of, of_dot, others)``, to any order.

    It is a primitive of its own. ``jax.custom_jvp`` would be lost in second derivatives through a loop: while
    ``lax.scan`` looks in its body for what no turn changes, JAX takes functions for what they compute and forgets their
    rules. Of a function that has none of its own, as a search has, the derivative is then 0, without a word.

    Args:
      rule: linear in ``of_dot``, whose leaves are None where the tangent is zero, as that of integers is. Programs are
        compared by it.
      found: pytree of real arrays, computed behind ``lax.stop_gradient``.
      of: what it is differentiated by, pytree of arrays.
      others: what the rule reads besides, pytree of arrays.
    """
    structures = tuple(jax.tree.structure(tree) for tree in (found, of, others))
    leaves = jax.tree.leaves((found, of, others))
    return jax.tree.unflatten(structures[0], _derived.bind(*leaves, rule=rule, structures=structures))


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A rule for arrays of which some have one more axis, in front."""

    rule: Rule
    structures: tuple[Any, Any, Any]
    axes: tuple[int | None, ...]  # of the leaves of what is found, what it is of, and the others

    def __call__(self, *given: Any) -> Any:
        found, of, others = _trees(self.structures, self.axes)
        return jax.vmap(self.rule, (found, of, of, others))(*given)


def _parts(structures: Any, leaves: Any) -> list[list[Any]]:
    """The leaves of what is found, of what it is of, and of the others."""
    rest = iter(leaves)
    return [list(itertools.islice(rest, structure.num_leaves)) for structure in structures]


def _trees(structures: Any, leaves: Any) -> list[Any]:
    return [jax.tree.unflatten(*one) for one in zip(structures, _parts(structures, leaves), strict=True)]


def _values(*leaves: Any, rule: Rule, structures: Any) -> list[Any]:
    return _parts(structures, leaves)[0]


def _tangent(primals: Any, tangents: Any, *, rule: Rule, structures: Any) -> tuple[list[Any], list[Any]]:
    values = _derived.bind(*primals, rule=rule, structures=structures)
    dots = [None if _is_zero(one) else one for one in _parts(structures, tangents)[1]]
    if all(one is None for one in dots):
        return values, [jnp.zeros_like(one) for one in values]
    _, of, others = _trees(structures, primals)
    found, of_dot = (jax.tree.unflatten(*one) for one in zip(structures, (values, dots), strict=False))
    return values, jax.tree.leaves(rule(found, of, of_dot, others))


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _batched(leaves: Any, axes: Any, *, rule: Rule, structures: Any) -> tuple[list[Any], list[int]]:
    size = next(one.shape[axis] for one, axis in zip(leaves, axes, strict=True) if axis is not None)
    count = structures[0].num_leaves  # what is found comes first; of the others, what is not mapped stays as it is
    at = tuple(None if axis is None and i >= count else 0 for i, axis in enumerate(axes))
    moved = [
        one if to is None else batching.bdim_at_front(one, axis, size)
        for one, axis, to in zip(leaves, axes, at, strict=True)
    ]
    values = _derived.bind(*moved, rule=_Mapped(rule, structures, at), structures=structures)
    return values, [0] * count


_derived = primitive("derived", _values)  # needs no transpose: its tangent is the rule's, and it is not in it
_derived.def_abstract_eval(_values)
ad.primitive_jvps[_derived] = _tangent
batching.primitive_batchers[_derived] = _batched
