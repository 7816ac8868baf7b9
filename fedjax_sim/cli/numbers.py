"""Values on command lines: TOML's, and calls like ``geomspace(0.001, 1, 7)``."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)


class Call(NamedTuple):
    """``name(1, 2)``.

    Attributes:
      name: of the function.
      arguments: its arguments, TOML values.
    """

    name: str
    arguments: list[Any]


def key_and_text(said: str, option: str, example: str) -> tuple[str, str]:
    """The two sides of ``KEY=VALUE``.

    Raises:
      ValueError: there is no sign of equality, or nothing on one side of it.
    """
    key, equals, text = said.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise ValueError(f"{option} {said[:200]}: write KEY=VALUE, for instance {example}")
    return key.strip(), text.strip()


def call(text: str, where: str) -> Call | None:
    """``name(1, 2)`` as a call; None for another text.

    Raises:
      ValueError: arguments that are no TOML values.
    """
    from fedjax_sim.run.configuration.tables import toml_value

    found = _CALL.fullmatch(text.strip())
    return None if found is None else Call(found[1], toml_value(f"[{found[2]}]", where))


def numbers(text: str, where: str) -> list[float]:
    """``0, 0.01, 0.1``, with brackets around it or without.

    Raises:
      ValueError: something else.
    """
    from fedjax_sim.run.configuration.tables import toml_value

    listed = toml_value(text if text.strip().startswith("[") else f"[{text}]", where)
    for value in listed if isinstance(listed, list) else [listed]:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{where}: {value!r} is no number: give numbers with commas between them")
    return [float(value) for value in listed]
