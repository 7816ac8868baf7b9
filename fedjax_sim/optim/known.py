"""Which bare optax objects are the same: those share one compiled program, also where some numbers in them differ."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax

_MOST = 256  # objects that are known; the ones not asked for longest go first
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)
# Numbers that nothing but arrays meet, in products, sums and bounds: optax's factory, and the name in its function. Not
# b1, b2 and other decays d: Python takes 1 - d in float64; of a float32 d it is another number, by 5e-5 for d = 0.999.
_EPS = "adadelta adam adamax adan amsgrad belief novograd radam rms rss yogi"
_OPEN = {
    ("scale", "step_size"), ("trace", "decay"), ("add_decayed_weights", "weight_decay"), ("clip", "max_delta"),
    ("clip_by_global_norm", "max_norm"),
    *((f"scale_by_{of}", eps) for of in _EPS.split() for eps in ("eps", "eps_root")),
}  # fmt: skip


def known(made: optax.GradientTransformation) -> optax.GradientTransformation:
    """An object made before that computes the same, or ``made`` itself.

    ``optax.adam(0.1)`` is a new pair of functions each time, and a program is known by the functions in it. Two pairs
    are the same if their code is, and what they close over: plain values, and functions of optax of which the same
    holds. A function from elsewhere is itself alone: what it calls by the names of its module may have been defined
    anew. A closed-over array, which may be traced, or a container that may change, makes an object like no other.
    """
    try:
        return _first(_Made(made, None))
    except _Unlike:
        return made


def opened(made: optax.GradientTransformation) -> tuple[optax.GradientTransformation, tuple[Any, ...]]:
    """``(first, numbers)``: an object made before that is the same but for some numbers, and those of ``made``.

    ``with_numbers(first, numbers)`` computes what ``made`` does, for traced numbers too. There are none in an object
    that is like no other. Opened are ``_OPEN``; an integer and 0 are structure, since optax leaves out what 0 scales.
    """
    numbers: list[Any] = []
    try:
        return _first(_Made(made, numbers)), tuple(numbers)
    except _Unlike:
        return made, ()


def with_numbers(first: Any, numbers: tuple[Any, ...]) -> Any:
    """The object with other numbers in the places of those that :func:`opened` finds in it."""
    return _rebuilt(first, iter(numbers), {})


class _Unlike(Exception):
    """What is closed over cannot be compared."""


class _Made:
    """A transformation, equal to others that are the same, but for their open numbers if there is a list for them."""

    def __init__(self, transformation: optax.GradientTransformation, numbers: list[Any] | None) -> None:
        self.transformation = transformation
        self._is = _signature(transformation, (), numbers)

    def __hash__(self) -> int:
        return hash(self._is)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Made) and self._is == other._is


class _Itself:
    """An object that is the same as no other; it lives as long as this, so that its identity is no other's."""

    def __init__(self, this: Any) -> None:
        self.this = this

    def __hash__(self) -> int:
        return id(self.this)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.this is other.this


@functools.lru_cache(maxsize=_MOST)
def _first(made: _Made) -> optax.GradientTransformation:
    return made.transformation


def _signature(value: Any, inside: tuple[Any, ...], numbers: list[Any] | None) -> Any:
    """What two equal values have in common, hashable; ``inside`` are the functions that close over it.

    Open numbers are put on the list; without a list they are values as others are.
    """
    if type(value) in _PLAIN:
        return type(value), repr(value)  # 0.0 and -0.0 are equal, True and 1 too
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, tuple):
        return type(value), *(_signature(one, inside, numbers) for one in value)
    if _is_partial(value):
        return functools.partial, _signature((value.func, *value.args), inside, numbers)
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return _Itself(value)
    if not isinstance(value, types.FunctionType):
        raise _Unlike
    if not _is_of_optax(value):
        return _Itself(value)
    if value in inside:  # it calls itself
        return inside.index(value)
    within = (*inside, value)

    def closed_over(name: str, content: Any) -> Any:
        if numbers is None or not _is_open(value, name, content):
            return _signature(content, within, numbers)
        numbers.append(content)
        return type(content)

    defaults = value.__defaults__ or (), tuple((value.__kwdefaults__ or {}).items())
    fixed = (_signature(one, within, None) for one in defaults)
    return value.__module__, value.__code__, *(closed_over(*cell) for cell in _cells(value)), *fixed


def _rebuilt(value: Any, numbers: Iterator[Any], inside: dict[Any, Any]) -> Any:
    """``value`` with new functions, those of ``inside`` for their keys: it goes where :func:`_signature` does."""
    if isinstance(value, tuple):
        parts = [_rebuilt(one, numbers, inside) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if _is_partial(value):
        return functools.partial(*_rebuilt((value.func, *value.args), numbers, inside))
    if not isinstance(value, types.FunctionType) or not _is_of_optax(value):
        return value
    if value in inside:
        return inside[value]
    cells = tuple(types.CellType() for _ in value.__closure__ or ())
    new = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    new.__kwdefaults__ = value.__kwdefaults__
    new.__dict__.update(value.__dict__)
    within = {**inside, value: new}
    for cell, (name, content) in zip(cells, _cells(value), strict=True):
        is_open = _is_open(value, name, content)
        cell.cell_contents = next(numbers) if is_open else _rebuilt(content, numbers, within)
    return new


def _is_partial(value: Any) -> bool:
    return isinstance(value, functools.partial) and not value.keywords


def _is_of_optax(function: types.FunctionType) -> bool:
    return str(function.__module__).startswith("optax.")


def _cells(function: types.FunctionType) -> list[tuple[str, Any]]:
    """What a function closes over, by name."""
    try:
        contents = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError as error:  # an empty cell
        raise _Unlike from error
    return list(zip(function.__code__.co_freevars, contents, strict=True))


def _is_open(function: types.FunctionType, name: str, content: Any) -> bool:
    """Whether what a function of optax closes over is a number that is opened."""
    factory = function.__qualname__.partition(".")[0]
    return (factory, name) in _OPEN and isinstance(content, (float, np.floating)) and content != 0
