"""What a class of a method says, and what an author can get wrong in it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fedjax_sim.values import shown, suggest

NEEDS = ("slope", "step_size", "anchor", "objective", "expected_size")
_NEAR = 0.85  # of difflib: "aggregat" is 0.94 from "aggregate", "report_of" 0.80 from "report"
_MEMBERS = (property, classmethod, staticmethod, functools.cached_property)


def check_no_init(cls: type[Any]) -> None:
    """Checks, before ``cls`` is a dataclass, that it leaves ``__init__`` to that.

    Raises:
      TypeError: it has one of its own.
    """
    if "__init__" in vars(cls):
        raise TypeError(
            f"{cls.__name__} defines __init__, but the class becomes a frozen dataclass, which makes its own: declare "
            "every hyper-parameter with an annotation (beta: Any = 0.9) and check its value in checked()"
        )


def check_class(cls: type[Any], contract: type[Any]) -> None:
    """Checks what a subclass of the ``contract`` defines, once it is a dataclass.

    Raises:
      TypeError: a value without annotation that would be no hyper-parameter, a hook that takes other arguments, or a
        name that no base has and that is nearly a hook's.
    """
    who = cls.__name__
    hooks = [name for name in vars(contract) if not name.startswith("_")]
    fields = {field.name for field in dataclasses.fields(cls)}
    for name, value in vars(cls).items():
        if name.startswith("_") or isinstance(value, type):
            continue
        member = inspect.isroutine(value) or isinstance(value, _MEMBERS)
        if any(hasattr(base, name) for base in cls.__bases__):
            if name in fields and not member and _inherited(cls, name):
                raise TypeError(
                    f"{who} sets {name} = {shown(value)} without an annotation, so it would keep the default of its "
                    f"base: write {name}: Any = {shown(value)}"
                )
            if inspect.isfunction(value) and inspect.isfunction(vars(contract).get(name)):
                _check_parameters(who, name, value, vars(contract)[name])
            continue
        if name in fields:
            continue
        near = difflib.get_close_matches(name, hooks, n=1, cutoff=_NEAR)
        if near:
            raise TypeError(
                f"{who}.{name}: no base has it, so nothing would read it: did you mean {near[0]!r}? (A helper of your "
                f"own: call it _{name}.)"
            )
        if not member and name not in cls.__dataclass_fields__:
            raise TypeError(
                f"{who} sets {name} = {shown(value)} without an annotation: a hyper-parameter has one, {name}: Any = "
                f"{shown(value)}; a constant of the class is {name}: ClassVar[Any] = {shown(value)}"
            )


def check_declarations(method: Any) -> None:
    """Checks what a method, and those inside it, declare for the driver.

    Raises:
      TypeError: ``stacked`` is no tuple of names.
      ValueError: an unknown name in ``needs``.
    """
    who = type(method).__name__
    if isinstance(method.stacked, str) or not all(isinstance(name, str) for name in method.stacked):
        raise TypeError(f"{who}.stacked is {shown(method.stacked)}: give a tuple of names of messages, ('delta',)")
    if isinstance(method.needs, str):
        raise TypeError(f"{who}.needs is {shown(method.needs)}: give a set of names, frozenset({{'slope'}})")
    for name in sorted(set(method.needs) - set(NEEDS)):
        raise ValueError(f"{who}.needs has {name!r}: {suggest(name, list(NEEDS))}")
    if hasattr(method, "base"):
        check_declarations(method.base)


def check_stacked(method: Any, messages: Collection[str]) -> None:
    """Checks that a client sends the messages that its method has delivered in stacks.

    Raises:
      ValueError: it does not.
    """
    for name in method.stacked:
        if name not in messages:
            raise ValueError(
                f"{type(method).__name__}.stacked has {name!r}, which finish does not return: "
                f"{suggest(name, list(messages))}"
            )


def check_weights(method: Any, weights: Iterable[str], messages: Collection[str]) -> None:
    """Checks that a method weighs messages that its clients send: another name would change nothing.

    Raises:
      ValueError: it weighs others.
    """
    for name in weights:
        if name not in messages:
            raise ValueError(
                f"{type(method).__name__}.weigh returned a weight of {name!r}, which finish does not return: "
                f"{suggest(name, list(messages))}"
            )


def _inherited(cls: type[Any], name: str) -> bool:
    """Whether the field is the base's, not annotated again."""
    field = cls.__dataclass_fields__[name]
    return any(getattr(base, "__dataclass_fields__", {}).get(name) is field for base in cls.__mro__[1:])


def _check_parameters(who: str, name: str, function: Callable[..., Any], like: Callable[..., Any]) -> None:
    given, wanted = inspect.signature(function), inspect.signature(like)
    try:
        given.bind(*wanted.parameters)
    except TypeError:
        names = [", ".join(signature.parameters) for signature in (given, wanted)]
        raise TypeError(f"{who}.{name}({names[0]}): the contract calls {name}({names[1]})") from None
