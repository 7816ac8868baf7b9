"""Functions that take the same arguments, and calls that do not fit.

These are answered by the call that was meant, with the shapes that were given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from fedjax_sim.core.values import shown, wrong_call

P = ParamSpec("P")
T = TypeVar("T")

# What is meant by so many arguments in a row.
MEANT_BY_CLIENTS = {
    2: "from_clients(list(zip({0}, {1}))) where both have an entry for each client, or from_ids(({0}, {1}), ids) of "
    "flat arrays and the client of each row",
    3: "from_ids(({0}, {1}), {2})",
}
MEANT_BY_IDS = {3: "from_ids(({0}, {1}), {2})"}
MEANT_BY_PARTITION = {3: "from_partition(({0}, {1}), {2})"}


def answers(meant: Mapping[int, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function: what is ``meant`` by so many arguments in a row, as above."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature, name = inspect.signature(function), function.__name__

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                if len(args) not in meant:
                    raise TypeError(wrong_call(name, signature, args, kwargs, error)) from None
                given = [in_short(value) for value in args]
                raise TypeError(f"{name}({', '.join(given)}): give {meant[len(args)].format(*given)}") from None
            return function(*args, **kwargs)

        return make

    return decorate


def arguments_of(
    like: Callable[P, Any], without: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorates a function that takes what ``like`` takes, ``without`` some of it: it gets every argument by name.

    Its defaults are those of ``like`` but for these ``defaults``.
    """
    known = inspect.signature(like)
    kept = [one for one in known.parameters.values() if one.name not in without]
    signature = known.replace(parameters=[one.replace(default=defaults.get(one.name, one.default)) for one in kept])

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            return function(**bound.arguments)

        returned = inspect.signature(function).return_annotation
        make.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return make

    return decorate


def in_short(value: Any) -> str:
    """``float32[3, 2]`` of an array, ``[float32[3, 2], ...]`` of a list, else its type or a short text."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        inner = [in_short(one) for one in value[:2]] + ["..."] * (len(value) > 2)
        return f"[{', '.join(inner)}]" if isinstance(value, list) else f"({', '.join(inner)})"
    return shown(value) if isinstance(value, str | int | float) else type(value).__name__
