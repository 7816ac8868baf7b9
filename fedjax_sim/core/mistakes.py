"""Errors in code of one's own: which function a run had called, in which line it failed, and what to write instead.

What is said is a note at the end of the error, below JAX's own words. Nothing here is called in a program: functions of
one's own run while it is traced, and frames are looked at once something was raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import random
import re
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.own import Unknown, known, origin
from fedjax_sim.core.values import shapes, suggest

_PACKAGE = __name__.partition(".")[0]
_STATIC = "a hyper-parameter that is part of the program is declared with fedjax_sim.fields.static()"
_NUMBER = (
    "needs a value that is not known before the run, as a number of Python (float, int) or an array of numpy: use "
    f"jax.numpy; {_STATIC}"
)
# What code did, and what to write instead: the first that fits counts.
_MISTAKES: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: "asks for the truth of a value that is not known before the run (if, while, "
    f"and, or, not): use jax.numpy.where or jax.lax.cond; {_STATIC}",
    jax.errors.NonConcreteBooleanIndexError: "takes entries by a condition, and how many these are is not known before "
    "the run: use jax.numpy.where(condition, values, 0), which leaves the shape as it is",
    jax.errors.ConcretizationTypeError: _NUMBER,
    jax.errors.TracerArrayConversionError: _NUMBER,
    jax.errors.TracerIntegerConversionError: _NUMBER,
    jax.errors.UnexpectedTracerError: "uses a value that it has kept from another call, in a list, a dictionary or a "
    "global name, and calls are made while a program is traced, not in every round: return what is to be kept, in the "
    "state of the server or a client (init, init_client), by report for the record, or by evaluate; what is "
    "differentiated or mapped is given in a field of the method or the task, the data or initial_params",
    dataclasses.FrozenInstanceError: "sets an attribute, and methods, tasks and schemes do not change: what changes "
    "from round to round is part of the state of the server or a client (init, init_client)",
}


_DROPOUT = "fedjax_sim.models.Dropout(rate), or deterministic=not train with an argument train of the module's __call__"
# What flax says of a layer that differs in training and was not told, and what to write instead.
_UNTOLD = {
    'Parameter "deterministic" must be passed': _DROPOUT,
    'needs PRNG for "dropout"': _DROPOUT,  # it draws in evaluation too
    'Parameter "use_running_average" must be passed': "use_running_average=not train with an argument train of the "
    "module's __call__",
}


def mistake(error: BaseException) -> str | None:
    """What code did that raised ``error``, and what to do instead, the end of a sentence; None for other errors."""
    if isinstance(error, AttributeError) and (fields := getattr(type(error.obj), "_fields", ())):
        name, of = error.name, type(error.obj).__name__
        return f"reads {name!r} of {of}, which has no such field: {suggest(name, fields)}"
    if isinstance(error, TypeError) and "JAX arrays are immutable" in str(error):
        return "writes into an array, and arrays do not change: use x.at[index].set(value), which returns a new one"
    for said, fix in _UNTOLD.items():
        if said in str(error):
            return f"calls a layer that is not told whether it trains: write {fix}"
    return next((said for kind, said in _MISTAKES.items() if isinstance(error, kind)), None)


class Impure(TypeError):
    """A function writes into what it was given, or draws from random numbers of Python's or numpy's own."""


class Note(str):
    """A note that is ours, so that an error gets one."""

    __slots__ = ()


def notes(error: BaseException) -> list[str]:
    """What was noted at an error here."""
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, Note)]


@contextlib.contextmanager
def explained(*parts: Any, of: Callable[..., Any] | None = None) -> Iterator[None]:
    """Within, an error that arises in code of one's own gets a note: its lines, and what to write instead.

    Args:
      *parts: what a run was given, where a value that was kept is looked for.
      of: a function whose place is noted where the error arose in none: it has returned what it must not.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # of an object that cannot be shown: the error itself is what counts
            if not notes(error) and (text := _note(error, parts, of)):
                error.add_note(Note(text))
        raise


@contextlib.contextmanager
def unchanged(who: str, **given: Any) -> Iterator[None]:
    """Checks that what happens within writes into none of the dictionaries and lists that are ``given``, nor draws.

    Others read them too: a loss that rescales ``examples["x"]`` in place would do it again, and metrics would see it.
    And what ``np.random`` or ``random`` draw while a program is traced is part of it.

    Raises:
      Impure: it does; ``who`` is named.
    """
    before: tuple[list[Any], Any] = jax.tree_util.tree_flatten_with_path(given)
    drawn = _generators()
    yield
    if _generators() != drawn:
        raise Impure(
            f"{who} draws from np.random or random, which happens once, while the program is traced: all rounds, "
            "clients and seeds would have the same numbers: use jax.random with a key that it is given, or for numbers "
            "that are meant to stay np.random.default_rng(0)"
        )
    after: tuple[list[Any], Any] = jax.tree_util.tree_flatten_with_path(given)
    if before[1] == after[1] and all(a is b for (_, a), (_, b) in zip(before[0], after[0], strict=True)):
        return
    held = {jax.tree_util.keystr(path): id(leaf) for path, leaf in before[0]}
    now = {jax.tree_util.keystr(path): id(leaf) for path, leaf in after[0]}
    path = next((path for path in (*now, *held) if now.get(path) != held.get(path)), "['given']")
    name, _, inside = path[2:].partition("']")
    raise Impure(
        f"{who} writes into {name}{inside}, which others read after it: leave it and make a new one, of a dictionary "
        "{**old, 'name': value}"
    )


