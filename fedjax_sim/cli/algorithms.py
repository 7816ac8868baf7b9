"""``fedjax-sim algorithms``: the methods, what each keeps and sends, and its paper."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from typing import Any

from fedjax_sim.cli.list_names import Named, explained, registered_names, unknown
from fedjax_sim.cli.options import add_json
from fedjax_sim.cli.process import Refused

_KIND = "algorithm"
_INDENT = 4


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("algorithms", help="the methods: what each does, keeps and sends, and its paper")
    command.add_argument("names", nargs="*", metavar="NAME", help="only these, with their arguments: fedprox scaffold")
    add_json(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    methods = [one for one in registered_names() if one.name.startswith(f"{_KIND}.")]
    known = {one.short: one for one in methods}
    wanted = [name.removeprefix(f"{_KIND}.") for name in options.names]
    for name in wanted:
        if name not in known:
            raise Refused(unknown(name, list(known), _KIND))
    chosen = [known[name] for name in wanted] or methods
    if options.json:
        print(json.dumps([about(one) for one in chosen]))
    elif wanted:
        print("\n\n".join(explained(one.name) for one in chosen))
    else:
        print(table(chosen))
    return 0


def about(method: Named) -> dict[str, str]:
    """What a method is: name, what, paper, keeps, sends; "" where it has no record."""
    one = method.record
    said = {"paper": "", "keeps": "", "sends": ""}
    if one is not None:
        said = {"paper": one.authors, "keeps": one.keeps, "sends": one.sends}
    return {"name": method.short, "what": method.what, **said}


def table(methods: list[Named]) -> str:
    """Two lines for each: what it does; its paper, what a client keeps, what is sent."""
    width = max(60, min(shutil.get_terminal_size((110, 24)).columns, 120))
    lines = []
    for one in map(about, methods):
        lines.append(one["name"])
        lines += _wrapped(one["what"], width)
        keeps, sends = one["keeps"].replace("none", "nothing"), one["sends"]
        said = [one["paper"], keeps and f"a client keeps {keeps}", sends[:1].lower() + sends[1:]]
        lines += _wrapped("; ".join(filter(None, said)), width)
    return "\n".join([*lines, "", "`fedjax-sim algorithms NAME` shows its arguments."])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT) if text else []
