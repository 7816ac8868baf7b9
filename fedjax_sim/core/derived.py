"""Values that are found without a derivative, and have a rule for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Rule = Callable[[Any, Any, Any, Any], Any]


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
    leaves, structure = jax.tree.flatten((found, of, others))
    return jax.tree.unflatten(jax.tree.structure(found), _derived.bind(*leaves, rule=rule, structure=structure))


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A rule for arrays of which some have one more axis, in front."""

    rule: Rule
    axes: tuple[int | None, ...]  # of the leaves of what is found, what it is of, and the others

    def __call__(self, *given: Any) -> Any:
        found, of, of_dot, others = given
        leaves, structure = jax.tree.flatten((found, of, others))
        of_structure: Any = jax.tree.structure(of)
        dots = of_structure.flatten_up_to(of_dot)

        def rule(leaves: list[Any], dots: list[Any]) -> Any:
            found, of, others = jax.tree.unflatten(structure, leaves)
            return self.rule(found, of, jax.tree.unflatten(of_structure, dots), others)

        _, axes, _ = jax.tree.unflatten(structure, [_Held(axis) for axis in self.axes])
        return jax.vmap(rule, (list(self.axes), [one.value for one in jax.tree.leaves(axes)]))(leaves, dots)


_derived = Primitive("derived")  # needs no transpose: its tangent is the rule's, and it is not in it
_derived.multiple_results = True


def _found(leaves: Any, structure: Any) -> list[Any]:
    return jax.tree.leaves(jax.tree.unflatten(structure, leaves)[0])


def _values(*leaves: Any, rule: Rule, structure: Any) -> list[Any]:
    return _found(leaves, structure)


def _lowered(context: Any, *leaves: Any, rule: Rule, structure: Any) -> list[Any]:
    return _found(leaves, structure)


def _tangent(primals: Any, tangents: Any, *, rule: Rule, structure: Any) -> tuple[list[Any], list[Any]]:
    values = _derived.bind(*primals, rule=rule, structure=structure)
    found, of, others = jax.tree.unflatten(structure, primals)
    _, held, _ = jax.tree.unflatten(structure, [_Held(one) for one in tangents])
    dots = [None if _is_zero(one.value) else one.value for one in jax.tree.leaves(held)]
    if all(one is None for one in dots):
        return values, [jnp.zeros_like(one) for one in values]
    again = jax.tree.unflatten(jax.tree.structure(found), values)
    return values, jax.tree.leaves(rule(again, of, jax.tree.unflatten(jax.tree.structure(of), dots), others))


@dataclasses.dataclass(frozen=True)
class _Held:
    """A leaf, whatever it is: of JAX's trees None is none, and a tangent that is zero is a node."""

    value: Any


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero) or tangent.dtype == jax.dtypes.float0


def _batched(leaves: Any, axes: Any, *, rule: Rule, structure: Any) -> tuple[list[Any], list[int]]:
    size = next(one.shape[axis] for one, axis in zip(leaves, axes, strict=True) if axis is not None)
    count = len(_found(leaves, structure))  # the first of the leaves; others stay as they are where nothing is mapped
    moved = [
        one if axis is None and i >= count
        else jnp.broadcast_to(one, (size, *jnp.shape(one))) if axis is None
        else jnp.moveaxis(one, axis, 0)
        for i, (one, axis) in enumerate(zip(leaves, axes, strict=True))
    ]  # fmt: skip
    at = tuple(None if axis is None and i >= count else 0 for i, axis in enumerate(axes))
    values = _derived.bind(*moved, rule=_Mapped(rule, at), structure=structure)
    return values, [0] * count


_derived.def_impl(_values)
_derived.def_abstract_eval(_values)
mlir.register_lowering(_derived, _lowered)
ad.primitive_jvps[_derived] = _tangent
batching.primitive_batchers[_derived] = _batched
