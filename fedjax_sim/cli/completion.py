"""``--print-completion``: a script for the shell, made by shtab from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
# What shtab knows as "complete file names here"; written out, so that parsers need no shtab.
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
FOLDERS = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    about = f"print a script that completes this command in a shell ({', '.join(SHELLS)}), and end"
    parser.add_argument("--print-completion", choices=SHELLS, metavar="SHELL", action=_Print, help=about)


def completed(action: argparse.Action, by: dict[str, str]) -> None:
    """Says what completes the values of an option or argument."""
    action.complete = by  # type: ignore[attr-defined]


class _Print(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            parser.exit(1, f"{parser.prog}: --print-completion needs shtab: pip install 'fedjax_sim[completion]'\n")
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()
