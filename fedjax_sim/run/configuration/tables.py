"""TOML files as tables, with changes from the command line; knows nothing of what the tables mean."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_sim.core.files import open_regular, parsing

MAX_BYTES = 4 * 2**20  # of a file
MAX_DEPTH = 32  # of tables in tables
MAX_DIGITS = 300  # of an integer, so that every one is in a float's range; TOML asks for 64 bits
# The time that tomllib takes for a key grows with the square of its parts.
_LONG_KEY = re.compile(rb"""(?:[\w"'-]+[ \t]*\.[ \t]*){%d}""" % (2 * MAX_DEPTH))
_WORD = re.compile(r"[A-Za-z_][\w./-]*|\.{0,2}/[\w./-]*")  # a word, or a path


class ConfigurationError(ValueError):
    """A configuration that cannot be run: the message says where, what stands there, and what could."""


class Place(NamedTuple):
    """Where in a configuration something stands, for messages: the file, and the keys that lead there.

    ``changes`` has the text of what was changed from outside, by the keys that lead to it.
    """

    source: str
    path: tuple[str, ...] = ()
    changes: Mapping[tuple[str, ...], str] = {}

    def __truediv__(self, key: str) -> Place:
        return self._replace(path=(*self.path, key))

    def error(self, what: str, key: str | None = None) -> ConfigurationError:
        """The error that says ``what`` is wrong here, or with a key of this table."""
        table = f", [{'.'.join(map(_key, self.path))}]" if self.path else ""
        path = self.path if key is None else (*self.path, key)
        lengths = range(len(path), 0, -1)
        change = next((self.changes[path[:n]] for n in lengths if path[:n] in self.changes), None)
        return ConfigurationError(f"{self.source}{table}{f' (--set {change[:200]})' if change else ''}: {what}")


class Tables(NamedTuple):
    """A configuration as it was read: nested dictionaries, and the place of the whole."""

    content: dict[str, Any]
    place: Place


def load(path: str | os.PathLike[str], changes: Iterable[str] = ()) -> Tables:
    """Reads a TOML file of at most 4 MiB and makes changes to it.

    Each is ``"algorithm.mu = 0.1"``: a dotted key and a TOML value. A bare word that is no TOML value is text.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ConfigurationError: not TOML, too large, or nested too deeply; a change that is none.
    """
    source = Path(path)
    with open_regular(source) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ConfigurationError(f"{source} is larger than {MAX_BYTES // 2**20} MiB: that is no configuration of a run")
    if _LONG_KEY.search(raw):
        raise ConfigurationError(f"{source} has a key of more than {2 * MAX_DEPTH} parts: none has so many")
    try:
        with parsing(source, "is not TOML", "see https://toml.io, or write an example with `fedjax-sim init`"):
            content = tomllib.loads(raw.decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    _check_values(content, Place(str(source)))
    changed: dict[tuple[str, ...], str] = {}
    for change in changes:
        keys, value = _parsed(change)
        _put(content, keys, value, change)
        changed[keys] = change
    return Tables(content, Place(str(source), changes=changed))


def toml_value(text: str, where: str, depth: int = 0) -> Any:
    """A TOML value, in a table at some depth; a bare word is text. Messages say ``where`` it stands."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        word = text.strip()
        if word in ("True", "False"):
            raise ConfigurationError(f"{where}: {word} is Python's: write {word.lower()}") from error
        if _WORD.fullmatch(word):
            return word
        raise ConfigurationError(
            f"{where}: {text.strip()[:200]!r} is no TOML value ({error}): write a number, true, "
            'false, "text", [1, 2] or { name = "..." }'
        ) from error
    if set(found) != {"value"}:
        raise ConfigurationError(f"{where}: give one value")
    _check_values(found["value"], Place(where), depth)
    return found["value"]


def _check_values(value: Any, place: Place, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise place._replace(path=place.path[:2]).error(f"tables are nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_values(item, place / key, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_values(item, place, depth + 1)
    elif isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise place.error(f"it has an integer of more than {MAX_DIGITS} digits: write a smaller one, or 1e300")


def _parsed(change: str) -> tuple[tuple[str, ...], Any]:
    """The keys and the value of ``"a.b = 1"``."""
    left, equals, right = change.partition("=")
    said = f"--set {change[:200]}"
    if not equals or len(change) > MAX_BYTES or left.count(".") >= MAX_DEPTH:
        raise ConfigurationError(f"{said}: write KEY=VALUE, for instance algorithm.mu=0.1")
    keys: list[str] = []
    try:
        table: Any = tomllib.loads(f"{left} = 0")
        while isinstance(table, dict):
            ((key, table),) = table.items()  # a ValueError for several, as for what is no TOML
            keys.append(key)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{said}: {left.strip()!r} is no key: write a dotted one, for instance algorithm.mu=0.1"
        ) from error
    return tuple(keys), toml_value(right, said, len(keys))


def _put(content: dict[str, Any], keys: tuple[str, ...], value: Any, change: str) -> None:
    table = content
    for depth, key in enumerate(keys[:-1], start=1):
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            outer = ".".join(keys[:depth])
            raise ConfigurationError(
                f"--set {change[:200]}: {outer} is {str(inner)[:100]!r} and no table, so nothing can be set in it: "
                f"set {outer} itself"
            )
        table = inner
    table[keys[-1]] = value


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else repr(key)
