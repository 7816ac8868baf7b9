"""``fedjax-sim algorithms``: the methods, what each keeps and sends, and its paper."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import textwrap
from typing import Any

from fedjax_sim.cli.list_names import Named, explained, registered_names, unknown
from fedjax_sim.cli.options import add_json
from fedjax_sim.cli.process import Refused

_KIND = "algorithm"
_INDENT = 4
# As every method's documentation says it: "State per client: one model. Two models down, two up a round and client."
_KEEPS = re.compile(
    r"State per client(?P<sent>, and (?:what is|models) sent(?: besides)?)?: (?P<kept>[^.;]+)[.;](?P<rest>.*)"
)
_SENDING = re.compile(r"\b(up|down)\b")
_REFERENCE = re.compile(r"^Reference: (.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_PAPER = re.compile(r"(?:^|; |: )(?P<who>(?:[A-Z][\w\-, ]*?|[A-Z]\w+ et al\.) (?:19|20)\d\d)\b")


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
    """What a method is, from its documentation: name, what, paper, keeps, sends; "" where that does not say."""
    text = " ".join(method.about.replace("``", "").split())
    keeps = sends = ""
    paragraphs = [" ".join(part.split()) for part in method.about.replace("``", "").split("\n\n")]
    found = next((match for part in paragraphs if (match := _KEEPS.search(part))), None)
    if found is not None:
        keeps, sends = found["kept"].strip(), found["rest"].partition(".")[0].strip()
        sends = sends.removesuffix(" a round and client") if _SENDING.search(sends) else ""
        if found["sent"] is not None:
            sends = f"as the base{sends and f', {_lower(sends)}'}"
    reference = _REFERENCE.search(method.about)
    paper = _PAPER.search(" ".join(reference[1].split())) if reference is not None else None
    who = paper["who"] if paper is not None else _in_brackets(text)
    return {"name": method.short, "what": method.what, "paper": who, "keeps": keeps, "sends": sends}


def table(methods: list[Named]) -> str:
    """Two lines for each: what it does; its paper, what a client keeps, what is sent."""
    width = max(60, min(shutil.get_terminal_size((110, 24)).columns, 120))
    lines = []
    for one in map(about, methods):
        lines.append(one["name"])
        lines += _wrapped(one["what"], width)
        said = [one["paper"], one["keeps"] and f"a client keeps {_nothing(one['keeps'])}", _lower(one["sends"])]
        lines += _wrapped("; ".join(filter(None, said)), width)
    return "\n".join([*lines, "", "`fedjax-sim algorithms NAME` shows its arguments."])


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _nothing(kept: str) -> str:
    return re.sub(r"^none\b", "nothing", kept)


def _in_brackets(text: str) -> str:
    """Whom the text names in brackets with a year."""
    found = re.search(r"\(((?:[A-Z]\w+ et al\.|[A-Z]\w+ and [A-Z]\w+|[A-Z]\w+) (?:19|20)\d\d)", text)
    return "" if found is None else found[1]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT) if text else []
