"""The source of functions, and checksums of it: of bytecode where there is none."""

from __future__ import annotations

import functools
import hashlib
import json
import linecache
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any


def checksum(value: Any) -> str:
    """SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def opaque_name(described: Mapping[str, Any]) -> str:
    """How an opaque part is called where it is shown: with the beginning of a checksum of what is known of it."""
    known = described.get("known")
    return f"{described['opaque']} ({checksum(known)[:8]})" if known else str(described["opaque"])


def source(code: types.CodeType) -> str | None:
    """The source of a function's code, dedented; None where there is none, or it is not that of this code any more.

    A file may have been edited since it was imported: what runs is then not what the file says.
    """
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    same = _compiled("".join(lines)).get((code.co_qualname, bytecode(code)))
    if same is None:
        return None
    code = next((one for one in same if one.co_firstlineno == code.co_firstlineno), same[0])
    places: list[Any] = [place for one in nested(code) for place in one.co_positions() if None not in place]
    places = [(a, b, c, d) for a, b, c, d in places if (a, c) != (b, d)]
    if not places:
        return None
    (first, left), (last, right) = min((a, c) for a, _, c, _ in places), max((b, d) for _, b, _, d in places)
    if code.co_name != "<lambda>":
        return textwrap.dedent("".join(lines[code.co_firstlineno - 1 : last]))
    chosen = [line.encode() for line in lines[first - 1 : last]]  # several may stand in a line: columns are of bytes
    chosen[-1] = chosen[-1][:right]
    chosen[0] = chosen[0][left:]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"lambda {', '.join(arguments)}: {b''.join(chosen).decode()}"


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> dict[tuple[str, str], list[types.CodeType]]:
    """All functions of a file by their names and bytecodes; nothing where it is not Python."""
    try:
        whole = compile(text, "source", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[str, str], list[types.CodeType]] = {}
    for one in nested(whole):
        found.setdefault((one.co_qualname, bytecode(one)), []).append(one)
    return found


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of all functions in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from nested(one)


def bytecode(code: types.CodeType) -> str:
    """A checksum of what a function does, wherever it stands."""
    constants = [bytecode(one) if isinstance(one, types.CodeType) else _constant(one) for one in code.co_consts]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    return checksum([code.co_code.hex(), code.co_exceptiontable.hex(), constants, names, counts])


def _constant(value: Any) -> str:
    if isinstance(value, (tuple, frozenset)):
        inner = [_constant(item) for item in value]
        return f"{type(value).__name__}{sorted(inner) if isinstance(value, frozenset) else inner}"
    return f"{type(value).__name__} {value!r}"
