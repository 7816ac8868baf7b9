"""What a study varies: the hyper-parameters of an algorithm and of its run, by path, in coordinates.

In its coordinate u a hyper-parameter can take any step: an optimiser moves u without bounds, and the run gets the value
f(u), which has a meaning. Gradients with respect to u follow by the chain rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core import paths
from fedjax_sim.core.descriptions import Described, describe, encode, factory
from fedjax_sim.core.fields import real
from fedjax_sim.core.values import check_real, is_concrete, shown
from fedjax_sim.engine.plan import Plan
from fedjax_sim.models.task import Task

PARTS = ("task", "cohort", "work", "system", "asynchronous")  # of a run, of which a space can have values
_ALGORITHM = ""  # whose hyper-parameters need no prefix


class Transform(Described):
    """A smooth one-to-one map from all real numbers u to the values that a hyper-parameter may have."""

    def value(self, u: jax.Array) -> jax.Array:
        """f(u)."""
        raise TypeError(f"{type(self).__name__} must define value(u)")

    def coordinate(self, value: jax.Array) -> jax.Array:
        """u with f(u) = value."""
        raise TypeError(f"{type(self).__name__} must define coordinate(value)")

    def check(self, what: str, value: Any) -> None:
        """Checks that a concrete ``value``, which messages call ``what``, has a coordinate."""
        check_real(what, value)


class Identity(Transform):
    """f(u) = u: for values that may be anything, such as logits."""

    def value(self, u: jax.Array) -> jax.Array:
        return u

    def coordinate(self, value: jax.Array) -> jax.Array:
        return value


class Positive(Transform):
    """f(u) = exp(u): steps are factors, as suits learning rates and mu."""

    def value(self, u: jax.Array) -> jax.Array:
        return jnp.exp(u)

    def coordinate(self, value: jax.Array) -> jax.Array:
        return jnp.log(value)

    def check(self, what: str, value: Any) -> None:
        check_real(what, value, above=0.0)


class Interval(Transform):
    """f(u) = low + (high - low) sigmoid(u): inside the open interval.

    Args:
      low: its lower end.
      high: its upper end, > low.
    """

    low: Any = real()
    high: Any = real()

    def checked(self) -> Self:
        super().checked()
        if np.shape(self.low) != () or np.shape(self.high) != () or float(self.low) >= float(self.high):
            raise ValueError(f"interval(low={self.low}, high={self.high}): give two numbers, low < high")
        return self

    def value(self, u: jax.Array) -> jax.Array:
        low, width = self._ends(u)
        limits = jnp.finfo(u.dtype)
        # A sigmoid rounds to 0 and 1; many hyper-parameters (a momentum) must stay below their end.
        return low + width * jnp.clip(jax.nn.sigmoid(u), limits.tiny, 1 - limits.epsneg)

    def coordinate(self, value: jax.Array) -> jax.Array:
        low, width = self._ends(value)
        return jnp.log(value - low) - jnp.log(low + width - value)

    def check(self, what: str, value: Any) -> None:
        check_real(what, value, above=float(self.low), below=float(self.high))

    def _ends(self, like: jax.Array) -> tuple[jax.Array, jax.Array]:
        low = jnp.asarray(self.low, like.dtype)
        return low, jnp.asarray(self.high, like.dtype) - low


class Simplex(Positive):
    """f(u) = softmax(u) along the last axis: positive weights that sum to 1."""

    def value(self, u: jax.Array) -> jax.Array:
        return jax.nn.softmax(u, axis=-1)

    def check(self, what: str, value: Any) -> None:
        super().check(what, value)
        array = np.asarray(value, np.float64)
        if array.ndim == 0 or not np.allclose(array.sum(axis=-1), 1.0, rtol=0.0, atol=1e-4):
            total = "is one number" if array.ndim == 0 else f"sums to {np.ravel(array.sum(axis=-1))[0]:g}"
            raise ValueError(
                f"{what} {total}: on the simplex weights sum to 1 along the last axis; divide by their sum"
            )


identity = factory("transform.identity", Identity)
positive = factory("transform.positive", Positive)
interval = factory("transform.interval", Interval)
simplex = factory("transform.simplex", Simplex)


def unit_interval() -> Transform:
    """``interval(0, 1)``: for momenta, decays and mixing weights."""
    return interval(0.0, 1.0)


class Subject(NamedTuple):
    """An algorithm and its run, the keyword arguments of ``make_train``.

    A path is the algorithm's own, ``"client_optimizer.learning_rate"``, or begins with the name of an argument of the
    run: ``"task.weight_decay"``.
    """

    algorithm: Method
    run: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan, parts: Iterable[str] = PARTS) -> Subject:
        """What a plan runs, and these parts of the run."""
        return cls(plan.algorithm, {part: getattr(plan, part) for part in parts})

    def get(self, path: str) -> jax.Array:
        """The value at ``path`` as an array: of its own dtype where it is an array, else of the default float."""
        part, rest = self._split(path)
        leaf = paths.get(self._part(part), rest)
        return jnp.asarray(leaf) if hasattr(leaf, "dtype") else jnp.asarray(leaf, jnp.result_type(float))

    def replace(self, values: Mapping[str, Any]) -> Subject:
        """With other values at the paths given; concrete ones are checked."""
        by_part: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            part, rest = self._split(path)
            by_part.setdefault(part, {})[rest] = value
        new = {part: paths.replace(self._part(part), changes) for part, changes in by_part.items()}
        algorithm = new.pop(_ALGORITHM, self.algorithm)
        if "task" in new and "evaluate" in self.run:
            new["evaluate"] = judging(of_any_run(self.run["evaluate"], self.run["task"]), new["task"])
        return Subject(algorithm, self.run | new)

    def natural(self, path: str) -> Transform:
        """The transform that keeps the value at ``path`` inside what its owner accepts.

        The owner is asked: where it takes -1 there are no bounds, where it takes 2 the value must be positive, and
        where it takes neither it lies between 0 and 1.
        """
        shape = jnp.shape(self.get(path))

        def accepts(value: float) -> bool:
            try:
                self.replace({path: np.full(shape, value)})
            except ValueError:
                return False
            return True

        if accepts(-1.0):
            return identity()
        return positive() if accepts(2.0) else unit_interval()

    def transforms(self, who: str, over: Any) -> dict[str, Transform]:
        """The transforms of ``over`` by path, defaults filled in; ``who`` is what messages call the function."""
        if isinstance(over, str) or not isinstance(over, Iterable):
            raise TypeError(f"{who}(over={shown(over)}): give paths, ['mu'], or a mapping of paths to transforms")
        given = dict(over) if isinstance(over, Mapping) else dict.fromkeys(over)
        if not given:
            raise ValueError(f"{who}(over=...) is empty: name at least one hyper-parameter")
        transforms = {}
        for path, transform in given.items():
            self.get(path)  # unknown paths, structure and integers end here
            if transform is not None and not isinstance(transform, Transform):
                raise TypeError(
                    f"{who}(over={{{path!r}: {shown(transform)}}}): give a transform, fedjax_sim.hyper.positive(), or "
                    "None"
                )
            transforms[path] = self.natural(path) if transform is None else transform
        return transforms

    def coordinates(self, transforms: Mapping[str, Transform]) -> dict[str, jax.Array]:
        """u with f(u) = the values at the paths."""
        found = {}
        for path, transform in transforms.items():
            value = self.get(path)
            try:
                transform.check(path, np.asarray(value))
            except ValueError as error:
                raise ValueError(
                    f"the start is outside what {type(transform).__name__.lower()}() can reach: {error}; give "
                    "another value to start from, or another transform"
                ) from None
            found[path] = transform.coordinate(value)
        return found

    def description(self) -> dict[str, Any]:
        """The algorithm and the run as JSON."""
        run = {name: encode(value) for name, value in self.run.items()}
        return {"algorithm": describe(self.algorithm), "run": run}

    def _split(self, path: str) -> tuple[str, str]:
        if isinstance(path, str):
            part, _, rest = path.partition(".")
            if rest and isinstance(self.run.get(part), Described):
                return part, rest
        return _ALGORITHM, path

    def _part(self, part: str) -> Any:
        return self.algorithm if part == _ALGORITHM else self.run[part]


def values_of(coordinates: Mapping[str, jax.Array], transforms: Mapping[str, Transform]) -> dict[str, jax.Array]:
    """f(u) by path."""
    return {path: transform.value(coordinates[path]) for path, transform in transforms.items()}


class _OfRun(Task):
    """In an evaluation, the task of the run that it judges."""


def of_any_run(evaluate: Any, task: Task) -> Any:
    """An evaluation that has the run's task in it, as ``per_client(task)``, for runs whose tasks differ in numbers.

    Before it judges a run it is to be :func:`judging` that one's task: else its losses would have the penalty of
    another one.
    """
    return _with_tasks(evaluate, lambda one: _OfRun() if _same(one, task) else one)


def judging(evaluate: Any, task: Task) -> Any:
    """What :func:`of_any_run` returned, as an evaluation of this task."""
    return _with_tasks(evaluate, lambda one: task if isinstance(one, _OfRun) else one)


def _with_tasks(node: Any, chosen: Callable[[Task], Task]) -> Any:
    """``node`` with others in the place of the tasks in it."""
    if isinstance(node, Task):
        return chosen(node)
    if not isinstance(node, Described):
        return node
    inner = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}  # type: ignore[arg-type]
    new = {name: _with_tasks(one, chosen) for name, one in inner.items() if isinstance(one, Described)}
    return node.replace(**new) if new else node


def _same(one: Task, other: Task) -> bool:
    """Whether both are one task, as far as their numbers are known."""
    structures: list[Any] = [jax.tree.structure(task) for task in (one, other)]
    if structures[0] != structures[1] or not is_concrete((one, other)):
        return False
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return all(np.array_equal(a, b) for a, b in zip(leaves, others, strict=True))
