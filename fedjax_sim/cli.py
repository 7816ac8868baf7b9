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
      The exit status: 0 done (and verified), 2 bad usage, 128 + n stopped by signal n, 1 anything else.
    """
    parser = argparse.ArgumentParser(prog="fedjax-sim", description="Federated learning simulated in JAX.")
    parser.add_argument("--version", action="version", version=f"fedjax_sim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    demo = commands.add_parser("demo", help="compare four methods on two problems: a table, a plot, a JSON of results")
    demo.add_argument("--out", default="results", metavar="DIR", help="where to write (default: results)")
    demo.add_argument("--rounds", type=int, default=100, help="rounds of each run (default: 100)")
    demo.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")
    demo.add_argument("--checkpoint", metavar="DIR", help="save the runs here as they go; a demo that was stopped "
                      "(Ctrl-C, SIGTERM, a crash) goes on from there when it is called again")  # fmt: skip

    show = commands.add_parser("show", help="print the tables of saved histories (.npz)")
    show.add_argument("histories", nargs="+", metavar="FILE", help="files written by History.save")
    show.add_argument("--target", type=float, help="also count the rounds until this accuracy (or loss)")
    show.add_argument("--markdown", action="store_true", help="a Markdown table")

    verify = commands.add_parser("verify", help="run a saved result again, from its own description, and compare")
    verify.add_argument("history", metavar="FILE", help="a file written by History.save")
    verify.add_argument("--tolerance", type=float, help="largest relative distance that passes (default: none where "
                        "versions and device are those of the result, else 1e-3)")  # fmt: skip

    options = parser.parse_args(arguments)
    try:
        return {"demo": _demo, "show": _show, "verify": _verify}[options.command](options)
    except (ValueError, OSError, ImportError) as error:
        print(f"fedjax-sim {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        signal = getattr(error, "signal", 2)  # an Interrupted says which, and where the run is saved
        print(f"fedjax-sim {options.command}: {str(error) or 'stopped'}", file=sys.stderr)
        return 128 + int(signal)


def _demo(options: argparse.Namespace) -> int:
    from fedjax_sim.experiments.demo import run_demo

    run_demo(options.out, rounds=options.rounds, seeds=options.seeds, checkpoint=options.checkpoint)
    return 0


def _show(options: argparse.Namespace) -> int:
    from pathlib import Path

    from fedjax_sim.history import History
    from fedjax_sim.reporting.table import results_table

    histories = {Path(path).stem: History.load(path) for path in options.histories}
    print(results_table(histories, target=options.target, markdown=options.markdown))
    return 0


def _verify(options: argparse.Namespace) -> int:
    import jax

    from fedjax_sim.history import History
    from fedjax_sim.verification import verify

    history = History.load(options.history)
    if history.description.get("environment", {}).get("float") == "float64":
        jax.config.update("jax_enable_x64", True)
    found = verify(history, tolerance=options.tolerance)
    print(found)
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
