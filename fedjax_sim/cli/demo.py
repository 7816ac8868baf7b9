"""``fedjax-sim demo``."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from fedjax_sim.cli.completion import FOLDERS, completed
from fedjax_sim.cli.output import results_in


def add_to(commands: Any) -> None:
    """Adds the command."""
    demo = commands.add_parser("demo", help="compare four methods on two problems: a table, a plot, a JSON of results")
    out = demo.add_argument("--out", default="results", metavar="DIR", help="where to write (default: results)")
    demo.add_argument("--rounds", type=int, default=100, help="rounds of each run (default: 100)")
    demo.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")
    kept = demo.add_argument("--checkpoint", metavar="DIR", help="save the runs here as they go; a demo that "
                             "was stopped (Ctrl-C, SIGTERM, a crash) goes on from there when called again")  # fmt: skip
    completed(out, FOLDERS)
    completed(kept, FOLDERS)
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    from fedjax_sim.cli.before_jax import settle
    from fedjax_sim.papers.demo import run_demo

    devices = settle(options)
    if devices is not None:
        print(f"on {devices}")
    with results_in(Path(options.out), "comparison.png", "results.json"):
        run_demo(options.out, rounds=options.rounds, seeds=options.seeds, checkpoint=options.checkpoint)
    program = _program(options)
    print("\nnext:")
    print(f"  {program} report {shlex.quote(options.out)}  # the runs on one page, for a browser")
    print(f"  {program} init  # run.toml, a configuration to change; then: {program} run run.toml")
    return 0


def _program(options: argparse.Namespace) -> str:
    """How this command is called: by its path where the shell would not find it, as after ``make demo``."""
    name = "fedjax-sim"
    called = Path(sys.argv[0])
    return str(called) if options.own_process and called.name == name and shutil.which(name) is None else name
