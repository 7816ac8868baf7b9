"""``fedjax-sim demo``, ``init`` and ``reproduce``: what the package brings along."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.options import FOLDERS, add_place, add_voice, voice
from fedjax_sim.cli.output import refusing, results_in, settle, summary
from fedjax_sim.cli.process import Refused

if TYPE_CHECKING:
    from fedjax_sim.papers.overview import Line


def add_to(commands: Any) -> None:
    """Adds the commands."""
    demo = commands.add_parser("demo", help="compare four methods on two problems: a table, a plot, a JSON of results")
    add_place(demo, "--out", FOLDERS, default="results", of="DIR", help="where to write (default: results)")
    demo.add_argument("--rounds", type=int, default=100, help="rounds of each run (default: 100)")
    demo.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")
    about = (
        "save the runs here as they go; a demo that was stopped (Ctrl-C, SIGTERM, a crash) goes on from there when "
        "called again"
    )
    add_place(demo, "--checkpoint", FOLDERS, of="DIR", help=about)
    add_voice(demo)
    demo.set_defaults(run=_demo)

    init = commands.add_parser("init", help="write a commented configuration that runs in seconds")
    about = "where to (default: run.toml; - prints it); a file that is there is left as it is"
    add_place(init, "file", nargs="?", default="run.toml", of="FILE", help=about)
    add_voice(init)
    init.set_defaults(run=_init)

    about = "an experiment of a paper: its figure, its table and which of its claims hold"
    made = commands.add_parser("reproduce", help=about)
    add = made.add_argument
    add("names", nargs="*", metavar="NAME", help="of experiments: fednova-fig2")
    add("--all", action="store_true", help="all of them; what is complete already is not done again")
    add("--list", action="store_true", help="names and titles")
    about = "smoke: seconds, to see that it works; cpu: minutes on two cores; paper: for a GPU (default: cpu)"
    add("--size", choices=("smoke", "cpu", "paper"), default="cpu", help=about)
    add("--seeds", type=int, metavar="K", help="number of seeds (default: each experiment's own)")
    about = "where to write (default: results/reproduce)"
    add_place(made, "--out", FOLDERS, default="results/reproduce", of="DIR", help=about)
    add("--fresh", action="store_true", help="forget finished runs of this size first")
    add_voice(made)
    made.set_defaults(run=_reproduce)


def _demo(options: argparse.Namespace) -> int:
    from fedjax_sim.papers.demo import run_demo, stem

    devices, say, out = settle(options), voice(options), Path(options.out)
    if devices is not None:
        say(f"on {devices}")
    with results_in(out, "comparison.png", "results.json"):
        found = run_demo(out, rounds=options.rounds, seeds=options.seeds, checkpoint=options.checkpoint, show=say)
    if options.json:
        runs = [
            {"label": f"{problem}: {method}", **summary(run, {"history": out / f"{stem(problem, method)}.npz"})}
            for problem, runs in found.items()
            for method, run in runs.items()
        ]
        files = {"plot": str(out / "comparison.png"), "results": str(out / "results.json")}
        print(json.dumps({"runs": runs, "files": files}, allow_nan=False))
        return 0
    # By its path where the shell would not find it, as after `make demo`
    called = Path(sys.argv[0])
    by_path = options.own_process and called.name == "fedjax-sim" and shutil.which(called.name) is None
    program = str(called) if by_path else "fedjax-sim"
    print("\nnext:")
    print(f"  {program} report {shlex.quote(options.out)}  # the runs on one page, for a browser")
    print(f"  {program} init  # run.toml, a configuration to change; then: {program} run run.toml")
    return 0


def _init(options: argparse.Namespace) -> int:
    text = resources.files("fedjax_sim.cli").joinpath("example.toml").read_text(encoding="utf-8")
    if options.file == "-":
        print(text, end="")
        return 0
    from fedjax_sim.core.files import make_directory

    path = Path(options.file)
    try:
        make_directory(path.parent)
        with path.open("x", encoding="utf-8") as file:  # "x": never over a file that is there
            file.write(text)
    except FileExistsError as error:
        raise FileExistsError(f"{path} is there already, and is left as it is: name another file") from error
    voice(options)(f"wrote {path}: run it with `fedjax-sim run {path}`")
    if options.json:
        print(json.dumps({"files": {"configuration": str(path)}}))
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    """1 if an experiment ended with an error, whatever became of the claims."""
    from fedjax_sim.papers.catalogue import CATALOGUE, check_name

    if options.list:
        if options.json:
            print(json.dumps({"experiments": [{"name": name, "title": one.title} for name, one in CATALOGUE.items()]}))
            return 0
        width = max(map(len, CATALOGUE))
        for name, entry in CATALOGUE.items():
            print(f"{name:{width}}  {entry.title}")
        return 0
    if bool(options.names) == options.all:
        raise Refused("give names or --all; --list names all")
    if options.seeds is not None and options.seeds < 1:
        raise Refused(f"--seeds {options.seeds}: it must be at least 1")
    with refusing():
        for name in options.names:
            check_name(name)
    settle(options)
    with results_in(Path(options.out)):
        return _performed(options)


def _performed(options: argparse.Namespace) -> int:
    from fedjax_sim.papers.catalogue import CATALOGUE
    from fedjax_sim.papers.overview import Line, board
    from fedjax_sim.papers.reproducing import reproduce, reproduce_all

    given = {name: getattr(options, name) for name in ("size", "seeds", "out", "fresh")} | {"show": voice(options)}
    if len(options.names) == 1:
        lines = [Line(options.names[0], reproduce(options.names[0], **given), "")]
    else:
        lines = reproduce_all(options.names or tuple(CATALOGUE), **given)
        voice(options)("\n" + board(lines).partition("\n## ")[0].rstrip())
    if options.json:
        print(json.dumps({"experiments": [_as_json(line, Path(options.out, options.size)) for line in lines]}))
    failed = [line.name for line in lines if line.report is None]
    if failed:
        print(f"fedjax-sim reproduce: ended with an error: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _as_json(line: Line, folder: Path) -> dict[str, Any]:
    held, not_held, not_testable = (None, None, None) if line.report is None else line.report.counts()
    return {
        "name": line.name, "error": line.error or None, "held": held, "did_not_hold": not_held,
        "not_testable": not_testable, "folder": str(folder / line.name),
    }  # fmt: skip