def _generators() -> tuple[Any, ...]:
    """Where the global random numbers of Python and numpy are."""
    found: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    words = [np.asarray(value).tobytes() for value in found["state"].values()]
    return random.getstate(), words, found["has_gauss"]  # normal numbers come in pairs, the second one is kept


def stack(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames of one's own in which an error arose, from the function that others have called last to the line."""
    found: list[tuple[FrameType, int]] = []
    entered = False
    for frame, line, package in _walk(error):
        if package is None:
            found = [(frame, line)] if entered else [*found, (frame, line)]
            entered = False
        entered = entered or package == _PACKAGE
    return found


def _walk(error: BaseException) -> list[tuple[FrameType, int, str | None]]:
    """All frames, each with its line and the package that it is of."""
    walked = traceback.walk_tb(error.__traceback__)
    return [(one, line, origin(str(one.f_globals.get("__name__")), one.f_code.co_filename)) for one, line in walked]


def called(frame: FrameType) -> str:
    """What a function is called, with its class."""
    return frame.f_code.co_qualname.rpartition("<locals>.")[2]


def _note(error: BaseException, parts: tuple[Any, ...], of: Callable[..., Any] | None) -> str:
    """The note of an error; "" where there is nothing to say."""
    root: BaseException | None = error
    frames = stack(error)
    while not frames and root is not None and (root := root.__cause__) is not None:
        frames = stack(root)
    lines = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    code = getattr(getattr(of, "__func__", of), "__code__", None)
    module = str(getattr(of, "__module__", ""))
    if not lines and code is not None and origin(module, code.co_filename) is None:
        lines = [(code.co_filename, code.co_firstlineno, code.co_name)]
    said, leaked = mistake(error), isinstance(error, jax.errors.UnexpectedTracerError)
    held = _held(parts) if leaked or (said is None and root is error and _walk(error)[-1][2] != _PACKAGE) else ""
    if held:
        said = f"{_MISTAKES[jax.errors.UnexpectedTracerError]} ({held})"
    if frames and root is error:  # otherwise the message says more than this
        first = frames[0][0]
        said = f"{called(first)} {said or f'was called with {_arguments(first)}'}"
    elif held or leaked:
        said = f"a function {said}"
    elif call := _misfit(error):
        said = f"fedjax_sim calls it so: {call}"
    places = "".join(traceback.format_list([traceback.FrameSummary(*line) for line in lines]))
    return "\n".join(filter(None, (said, places.rstrip())))


def _misfit(error: BaseException | None) -> str:
    """The package's call of a function that does not take what it is given, as it is written; "" for other errors."""
    text = ""
    while error is not None:  # what was raised first counts
        misfits = isinstance(error, TypeError) and re.search(r"\(\) (takes|missing|got) .*argument", str(error))
        if misfits and not stack(error):  # otherwise code of one's own made the call
            lines = zip(traceback.extract_tb(error.__traceback__), _walk(error), strict=True)
            ours = [line for line, (_, _, package) in lines if package == _PACKAGE]
            if ours and ours[-1].end_colno is not None:  # Python can be told to keep no columns
                one: Any = ours[-1]  # its columns are counted in bytes
                written = [linecache.getline(one.filename, line) for line in range(one.lineno, one.end_lineno + 1)]
                written[-1] = written[-1][: one.end_colno]
                text = " ".join("".join(written)[one.colno :].split())
        error = error.__cause__
    # What passes on what it is given says nothing of how it was called.
    return text if text.endswith(")") and "(*" not in text else ""


def _arguments(frame: FrameType) -> str:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    given = {name: frame.f_locals[name] for name in names if name != "self" and name in frame.f_locals}
    return ", ".join(f"{name} {shapes(value)}" for name, value in given.items()) or "no arguments"


def _held(parts: tuple[Any, ...]) -> str:
    """Which of the parts has kept a traced value, and where."""
    for part in parts:
        try:
            known(part)
        except Unknown as unknown:
            if "traced value" in str(unknown):
                return str(unknown)
        except TypeError:  # what is a field, and traced, is no mistake
            continue
    return ""
