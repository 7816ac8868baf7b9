"""Options that several commands have, and what they print by."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fedjax_sim.cli.completion import FILES, FOLDERS, completed

Say = Callable[[str], None]


def add_configuration(command: argparse.ArgumentParser) -> None:
    """The configuration, and changes to it."""
    file = command.add_argument("configuration", metavar="CONFIG.toml",
                                help="what to run; `fedjax-sim init` writes an example")  # fmt: skip
    completed(file, FILES)
    add_changes(command)


def add_changes(command: argparse.ArgumentParser) -> None:
    """``--set``, into ``options.changes``."""
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                         help="another value, as TOML: --set algorithm.mu=0.1; may be given several times")  # fmt: skip


def add_out(command: argparse.ArgumentParser, files: str, default: str) -> None:
    """``--out``, a folder for ``files``."""
    about = f"where to write {files} (default: {default})"
    completed(command.add_argument("--out", metavar="DIR", help=about), FOLDERS)


def add_devices(command: argparse.ArgumentParser, shared: str) -> None:
    """``--devices`` and ``--threads``; ``shared`` says what the devices share."""
    add = command.add_argument
    add("--devices", type=count, metavar="N", help=f"on a CPU: virtual devices that share {shared} (default: one a "
        "core, at most 8); on GPUs or TPUs: how many of those that are there (default: one)")  # fmt: skip
    add("--threads", type=count, metavar="N", help="on a CPU: threads that all devices' operations share (default: 1 "
        "where every core has a device, else XLA's choice)")  # fmt: skip


def add_voice(command: argparse.ArgumentParser, *, traceback: bool = True) -> None:
    """``--quiet`` or ``--json``, and ``--traceback``."""
    said = command.add_mutually_exclusive_group()
    said.add_argument("--quiet", action="store_true", help="say nothing but errors")
    add_json(said)
    if traceback:
        add_traceback(command)


def add_json(command: argparse._ActionsContainer) -> None:
    """``--json``."""
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_traceback(command: argparse.ArgumentParser) -> None:
    """``--traceback``."""
    about = "of an error, show where in the program it came from"
    command.add_argument("--traceback", action="store_true", help=about)


def add_no_cache(command: argparse.ArgumentParser) -> None:
    """``--no-cache``."""
    about = "compile anew: neither read nor keep compiled programs"
    command.add_argument("--no-cache", action="store_true", help=about)


def voice(options: argparse.Namespace) -> Say:
    """What prints a line of text: nothing does with ``--quiet`` or ``--json``."""
    return _nothing if options.quiet or options.json else print


def count(text: str) -> int:
    """A number of things, at least one."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: it must be one of at least 1") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be at least 1")
    return value


def _nothing(text: str) -> None:
    pass
