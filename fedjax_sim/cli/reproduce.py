"""``fedjax-sim reproduce``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedjax_sim.cli.completion import FOLDERS, completed
from fedjax_sim.cli.output import results_in


def add_to(commands: Any) -> None:
    """Adds the command."""
    made = commands.add_parser(
        "reproduce", help="an experiment of a paper: its figure, its table and which of its claims hold"
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="of experiments: fednova-fig2")
    made.add_argument("--all", action="store_true", help="all of them; what is complete already is not done again")
    made.add_argument("--list", action="store_true", help="names and titles")
    made.add_argument("--size", choices=("smoke", "cpu", "paper"), default="cpu", help="smoke: seconds, to see that "
                      "it works; cpu: minutes on two cores; paper: for a GPU (default: cpu)")  # fmt: skip
    made.add_argument("--seeds", type=int, metavar="K", help="number of seeds (default: each experiment's own)")
    out = made.add_argument("--out", default="results/reproduce", metavar="DIR",
                            help="where to write (default: results/reproduce)")  # fmt: skip
    made.add_argument("--fresh", action="store_true", help="forget finished runs of this size first")
    completed(out, FOLDERS)
    made.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it; 1 if an experiment ended with an error, whatever became of the claims."""
    from fedjax_sim.papers.catalogue import CATALOGUE, check_name

    if options.list:
        width = max(map(len, CATALOGUE))
        for name, entry in CATALOGUE.items():
            print(f"{name:{width}}  {entry.title}")
        return 0
    if bool(options.names) == options.all:
        print("fedjax-sim reproduce: give names or --all; --list names all", file=sys.stderr)
        return 2
    if options.seeds is not None and options.seeds < 1:
        print(f"fedjax-sim reproduce: --seeds {options.seeds}: it must be at least 1", file=sys.stderr)
        return 2
    try:
        for name in options.names:
            check_name(name)
    except ValueError as error:
        print(f"fedjax-sim reproduce: {error}", file=sys.stderr)
        return 2
    from fedjax_sim.cli.before_jax import settle

    settle(options)
    with results_in(Path(options.out)):
        return _reproduce(options)


def _reproduce(options: argparse.Namespace) -> int:
    """Performs the experiments that are asked for."""
    from fedjax_sim.papers.catalogue import CATALOGUE
    from fedjax_sim.papers.reproducing import board, reproduce, reproduce_all

    if len(options.names) == 1:
        reproduce(options.names[0], size=options.size, seeds=options.seeds, out=options.out, fresh=options.fresh)
        return 0
    lines = reproduce_all(
        options.names or tuple(CATALOGUE), size=options.size, seeds=options.seeds, out=options.out, fresh=options.fresh
    )
    print("\n" + board(lines, options.size).partition("\n## ")[0].rstrip())
    failed = [line.name for line in lines if line.report is None]
    if failed:
        print(f"fedjax-sim reproduce: ended with an error: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
