"""The keyword arguments of a run: written once, and checked as far as they can be by themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_type_hints

import jax

from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local.batches import Batches, shuffled
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.scheme import check_kind
from fedjax_sim.clients.systems.base import Clock, System
from fedjax_sim.core.descriptions import check_again
from fedjax_sim.core.mistakes import explained
from fedjax_sim.core.programs import keep_programs, renew
from fedjax_sim.core.values import check_count, check_flag, suggest
from fedjax_sim.diagnostics.base import Requested, as_diagnostics
from fedjax_sim.diagnostics.catalogue import Communication
from fedjax_sim.engine.asynchronous.schemes import Asynchronous, check_scheme
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.plan import Guard, Measured, Plan
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
    evaluate_train: bool
    diagnostics: Requested
    layout: Layout | Literal["auto", "tune"] | None
    skip_nonfinite: bool
    system: System | None
    asynchronous: Asynchronous | None


DEFAULTS: dict[str, Any] = dict.fromkeys(sorted(RunArguments.__optional_keys__)) | {
    "eval_every": 1, "evaluate_train": True, "diagnostics": (), "skip_nonfinite": False,
}  # fmt: skip


# Names that people look for among the arguments of a run, and what to do instead, unless the function says other.
_ELSEWHERE = {
    "policy": "it is the system's: system=fedjax_sim.systems.devices(..., policy=...)",
    "resume": "simulate(..., checkpoint=directory) goes on by itself with a run that was interrupted",
}


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
        places = [one.name for one in own if one.kind is one.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    fix = (_ELSEWHERE | elsewhere).get(name) or suggest(name, list(known))
                    raise TypeError(f"{function.__name__}(...) has no argument {name!r}: {fix}")
            if len(args) > len(places):  # Python's own words count the defaults among what was given
                fix = "give the others by their names, task=..., rounds=100" if places else elsewhere["algorithm"]
                takes = f"takes {' and '.join(places) or 'nothing'} without a name"
                raise TypeError(f"{function.__name__}(...) {takes}, and {len(args)} were given: {fix}")
            missing = [name for name in RunArguments.__annotations__ if name not in DEFAULTS | kwargs]
            if missing:
                give = ", ".join(f"{name}={_PARTS[name][1] if name in _PARTS else 100}" for name in missing)
                what = f"is missing required arguments: {', '.join(map(repr, missing))}"
                raise TypeError(f"{function.__name__}(...) {what}: for instance {give}")
            with explained(*args[:1], *kwargs.values()):  # the data are large
                return function(*args, **DEFAULTS | kwargs)

        hints = get_type_hints(RunArguments)
        called.__annotations__ = {name: hints[name] for name in hints if name in known} | {
            name: annotation for name, annotation in function.__annotations__.items() if name in (*known, "return")
        }
        called.__signature__ = signature.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


_PARTS: dict[str, tuple[type, str]] = {
    "task": (Task, "fedjax_sim.classification(model)"),
    "cohort": (Participation, "fedjax_sim.cohort.uniform(10)"),
    "work": (Work, "fedjax_sim.local.epochs(1)"),
    "batches": (Batches, "fedjax_sim.local.shuffled(20)"),
    "system": (System, "fedjax_sim.systems.devices(seconds_per_step=0.1)"),
    "layout": (Layout, "fedjax_sim.layout.turns(), 'tune' (simulate measures), or 'auto' or None (a rule chooses)"),
}


def check_arguments(run: RunArguments) -> Plan:
    """What all of a run's keyword arguments say, checked: its plan without algorithm, data and key.

    Every run passes here before it compiles anything, so that from here on compiled programs are kept.
    """
    parts: dict[str, Any] = {name: run[name] for name in _PARTS}  # type: ignore[literal-required]
    batch_size, evaluate, asynchronous = run["batch_size"], run["evaluate"], run["asynchronous"]
    if (batch_size is None) == (parts["batches"] is None):
        raise ValueError(
            f"batch_size={batch_size!r} and batches={parts['batches']!r}: give exactly one, batch_size=20 for shuffled "
            "epochs or batches=fedjax_sim.local.full_batch() and the like"
        )
    if batch_size is not None:
        parts["batches"] = shuffled(batch_size)
    if isinstance(parts["layout"], str) and parts["layout"] == "tune":
        raise ValueError(
            "layout='tune': only simulate measures layouts itself; here the program is compiled for one, so measure "
            "before: layout=fedjax_sim.layout.tune(algorithm, dataset, ...).layout"
        )
    if isinstance(parts["layout"], str) and parts["layout"] == "auto":
        parts["layout"] = None
    for name, (kind, example) in _PARTS.items():
        if parts[name] is not None or name not in ("system", "layout"):
            check_kind(name, parts[name], kind, example=example)
    check_count("rounds", run["rounds"])
    check_count("eval_every", run["eval_every"])
    check_flag("skip_nonfinite", run["skip_nonfinite"])
    check_flag("evaluate_train", run["evaluate_train"])
    if evaluate is not None and (not callable(evaluate) or isinstance(inspect.unwrap(evaluate), type)):
        call = f"; call it, {evaluate.__name__}(task)" if callable(evaluate) else ""
        raise TypeError(
            f"evaluate is {evaluate!r}: it must be a function evaluate(params, dataset) -> {{name: array}}{call}"
        )
    check_again(evaluate)
    diagnostics, system, work = as_diagnostics(run["diagnostics"]), parts["system"], parts["work"]
    if system is None and work.needs_system:
        raise ValueError(
            f"work={work!r} counts the steps that a client's device makes in its time: give the run "
            "system=fedjax_sim.systems.devices(seconds_per_step=...)"
        )
    if system is not None:  # whose clock records what communication() does
        diagnostics = tuple(one for one in diagnostics if not isinstance(one, Communication))
        for one in diagnostics:
            taken = sorted(set(one.names()) & set(Clock._fields))
            if taken:
                raise ValueError(
                    f"diagnostics: {type(one).__name__} records {taken[0]!r}, which a run with a system records "
                    "itself: choose another name"
                )
    if asynchronous is not None:
        check_scheme(asynchronous, system, parts["cohort"], work)
    guard, measured = Guard(run["skip_nonfinite"]), Measured(run["evaluate_train"])
    keep_programs()
    renew(evaluate)
    return Plan(**parts, diagnostics=diagnostics, guard=guard, measured=measured, asynchronous=asynchronous)


def asked_of(run: dict[str, Any]) -> tuple[Plan, int]:
    """What is asked for, without algorithm, data and key, and the number of rounds."""
    return make_train(**{name: value for name, value in run.items() if name not in ("adjoint", "on_round")})


@takes_run()
def make_train(**run: Unpack[RunArguments]) -> tuple[Plan, int]:
    """As far as both go the same way; errors name it."""
    return check_arguments(run), run["rounds"]
