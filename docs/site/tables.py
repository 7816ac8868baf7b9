"""Writes what README, the stub and the pages of methods, reproductions and other simulators have from elsewhere.

Tables are made of the methods' records and of the experiments' board, the list of pages of the site's navigation, the
lines on installing of the repository's address in pyproject.toml, other simulators' code of benchmarks/migration.

make methods        # or: python docs/site/tables.py
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import sys
from pathlib import Path

from fedjax_sim.algorithms import Algorithm
from fedjax_sim.core.descriptions import registered_factory
from fedjax_sim.core.records import RECORDS, Record
from fedjax_sim.papers import writing

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
import navigation  # noqa: E402

from notebooks.first_cells import settings  # noqa: E402

ROOT = Path(__file__).parents[2]
README, METHODS = ROOT / "README.md", ROOT / "docs" / "methods.md"
REPRODUCTIONS, COMING_FROM = ROOT / "docs" / "reproductions.md", ROOT / "docs" / "coming-from.md"
BOARD = ROOT / "benchmarks" / "experiments" / "results" / "board.md"
_SHARED = {"pfllib": "benchmarks", "niid": "benchmarks"}  # papers whose page has another name
STUB = ROOT / "fedjax_sim" / "__init__.pyi"
_OWN = tuple(name for name in RECORDS if registered_factory(name).__module__.startswith("fedjax_sim."))
_NAME = re.compile(r"(?m)^\| `(\w+)` \|")
# The files of tests/algorithms that hold a group's methods against loops by hand: a method's is the first with its
# name.
_BY_HAND = {
    "Averaging": ("golden", "golden_methods"),
    "Normalised": ("golden",),
    "Control variates": ("golden", "golden_methods", "server_corrections"),
    "Momentum, adaptive, averages": ("golden_servers", "golden_methods", "server_corrections"),
    "Adaptive weights": ("golden_methods",),
    "Learned weights": ("reweighted",),
    "Personal models": ("personal_methods",),
    "Parts of the model": ("partial",),
    "Clusters, mixtures, widths": ("cluster_methods",),
    "Privacy, clipping": ("privacy",),
    "Compression": ("compression",),
    "Robust averages, attacks": ("robust",),
    "Fairness": ("golden_servers",),
    "Losses of their own": ("own_losses",),
}


def row(name: str, record: Record) -> str:
    """A line of the whole table."""
    cls = registered_factory(name).__wrapped__  # type: ignore[attr-defined]
    common = {field.name for field in dataclasses.fields(Algorithm)}
    own = [field.name for field in dataclasses.fields(cls) if field.name not in common]
    options = record.options or ", ".join(f"`{one}`" for one in own)
    cells = [f"`{name.partition('.')[2]}`", record.authors, record.step, record.kept, record.sent, options]
    return re.sub("  +", " ", "| " + " | ".join(cells) + " |")


def methods(text: str) -> str:
    """The page of all methods as the records say: every line where it is, what is new at the end of its group."""
    before, heading, after = text.partition("# All methods\n")
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None
    groups = re.split(r"(?m)^(?=\| \*\*\[)", table[0])
    made = [groups[0].rstrip("\n")]
    missing = {*_OWN} - {f"algorithm.{name}" for name in _NAME.findall(table[0])}
    for group in groups[1:]:
        ours = [f"algorithm.{name}" for name in _NAME.findall(group) if f"algorithm.{name}" in _OWN]
        ours += sorted(name for name in missing if RECORDS[name].group == _title(group))
        made += [group.splitlines()[0], *(row(name, RECORDS[name]) for name in ours)]
        missing -= {*ours}
    assert not missing, f"{sorted(missing)}: their records must name a group of the table"
    return before + heading + after[: table.start()] + "\n".join(made) + "\n" + after[table.end() :]


def _title(group: str) -> str:
    found = re.match(r"\| \*\*\[(.+?)\]", group)
    assert found is not None
    return found[1]


def readme(text: str) -> str:
    """README: how to install; each method with its paper, what it is verified against, its notebooks; all pages."""
    made = ["| name | paper | verified against | notebooks |", "|---|---|---|---|"]
    for group in re.split(r"(?m)^(?=\| \*\*\[)", methods(METHODS.read_text(encoding="utf-8")))[1:]:
        link = group.partition("](")[2].partition(")")[0]
        made.append(f"| **[{_title(group)}](docs/{link})** | | | |")
        for name in _NAME.findall(group):
            paper = RECORDS[f"algorithm.{name}"].authors
            made.append(
                f"| `{name}` | {paper} | {_verified(name, _title(group))} | {_notebooks(name)} |".replace("  ", " ")
            )
    for name, lines in (("install", _install(settings()[0])), ("methods", made), ("pages", _pages())):
        text = _between(text, name, lines)
    return text


def _between(text: str, name: str, lines: list[str]) -> str:
    """The text with other lines between two marks."""
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    end = f"<!-- /{name} -->\n"
    return before + mark + "\n".join([*lines, ""]) + end + rest.partition(end)[2]


def reproductions(text: str) -> str:
    """The page of the papers with its verdicts and its board as the last results have them."""
    head = _text(BOARD).partition("\n## ")[0]
    verdicts = head.partition("\n| experiment")[0].splitlines()[2:]
    rows = [re.sub(r"^\| ((\w+)-\S+) \|", _linked, line) for line in head.splitlines() if line.startswith("|")]
    return _between(_between(text, "verdicts", verdicts), "board", rows)


def claims(text: str) -> str:
    """A paper's page with claims between marks of an experiment's name, and tables between marks of name and heading.

    ``<!-- scaffold-table4: Table 4, letters -->`` and ``<!-- /scaffold-table4: Table 4, letters -->`` are around the
    table whose heading begins so.
    """
    for name in re.findall(r"<!-- (\w+-\w+) -->", text):
        report = writing.read(BOARD.parent / name)
        assert report is not None, f"no results of {name}"
        all_numbers = f"[all numbers](../../benchmarks/experiments/results/{name}/tables.md)"
        lines = [
            f"{writing.in_short(report)}; {all_numbers}.",
            "",
            *writing.markdown(writing.claims_table(report))[2:-1],
        ]
        text = _between(text, name, lines)
    for name, title in re.findall(r"<!-- (\w+-\w+): (.+) -->", text):
        tables = _text(BOARD.parent / name / "tables.md")
        found = re.search(rf"(?ms)^## {re.escape(title)}.*?\n\n(.*?)\n*(?=^## |\Z)", tables)
        assert found is not None, f"{name} has no table {title}"
        text = _between(text, f"{name}: {title}", found[1].splitlines())
    return text


def _linked(row: re.Match[str]) -> str:
    return f"| [{row[1]}](reproductions/{_SHARED.get(row[2], row[2])}.md) |"


def _install(repository: str) -> list[str]:
    """How to install without make: from the repository where its address is known, else as a wheel."""
    elsewhere = [f"pip install 'fedjax_sim[demo] @ git+{repository}'    # anywhere"]
    if not repository:
        wheel = "pip wheel --no-deps -w dist .            # in a checkout: makes a wheel, which can be carried anywhere"
        elsewhere = [wheel, 'pip install "$(echo dist/*.whl)[demo]"   # anywhere']
    return ["```bash", *elsewhere, "```"]


def _pages() -> list[str]:
    """A line for each section of each tier, with links to its pages."""
    lines = []
    for tier, inside in itertools.groupby(navigation.pages()[1:], lambda page: page.tier):
        lines += ["", f"**{tier}**", ""]
        for section, pages in itertools.groupby(inside, lambda page: page.section):
            links = ", ".join(f"[{page.title}]({page.file})" for page in pages)
            lines.append(f"- {section}: {links}" if section else f"- {links}")
    return [*lines, ""]


_AT_MOST = 6  # links of one kind for one method: FedAvg is nearly everywhere, and its row should be read


def _verified(name: str, group: str) -> str:
    """Links to the test that holds it against a loop by hand, and to the pages of papers whose experiments run it."""
    tests = [f"tests/algorithms/test_{stem}.py" for stem in _BY_HAND[group]]
    beside = next((test for test in tests if re.search(rf"(?<![a-z]){name}(?![a-z])", _text(ROOT / test))), None)
    assert beside is not None, f"{name}: no test of {', '.join(tests)} has its name"
    links = [f"[by hand]({beside})"]
    papers = _text(ROOT / "docs" / "reproductions.md").partition("\n## ")[0]
    for title, page in re.findall(r"(?m)^\| \[(.+?)\]\((.+?)\) \| (?!no paper)", papers):
        if re.search(rf"fjs\.{name}\b", _text(ROOT / "fedjax_sim" / "papers" / Path(page).stem.replace("-", "_"))):
            links.append(f"[{title}](docs/{page})")
    return ", ".join(links if len(links) <= _AT_MOST else [links[0], "[most papers](docs/reproductions.md)"])


def _notebooks(name: str) -> str:
    """Links to the notebooks whose code has it, by their numbers."""
    found = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if re.search(rf"fjs\.{name}\b", _text(path))]
    links = [f"[{int(path.stem[:2])}](notebooks/{path.name})" for path in found]
    return ", ".join(links if len(links) <= _AT_MOST else ["most of them"])


@functools.cache
def _text(path: Path) -> str:
    """What a file says, or all modules of a folder, or the code of a notebook."""
    if path.is_dir():
        return "\n".join(map(_text, sorted(path.glob("*.py"))))
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


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


def coming_from(text: str) -> str:
    """The page of other simulators with the scripts that benchmarks/migration runs, but for their last statement."""
    for name in re.findall(r"<!-- from (\w+) -->", text):
        script = _text(ROOT / "benchmarks" / "migration" / f"from_{name}.py").partition('"""\n\n')[2]
        code = script.rpartition("np.savez(")[0].rstrip("\n")
        place = rf"(?s)(?<=<!-- from {name} -->\n).*?(?=<!-- /from {name} -->)"
        text = re.sub(place, lambda _, code=code: f"```python3\n{code}\n```\n", text)
    return text


PAPERS = tuple(sorted((ROOT / "docs" / "reproductions").glob("*.md")))
MADE = (
    (METHODS, methods),
    (REPRODUCTIONS, reproductions),
    (README, readme),
    (STUB, stub),
    (COMING_FROM, coming_from),
    *((page, claims) for page in PAPERS),
)
"""The files, in the order in which they are written, each with what makes it of what is there."""

if __name__ == "__main__":
    for file, make in MADE:
        file.write_text(make(file.read_text(encoding="utf-8")), encoding="utf-8")
