"""Writes what is made of the methods' records: the README's table, and the methods in the stub of the package.

make methods        # or: python docs/site/tables.py
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from fedjax_sim.algorithms import Algorithm
from fedjax_sim.core.descriptions import registered_factory
from fedjax_sim.core.records import RECORDS, Record

ROOT = Path(__file__).parents[2]
README, STUB = ROOT / "README.md", ROOT / "fedjax_sim" / "__init__.pyi"
_OWN = tuple(name for name in RECORDS if registered_factory(name).__module__.startswith("fedjax_sim."))


def row(name: str, record: Record) -> str:
    """A line of the table."""
    cls = registered_factory(name).__wrapped__  # type: ignore[attr-defined]
    common = {field.name for field in dataclasses.fields(Algorithm)}
    own = [field.name for field in dataclasses.fields(cls) if field.name not in common]
    options = record.options or ", ".join(f"`{one}`" for one in own)
    cells = [f"`{name.partition('.')[2]}`", record.authors, record.step, record.kept, record.sent, options]
    return re.sub("  +", " ", "| " + " | ".join(cells) + " |")


def readme(text: str) -> str:
    """The README with its table as the records say: every line where it is, what is new at the end of its group."""
    before, heading, after = text.partition("## Algorithms\n")
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    groups = re.split(r"(?m)^(?=\| \*\*\[)", table[0])
    made = [groups[0].rstrip("\n")]
    missing = {*_OWN} - {f"algorithm.{name}" for name in re.findall(r"(?m)^\| `(\w+)` \|", table[0])}
    for group in groups[1:]:
        title = re.match(r"\| \*\*\[(.+?)\]", group)
        assert title is not None
        there = re.findall(r"(?m)^\| `(\w+)` \|", group)
        ours = [f"algorithm.{name}" for name in there if f"algorithm.{name}" in _OWN]
        ours += sorted(name for name in missing if RECORDS[name].group == title[1])
        made += [group.splitlines()[0], *(row(name, RECORDS[name]) for name in ours)]
        missing -= {*ours}
    assert not missing, f"{sorted(missing)}: their records must name a group of the table"
    return before + heading + after[: table.start()] + "\n".join(made) + "\n" + after[table.end() :]


def stub(text: str) -> str:
    """The stub with one line for each method."""
    names = {name.partition(".")[2]: registered_factory(name).__wrapped__.__module__ for name in _OWN}  # type: ignore[attr-defined]
    lines = text.splitlines()
    of_methods = re.compile(r"from fedjax_sim\.algorithms\.\w+ import ([a-z]\w*) as")
    first = next(place for place, line in enumerate(lines) if line.startswith("from fedjax_sim.algorithms."))
    others = [line for line in lines if not of_methods.match(line)]
    made = [f"from {module} import {name} as {name}" for name, module in names.items()]
    made += [line for line in others if line.startswith("from fedjax_sim.algorithms.")]
    others = [line for line in others if not line.startswith("from fedjax_sim.algorithms.")]
    return "\n".join([*others[:first], *sorted(made), *others[first:]]) + "\n"


if __name__ == "__main__":
    for file, make in ((README, readme), (STUB, stub)):
        file.write_text(make(file.read_text(encoding="utf-8")), encoding="utf-8")
