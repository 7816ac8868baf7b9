"""Options that several commands have, what completes them in a shell, and what they print by."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]

SHELLS = ("bash", "zsh", "tcsh")
# What shtab knows as "complete file names here"; written out, so that parsers need no shtab.
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}


def add_completion(parser: argparse.ArgumentParser) -> None:
    """``--print-completion``: a script for the shell, made by shtab from the parser itself."""
    about = f"print a script that completes this command in a shell ({', '.join(SHELLS)}), and end"
    parser.add_argument("--print-completion", choices=SHELLS, metavar="SHELL", action=_PrintCompletion, help=about)


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, __: str | None = None) -> None:
        try:
            import shtab
        except ImportError:
            parser.exit(1, f"{parser.prog}: --print-completion needs shtab: pip install 'fedjax_sim[completion]'\n")
        for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
            for action in command._actions:
                if names := getattr(action, "names", None):
                    action.choices = names()
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


def add_place(
    command: argparse.ArgumentParser, name: str, by: dict[str, str] = FILES, *, of: str | None = None, **about: Any
) -> None:
    """An argument or option that names a file or folder, which shells complete; ``of`` is its metavar."""
    action = command.add_argument(name, metavar=of, type=_place, **about)
    action.complete = by  # type: ignore[attr-defined]


def _place(text: str) -> str:
    """A file or folder; an empty text is a variable of a shell that is not set, as a rule."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: give a path")
    return text


def completed(action: argparse.Action, names: Callable[[], list[str]]) -> None:
    """Has shells complete these names there; others are not refused."""
    action.names = names  # type: ignore[attr-defined]


def add_configuration(command: argparse.ArgumentParser) -> None:
    """The configuration, and changes to it."""
    about = "what to run; `fedjax-sim init` writes an example"
    add_place(command, "configuration", of="CONFIG.toml", help=about)
    add_changes(command)


def add_changes(command: argparse.ArgumentParser) -> None:
    """``--set``, into ``options.changes``."""
    about = "another value, as TOML: --set algorithm.mu=0.1; may be given several times"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes", help=about)


def add_running(command: argparse.ArgumentParser, files: str, default: str, shared: str | None = None) -> None:
    """What commands that compute share: a folder for files, what is kept and said; what devices share, if several."""
    add_place(command, "--out", FOLDERS, of="DIR", help=f"where to write {files} (default: {default})")
    if shared is not None:
        about = (
            f"on a CPU: virtual devices that share {shared} (default: one a core, at most 8); on GPUs or TPUs: how "
            "many of those that are there (default: one)"
        )
        command.add_argument("--devices", type=count, metavar="N", help=about)
        about = (
            "on a CPU: threads that all devices' operations share (default: 1 where every core has a device, else "
            "XLA's choice)"
        )
        command.add_argument("--threads", type=count, metavar="N", help=about)
    about = "compile anew: neither read nor keep compiled programs"
    command.add_argument("--no-cache", action="store_true", help=about)
    add_voice(command)
    add_traceback(command)


def add_voice(command: argparse.ArgumentParser) -> None:
    """``--quiet`` or ``--json``."""
    said = command.add_mutually_exclusive_group()
    said.add_argument("--quiet", action="store_true", help="say nothing but errors")
    add_json(said)


def add_json(command: argparse._ActionsContainer) -> None:
    """``--json``."""
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_traceback(command: argparse.ArgumentParser) -> None:
    """``--traceback``."""
    about = "of an error, show where in the program it came from"
    command.add_argument("--traceback", action="store_true", help=about)


def voice(options: argparse.Namespace) -> Say:
    """What prints a line of text: nothing does with ``--quiet`` or ``--json``."""
    return silent if options.quiet or options.json else print


def silent(text: str) -> None:
    """Says nothing."""


def count(text: str) -> int:
    """A number of things, at least one."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: it must be one of at least 1") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be at least 1")
    return value
