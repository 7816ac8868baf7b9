"""``fedjax-sim verify``."""

from __future__ import annotations

import argparse
import re
from typing import Any

from fedjax_sim.cli.completion import FILES, completed


def add_to(commands: Any) -> None:
    """Adds the command."""
    verify = commands.add_parser("verify", help="run a saved result again, from its own description, and compare")
    file = verify.add_argument("history", metavar="FILE", help="a file written by History.save")
    verify.add_argument("--tolerance", type=float, help="largest relative distance that passes (default: none where "
                        "versions and device are those of the result, else 1e-3)")  # fmt: skip
    completed(file, FILES)
    verify.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it, with the precision, the random generator and the number of CPU devices of the result."""
    import jax

    from fedjax_sim.cli.before_jax import settle
    from fedjax_sim.core.keys import use_generator
    from fedjax_sim.run.history import History
    from fedjax_sim.run.verification import verify

    history = History.load(options.history)
    environment = history.description.get("environment", {})
    if environment.get("float") == "float64" and options.own_process:
        jax.config.update("jax_enable_x64", True)
    if options.own_process and isinstance(environment.get("generator"), dict):
        use_generator(environment["generator"])
    several = re.fullmatch(r"(\d{1,4}) x cpu( of \d{1,6} processes)?", str(environment.get("device")))
    settle(options, devices=int(several[1]) if several else 1)
    found = verify(history, tolerance=options.tolerance)
    print(found)
    return 0 if found.passed else 1
