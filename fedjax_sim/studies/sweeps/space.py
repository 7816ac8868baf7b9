"""Which values of the hyper-parameters a sweep runs.

A name is a path to a real leaf (see :mod:`fedjax_sim.paths`): of the algorithm, ``"client_optimizer.learning_rate"``,
or, after ``task.``, ``cohort.``, ``work.``, ``system.`` or ``asynchronous.``, of these parts of the run:
``"task.weight_decay"``. A value is a number, or an array for a leaf that is one. A space knows nothing of algorithms:
whether its names exist is checked when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import fields
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.values import check_real, shown

POINT = "point"  # the dimension of spaces that are lists


class Space(Described):
    """Base of the spaces: P points, in the order of an array of shape ``shape``."""

    @property
    def names(self) -> tuple[str, ...]:
        """The hyper-parameters, in the order given."""
        raise TypeError(f"{type(self).__name__} must define names")

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes of ``shape``: the hyper-parameters of a grid, ``("point",)`` of a list."""
        return (POINT,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of points along the axes."""
        raise TypeError(f"{type(self).__name__} must define shape")

    def points(self) -> dict[str, np.ndarray]:
        """The values of each hyper-parameter at all P points, float64[P, ...] by name."""
        raise TypeError(f"{type(self).__name__} must define points()")

    def coordinates(self) -> dict[str, tuple[str, np.ndarray]]:
        """The dimension along which each hyper-parameter changes, and its values there."""
        return {name: (POINT, values) for name, values in self.points().items()}

    @property
    def num_points(self) -> int:
        """P."""
        return math.prod(self.shape)

    def point(self, number: int) -> dict[str, Any]:
        """The values at a point, 0 to P - 1: a float, or an array for an array, by name."""
        at = {name: values[number] for name, values in self.points().items()}
        return {name: float(value) if np.ndim(value) == 0 else value for name, value in at.items()}


class _Lists(Space):
    """Base of the spaces that are given as a list of values for each name."""

    values: Any = fields.static()

    def checked(self) -> Self:
        return super().checked().replace(values=_columns(self.factory_name(), self.values))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.values)

    def _columns(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(column, np.float64) for name, column in self.values}


class Grid(_Lists):
    """All combinations: the first name changes slowest.

    Args:
      values: the values of each hyper-parameter: ``{"mu": [0, 1], "client_optimizer.learning_rate": [0.01, 0.1]}``;
        finite, each once.
    """

    def checked(self) -> Self:
        found = super().checked()
        dtype = jnp.result_type(float)
        for name, column in found.values:
            held: dict[Any, Any] = {}
            for value in column:
                number = _tuples(np.asarray(value, dtype).tolist())
                if number in held:
                    both = f"values {held[number]!r} and {value!r}, which are one number in {dtype}"
                    said = f"value {value!r} twice" if held[number] == value else both
                    raise ValueError(f"grid({{{name!r}: ...}}) has the {said}: give each value once")
                held[number] = value
        return found

    @property
    def dims(self) -> tuple[str, ...]:
        return self.names

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(column) for _, column in self.values)

    def points(self) -> dict[str, np.ndarray]:
        places = np.indices(self.shape).reshape(len(self.shape), -1)
        return {name: values[place] for (name, values), place in zip(self._columns().items(), places, strict=True)}

    def coordinates(self) -> dict[str, tuple[str, np.ndarray]]:
        return {name: (name, values) for name, values in self._columns().items()}


class Zipped(_Lists):
    """Lists side by side: point k has the k-th value of each.

    Args:
      values: equally long lists: ``{"mu": [0.1, 1.0], "client_optimizer.learning_rate": [0.1, 0.02]}``.
    """

    def checked(self) -> Self:
        found = super().checked()
        lengths = {name: len(column) for name, column in found.values}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"zipped: the lists have different lengths, {lengths}: they must be equally long")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values[0][1]),)

    def points(self) -> dict[str, np.ndarray]:
        return self._columns()


class Distribution(Described):
    """Base of the distributions of one real hyper-parameter."""

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """``count`` independent draws, float64[count]; the first ones do not depend on ``count``."""
        raise TypeError(f"{type(self).__name__} must define draw(generator, count)")


class Uniform(Distribution):
    """Every value between two ends is equally likely: x ~ U[low, high).

    Args:
      low: smallest value.
      high: upper end, above ``low``.
    """

    low: float = fields.real(structure=True)
    high: float = fields.real(structure=True)

    def checked(self) -> Self:
        super().checked()
        low, high = float(np.asarray(self.low)), float(np.asarray(self.high))
        if low >= high:
            raise ValueError(f"{self.factory_name()}({low:g}, {high:g}): low must be below high")
        return self.replace(low=low, high=high)

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return self.quantile(generator.random(count))

    def quantile(self, share: np.ndarray) -> np.ndarray:
        """The value below which so large a share of draws lies."""
        return self.low + (self.high - self.low) * share


class LogUniform(Uniform):
    """Every order of magnitude between two ends is equally likely: log x ~ U[log low, log high).

    Args:
      low: smallest value, > 0.
      high: upper end, above ``low``.
    """

    low: float = fields.real(above=0.0, structure=True)
    high: float = fields.real(above=0.0, structure=True)

    def quantile(self, share: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(np.log(self.low) + np.log(self.high / self.low) * share))


class Random(Space):
    """Independent random draws (Bergstra and Bengio 2012, "Random search for hyper-parameter optimization").

    The draws of a name depend on the seed, the name and the point's number alone: more points or another name leave
    them what they are.

    Args:
      distributions: what each hyper-parameter is drawn from: ``{"mu": log_uniform(1e-3, 1)}``.
      count: number of points.
      seed: of the draws, >= 0.
    """

    distributions: Any = fields.static()
    count: int = fields.count()
    seed: int = fields.count(low=0, default=0)

    def checked(self) -> Self:
        pairs = _pairs("random", self.distributions, "{'mu': log_uniform(1e-3, 1)}")
        for name, distribution in pairs:
            if not isinstance(distribution, Distribution):
                raise TypeError(
                    f"random({{{name!r}: ...}}) is {shown(distribution)}: give a distribution, for instance "
                    "fedjax_sim.sweeps.log_uniform(1e-3, 1)"
                )
        return super().checked().replace(distributions=pairs)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.distributions)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count,)

    def points(self) -> dict[str, np.ndarray]:
        return {
            name: distribution.draw(np.random.default_rng([self.seed, *name.encode()]), self.count)
            for name, distribution in self.distributions
        }


uniform = factory("distribution.uniform", Uniform)
log_uniform = factory("distribution.log_uniform", LogUniform)
grid = factory("space.grid", Grid)
zipped = factory("space.zipped", Zipped)
random = factory("space.random", Random)


def points(given: Iterable[Mapping[str, Any]]) -> Space:
    """The points of a list, all of the same names: ``points([{"mu": 0.1}, {"mu": 1.0}])``, a :func:`zipped` space."""
    rows = list(given) if isinstance(given, Iterable) else []
    if not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(f"points({shown(given)}): give a list of mappings, [{{'mu': 0.1}}, {{'mu': 1.0}}]")
    if not rows:
        raise ValueError(f"points({shown(given)}): give at least one point")
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise ValueError(
                f"points: point {number} has the names {sorted(row)} and the first one {sorted(rows[0])}: all points "
                "must have the same names"
            )
    return zipped({name: [row[name] for row in rows] for name in rows[0]})


def _pairs(factory_name: str, given: Any, example: str) -> tuple[tuple[str, Any], ...]:
    """The items of a mapping, or of the pairs that a description has in its place."""
    items = given.items() if isinstance(given, Mapping) else given
    try:
        pairs = tuple((name, value) for name, value in items)
    except (TypeError, ValueError):
        raise TypeError(f"{factory_name}({shown(given)}): give a mapping, {example}") from None
    if not pairs:
        raise ValueError(f"{factory_name}({shown(given)}): give at least one name, {example}")
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"{factory_name}({{{name!r}: ...}}): names are strings, {example}")
    return pairs


def _columns(factory_name: str, given: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Names with their values as (nested) tuples of floats: hashable, and plain in a description."""
    columns = []
    for name, values in _pairs(factory_name, given, "{'mu': [0.1, 1.0]}"):
        what = f"{factory_name}({{{name!r}: ...}})"
        if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
            raise TypeError(f"{what} is {shown(values)}: give a list of numbers, [0.1, 1.0]")
        column = [np.asarray(value) if isinstance(value, (list, tuple)) else value for value in values]
        if not column:
            raise ValueError(f"{what} is empty: give at least one value")
        for value in column:
            check_real(what, value)
        if len({np.shape(value) for value in column}) > 1:
            raise ValueError(f"{what} has values of different shapes: all must be numbers, or arrays of one shape")
        columns.append((name, _tuples(np.asarray(column, np.float64).tolist())))
    return tuple(columns)


def _tuples(nested: Any) -> Any:
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested
