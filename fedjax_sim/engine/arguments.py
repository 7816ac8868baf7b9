"""The keyword arguments of a run, written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

import jax

from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local.batches import Batches
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.systems.base import System
from fedjax_sim.core.values import suggest
from fedjax_sim.diagnostics.base import Requested
from fedjax_sim.engine.asynchronous.schemes import Asynchronous
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.models.task import Task

Evaluate = Callable[[Any, Any], dict[str, jax.Array]]  # (params, dataset) -> {name: array}
F = TypeVar("F", bound=Callable[..., Any])


class _Needed(TypedDict):
    task: Task
    rounds: int
    cohort: Participation
    work: Work


class RunArguments(_Needed, total=False):
    """What ``make_train``, ``simulate``, ``sweep`` and ``layout.tune`` take; :func:`fedjax_sim.make_train` explains."""

    batch_size: int | None
    batches: Batches | None
    eval_every: int
    evaluate: Evaluate | None
    diagnostics: Requested
    layout: Layout | Literal["auto", "tune"] | None
    skip_nonfinite: bool
    system: System | None
    asynchronous: Asynchronous | None


DEFAULTS: dict[str, Any] = dict.fromkeys(sorted(RunArguments.__optional_keys__)) | {
    "eval_every": 1, "diagnostics": (), "skip_nonfinite": False,
}  # fmt: skip


def takes_run(*without: str, **elsewhere: str) -> Callable[[F], F]:
    """Decorates a function of ``**run: Unpack[RunArguments]``: its signature lists them, and it gets all of them.

    A name that the function does not have is an error that suggests one.

    Args:
      *without: arguments of a run that it does not take; it gets their defaults.
      **elsewhere: names it does not have and people look for, and what to do instead.
    """
    of_run = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name, inspect.Parameter.empty),
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in RunArguments.__annotations__.items()
        if name not in without
    ]  # fmt: skip

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        known = {one.name: one for one in sorted([*of_run, *own], key=lambda one: one.kind)}

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    fix = elsewhere.get(name) or suggest(name, list(known))
                    raise TypeError(f"{function.__name__}(...) has no argument {name!r}: {fix}")
            missing = [repr(name) for name in RunArguments.__annotations__ if name not in DEFAULTS | kwargs]
            if missing:
                raise TypeError(
                    f"{function.__name__}() missing {len(missing)} required keyword-only "
                    f"argument{'s' * (len(missing) > 1)}: {_listed(missing)}"
                )
            return function(*args, **DEFAULTS | kwargs)

        hints = get_type_hints(RunArguments)
        called.__annotations__ = {name: hints[name] for name in hints if name in known} | {
            name: annotation for name, annotation in function.__annotations__.items() if name in (*known, "return")
        }
        called.__signature__ = signature.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


def _listed(names: list[str]) -> str:
    """As Python lists them: a; a and b; a, b, and c."""
    if len(names) < 3:
        return " and ".join(names)
    return f"{', '.join(names[:-1])}, and {names[-1]}"
