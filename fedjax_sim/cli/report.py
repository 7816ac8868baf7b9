"""``fedjax-sim report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedjax_sim.cli.completion import FILES, completed
from fedjax_sim.cli.results import HELP, read, say


def add_to(commands: Any) -> None:
    """Adds the command."""
    made = commands.add_parser("report", help="one HTML page that compares saved runs, to open in any browser")
    results = made.add_argument("results", nargs="+", metavar="RESULT", help=HELP)
    out = made.add_argument("--out", default="report.html", metavar="FILE", help="the page (default: report.html)")
    made.add_argument("--title", metavar="TEXT", help="its heading")
    completed(results, FILES)
    completed(out, FILES)
    made.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    from fedjax_sim.core.atomic import check_replaceable, check_writable
    from fedjax_sim.reporting.html import report

    page = Path(options.out)
    check_replaceable(page)
    check_writable(page.parent)
    found = read(options.results)
    say("report", found.notes)
    report(found.histories, options.out, title=options.title or found.heading)
    print(f"wrote {options.out} ({Path(options.out).stat().st_size / 1000:,.0f} kB)")
    return 0
