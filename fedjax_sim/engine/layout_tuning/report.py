"""What measuring layouts found: :class:`Tuning`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_sim.core.descriptions import build, describe, encode, registered_factory
from fedjax_sim.core.values import shown
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.reporting.table import markdown_rows, text_rows


class Timing(NamedTuple):
    """One candidate.

    Attributes:
      layout: the candidate.
      milliseconds: of a round, the median of the timed calls; None where none was made.
      rounds: how many were timed.
      compile_seconds: of its program; None where it was not compiled.
      computed: micro-steps that it computed for each that the clients needed; None where none was timed.
      note: why it was measured less than the others, or not at all; empty as a rule.
    """

    layout: Layout
    milliseconds: float | None = None
    rounds: int = 0
    compile_seconds: float | None = None
    computed: float | None = None
    note: str = ""


class Tuning(NamedTuple):
    """The layout that was fastest, and the times of all candidates.

    Attributes:
      layout: to pass on: ``fjs.make_train(..., layout=tuning.layout)``.
      timings: of the candidates.
      cached: whether they are those of an earlier measurement.
    """

    layout: Layout
    timings: tuple[Timing, ...]
    cached: bool = False

    @property
    def milliseconds(self) -> float:
        """Of a round in the chosen layout."""
        return next(float(one.milliseconds or 0.0) for one in self.timings if one.layout == self.layout)

    def table(self, *, markdown: bool = False) -> str:
        """One row per candidate, the fastest first: time, steps computed for each that was needed, compilation.

        Args:
          markdown: a Markdown table, not aligned text.
        """
        ranked = sorted(self.timings, key=lambda one: (one.milliseconds is None, one.milliseconds or 0.0))
        names = [label(one.layout) + " *" * (one.layout == self.layout) for one in ranked]
        columns = [
            ("layout", names),
            ("ms a round", [_number(one.milliseconds, 3) for one in ranked]),
            ("x best", [_number(one.milliseconds and one.milliseconds / self.milliseconds, 2) for one in ranked]),
            ("computed / needed", [_number(one.computed, 2) for one in ranked]),
            ("compile s", [_number(one.compile_seconds, 2) for one in ranked]),
            ("rounds", [str(one.rounds) for one in ranked]),
            ("note", [one.note for one in ranked]),
        ]
        if not any(one.note for one in ranked):
            columns.pop()
        rows = markdown_rows(columns) if markdown else text_rows(columns)
        return "\n".join(line.rstrip() for line in rows)

    def __str__(self) -> str:
        return f"{self.table()}\n\n* chosen{', as measured before' if self.cached else ''}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, for the record of a run and for a file."""
        timings = [{**one._asdict(), "layout": describe(one.layout)} for one in self.timings]
        return {"layout": describe(self.layout), "timings": timings, "cached": self.cached}

    @classmethod
    def from_json(cls, content: Any) -> Tuning:
        """What :meth:`to_json` wrote, as an earlier measurement.

        Raises:
          ValueError: it is something else.
        """
        try:
            timings = tuple(_timing(one) for one in content["timings"])
            chosen = _layout(content["layout"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(f"this is no measurement of layouts ({said})") from error
        measured = [one.layout for one in timings if one.milliseconds is not None]
        if chosen not in measured:
            raise ValueError("this is no measurement of layouts (the chosen one was not measured)")
        return cls(chosen, timings, cached=True)


def label(layout: Layout) -> str:
    """``lanes(8)``: the layout as a user writes it."""
    return _written(describe(layout))


def _written(described: Any) -> str:
    if not isinstance(described, Mapping):
        return repr(described)
    if "name" not in described:
        return str(described.get("opaque", described))
    name, given = described["name"], described["arguments"]
    parts = []
    for place, (key, parameter) in enumerate(inspect.signature(registered_factory(name)).parameters.items()):
        value = given.get(key)
        if value is None or (place > 0 and value == encode(parameter.default)):
            continue
        parts.append(_written(value) if place == 0 else f"{key}={_written(value)}")
    return f"{name.rpartition('.')[2]}({', '.join(parts)})"


def _timing(content: Any) -> Timing:
    one = Timing(**{**content, "layout": _layout(content["layout"])})
    for value in (one.milliseconds, one.compile_seconds, one.computed):
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise ValueError(f"{shown(value)} is no measured number")
    if not isinstance(one.rounds, int) or not isinstance(one.note, str):
        raise ValueError(f"{shown(one.rounds)} rounds, {shown(one.note)}")
    return one


def _layout(described: Any) -> Layout:
    made = build(described)
    if not isinstance(made, Layout):
        raise ValueError(f"{shown(made)} is no layout")
    return made


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
