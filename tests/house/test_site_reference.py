"""Every public name has a docstring and is in the reference; every page is in the site's navigation."""

import importlib.util
import inspect
import itertools
import pathlib
import re
import sys
import types
from typing import Any

import pytest

import fedjax_sim as fjs

ROOT = pathlib.Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference():
    before, path = set(sys.modules), list(sys.path)
    yield load("reference")
    sys.path[:] = path
    for name in {"reference", "docstrings", "programs", "navigation", "house"} - before:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def programs(reference):
    return load("programs")


def test_every_public_name_has_a_docstring(reference):
    assert [entry.shown for entry in reference.entries() if not reference.documentation(entry)] == []
    assert [name for name, module in reference.modules().items() if not module.__doc__] == []


def test_every_public_name_is_described(reference):
    """Written again from ``__all__``, so that what the generator forgets is missed."""
    found = {(entry.module, entry.name) for entry in reference.entries()}
    elsewhere = {entry.name for entry in reference.entries() if entry.exported}
    modules, seen = [("", fjs)], 0
    for path, module in modules:
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and name != "T"
        ]  # fmt: skip
        for name in names:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                modules.append((f"{path}.{name}".strip("."), value))
            else:
                assert (path, name) in found or (not path and name in elsewhere), f"fjs.{path}.{name} is not described"
                seen += 1
    assert seen > 300
    assert {("", "simulate"), ("algorithms", "fedavg")} <= found


def test_a_name_without_a_docstring_is_found(reference):
    def bare():
        pass

    class Made(fjs.algorithms.Sent):
        __doc__ = None

    assert reference.documentation(reference.Entry("", "bare", bare, exported=True)) == ""
    assert reference.documentation(reference.Entry("", "Made", Made, exported=True)) == ""
    assert reference.documentation(reference.Entry("cohort", "AVERAGES", fjs.cohort.AVERAGES, exported=False))


def test_every_name_is_on_one_page_only(reference):
    shown = [entry.shown for entry in reference.entries()]
    assert len(shown) == len(set(shown))
    anchors = [(entry.page, entry.name) for entry in reference.entries()]
    assert len(anchors) == len(set(anchors))
    for name in ("fjs.fedavg", "fjs.algorithms.fedavg"):
        assert reference.links()[name] == "reference/algorithms.md#fedavg"


def test_the_pages_have_every_name(reference):
    pytest.importorskip("griffe", reason="pip install 'fedjax_sim[docs]'")
    pages = reference.pages()
    for entry in reference.entries():
        text = pages[entry.page]
        assert f"{{ #{entry.name} }}" in text or f'<a id="{entry.name}"></a>' in text, entry.shown
    prox = re.search(r"^## `fjs.fedprox`.*?(?=^## )", pages["reference/algorithms.md"], re.DOTALL | re.MULTILINE)[0]
    for part in ("mu=1.0", "| `mu` | strength of the proximal term", "y_i <- y_i - eta"):
        assert part in prox


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum_S w_i of ``x`` and :func:`fedjax_sim.simulate`", r"sum\_S w\_i of `x` and `fjs.simulate`"),
        ("x <- x + eta d", "```text\nx <- x + eta d\n```"),
        ("The server sets x = 0.", "The server sets x = 0."),
        ("*stacked* rows [S, 2] < n", r"*stacked* rows \[S, 2\] &lt; n"),
        ("* a * b,\n  of c_i;\n* d", "- a \\* b, of c\\_i;\n- d"),
        (">>> 1 + 1\n2", "```pycon\n>>> 1 + 1\n2\n```"),
    ],
)
def test_prose_keeps_its_signs(reference, text, expected):
    assert sys.modules["docstrings"].prose(text) == expected


def test_signatures_say_what_can_be_given(reference):
    def function(x, /, y: int = 1, *args, key: Any, **rest) -> fjs.History:
        pass

    made = sys.modules["docstrings"].signature("fjs.function", function)
    assert "fjs.function(x, y: int = 1, *args, key, **rest) -> History" in made
    assert inspect.signature(fjs.fedprox).parameters.keys() >= {"mu", "client_optimizer"}


@pytest.mark.slow
def test_what_programs_read_is_what_the_docs_say(programs):
    for file, make in programs.MADE:
        assert file.read_text(encoding="utf-8") == make(), f"{file.name}: run make methods"
    text = programs.llms()
    for page in (ROOT / "docs").rglob("*.md"):
        assert text.count(f"]({page.relative_to(ROOT).as_posix()})") == 1, page


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_found_through(page):
    """Its first lines say what it is for, no level of headings is left out, and images have words."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text[text.index("# ") :], flags=re.DOTALL | re.MULTILINE)
    assert re.match(r"# .+\n\n[\w`\"\[(*]", prose)
    levels = [len(signs) for signs in re.findall(r"^(#+) ", prose, re.MULTILINE)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(re.findall(r"!\[([^\]]*)\]\(", prose))


def test_public_signatures_change_only_on_purpose(programs):
    """``python docs/site/programs.py --signatures`` writes them; docs/stability.md says which changes are allowed."""
    before, now = programs.SIGNATURES.read_text(encoding="utf-8").splitlines(), programs.signatures().splitlines()
    said = "python docs/site/programs.py --signatures, after a look at docs/stability.md"
    assert [line for line in before if line not in now] == [], said
    assert [line for line in now if line not in before] == [], said


def test_a_changed_signature_is_noticed(programs, monkeypatch):
    def fedprox(*, mu=1.0, other: int = 3, made=print):
        """One line.

        And more.
        """

    monkeypatch.setattr(
        programs.reference, "entries", lambda: [programs.reference.Entry("", "fedprox", fedprox, exported=True)]
    )
    assert programs.signatures() == "fjs.fedprox(*, mu=1.0, other=3, made=...)\n"
    (about,) = programs.names()
    assert (about["kind"], about["about"], about["page"]) == ("function", "One line.", "reference/runs.html#fedprox")


def test_names_have_what_their_users_write(programs):
    found = {one["name"]: one for one in programs.names()}
    assert found["fjs.simulate"]["signature"].startswith("(algorithm, dataset, *, task, rounds")
    assert found["fjs.History.final"] == {
        "name": "fjs.History.final", "kind": "method", "signature": "(name)",
        "about": found["fjs.History.final"]["about"], "page": "reference/runs.html#History.final",
    }  # fmt: skip
    assert {one["kind"] for one in found.values()} >= {"function", "class", "method", "property", "exception"}
    assert [name for name, one in found.items() if not one["about"] and one["kind"] != "class"] == []


def test_every_page_is_in_the_navigation():
    text = (SITE / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^\s+- (?:[^:\n]+: )?([\w/-]+\.md)$", text.partition("\nnav:")[2], re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    made = {"index.md", "contributing.md", "changelog.md"}
    assert sorted(listed) == sorted(pages | made)
