"""The command ``fedjax-sim``; heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fedjax_sim.cli import process
from fedjax_sim.cli.options import add_completion
from fedjax_sim.core.version import __version__

# The modules that add commands.
_COMMANDS = ("examples", "run", "compare", "sweep", "tune", "benchmark", "results", "data", "list_names", "doctor")
# Keys of a configuration's [run] that are given as options by mistake.
_OF_RUN = ("rounds", "seeds", "batch_size", "eval_every", "diagnostics", "checkpoint")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: the command line without the program's name. None takes ``sys.argv``, and the process for the command's
        own: only then are settings of JAX changed (CPU devices, a place for compiled programs).

    Returns:
      The exit status: 0 done (and verified), 2 bad usage or configuration, 128 + n stopped by signal n, 1 all else.
    """
    own_process = arguments is None
    if own_process:
        process.watch()
    with process.usable_streams(own_process):
        try:
            try:
                options = parser().parse_args(arguments)
                options.own_process = own_process
                status = process.status_of(options)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # the reader of a pipe went away: `fedjax-sim list | head`
            status = 128 + 13
        except OSError as error:  # of what is printed: all others are answered by then
            print(f"fedjax-sim: standard output cannot be written ({error.strerror})", file=sys.stderr)
            status = 1
        if own_process:
            process.discard_output()
            if status > 128:
                process.leave(status)
    return status


def parser() -> argparse.ArgumentParser:
    """The command line; importing nothing heavy, so that help and completion are quick."""
    made = _Parser(prog="fedjax-sim", description="Federated learning simulated in JAX.")
    made.add_argument("--version", action="version", version=f"fedjax_sim {__version__}")
    add_completion(made)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        importlib.import_module(f"fedjax_sim.cli.{name}").add_to(commands)
    return made


class _Parser(argparse.ArgumentParser):
    """With the nearest spelling of a word that is none of the choices, and what a change looks like."""

    _given: Sequence[str] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        rest = message.removeprefix("unrecognized arguments: ")
        if rest != message:
            super().error(f"{message}{_as_change(rest.split(), self._given)}")
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1) if found is not None else []
        super().error(f"{message}{f'; did you mean {near[0]!r}?' if near else ''}")


def _as_change(rest: Sequence[str], given: Sequence[str]) -> str:
    """How to write what was probably meant as a change of the configuration, or ""."""
    for option, key, value in zip(given, given[1:], given[2:], strict=False):
        if option == "--set" and "=" not in key and value in rest:
            return f"; write --set {key}={value}, in one word"
    option = next((word for word in rest if word.startswith("--")), "")
    if not option:
        return ""
    key, equals, value = option.lstrip("-").replace("-", "_").partition("=")
    # The word behind it: argparse took the first that stands alone for the configuration.
    after = next(iter(given[list(given).index(option) + 1 :]), "--")
    value = option.partition("=")[2] if equals else after if not after.startswith("--") else "VALUE"
    near = difflib.get_close_matches(key, _OF_RUN, n=1, cutoff=0.8)
    if near:
        key = f"run.{near[0]}"
    elif key in ("learning_rate", "lr"):
        key = "algorithm.client_optimizer.learning_rate"
    elif "." not in key:
        key = f"TABLE.{key}"
    return f"; values of a configuration are changed by --set {key}={value}"
