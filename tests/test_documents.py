"""Every Python block of the README and the docs runs; the README's table of algorithms is complete."""

import pathlib
import re

import pytest

import fedjax_sim.algorithms
from fedjax_sim import descriptions

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(descriptions, "_FACTORIES", dict(descriptions._FACTORIES))
    scope = {"__name__": page.stem}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), scope)


def test_links_point_at_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_table_of_algorithms_is_complete():
    assert fedjax_sim.algorithms
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Algorithms")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    package = [
        name.partition(".")[2]
        for name in descriptions.registered("algorithm")
        if descriptions._FACTORIES[name].__module__.startswith("fedjax_sim.")
    ]
    assert sorted(listed) == sorted(package)
