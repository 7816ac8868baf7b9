"""How the values of a point get into a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import paths
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan, layout_by_rule
from fedjax_sim.studies.sweeps.space import Space

PARTS = ("task", "cohort", "work", "system", "asynchronous")  # of the run; other names belong to the algorithm


def placed(plan: Plan, values: Mapping[str, Any]) -> Plan:
    """The plan with other values at the names given; concrete values are checked as the factories would.

    Raises:
      ValueError: a name that is no real leaf (the nearest one is given, or the alternative), or a value out of range.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        part, rest = _part(name)
        changes.setdefault(part, {})[rest] = value
    # Nothing to replace is nothing to check: inside a program the values that stay are traced too.
    return plan._replace(**{part: paths.replace(getattr(plan, part), new) for part, new in changes.items()})


def stacked(plan: Plan, space: Space) -> dict[str, np.ndarray]:
    """The values of all points, [P, ...] by name, in the dtypes of the leaves that they replace.

    Raises:
      ValueError: a name is no real leaf, or its values have another shape than the leaf or are rounded in its type.
    """
    values = {}
    for name, column in space.points().items():
        part, rest = _part(name)
        if part == "system" and plan.system is None:
            raise ValueError(f"sweep: {name!r} belongs to a system, and the run has none: give it system=...")
        leaf = paths.get(getattr(plan, part), rest)
        if column.shape[1:] != np.shape(leaf):
            raise ValueError(
                f"sweep: the values of {name!r} have the shape {column.shape[1:]} and the leaf that they replace "
                f"{np.shape(leaf)}: they must be the same"
            )
        values[name] = column.astype(jnp.result_type(leaf))
        _check_exact(name, column, values[name])
    return values


def _check_exact(name: str, given: np.ndarray, held: np.ndarray) -> None:
    """Refuses values that a leaf of half precision would round: the result would name others than those that ran."""
    back = held.astype(np.float64)
    if held.dtype.itemsize < 4 and (back != given).any():
        at = np.flatnonzero(back != given)[0]
        raise ValueError(
            f"sweep: the value {given.flat[at]:.9g} of {name!r} would be {back.flat[at]:.9g} in the leaf's "
            f"{held.dtype}: give numbers that {held.dtype} has, or make the object with a Python number there"
        )


def of_all_points(base: Plan, asked: Plan, space: Space, rounds: int, initial_params: Any) -> Plan:
    """Checks every point of the space.

    Args:
      base: the run with its own values, resolved.
      asked: the run before that, with what the user left open.
      space: the points.
      rounds: R.
      initial_params: where all runs start, or None.

    Returns:
      The plan of the first point, with static sizes that suffice for all points.

    Raises:
      TypeError, ValueError: what is wrong, and at which point.
    """
    of_run = any(_part(name)[0] != "algorithm" for name in space.names)
    settled: list[Plan] = []
    for number in range(space.num_points):
        point = space.point(number)
        try:
            at = resolve(placed(asked, point), rounds, initial_params) if of_run else placed(base, point)
        except (TypeError, ValueError) as error:
            raise type(error)(f"sweep, point {number} ({in_words(point)}): {error}") from error
        if of_run or not settled:
            settled.append(at)
    # The slots of a cohort may follow from a concrete probability: the one program needs those of the largest.
    first = settled[0]
    widest = max((at.cohort for at in settled), key=lambda cohort: cohort.size(first.dataset.num_clients))
    cohort = jax.tree.unflatten(jax.tree.structure(widest), jax.tree.leaves(first.cohort))
    plan = first._replace(cohort=cohort)
    return plan if asked.layout is not None else plan._replace(layout=layout_by_rule(plan))


def in_words(point: Mapping[str, Any]) -> str:
    """``mu = 0.1, client_optimizer.learning_rate = 0.02``."""
    return ", ".join(
        f"{name} = {value:.6g}" if np.ndim(value) == 0 else f"{name} = [...]" for name, value in point.items()
    )


def described(description: dict[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """A run's description with the values of a point in the place of those it has."""
    changed = dict(description)
    for name, value in point.items():
        part, rest = _part(name)
        plain = np.asarray(value).tolist()
        if part == "algorithm":
            changed["algorithm"] = _substituted(changed["algorithm"], rest.split("."), plain)
        else:
            changed["run"] = {**changed["run"], part: _substituted(changed["run"][part], rest.split("."), plain)}
    return changed


def _substituted(node: Any, path: list[str], value: Any) -> Any:
    if not path:
        array = isinstance(node, Mapping) and ("array" in node or "opaque" in node)
        return {"array": value, "dtype": node.get("dtype", "float32")} if array else value
    if isinstance(node, list):
        at = int(path[0])
        return [_substituted(item, path[1:], value) if i == at else item for i, item in enumerate(node)]
    for inner in ("arguments", "mapping"):
        if inner in node:
            content = node[inner]
            return {**node, inner: {**content, path[0]: _substituted(content.get(path[0]), path[1:], value)}}
    return node  # opaque: its values are not written down


def _part(name: str) -> tuple[str, str]:
    part, dot, rest = name.partition(".")
    return (part, rest) if dot and part in PARTS else ("algorithm", name)
