"""``fedjax-sim list`` and ``algorithms``: what configurations may name; the methods, with what each keeps and sends."""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from fedjax_sim.cli.options import add_json, completed
from fedjax_sim.cli.process import Refused
from fedjax_sim.core.records import Record

# Every factory is registered by one of these functions, under a name that is written out.
_FUNCTIONS = ("data_set", "factory", "recipe", "recorded", "register")
_REGISTERED = re.compile(rf"""\b(?:{"|".join(_FUNCTIONS)})\(\s*["']([a-z_]+\.\w+)["']""")


class Named(NamedTuple):
    """A registered name."""

    name: str  # "kind.name"
    about: str  # its documentation, or ""
    record: Record | None = None  # of a method, what tables say of it

    @property
    def short(self) -> str:
        """Without the kind."""
        return self.name.partition(".")[2]

    @property
    def what(self) -> str:
        """The first line of its documentation."""
        return self.about.partition("\n")[0]


def add_to(commands: Any) -> None:
    """Adds the command."""
    names = commands.add_parser("list", help="the names that configurations may use, or the arguments of one")
    names.add_argument("what", nargs="?", metavar="NAME", help="a kind (algorithm), or a name (algorithm.fedprox), of "
                       "which the arguments are shown; all kinds without it")  # fmt: skip
    add_json(names)
    names.set_defaults(run=run)
    methods = commands.add_parser("algorithms", help="the methods: what each does, keeps and sends, and its paper")
    about = "only these, with their arguments: fedprox scaffold"
    completed(methods.add_argument("names", nargs="*", metavar="NAME", help=about), methods_by_name)
    add_json(methods)
    methods.set_defaults(run=_algorithms)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    what, found = options.what, registered_names()
    kinds: dict[str, list[Named]] = {}
    for one in found:
        kinds.setdefault(one.name.partition(".")[0], []).append(one)
    chosen = [one for one in found if what in (None, one.name, one.short, one.name.partition(".")[0])]
    if not chosen:
        raise Refused(unknown(what, [*kinds, *(one.name for one in found)]))
    if options.json:
        print(json.dumps({"names": [{"name": one.name, "what": one.what} for one in chosen]}))
    elif what is None:
        for kind, of_kind in kinds.items():
            names = ", ".join(one.short for one in of_kind)
            print(textwrap.fill(names, width=100, initial_indent=f"{kind:14} ", subsequent_indent=" " * 15))
    elif what in kinds:
        width = max(len(one.short) for one in kinds[what])
        for one in kinds[what]:
            print(f"{one.short:{width}}  {one.what}".rstrip())
    else:
        print("\n\n".join(explained(one.name) for one in chosen))
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    known = {one.short: one for one in names_of("algorithm")}
    wanted = [name.removeprefix("algorithm.") for name in options.names]
    for name in wanted:
        if name not in known:
            raise Refused(unknown(name, list(known), "algorithm"))
    chosen = [known[name] for name in wanted] or list(known.values())
    if options.json:
        print(json.dumps([about(one) for one in chosen]))
    elif wanted:
        print("\n\n".join(explained(one.name) for one in chosen))
    else:
        print(_table(chosen))
    return 0


def about(method: Named) -> dict[str, str]:
    """What a method is: name, what, paper, keeps, sends; "" where it has no record."""
    one = method.record
    paper, keeps, sends = ("", "", "") if one is None else (one.authors, one.keeps, one.sends)
    return {"name": method.short, "what": method.what, "paper": paper, "keeps": keeps, "sends": sends}


def _table(methods: list[Named]) -> str:
    """What each does; its paper, what a client keeps, what is sent."""
    width = max(60, min(shutil.get_terminal_size((110, 24)).columns, 120))
    lines = []
    for one in map(about, methods):
        keeps, sends = one["keeps"].replace("none", "nothing"), one["sends"]
        said = [one["paper"], keeps and f"a client keeps {keeps}", sends[:1].lower() + sends[1:]]
        lines.append(one["name"])
        for text in (one["what"], "; ".join(filter(None, said))):
            lines += textwrap.wrap(text, width, initial_indent=" " * 4, subsequent_indent=" " * 4)
    return "\n".join([*lines, "", "`fedjax-sim algorithms NAME` shows its arguments."])


@functools.cache
def registered_names() -> tuple[Named, ...]:
    """All names that the package registers, read from its source: importing it would take a hundred times as long."""
    found: dict[str, Named] = {}
    for source in _sources(resources.files("fedjax_sim")):
        text = source.read_text(encoding="utf-8")
        if _REGISTERED.search(text):
            for one in _registered_in(ast.parse(text)):
                found.setdefault(one.name, one)  # a later one of the name reads older descriptions of it
    return tuple(found[name] for name in sorted(found))


def names_of(kind: str) -> list[Named]:
    """Those of one kind."""
    return [one for one in registered_names() if one.name.startswith(f"{kind}.")]


def methods_by_name() -> list[str]:
    """The names of the methods, as shells complete them."""
    return [one.short for one in names_of("algorithm")]


def _sources(folder: Traversable) -> Iterator[Traversable]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _sources(item)
        elif item.name.endswith(".py"):
            yield item


def _registered_in(module: ast.Module) -> Iterator[Named]:
    """The names that ``register("kind.name", thing)``, ``factory``, ``recorded``, ``@recipe`` and ``@data_set`` get."""
    texts: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            texts[node.name] = ast.get_docstring(node) or ""
            for decorator in node.decorator_list:
                if (name := _name_in(decorator)) is not None:
                    yield Named(name, texts[node.name])
    for statement in module.body:
        for call in ast.walk(statement):
            name = _name_in(call)
            if name is not None and isinstance(call, ast.Call) and len(call.args) == 2:
                thing = call.args[1]
                yield Named(name, texts.get(thing.id, "") if isinstance(thing, ast.Name) else "", _record_in(call))


def _record_in(call: ast.Call) -> Record | None:
    """The record in ``recorded("algorithm.name", Thing, group="...", ...)``, without the case for the tests."""
    about = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg not in (None, "case")}
    return Record(**about) if about else None


def _name_in(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return None
    first = node.args[0]
    if node.func.id not in _FUNCTIONS or not isinstance(first, ast.Constant):
        return None
    return first.value if isinstance(first.value, str) else None


def explained(name: str) -> str:
    """The arguments of a factory and its documentation; here jax is needed."""
    from fedjax_sim.core.descriptions import registered_factory
    from fedjax_sim.run.configuration.building import accepted_arguments

    make = registered_factory(name)
    parameters = inspect.signature(make).parameters
    lines = [name]
    for argument in accepted_arguments(make):
        default = parameters[argument].default
        lines.append(f"    {argument}" if default is inspect.Parameter.empty else f"    {argument} = {default!r}")
    about = inspect.getdoc(make)
    return "\n".join([*lines, *(["", textwrap.indent(about, "    ")] if about else [])])


def unknown(what: str, known: list[str], kind: str | None = None) -> str:
    """Words for a name that nothing has, with the nearest one."""
    near = difflib.get_close_matches(what, [*known, *(name.partition(".")[2] for name in known)], n=1)
    said = f"nothing is called {what!r}" if kind is None else f"no {kind} is called {what!r}"
    listing = "fedjax-sim list" if kind is None else f"fedjax-sim list {kind}"
    return f"{said}{f': did you mean {near[0]!r}?' if near else ''}; `{listing}` names all"
