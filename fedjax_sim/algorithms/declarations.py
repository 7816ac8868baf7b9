"""What a class of a method says, and what an author can get wrong in it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from fedjax_sim.core import classes
from fedjax_sim.core.values import shown

_MEMBERS = (property, classmethod, staticmethod, functools.cached_property)
_WRAPPERS = "fedjax_sim.algorithms.wrapper"  # where the hooks are that wrappers have besides

# The contract before 0.2.0: names that nothing reads any more, and arguments of hooks that take as many other ones.
_FORMER = """
    broadcast start local_step aggregate before after parameters direction proximal weigh stacked upload_bytes
    introduced hoisted encodes encode slopes download_bytes needs settles takes_steps own_cohort default_average
    averages averages_why duplicates needs_everyone needs_full_gradients acts_alone clients_apart excludes_nonfinite
    remembers_everyone minimises
"""
_FORMER_ARGUMENTS = {"init": "num_clients", "finish": "local", "encode": "change"}


class Misuse(TypeError):
    """A hook uses what it is given in a way that it must not; the end of a message."""


def check_no_init(cls: type[Any]) -> None:
    """Checks, before ``cls`` is a dataclass, that it leaves ``__init__`` to that; raises TypeError."""
    if "__init__" in vars(cls):
        raise TypeError(
            f"{cls.__name__} defines __init__, but the class becomes a frozen dataclass, which makes its own: declare "
            "every hyper-parameter with an annotation (beta: Any = 0.9) and check its value in checked()"
        )


def check_class(cls: type[Any], contract: type[Any]) -> None:
    """Checks what a subclass of the ``contract`` defines, once it is a dataclass.

    Raises:
      TypeError: a value without annotation that would be no hyper-parameter, a hook that takes other arguments, or a
        name that no base has and that is one of the contract before.
    """
    for name, value in classes.new_names(cls):
        if name in _FORMER.split() and cls.__module__ != _WRAPPERS:
            raise TypeError(
                f"{cls.__name__}.{name}: in methods nothing reads this since 0.2.0; what to write in its place is in "
                f"docs/stability.md. (A helper of your own: call it _{name}.)"
            )
        if not (inspect.isroutine(value) or isinstance(value, _MEMBERS) or name in cls.__dataclass_fields__):
            raise TypeError(
                f"{cls.__name__} sets {name} = {shown(value)} without an annotation: a hyper-parameter has one, "
                f"{name}: Any = {shown(value)}; a constant of the class is {name}: ClassVar[Any] = {shown(value)}"
            )
    for name, value in vars(cls).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            _check_parameters(cls, contract, name, value)


def _check_parameters(cls: type[Any], contract: type[Any], name: str, function: Any) -> None:
    """Checks that a function that overrides a hook, of the contract or a wrapper's, can be called as that is."""
    bases = [contract, *(base for base in cls.__mro__[1:] if base.__module__ == _WRAPPERS)]
    hook = next((vars(base)[name] for base in bases if inspect.isfunction(vars(base).get(name))), None)
    if hook is None:
        return
    given = inspect.signature(function)
    former = _FORMER_ARGUMENTS.get(name) in given.parameters
    if former or not classes.takes(given, hook):
        since, said = " since 0.2.0" if former else "", ", ".join(given.parameters)
        wanted = ", ".join(classes.arguments(hook))
        raise TypeError(f"{cls.__name__}.{name}({said}): the contract calls {name}({wanted}){since}")
