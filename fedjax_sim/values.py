"""Checks of concrete values: every message has the value, the rule and the fix."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

_LISTED = 3000  # characters; all functions of optax are fewer


def suggest(name: str, known: list[str]) -> str:
    """The end of an error message: the nearest spelling of ``name`` among ``known``, and all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(known)
    return f"{hint}known: {listed if len(listed) <= _LISTED else listed[:_LISTED] + '...'}"


def shown(value: Any) -> str:
    """How an error message shows a value: its ``repr``, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def wrong_call(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> str:
    """The error message of a call that does not fit a signature.

    Args:
      name: what was called.
      signature: what it takes.
      args: what was given by position.
      kwargs: what was given by name.
      error: what Python says of it, where nothing better is known.
    """
    parameters = signature.parameters
    parts = [key if one.default is one.empty else f"{key}={one.default!r}" for key, one in parameters.items()]
    places = [key for key, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]
    if len(places) < len(parts):
        parts.insert(len(places), "*")
    unknown = [key for key in kwargs if key not in parameters]
    named = [key for key in parameters if key not in places and key not in kwargs]
    required = [key for key in named if parameters[key].default is inspect.Parameter.empty]
    by_name = required or (named if len(args) > len(places) else [])
    if unknown:
        near = difflib.get_close_matches(unknown[0], parameters, n=1)
        wrong = f"has no argument {unknown[0]!r}" + (f", did you mean {near[0]!r}?" if near else "")
    elif args and by_name:
        wrong = f"{error}: what comes after * is given by its name, {name}({by_name[0]}=...)"
    else:
        wrong = str(error)
    return f"{name}(...): {wrong}; its signature is ({', '.join(parts)})"


def known_names(**elsewhere: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function of many named arguments: a name it does not have is an error that suggests one.

    Args:
      **elsewhere: names it does not have and people look for, and what to do instead.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in known:
                    fix = elsewhere.get(name) or suggest(name, known)
                    raise TypeError(f"{function.__name__}(...) has no argument {name!r}: {fix}")
            return function(*args, **kwargs)

        return called

    return decorate


def is_concrete(value: Any) -> bool:
    """Whether every leaf of ``value`` is a number or array whose value can be looked at now."""
    return all(
        isinstance(leaf, (bool, int, float, np.ndarray, np.generic, jax.Array))
        and not isinstance(leaf, jax.core.Tracer)
        for leaf in jax.tree.leaves(value)
    )


def check_real(
    what: str,
    value: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    open_: bool = False,
    below: float | None = None,
    optional: bool = False,
) -> None:
    """Checks that a concrete hyper-parameter is finite and inside [low, high] (the open interval if ``open_``).

    Args:
      what: how the message names the value, ``"fedprox(mu=...)"``.
      value: number, array or pytree of them; traced values pass.
      low: smallest allowed value.
      high: largest allowed value.
      open_: whether the ends are excluded.
      below: an upper end that is excluded whatever ``open_``, in the place of ``high``.
      optional: whether None is allowed too.

    Raises:
      ValueError: naming the value and the rule.
      TypeError: not a number.
    """
    if value is None and not optional:
        raise TypeError(f"{what} is None: it must be a real number or an array of them")
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, jax.core.Tracer) or type(leaf) is object:
            continue
        if isinstance(leaf, (str, bytes, bool)) or not isinstance(
            leaf, (int, float, np.ndarray, np.generic, jax.Array)
        ):
            raise TypeError(f"{what} is {leaf!r}: it must be a real number or an array of them")
        array = np.asarray(leaf)
        if not (np.issubdtype(array.dtype, np.integer) or jnp.issubdtype(array.dtype, jnp.floating)):
            raise TypeError(f"{what} is an array of {array.dtype}: it must be a real number or an array of them")
        bounds = "" if low is None and high is None and below is None else f" {_interval(low, high, open_, below)}"
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{what} is {leaf}: it must be finite{bounds and ' and in' + bounds}")
        under = low is not None and np.any((array <= low) if open_ else (array < low))
        above = high is not None and np.any((array >= high) if open_ else (array > high))
        above = above or (below is not None and np.any(array >= below))
        if under or above:
            raise ValueError(f"{what} is {leaf}: it must be in{bounds}")


def check_count(what: str, value: Any, *, low: int = 1) -> None:
    """Checks that ``value`` is an integer of at least ``low``.

    Raises:
      TypeError: not an integer.
      ValueError: below ``low``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} is {value!r}: it must be an integer of at least {low}")
    if value < low:
        raise ValueError(f"{what} is {value}: it must be at least {low}")


def check_scalar(what: str, value: Any) -> None:
    """Checks, when a program is traced, that ``value`` is one number and not a stack of them.

    Raises:
      ValueError: naming the shape.
    """
    if np.shape(value) != ():
        raise ValueError(
            f"{what} has shape {np.shape(value)}: a run takes one number; to run several settings side by side use "
            "jax.vmap(train, (0, None, None))"
        )


def check_flag(what: str, value: Any) -> None:
    """Checks that ``value`` is True or False.

    Raises:
      TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}: it must be True or False")


def numeric_dtype(name: Any) -> Any:
    """The dtype of that name, one of numbers or truth values: no text of a gigabyte an entry, no Python objects.

    Raises:
      ValueError: no such dtype, or one of something else.
    """
    try:
        dtype = jnp.dtype(name)
        numeric = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    except Exception as error:  # numpy parses names: a SyntaxError, a KeyError, ...
        raise ValueError(f"unknown dtype {shown(name)}: give a name like 'float32', 'bfloat16' or 'int32'") from error
    if not isinstance(name, (str, type, np.dtype)) or not numeric:
        raise ValueError(f"unknown dtype {shown(name)}: give a name like 'float32', 'bfloat16' or 'int32'")
    return dtype


def integer_array(what: str, value: Any, axes: str) -> np.ndarray:
    """``value`` as a host array of integers that fit int32.

    Args:
      what: how the message names the value.
      value: concrete array or nested lists of integers.
      axes: its two axes as the message names them, ``"[rounds, N]"``.

    Raises:
      ValueError: of another type or shape, or too large.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is {value!r}: all rows must be equally long, {axes}") from error
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        given = repr(value) if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"
        raise ValueError(f"{what} is {given}: it must be an array of integers {axes}")
    largest = int(np.iinfo(np.int32).max)
    if array.size and int(array.max()) > largest:
        raise ValueError(f"{what} has the entry {array.max()}: entries must be at most {largest}")
    return array


def _interval(low: float | None, high: float | None, open_: bool, below: float | None) -> str:
    if below is not None:
        high = below
    left = "(-inf" if low is None else f"{'(' if open_ else '['}{low:g}"
    right = "inf)" if high is None else f"{high:g}{')' if open_ or below is not None else ']'}"
    return f"{left}, {right}"
