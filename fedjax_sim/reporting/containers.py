"""Checks of what tables and figures are given: containers of runs, of the right nesting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MEMBERS = ("evaluated", "metrics", "rounds_to")


def check_runs(what: str, histories: Any) -> None:
    """Checks that ``histories`` is ``{name: history}`` with at least one.

    Args:
      what: how the message names the argument, ``"curves: histories"``.
      histories: what was given.

    Raises:
      TypeError: another container, or a value that is no record of one run.
      ValueError: it is empty.
    """
    rule = "it takes {name: history}"
    if _is_run(histories):
        name = getattr(histories, "algorithm", "run")
        raise TypeError(f"{what} is a {_kind(histories)}: {rule}; give {{{name!r}: history}}")
    if not isinstance(histories, Mapping):
        listed = isinstance(histories, (list, tuple)) and histories and all(map(_is_run, histories))
        fix = "; give dict(zip(names, histories))" if listed else _instead(histories)
        raise TypeError(f"{what} is {_shown(histories)}: {rule}{fix}")
    if not histories:
        raise ValueError(f"{what.partition(':')[0]}: no histories were given; {rule}")
    for name, run in histories.items():
        if not _is_run(run):
            raise TypeError(f"{what}[{name!r}] is {_shown(run)}: {rule}{_instead(run)}")


def check_problems(problems: Any) -> None:
    """Checks that ``problems`` is ``{problem: {method: history}}``.

    Raises:
      TypeError: another container, or runs where problems belong.
      ValueError: no problems, or a problem without methods.
    """
    rule = "it takes {problem: {method: history}}"
    if not isinstance(problems, Mapping):
        raise TypeError(f"comparison: problems is {_shown(problems)}: {rule}")
    for name, runs in problems.items():
        if _is_run(runs):
            raise TypeError(
                f"comparison: problems[{name!r}] is a {_kind(runs)}: {rule}; for one problem give {{'its name': "
                "histories}"
            )
        if not isinstance(runs, Mapping):
            raise TypeError(f"comparison: problems[{name!r}] is {_shown(runs)}: {rule}")
    if not problems or not all(problems.values()):
        raise ValueError(f"comparison: {rule}, with a method for every problem")
    for name, runs in problems.items():
        check_runs(f"comparison: problems[{name!r}]", runs)


def check_rows(rows: Any, panel: type) -> None:
    """Checks that ``rows`` is ``[[Panel, ...], ...]``: equally many panels or None in each row, with runs.

    Raises:
      TypeError: another container, or something else in the place of a panel.
      ValueError: no panels, rows of different lengths, a panel without runs, or with limits that are no pair.
    """
    rule = "it takes rows of panels, [[Panel(histories, 'loss'), Panel(histories, 'test_accuracy')]]"
    if isinstance(rows, panel):
        raise TypeError(f"panels: rows is a Panel: {rule}; give [[panel]]")
    if not isinstance(rows, (list, tuple)):
        raise TypeError(f"panels: rows is {_shown(rows)}: {rule}")
    for number, row in enumerate(rows):
        if isinstance(row, panel):
            raise TypeError(f"panels: rows[{number}] is a Panel: {rule}; for one row give [panels], not panels")
        if not isinstance(row, (list, tuple)):
            raise TypeError(f"panels: rows[{number}] is {_shown(row)}: {rule}")
        for column, one in enumerate(row):
            if one is not None and not isinstance(one, panel):
                raise TypeError(f"panels: rows[{number}][{column}] is {_shown(one)}: {rule}")
    found = [one for row in rows for one in row if one is not None]
    if not found or len({len(row) for row in rows}) != 1:
        raise ValueError("panels: it takes rows of equally many panels, each with at least one run")
    for one in found:
        if isinstance(one.runs, Mapping) and not one.runs:
            raise ValueError("panels: it takes rows of equally many panels, each with at least one run")
        check_runs("panels: Panel(runs)", one.runs)
        if one.limits is not None and not (isinstance(one.limits, (tuple, list)) and len(one.limits) == 2):
            raise ValueError(
                f"panels: Panel(limits) is {_shown(one.limits)}: it must be (bottom, top), None for either"
            )


def check_size(what: str, size: Any) -> None:
    """Checks a figure's (width, height) in inches.

    Raises:
      ValueError: not two positive numbers.
    """
    try:
        width, height = map(float, size)
    except (TypeError, ValueError):
        width = height = 0.0
    if not (0 < width < float("inf") and 0 < height < float("inf")):
        raise ValueError(f"{what}: size is {_shown(size)}: it must be (width, height) in inches, both above 0")


def _is_run(value: Any) -> bool:
    return not isinstance(value, Mapping) and all(hasattr(value, member) for member in _MEMBERS)


def _instead(value: Any) -> str:
    """The end of a message about something that is no run: what may have been meant."""
    if isinstance(value, Mapping) and value and all(map(_is_run, value.values())):
        return "; for several problems use comparison, or a Panel for each"
    if isinstance(value, (str, os.PathLike)):
        return "; give fedjax_sim.History.load(path)"
    return "; give sweep.at(number), a point of it" if hasattr(value, "space") and hasattr(value, "at") else ""


def _kind(value: Any) -> str:
    return type(value).__name__


def _shown(value: Any) -> str:
    """What a message calls a value: its kind, and itself where that is short."""
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"a {_kind(value)} of {len(value)}" if not isinstance(value, tuple) or len(value) > 4 else repr(value)
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {_kind(value)}"
