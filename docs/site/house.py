"""The package as a house: rooms (folders) on floors. A room stands one floor above the highest that it imports from.

``python docs/site/house.py`` draws it into docs/images/house.svg; tests/house/test_rooms.py holds the package to it.
"""

from __future__ import annotations

import ast
import functools
import html
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedjax_sim"
PICTURE = ROOT / "docs" / "images" / "house.svg"

_WIDTH, _GAP = 980, 12


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it; a folder's is that of its ``__init__``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """The modules that each module names in an import, at its top, in a function, for types alone."""
    return {name: _imported(name, path) for name, path in modules().items()}


def _imported(name: str, path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE.name:
            home = (node.module or "").partition(".")[2]
            inner = {f"{home}.{alias.name}".strip(".") for alias in node.names}
            found |= {one if one in modules() else home for one in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith(PACKAGE.name)}
    return {one for one in found if one in modules()} - {name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other, each sorted."""
    reached = {node: _below(graph, node) for node in graph}
    found = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph}
    return [list(circle) for circle in sorted(found) if circle]


def _below(graph: dict[str, set[str]], node: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[node])
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += graph[one]
    return found


@functools.cache
def rooms() -> dict[str, set[str]]:
    """The rooms that each room imports from; the package's own ``__init__`` is the room ``""``, its door."""
    found: dict[str, set[str]] = {name.partition(".")[0]: set() for name in modules()}
    for name, imported in imports().items():
        room = name.partition(".")[0]
        found[room] |= {other.partition(".")[0] for other in imported} - {room}
    return found


def floors() -> list[list[str]]:
    """The rooms by floors, from the ground up."""
    graph, level = rooms(), dict.fromkeys(rooms(), 0)
    for _ in graph:
        level = {room: 1 + max((level[other] for other in graph[room]), default=-1) for room in graph}
    return [[room for room in sorted(graph) if level[room] == floor] for floor in range(max(level.values()) + 1)]


def picture() -> str:
    """The house as SVG: a box a room, the highest floor first, with what it holds."""
    parts, y = [], _GAP
    for floor in reversed([[room for room in floor if room] for floor in floors()]):
        if not floor:
            continue
        width = (_WIDTH - _GAP * (len(floor) + 1)) / len(floor)
        rows = [_rows(room, int(width / 6.1)) for room in floor]
        height = 30 + 15 * max(map(len, rows))
        for number, (room, said) in enumerate(zip(floor, rows, strict=True)):
            parts += _box(room, said, _GAP + number * (width + _GAP), y, width, height)
        y += height + _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{y}" fill="#fff"/>', *parts, "</svg>", ""])


def _rows(room: str, width: int) -> list[tuple[str, str]]:
    """What stands in a room's box: what the room is for, and the names of its folders and files, each with a colour."""
    said = (ast.get_docstring(ast.parse(modules()[room].read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    inside = [name.split(".")[1] for name in modules() if name.startswith(f"{room}.")]
    counted = {name: inside.count(name) for name in dict.fromkeys(inside)}
    names = ", ".join(f"{name}/" if count > 1 else name for name, count in counted.items() if name != "__main__")
    purpose = textwrap.wrap(" ".join(re.sub("``|:mod:|`", "", said).split()), width)
    return [(row, "#111") for row in purpose] + [(row, "#3b5f86") for row in textwrap.wrap(names, width)]


def _box(room: str, rows: list[tuple[str, str]], x: float, y: int, width: float, height: int) -> list[str]:
    return [
        f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="6" fill="#eef3f8" stroke="#5b7ea3"/>',
        f'<text x="{x + 10:.0f}" y="{y + 19}" font-size="15" font-weight="bold" fill="#111">{room}/</text>',
        *(
            f'<text x="{x + 10:.0f}" y="{y + 37 + 15 * n}" font-size="11.5" fill="{colour}">{html.escape(row)}</text>'
            for n, (row, colour) in enumerate(rows)
        ),
    ]


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"wrote {PICTURE}")
