"""``fedjax-sim init``."""

from __future__ import annotations

import argparse
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from fedjax_sim.cli.completion import FILES, completed


def add_to(commands: Any) -> None:
    """Adds the command."""
    init = commands.add_parser("init", help="write a commented configuration that runs in seconds")
    file = init.add_argument("file", nargs="?", default="run.toml", metavar="FILE", help="where to (default: run.toml; "
                             "- prints it); a file that is there is left as it is")  # fmt: skip
    completed(file, FILES)
    init.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    text = resources.files("fedjax_sim.cli").joinpath("example.toml").read_text(encoding="utf-8")
    if options.file == "-":
        print(text, end="")
        return 0
    path = Path(options.file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:  # "x": never over a file that is there
            file.write(text)
    except FileExistsError:
        print(f"fedjax-sim init: {path} is there already, and is left as it is: name another file", file=sys.stderr)
        return 1
    print(f"wrote {path}: run it with `fedjax-sim run {path}`")
    return 0
