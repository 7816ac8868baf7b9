"""Real hyper-parameters by name: ``"client_optimizer.learning_rate"`` in an algorithm, a task, a cohort or any pytree.

A path is the names of fields, keys of dictionaries and places in lists on the way to a leaf, joined by dots. Only real
leaves have one: these are what a run can be differentiated in and what other values of compile nothing.

Example:
  >>> import fedjax_sim as fjs
  >>> from fedjax_sim import paths
  >>> algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(0.02), mu=0.1)
  >>> paths.real_leaves(algorithm)["client_optimizer.learning_rate"]
  0.02
  >>> paths.replace(algorithm, {"mu": 1, "client_optimizer.learning_rate": 0.05}).mu
  1.0
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.trees import by_path
from fedjax_sim.core.values import check_real, is_concrete, is_float, shown, suggest

T = TypeVar("T")


def real_leaves(obj: Any) -> dict[str, Any]:
    """All real leaves of ``obj`` by their paths, in the order of its fields.

    A dictionary of arrays is a pytree, so this is also the way around integer leaves, in which ``jax.grad`` refuses to
    differentiate::

        def loss(reals):
            return train(paths.replace(algorithm, reals), data, key).metrics["loss"][-1]

        jax.grad(loss)(paths.real_leaves(algorithm))

    Fields that are structure, integers, keys and None have no path.
    """
    return {path: leaf for path, leaf in _leaves(obj).items() if is_float(leaf)}


def get(obj: Any, path: str) -> Any:
    """The real leaf of ``obj`` at ``path``.

    Raises:
      ValueError: there is no real leaf at ``path``: no such name (the nearest one is given), structure, integers, None,
        or several leaves.
      TypeError: ``path`` is no string.
    """
    check(obj, [path])
    return _leaves(obj)[path]


def replace(obj: T, values: Mapping[str, Any]) -> T:
    """A copy of ``obj`` with other values at the paths given: numbers, arrays or traced values.

    Integers become floats. Another shape is accepted (values stacked for ``jax.vmap``); concrete values of the old
    shape are checked as the object's factory would.

    Raises:
      ValueError: a path that :func:`get` refuses, or a value that the factory does.
      TypeError: a value that is not real.
    """
    check(obj, values)
    new = {path: _as_real(path, value) for path, value in values.items()}
    leaves, structure = jax.tree.flatten(obj)
    names = _leaves(obj)
    changed: T = jax.tree.unflatten(structure, [new.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)])
    alike = all(np.shape(value) == np.shape(names[path]) for path, value in new.items())
    return _checked(changed) if alike and is_concrete(list(new.values())) else changed


def check(obj: Any, paths: Iterable[str]) -> None:
    """Checks that ``obj`` has a real leaf at each of ``paths``: ValueError or TypeError as :func:`get`."""
    leaves = _leaves(obj)
    for path in paths:
        if not isinstance(path, str):
            raise TypeError(f"{path!r} is no path: give names joined by dots, 'client_optimizer.learning_rate'")
        if path not in leaves or not is_float(leaves[path]):
            raise ValueError(_explained(obj, path, leaves))


def _explained(obj: Any, path: str, leaves: dict[str, Any]) -> str:
    """Why there is no real leaf at ``path``, and what to do instead."""
    name = type(obj).__name__
    real = [known for known, leaf in leaves.items() if is_float(leaf)]
    below = [one for one in real if one.startswith(f"{path}.")]
    if below:
        return f"{path!r} of {name} is not one leaf: give {' or '.join(map(repr, below))}"
    missing = object()
    found = leaves.get(path, functools.reduce(lambda node, part: getattr(node, part, missing), path.split("."), obj))
    if found is missing or callable(found):
        return f"{name} has no hyper-parameter {path!r}: {suggest(path, real)}"
    inside = [one for one in real if one.endswith(f".{path}")]
    if path not in leaves and inside:  # a wrapper shows what its base has
        return f"{name} has {path!r} in what it wraps: give {' or '.join(map(repr, inside))}"
    kind = f"of type {getattr(found, 'dtype', type(found).__name__)}" if path in leaves else "which is structure"
    known = f"real ones: {', '.join(real)}" if real else f"{name} has no real leaves"
    fix = "give it a number when the object is made" if found is None else f"make one {name} for each value"
    return (
        f"{name} has {path!r} = {shown(found)}, {kind}: only real leaves have a derivative and can be varied inside "
        f"one compiled program; {fix}; {known}"
    )


def _leaves(obj: Any) -> dict[str, Any]:
    named = by_path(obj, ".")
    if len(named) < len(jax.tree.leaves(obj)):
        raise ValueError(f"two leaves of {type(obj).__name__} have one path: keys of dictionaries must have no dots")
    return named


def _as_real(path: str, value: Any) -> Any:
    """``value`` with integers as floats, so that 1 and 1.0 are one compiled program."""
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        check_real(repr(path), value)
        return float(value)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jnp.integer):
        return value.astype(jnp.result_type(float))
    if not is_float(value):
        raise TypeError(f"{path!r} is given {shown(value)}: it must be a real number or an array of them")
    return value


def _checked(node: Any) -> Any:
    """``node`` with all its described parts checked, the innermost first."""
    if not isinstance(node, Described):
        return node
    inner = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}  # type: ignore[arg-type]
    parts = {name: _checked(part) for name, part in inner.items() if isinstance(part, Described)}
    return node.replace(**parts).checked()
