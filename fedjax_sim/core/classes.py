"""What an author can get wrong in a class of what a user builds: found when the class is made."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from fedjax_sim.core.values import shown

_NEAR = 0.8  # of difflib: "udpate" is 0.83 from "update", "loss" 0.80 from "losses"


def check_annotated(cls: type[Any]) -> None:
    """Checks that a class gives no field of its base a value that the dataclass does not see; raises TypeError."""
    inherited = [getattr(base, "__dataclass_fields__", {}) for base in cls.__mro__[1:]]
    for field in dataclasses.fields(cls):
        name, value = field.name, inspect.getattr_static(cls, field.name, field.default)  # a mixin's too
        member = value is field.default or inspect.isroutine(value) or inspect.isdatadescriptor(value)
        if not member and any(of.get(name) is field for of in inherited):
            raise TypeError(
                f"{cls.__name__} sets {name} = {shown(value)} without an annotation, so it would keep the default of "
                f"its base: write {name}: Any = {shown(value)}"
            )


def check_names(cls: type[Any]) -> None:
    """Checks that no new name, but a hyper-parameter's, is nearly one of the package's bases' and read by nobody.

    Raises:
      TypeError: a base would be asked in its place. What the class or a base of one's own reads is a helper.
    """
    new = [*new_names(cls)]
    known = _members(cls) if new else {}
    for name, value in new:
        function = inspect.isfunction(value)
        of_kind = [of for of, hook in known.items() if inspect.isfunction(hook) == function]
        for near in difflib.get_close_matches(name, of_kind, n=1, cutoff=_NEAR):
            meant = not function or takes(inspect.signature(value), known[near])
            own = [one for one in cls.__mro__ if one is cls or not of_package(one)]
            if meant and not any(
                name in _read(other) for one in own for other in vars(one).values() if other is not value
            ):
                raise TypeError(
                    f"{cls.__name__}.{name}: no base has it, so nothing would read it: did you mean {near!r}? "
                    f"(A helper of your own: call it _{name}.)"
                )


def new_names(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """The public names that a class has and no base of it, with their values; but for its hyper-parameters'."""
    fields = {field.name for field in dataclasses.fields(cls)}
    for name, value in vars(cls).items():
        if (
            name not in fields
            and not name.startswith("_")
            and not isinstance(value, type)
            and not any(
                name in vars(base) or name in getattr(base, "__dataclass_fields__", ()) for base in cls.__mro__[1:-1]
            )
        ):
            yield name, value


def takes(given: inspect.Signature, hook: Any) -> bool:
    """Whether a function of that signature could be called as the hook is, with or without what that may leave out."""
    for required in (False, True):
        with contextlib.suppress(TypeError):
            given.bind(*arguments(hook, required=required))
            return True
    return False


@functools.cache
def arguments(hook: Any, *, required: bool = False) -> tuple[str, ...]:
    """The names of a hook's arguments; of those alone that have no default."""
    parameters = inspect.signature(hook).parameters.values()
    return tuple(one.name for one in parameters if not required or one.default is one.empty)


def of_package(cls: type[Any]) -> bool:
    """Whether a class is the package's own: the tests check the names of those."""
    return cls.__module__.startswith("fedjax_sim.")


def _members(cls: type[Any]) -> dict[str, Any]:
    """The public names of the package's bases, with what they are."""
    known: dict[str, Any] = {}
    for base in filter(of_package, reversed(cls.__mro__[1:-1])):
        known |= getattr(base, "__dataclass_fields__", {}) | vars(base)
    return {name: value for name, value in known.items() if not name.startswith("_")}


def _read(value: Any) -> set[str]:
    """The names of attributes that a function or a property reads."""
    if isinstance(value, property):
        value = value.fget
    codes = [getattr(inspect.unwrap(getattr(value, "func", value)), "__code__", None)]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        if code is not None:
            names.update(code.co_names)
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return names
