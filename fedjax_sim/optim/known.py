"""Which bare optax objects are the same: made twice from the same arguments, they share one compiled program."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

_MOST = 256  # objects that are known; the ones not asked for longest go first
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType)


def known(made: optax.GradientTransformation) -> optax.GradientTransformation:
    """An object made before that computes the same, or ``made`` itself.

    ``optax.adam(0.1)`` is a new pair of functions each time, and a program is known by the functions in it. Two pairs
    are the same if their code is, and what they close over: plain values, and functions of optax of which the same
    holds. A function from elsewhere is itself alone: what it calls by the names of its module may have been defined
    anew. A closed-over array, which may be traced, or a container that may change, makes an object like no other.
    """
    try:
        return _first(_Made(made))
    except _Unlike:
        return made


class _Unlike(Exception):
    """What is closed over cannot be compared."""


class _Made:
    """A transformation, equal to others that are the same."""

    def __init__(self, transformation: optax.GradientTransformation) -> None:
        self.transformation = transformation
        self._is = _signature(transformation, ())

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


def _signature(value: Any, inside: tuple[Callable[..., Any], ...]) -> Any:
    """What two equal values have in common, hashable; ``inside`` are the functions that close over it."""
    if type(value) in _PLAIN:
        return type(value), repr(value)  # 0.0 and -0.0 are equal, True and 1 too
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, tuple):
        return type(value), *(_signature(one, inside) for one in value)
    if isinstance(value, functools.partial) and not value.keywords:
        return functools.partial, _signature((value.func, *value.args), inside)
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return _Itself(value)
    if not isinstance(value, types.FunctionType):
        raise _Unlike
    if not str(value.__module__).startswith("optax."):
        return _Itself(value)
    if value in inside:  # it calls itself
        return inside.index(value)
    try:
        closed = tuple(cell.cell_contents for cell in value.__closure__ or ())
    except ValueError as error:  # an empty cell
        raise _Unlike from error
    defaults = value.__defaults__ or (), tuple((value.__kwdefaults__ or {}).items())
    return value.__module__, value.__code__, *(_signature(one, (*inside, value)) for one in (closed, *defaults))
