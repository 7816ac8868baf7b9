"""The notebooks run from the first cell to the last, begin alike, and hold nothing that a run leaves behind."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from contextlib import nullcontext

import pytest

from notebooks import first_cells

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def read(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


def text_of(notebook):
    return "\n\n".join(source(cell) for cell in read(notebook)["cells"] if cell["cell_type"] == "markdown")


@pytest.mark.docs
@each_notebook
def test_code_cells_run(notebook, tmp_path, monkeypatch):
    """At smoke size; FEDJAX_SIM_SMOKE=0 runs them in full."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from fedjax_sim.core import descriptions

    descriptions.all_registered()  # what a notebook registers is forgotten with it
    monkeypatch.setattr(descriptions, "_FACTORIES", dict(descriptions._FACTORIES))
    run = subprocess.run

    def nothing_is_installed(command, *arguments, **options):
        assert "pip" not in command
        return run(command, *arguments, **options)

    monkeypatch.setattr(subprocess, "run", nothing_is_installed)
    monkeypatch.setenv("FEDJAX_SIM_SMOKE", os.environ.get("FEDJAX_SIM_SMOKE", "1"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": notebook.stem}
    with matplotlib.rc_context():
        for cell in read(notebook)["cells"]:
            if cell["cell_type"] == "code":
                exec(compile(source(cell), f"{notebook.name}, cell {cell['id']}", "exec"), scope)
                pyplot.close("all")
    assert scope["SMOKE"] == (os.environ["FEDJAX_SIM_SMOKE"] == "1")


@each_notebook
def test_nothing_of_a_run_is_stored(notebook):
    content = read(notebook)
    for cell in content["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell["metadata"]
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    assert notebook.stat().st_size < 50_000
    assert not re.search(r"/(home|root|tmp|Users|content)/", notebook.read_text(encoding="utf-8"))
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)


@each_notebook
def test_first_cells_are_up_to_date(notebook):
    """Badges match the Repository of pyproject.toml, and all install in the same way; `make notebooks` sees to it."""
    content = read(notebook)
    assert content == first_cells.updated(content, notebook.name, *first_cells.settings())
    code = [cell["id"] for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code[0] == first_cells.INSTALL


@each_notebook
def test_links_point_at_files_and_headings_are_in_order(notebook):
    text = text_of(notebook)
    for target in re.findall(r"\]\(([^)#]+?)\)", text):
        assert target.startswith("https://") or (FOLDER / target).exists(), target
    levels = [len(found) for found in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


def test_an_algorithm_takes_thirty_lines():
    cell = next(cell for cell in read(FOLDER / "04_your_own_algorithm.ipynb")["cells"] if cell["id"] == "method")
    lines = [line for line in source(cell).partition("class ")[2].splitlines() if line.strip()]
    assert 15 < len(lines) <= 30


def test_the_readme_lists_them():
    text = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    for notebook in NOTEBOOKS:
        assert f"](notebooks/{notebook.name})" in text


GITHUB = "https://github.com/someone/fedjax_sim"


@pytest.mark.parametrize(
    ("repository", "place"),
    [
        ("", None),
        ("https://gitlab.com/someone/fedjax_sim", None),
        (GITHUB, "someone/fedjax_sim/blob/main/notebooks/01_quick_start.ipynb"),
        (f"{GITHUB}.git", "someone/fedjax_sim/blob/main/notebooks/01_quick_start.ipynb"),
    ],
)
def test_badges_come_and_go_with_the_repository(repository, place):
    content = read(FOLDER / "01_quick_start.ipynb")
    made = first_cells.updated(content, "01_quick_start.ipynb", repository, ">=0.6.2")
    badges = [cell for cell in made["cells"] if cell["id"] == first_cells.BADGE]
    assert len(badges) == (place is not None)
    if place is not None:
        assert made["cells"][0] is badges[0]
        assert source(badges[0]).endswith(f"(https://colab.research.google.com/github/{place})")
    install = next(cell for cell in made["cells"] if cell["id"] == first_cells.INSTALL)
    assert f'\nREPOSITORY = "{repository}"' in source(install)
    assert first_cells.updated(made, "01_quick_start.ipynb", *first_cells.settings()) == content


def test_settings_are_those_of_the_project(tmp_path):
    assert first_cells.settings()[1].startswith(">=0.6.2")
    file = tmp_path / "pyproject.toml"
    for urls, repository in (("", ""), ('Repository = ""', ""), (f'Repository = "{GITHUB}/"', GITHUB)):
        file.write_text(
            f'[project]\ndependencies = ["flax>=1", "jax>=0.7.1,!=0.8", "jaxlib>=1"]\n[project.urls]\n{urls}\n'
        )
        assert first_cells.settings(file) == (repository, ">=0.7.1,!=0.8")


class Commands:
    """What the first cell runs where the package is missing."""

    def __init__(self, monkeypatch, folder, *, jax=None, code=0):
        found = importlib.util.find_spec
        present = {"jax": jax is not None, "jaxlib": jax is not None, "fedjax_sim": False}
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found(name) if present.get(name, True) else None)
        monkeypatch.setattr("importlib.metadata.version", lambda name: jax)
        monkeypatch.setattr(subprocess, "run", self.run)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.chdir(folder)
        self.code, self.lines = code, []

    def run(self, command, **_):
        self.lines.append(command[1:])
        return subprocess.CompletedProcess(command, self.code, "", "no space left")


def install(repository=""):
    """Runs the part of the first cell that installs."""
    part, _, _ = first_cells.install_source(repository, ">=0.6.2,!=0.9.0").partition("\nimport jax\n")
    exec(part, {"__name__": "first"})


@pytest.mark.parametrize("inside", [".", "notebooks"])
def test_installs_from_the_checkout_around_it(inside, monkeypatch):
    commands = Commands(monkeypatch, FOLDER.parent / inside)
    install(GITHUB)
    assert commands.lines == [["-m", "pip", "install", "-q", "-e", f"{FOLDER.parent}[demo]"]]
    assert sys.path[0] == str(FOLDER.parent)


@pytest.mark.parametrize(
    ("jax", "kept"),
    [
        ("0.7.2", ["jax==0.7.2", "jaxlib==0.7.2"]),
        ("0.8.0.dev20250901", ["jax==0.8.0.dev20250901", "jaxlib==0.8.0.dev20250901"]),
        ("0.4.38", []),
        ("0.9.0", []),
        (None, []),
    ],
)
def test_installs_from_the_repository_and_keeps_a_jax_that_will_do(jax, kept, tmp_path, monkeypatch):
    commands = Commands(monkeypatch, tmp_path, jax=jax)
    install(GITHUB)
    assert commands.lines == [["-m", "pip", "install", "-q", f"fedjax_sim[demo] @ git+{GITHUB}", *kept]]


@pytest.mark.parametrize("repository", ["", GITHUB])
def test_installs_a_wheel_that_lies_beside_it(repository, tmp_path, monkeypatch):
    """The newest, before the repository: whoever puts it there wants it. Not from a folder above."""
    for age, name in enumerate(
        ["fedjax_sim-0.10.0-py3-none-any.whl", "fedjax_sim-0.9.0-py3-none-any.whl", "other.whl"]
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (folder := tmp_path / "a folder").mkdir()
    commands = Commands(monkeypatch, tmp_path)
    install(repository)
    wanted = f"fedjax_sim[demo] @ {(tmp_path / 'fedjax_sim-0.10.0-py3-none-any.whl').as_uri()}"
    assert commands.lines == [["-m", "pip", "install", "-q", wanted]]
    monkeypatch.chdir(folder)
    with pytest.raises(RuntimeError, match="nothing to install it from") if not repository else nullcontext():
        install(repository)
    assert len(commands.lines) == 1 + bool(repository)


def test_says_so_where_there_is_nothing_to_install_from(tmp_path, monkeypatch):
    commands = Commands(monkeypatch, tmp_path)
    with pytest.raises(RuntimeError, match="nothing to install it from"):
        install()
    assert not commands.lines


def test_shows_what_pip_says(tmp_path, monkeypatch):
    Commands(monkeypatch, tmp_path, code=1)
    with pytest.raises(RuntimeError, match="no space left"):
        install(GITHUB)
