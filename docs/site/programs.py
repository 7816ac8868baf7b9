"""What programs read: llms.txt, AGENTS.md, and every public name with its signature.

python docs/site/programs.py               # writes llms.txt and AGENTS.md; `make methods` does so too
python docs/site/programs.py --signatures  # writes tests/house/signatures.txt, after a change of public signatures

The site has ``llms.txt`` with its own addresses, and ``names.json``: a list of objects with ``name``, ``kind``,
``signature``, ``about`` (the first line of its documentation) and ``page``.
"""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import house
import navigation
import reference

ROOT = Path(__file__).parents[2]
SIGNATURES = ROOT / "tests" / "house" / "signatures.txt"
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])+)\]\([^()\s]+\)")
_LONGEST = 200


def names() -> list[dict[str, str]]:
    """Every public name, and the public methods of public classes."""
    found = []
    for entry in reference.entries():
        found.append(_about(entry.shown, entry.value, reference.documentation(entry), f"{entry.page}#{entry.name}"))
        for name, member in reference.methods(entry):
            function = getattr(member, "__func__", member)
            page = f"{entry.page}#{entry.name}.{name}"
            found.append(_about(f"{entry.shown}.{name}", function, inspect.getdoc(member) or "", page, bound=member))
    return found


def _about(name: str, value: Any, said: str, page: str, bound: Any = None) -> dict[str, str]:
    first = _code(" ".join(said.partition("\n\n")[0].split()))
    page = page.replace(".md#", ".html#")
    return {
        "name": name,
        "kind": _kind(value, bound),
        "signature": _signature(value, bound),
        "about": first,
        "page": page,
    }


def _kind(value: Any, bound: Any) -> str:
    if bound is not None:
        return "method" if inspect.isroutine(value) else "property"
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else "value"


_NO_CALLS = (BaseException, enum.Enum)


def _signature(value: Any, bound: Any) -> str:
    """Names, kinds and defaults of the arguments, without types: what a call depends on. Empty for what is no call."""
    if not callable(value) or typing.get_origin(value) or (inspect.isclass(value) and issubclass(value, _NO_CALLS)):
        return ""
    try:
        known = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    first = 0 if bound is None or isinstance(bound, staticmethod) else 1
    parameters = [_bare(one) for one in list(known.parameters.values())[first:]]
    return str(known.replace(parameters=parameters, return_annotation=known.empty)).replace("Ellipsis", "...")


def _bare(parameter: inspect.Parameter) -> inspect.Parameter:
    """Without its type; a default that is no plain value is ``...``, as others would print it otherwise."""
    default = parameter.default
    plain = default is parameter.empty or _is_plain(default)
    return parameter.replace(annotation=parameter.empty, default=default if plain else ...)


def _is_plain(value: Any) -> bool:
    return (
        all(map(_is_plain, value)) if type(value) is tuple else value is None or type(value) in (bool, int, float, str)
    )


def signatures() -> str:
    """A line for each public name: what ``tests/house/signatures.txt`` has."""
    return "\n".join(sorted(f"{one['name']}{one['signature']}" for one in names())) + "\n"


def llms(address: Callable[[str], str] = str) -> str:
    """All pages with what each is about, by tiers; ``address`` is where a file of the repository is."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = ["# fedjax_sim", "", f"> {_plain(_paragraphs(readme)[1])}", ""]
    lines += ["`import fedjax_sim as fjs`. Every public name with its signature is in `names.json` of the built site."]
    for tier, pages in itertools.groupby(navigation.pages(), lambda page: page.tier):
        lines += ["", f"## {tier}", ""]
        for page in pages:
            said = _first_sentence(ROOT / page.file)
            lines.append(
                f"- [{navigation.heading(ROOT / page.file)}]({address(page.file)})" + (f": {said}" if said else "")
            )
    return "\n".join(lines) + "\n"


def agents() -> str:
    """How to use the package and how to work on it, out of README and the docs."""
    readme, contributing, command, stability = (
        (ROOT / file).read_text(encoding="utf-8")
        for file in ("README.md", "CONTRIBUTING.md", "docs/command-line.md", "docs/stability.md")
    )
    rooms = [
        f"- `fedjax_sim/{room}/`: {_of_room(room)}" for floor in reversed(house.floors()) for room in floor if room
    ]
    parts = [
        "<!-- made by docs/site/programs.py: change README, CONTRIBUTING or docs/ and run `make methods` -->",
        "# fedjax_sim for programs that read and write code",
        _paragraphs(readme)[1],
        "[llms.txt](llms.txt) lists all pages with what each is about.",
        "## Use",
        _block(readme, "## Ten lines"),
        _from_docs(_section(command, "## JSON")),
        _section(command, "## Exit statuses"),
        "## What stays",
        _from_docs(stability.partition("\n\n")[2].partition("\n## How")[0]),
        "## Work on it",
        _paragraphs_of(contributing),
        "## Rooms",
        "Imports point down, in this order:",
        "\n".join(rooms),
    ]
    return "\n\n".join(parts) + "\n"


def _of_room(room: str) -> str:
    said = ast.get_docstring(ast.parse(house.modules()[room].read_text(encoding="utf-8"))) or ""
    return " ".join(_code(said.partition("\n\n")[0]).split())


def _code(text: str) -> str:
    """Names as code in Markdown."""
    return re.sub(r":[a-z]+:(?=`)|(?<=`)`|`(?=`)", "", text)


def _from_docs(text: str) -> str:
    """Links of a page of docs/ as those of the root."""
    return re.sub(r"\]\((?!#)(\.\./)?", lambda found: "](" if found[1] else "](docs/", text).strip()


def _paragraphs_of(contributing: str) -> str:
    return contributing.partition("\n")[2].partition("\n## A page")[0].strip().replace("\n## ", "\n### ")


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of prose below the first heading."""
    blocks = re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```", "", text.partition("\n")[2]))
    return [block.strip() for block in blocks if re.match(r"\s*[`\w\[\"(*]", block) and not re.match(r"\s*\* ", block)]


def _section(text: str, heading: str) -> str:
    """A section of a page, from its heading to the next one."""
    _, found, after = text.partition(f"\n{heading}\n")
    assert found, f"no section {heading!r}"
    return f"#{heading}\n" + after.partition("\n## ")[0].rstrip()


def _block(text: str, heading: str) -> str:
    """The first block of code below a heading."""
    found = re.search(r"(?ms)^```.*?^```", text.partition(heading)[2])
    assert found is not None
    return found[0]


def _first_sentence(path: Path) -> str:
    """Of a page, or of the text of a notebook; "" where it begins with something else, or has a long one."""
    paragraphs = _paragraphs(navigation.text(path))
    said = re.split(r"(?<=[.:!?]) (?=[A-Z`])", _plain(paragraphs[0]))[0].rstrip(":") if paragraphs else ""
    return said if len(said) <= _LONGEST else said[: said.rfind(" ", 0, _LONGEST)] + " ..."


def _plain(text: str) -> str:
    """Without links, emphasis and line breaks."""
    return " ".join(re.sub(r"\*+(\S.*?\S)\*+", r"\1", _LINK.sub(r"\1", text)).split())


MADE = ((ROOT / "llms.txt", llms), (ROOT / "AGENTS.md", agents))
"""The files with what makes each."""

if __name__ == "__main__":
    made = ((SIGNATURES, signatures),) if sys.argv[1:] == ["--signatures"] else MADE
    for file, make in made:
        file.write_text(make(), encoding="utf-8")
