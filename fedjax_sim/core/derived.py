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
      rule: linear in ``of_dot``, and a function of a module: programs are compared by it.
      found: pytree of arrays, computed behind ``lax.stop_gradient``.
      of: what it is differentiated by, pytree of real arrays.
      others: what the rule reads besides, pytree of arrays.
    """
    leaves, structure = jax.tree.flatten((found, of, others))
    return jax.tree.unflatten(jax.tree.structure(found), _derived.bind(*leaves, rule=rule, structure=structure))


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A rule for arrays with one more axis, in front."""

    rule: Rule

    def __call__(self, *given: Any) -> Any:
        return jax.vmap(self.rule)(*given)


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
    _, dots, _ = jax.tree.unflatten(structure, [_Tangent(one) for one in tangents])
    of_dot = jax.tree.map(lambda one: ad.instantiate_zeros(one.value), dots)
    again = jax.tree.unflatten(jax.tree.structure(found), values)
    return values, jax.tree.leaves(rule(again, of, of_dot, others))


@dataclasses.dataclass(frozen=True)
class _Tangent:
    """A leaf, whatever it is: a tangent that is zero is a node of JAX's."""

    value: Any


def _batched(leaves: Any, axes: Any, *, rule: Rule, structure: Any) -> tuple[list[Any], list[int]]:
    size = next(one.shape[axis] for one, axis in zip(leaves, axes, strict=True) if axis is not None)
    moved = [
        jnp.broadcast_to(one, (size, *jnp.shape(one))) if axis is None else jnp.moveaxis(one, axis, 0)
        for one, axis in zip(leaves, axes, strict=True)
    ]
    values = _derived.bind(*moved, rule=_Mapped(rule), structure=structure)
    return values, [0] * len(values)


_derived.def_impl(_values)
_derived.def_abstract_eval(_values)
mlir.register_lowering(_derived, _lowered)
ad.primitive_jvps[_derived] = _tangent
batching.primitive_batchers[_derived] = _batched
