"""``fedjax-sim show``."""

from __future__ import annotations

import argparse
from typing import Any

from fedjax_sim.cli.completion import FILES, completed
from fedjax_sim.cli.results import HELP, read, say


def add_to(commands: Any) -> None:
    """Adds the command."""
    show = commands.add_parser("show", help="print saved runs and sweeps as one table")
    files = show.add_argument("histories", nargs="+", metavar="RESULT", help=HELP)
    show.add_argument("--target", type=float, help="also count the rounds until this accuracy (or loss)")
    show.add_argument("--markdown", action="store_true", help="a Markdown table")
    completed(files, FILES)
    show.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    from fedjax_sim.reporting.table import results_table

    found = read(options.histories)
    say("show", found.notes)
    print(results_table(found.histories, target=options.target, markdown=options.markdown))
    return 0
