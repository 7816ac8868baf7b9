"""The command ``fedjax-sim``; heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fedjax_sim import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: the command line without the program's name; None takes ``sys.argv``.

    Returns:
      The exit status: 0 done, 2 bad usage, 1 anything else.
    """
    parser = argparse.ArgumentParser(prog="fedjax-sim", description="Federated learning simulated in JAX.")
    parser.add_argument("--version", action="version", version=f"fedjax_sim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser("demo", help="compare four methods on two problems: a table, a plot, a JSON of results")
    demo.add_argument("--out", default="results", metavar="DIR", help="where to write (default: results)")
    demo.add_argument("--rounds", type=int, default=100, help="rounds of each run (default: 100)")
    demo.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")

    show = commands.add_parser("show", help="print the tables of saved histories (.npz)")
    show.add_argument("histories", nargs="+", metavar="FILE", help="files written by History.save")
    show.add_argument("--target", type=float, help="also count the rounds until this accuracy (or loss)")
    show.add_argument("--markdown", action="store_true", help="a Markdown table")

    options = parser.parse_args(arguments)
    try:
        return _demo(options) if options.command == "demo" else _show(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"fedjax-sim {options.command}: {error}", file=sys.stderr)
        return 1


def _demo(options: argparse.Namespace) -> int:
    from fedjax_sim.experiments.demo import run_demo

    run_demo(options.out, rounds=options.rounds, seeds=options.seeds)
    return 0


def _show(options: argparse.Namespace) -> int:
    from pathlib import Path

    from fedjax_sim.history import History
    from fedjax_sim.reporting.table import results_table

    histories = {Path(path).stem: History.load(path) for path in options.histories}
    print(results_table(histories, target=options.target, markdown=options.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
