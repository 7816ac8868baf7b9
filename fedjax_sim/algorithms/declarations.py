"""What a class of a method says, and what an author can get wrong in it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

from fedjax_sim.core.values import shown

_NEAR = 0.82  # of difflib: "udpate" is 0.83 from "update", "report_of" 0.80 from "report"
_MEMBERS = (property, classmethod, staticmethod, functools.cached_property)

# The contract before 0.2.0: what has another name, and what is said elsewhere.
_RENAMED = {
    "broadcast": "send(server)",
    "start": "begin(sent, c_i, client), which returns y alone (what a client needs besides is in c_i and client)",
    "local_step": "step(g, y, state, k, sent, c_i, client)",
    "aggregate": "update(server, got, cohort)",
    "before": "open(server, objective), where requires has objective=True",
    "after": "open(server, objective), where requires has objective=True, at the start of the next round",
    "parameters": "evaluated(server)",
}
_ELSEWHERE = {
    "direction": "objective(F, y, k, sent, c_i, client): c - c_i is F(y) + inner(subtract(c, c_i), y)",
    "proximal": "objective(F, y, k, sent, c_i, client): F(y) + mu / 2 * square(subtract(y, sent.params))",
    "weigh": "the kind of a message in finish: Mean(value) by client.weight, Share(value) by client.share, Sum(value)",
    "stacked": "the kind of a message in finish: Stack(value)",
    "upload_bytes": "a message of finish, Mean(value, nbytes=0), or a wrapper's uploaded(nbytes, delta)",
    "introduced": "init(params, shares)",
    "hoisted": "the optimisers, in which the engine finds traced values itself",
    "encodes": "encode of a Wrapper",
    "encode": "encode(delta, memory, sent, client) of a Wrapper around the method",
}
_IN_REQUIRES = """
    slopes download_bytes needs settles takes_steps own_cohort default_average averages averages_why duplicates
    needs_everyone needs_full_gradients acts_alone clients_apart excludes_nonfinite remembers_everyone minimises
"""
# Hooks that take as many arguments as before, but other ones: one that is gone.
_FORMER_ARGUMENTS = {"init": "num_clients", "finish": "local", "encode": "change"}


class Misuse(TypeError):
    """A hook uses what it is given in a way that it must not; the end of a message."""


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
        name that no base has and that is one of the contract before, or nearly a hook's.
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
            if inspect.isfunction(value):
                _check_parameters(who, name, value, _hook(cls, contract, name))
            continue
        if name in fields:
            continue
        former = _former(name)
        if former and not (name == "encode" and contract in cls.__bases__):  # Wrapper itself, which has it
            raise TypeError(f"{who}.{name}: {former} (A helper of your own: call it _{name}.)")
        near = difflib.get_close_matches(name, hooks, n=1, cutoff=_NEAR)
        if near and _would_do(value, vars(contract)[near[0]]):
            raise TypeError(
                f"{who}.{name}: no base has it, so nothing would read it: did you mean {near[0]!r}? (A helper of your "
                f"own: call it _{name}.)"
            )
        if not member and name not in cls.__dataclass_fields__:
            raise TypeError(
                f"{who} sets {name} = {shown(value)} without an annotation: a hyper-parameter has one, {name}: Any = "
                f"{shown(value)}; a constant of the class is {name}: ClassVar[Any] = {shown(value)}"
            )


def _inherited(cls: type[Any], name: str) -> bool:
    """Whether the field is the base's, not annotated again."""
    field = cls.__dataclass_fields__[name]
    return any(getattr(base, "__dataclass_fields__", {}).get(name) is field for base in cls.__mro__[1:])


def _former(name: str) -> str:
    """What became of a name of the contract before 0.2.0; "" if it has never been one."""
    if name in _RENAMED:
        return f"{name} is called {_RENAMED[name]} since 0.2.0."
    if name in _IN_REQUIRES.split():
        return "since 0.2.0 this is said by the property requires, Requires(slope=True) and the like."
    return f"since 0.2.0 this is said by {_ELSEWHERE[name]}." if name in _ELSEWHERE else ""


def _hook(cls: type[Any], contract: type[Any], name: str) -> Any:
    """The contract's function of that name, or a wrapper's; None where it is no hook."""
    bases = [base for base in cls.__mro__[1:] if base.__module__ == "fedjax_sim.algorithms.wrapper"]
    return next((vars(base)[name] for base in (contract, *bases) if inspect.isfunction(vars(base).get(name))), None)


def _would_do(value: Any, hook: Any) -> bool:
    """Whether it could be called as the hook is, so that its name may be a slip."""
    if inspect.isfunction(value) and inspect.isfunction(hook):
        return _takes(value, inspect.signature(hook))
    return not inspect.isfunction(value) and not inspect.isfunction(hook)


def _takes(function: Callable[..., Any], like: inspect.Signature) -> bool:
    try:
        inspect.signature(function).bind(*like.parameters)
    except TypeError:
        return False
    return True


def _check_parameters(who: str, name: str, function: Callable[..., Any], like: Callable[..., Any] | None) -> None:
    if like is None:
        return
    given, wanted = inspect.signature(function), inspect.signature(like)
    former = _FORMER_ARGUMENTS.get(name) in given.parameters
    if former or not _takes(function, wanted):
        names = [", ".join(signature.parameters) for signature in (given, wanted)]
        since = " since 0.2.0" if former else ""
        raise TypeError(f"{who}.{name}({names[0]}): the contract calls {name}({names[1]}){since}")
