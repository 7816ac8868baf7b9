"""What scripts read of the command: exit statuses and JSON are those that docs/command-line.md says."""

import argparse
import ast
import json
import pathlib
import re
import signal

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.cli import process
from fedjax_sim.papers import demo
from tests.cli.test_compare import PROX
from tests.reporting.test_html_report import made

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def rows(heading):
    """The first two cells of each row of the table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)[1:])


STATUSES, SCHEMA = rows("Exit statuses"), rows("JSON")
COMMANDS = [name.strip("`") for name in SCHEMA]


def keys(command):
    """Those that the page names for the object itself: code outside of brackets."""
    return set(re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", SCHEMA[f"`{command}`"])))


def parsers(parser, name=""):
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not subs:
        yield name.strip(), parser
    for sub in subs:
        for word, child in sub.choices.items():
            yield from parsers(child, f"{name} {word}")


def test_every_command_takes_json_and_is_in_the_table():
    found = dict(parsers(cli.parser()))
    assert sorted(COMMANDS) == sorted(found)
    assert [name for name, parser in found.items() if "--json" not in parser.format_help()] == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path / "data"))
    (tmp_path / "small.toml").write_text(PROX)
    made(seeds=1).save(tmp_path / "a.npz")
    return tmp_path


CALLS = {
    "init": ["new.toml"],
    "list": ["cohort"],
    "data list": [],
    "data describe": ["quadratics", "num_clients=3"],
    "data prepare": ["parkinsons"],
    "show": ["a.npz"],
    "report": ["a.npz"],
    "run": ["small.toml"],
    "compare": ["small.toml", "--variant", "algorithm.mu=0.1", "--variant", "algorithm.mu=0.2"],
    "sweep": ["small.toml", "--over", "algorithm.mu=0.1,0.2"],
    "tune": ["small.toml", "--over", "algorithm.mu", "--steps", "1"],
    "benchmark": ["FedAvg", "--dry-run", "--size", "smoke", "--problems", "synthetic(1, 1)"],
    "demo": ["--rounds", "1", "--seeds", "1"],
    "reproduce": ["fednova-fig4", "--size", "smoke"],
    "doctor": [],
    "cite": ["scaffold"],
}
_COMPILED = ("compare", "sweep", "tune", "doctor", "reproduce", "benchmark")  # seconds each


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.slow if name in _COMPILED else ()) for name in CALLS]
)
def test_json_has_the_keys_that_the_page_says(folder, capsys, monkeypatch, command):
    monkeypatch.setattr(demo, "run_demo", lambda *given, show, **more: show("a table") or {"a": {"b": made(seeds=1)}})
    status = cli.main([*command.split(), *CALLS[command], "--json"])
    assert status == (1 if command == "data prepare" else 0) or command == "doctor"
    assert set(json.loads(capsys.readouterr().out)) == keys(command)


def test_a_run_is_verified_for_scripts(folder, capsys):
    assert cli.main(["run", "small.toml", "--quiet"]) == 0
    assert cli.main(["verify", "results/small/history.npz", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert set(about) == keys("verify")
    assert about["passed"]
    (about,) = about["runs"]
    assert about["passed"]
    assert about["arrays"] == about["equal"] > 3
    assert about["differs"] == []

    history = fjs.History.load("results/small/history.npz")
    history.metrics["loss"][:, -1] = np.nan  # not the result of this description, and no number of JSON
    history.save("other.npz")
    assert cli.main(["verify", "other.npz", "--json"]) == 1
    about = json.loads(capsys.readouterr().out)
    assert not about["passed"]
    (about,) = about["runs"]
    assert not about["passed"]
    assert {"name": "metrics/loss", "distance": None} in about["differs"]


def test_algorithms_are_a_list(capsys):
    assert cli.main(["algorithms", "fedprox", "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)
    assert set(about) == keys("algorithms")


def test_a_kind_has_its_names(capsys):
    assert cli.main(["list", "cohort", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert {"cohort.full", "cohort.uniform"} < {one["name"] for one in names}
    assert all(one["name"].startswith("cohort.") and one["what"] for one in names)


def test_a_name_that_nothing_has_prints_no_json(capsys):
    assert cli.main(["list", "fedprx", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "fedprox" in said.err


def test_the_table_of_exit_statuses(folder, capsys, monkeypatch):
    (folder / "wrong.toml").write_text("cohort = 3")
    found = {"0": cli.main(["list"]), "1": cli.main(["show", "nowhere.npz"]), "2": cli.main(["run", "wrong.toml"])}

    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", stopped)
    found["128 + n"] = cli.main(["demo"])
    assert list(STATUSES) == list(found)
    assert list(found.values()) == [0, 1, process.USAGE, 128 + signal.SIGINT]
    assert process.USAGE == 2
    for wrong in (["run"], ["nothing"], ["--nothing"]):  # argparse ends the process itself
        with pytest.raises(SystemExit) as ended:
            cli.main(wrong)
        assert ended.value.code == process.USAGE


def test_no_command_has_another_status():
    for path in (ROOT / "fedjax_sim" / "cli").glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and ast.unparse(function.returns or ast.Name("")) == "int":
                returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
                numbers = {
                    node.value for value in returned if value is not None for node in ast.walk(value)
                    if isinstance(node, ast.Constant) and type(node.value) is int
                }  # fmt: skip
                assert numbers <= {0, 1, 128}, f"{path.name}, {function.name}"
