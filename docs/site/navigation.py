"""The pages of the site by tiers, as ``nav`` of mkdocs.yml has them, for whatever else lists them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
_OUTSIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


class Page(NamedTuple):
    """A page that a file of the repository is."""

    tier: str
    section: str  # within the tier, or ""
    title: str
    file: str  # from the root of the repository


@functools.cache
def pages() -> tuple[Page, ...]:
    """All pages in their order, notebooks among them; not the reference, which is no file."""
    nav = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return tuple(page for item in nav for tier, inside in item.items() for page in _in(tier, "", inside))


def _in(tier: str, section: str, items: list[Any]) -> Iterator[Page]:
    for item in items:
        title, inside = next(iter(item.items())) if isinstance(item, dict) else ("", item)
        if isinstance(inside, list):
            yield from _in(tier, title, inside)
        elif inside == "tutorials":
            for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
                yield Page(tier, title, heading(path), f"notebooks/{path.name}")
        elif inside != "reference":
            file = _OUTSIDE.get(inside, f"docs/{inside}")
            yield Page(tier, section, title or heading(ROOT / file), file)


def heading(path: Path) -> str:
    """The first heading of a page or notebook."""
    return re.search(r"^# (.+)$", text(path), re.MULTILINE)[1]  # type: ignore[index]


def text(path: Path) -> str:
    """A page, or what a notebook says beside its code, from the first heading on."""
    found = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(found)["cells"]
        found = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return found[found.index("# ") :]
