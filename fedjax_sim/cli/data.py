"""``fedjax-sim data``: which data sets there are, what is in one, and whether its files are right."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.options import add_json, add_place, add_traceback, add_voice, voice
from fedjax_sim.cli.output import drawn, finite, refusing
from fedjax_sim.cli.process import Refused
from fedjax_sim.cli.spaces import key_and_text

if TYPE_CHECKING:
    from fedjax_sim.datasets.sources.record import Source

_KIND = "dataset"
_OWN = ("from_table", "from_directory", "from_leaf")


def add_to(commands: Any) -> None:
    """Adds the command."""
    made = commands.add_parser("data", help="data sets: which there are, what is in one, whether its files are right")
    actions = made.add_subparsers(dest="action", required=True, metavar="list|describe|prepare")
    listed = actions.add_parser("list", help="all data sets, and which of them can be read here")
    add_json(listed)
    listed.set_defaults(run=_list)

    described = actions.add_parser("describe", help="clients, sizes, labels and shapes of one")
    add_place(described, "what", of="NAME|CONFIG.toml", help="a data set, or a configuration that has one")
    described.add_argument(
        "arguments", nargs="*", metavar="KEY=VALUE", help="its arguments, as TOML: alpha=0.1 num_clients=20"
    )
    about = "draw who holds which labels, and the clients' sizes (.png, .pdf, .svg)"
    add_place(described, "--plot", of="FILE", help=about)
    add_json(described)
    add_traceback(described)
    described.set_defaults(run=_describe)

    prepared = actions.add_parser("prepare", help="make a set's folders, say what to put there, check and read it")
    prepared.add_argument("names", nargs="*", metavar="NAME", help="data sets; `fedjax-sim data list` names them")
    prepared.add_argument("--all", action="store_true", help="all of them")
    add_voice(prepared)
    prepared.set_defaults(run=_prepare)


def _list(options: argparse.Namespace) -> int:
    from fedjax_sim.cli.list_names import names_of
    from fedjax_sim.datasets.sources.record import DATA_VARIABLE, data_dir, sources

    found, what = sources(), {one.short: one.what for one in names_of(_KIND)}
    others = [name for name in what if name not in found]
    if options.json:
        sets = [
            {"name": name, "ready": of.ready(), "what": what[name], "size": of.size, "terms": of.terms, **_files(of)}
            for name, of in found.items()
        ]
        print(json.dumps({"directory": str(data_dir()), "sets": sets, "others": others}))
        return 0
    width, terminal = max(map(len, found)), max(90, shutil.get_terminal_size((110, 24)).columns)
    states = {name: _state(of) for name, of in found.items()}
    beside = max(map(len, states.values()))
    for name in found:
        about, room = what[name].replace("``", ""), max(terminal - 4 - width - beside, 20)
        about = about if len(about) <= room else f"{about[: room - 3].rstrip()}..."
        print(f"{name:{width}}  {states[name]:{beside}}  {about}".rstrip())
    print(f"\nmade of other data: {', '.join(name for name in others if name not in _OWN)}")
    print(f"your own files: {', '.join(_OWN)} (docs/data/own.md)")
    said = os.environ.get(DATA_VARIABLE)
    there = "" if data_dir().is_dir() else ", which is not there"
    print(f"files are looked for in {data_dir()} ({DATA_VARIABLE} is {said or 'not set'}){there}")
    if any(not of.ready() for of in found.values()):
        print("what is missing, and where to get it: fedjax-sim data prepare NAME")
    return 0


def _state(source: Source) -> str:
    if source.lacks_module():
        return f"needs {source.module}"
    missing = len(source.missing())
    if missing:
        return f"{missing} of {len(source.files)} files missing" if len(source.files) > 1 else "file missing"
    return "ready" if source.files or source.module else "drawn"


def _files(source: Source) -> dict[str, list[str]]:
    found = [wanted.found() for wanted in source.files]
    missing = [f"{wanted.folder}/{wanted.names[0]}" for wanted in source.missing()]
    return {"present": list(dict.fromkeys(str(path) for path in found if path is not None)), "missing": missing}


def _describe(options: argparse.Namespace) -> int:
    from fedjax_sim.reporting.data_plots import overview
    from fedjax_sim.run.configuration.building import value_of
    from fedjax_sim.run.configuration.tables import Place, load, toml_value

    with refusing():
        if options.what.endswith(".toml"):
            tables = load(options.what, [f"{_KIND}.{argument}" for argument in options.arguments])
            if _KIND not in tables.content:
                raise ValueError(f"{options.what} has no table [{_KIND}]")
            table, place = tables.content[_KIND], tables.place / _KIND
        else:
            _check_name(options.what)
            pairs = [key_and_text(said, options.what, "alpha=0.1") for said in options.arguments]
            given = {key: toml_value(text, f"{options.what} {key}={text}") for key, text in pairs}
            table, place = {"name": options.what, **given}, Place(f"describe {options.what}")
        table = {"name": table} if isinstance(table, str) else dict(table)
        if "." not in str(table.get("name", ".")):
            table["name"] = f"{_KIND}.{table['name']}"
        data = value_of(table, place)
        if not hasattr(data, "statistics"):
            raise ValueError(f"{options.what} is no data set")
    about = _about(data)
    plotted = drawn(lambda: overview(data, options.plot)) if options.plot is not None else None
    if options.json:
        print(json.dumps({**about, "plot": options.plot if plotted is None else None}, allow_nan=False))
        return 0
    print(data.statistics())
    for part in ("arrays", "validation_arrays", "test_arrays"):
        if about[part]:
            said = ", ".join(f"{name or 'examples'} {kind}" for name, kind in about[part].items())
            print(f"{part.replace('_', ' '):20} {said}")
    if options.plot is not None:
        print(f"wrote {options.plot}" if plotted is None else f"no plot: {plotted}")
    return 0


def _check_name(name: str) -> None:
    from fedjax_sim.cli.list_names import names_of
    from fedjax_sim.core.values import suggest

    known = [one.short for one in names_of(_KIND)]
    if name.removeprefix(f"{_KIND}.") not in known:
        path = Path(name)
        if not path.exists():
            raise ValueError(f"no data set is called {name!r}: {suggest(name, known)}")
        reader = f"from_directory folder={path}" if path.is_dir() else f"from_table table={path} client=COLUMN"
        if path.suffix == ".json" or any(path.glob("*.json")):
            reader = f"from_leaf train={path}"
        place = "no name of a data set but a place of your own data"
        raise ValueError(f"{name} is {place}: fedjax-sim data describe {reader}")


def _about(data: Any) -> dict[str, Any]:
    statistics = data.statistics()
    table = statistics.label_table
    low, middle, high = statistics.quantiles()
    held_out = {"validation": statistics.validation_sizes, "test": statistics.test_sizes}
    return {
        "clients": statistics.clients,
        "examples": statistics.examples,
        "examples_per_client": {
            "mean": statistics.mean, "std": statistics.std, "min": statistics.min, "max": statistics.max,
            "quartiles": [low, middle, high],
        },
        **{f"{part}_examples": None if sizes is None else int(sizes.sum()) for part, sizes in held_out.items()},
        "classes": data.num_classes,
        "examples_per_class": None if table is None else table.sum(axis=0).tolist(),
        "classes_per_client": None if table is None else finite(float(statistics.classes_per_client.mean())),
        "arrays": _arrays(data.examples),
        **{f"{part}_arrays": _arrays(getattr(getattr(data, part, None), "examples", None)) for part in held_out},
    }  # fmt: skip


def _arrays(examples: Any) -> dict[str, str]:
    """``{"x": "float32[1000, 60]"}``."""
    from fedjax_sim.core.trees import by_path

    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in by_path(examples, ".").items()}


def _prepare(options: argparse.Namespace) -> int:
    """1 where a set is not ready in the end."""
    from fedjax_sim.core.values import suggest
    from fedjax_sim.datasets.sources.record import EXTRA, data_dir, sources

    found = sources()
    if bool(options.names) == options.all:
        raise Refused("give names or --all; `fedjax-sim data list` names all")
    wanted = [name.removeprefix(f"{_KIND}.") for name in options.names] or list(found)
    for name in wanted:
        if name not in found:
            raise Refused(f"no set of files is called {name!r}: {suggest(name, list(found))}")
    say = voice(options)
    told: dict[str, dict[str, Any]] = {}
    for name in wanted:
        source = found[name]
        if source.lacks_module():
            told[name] = {"ready": False, "why": f"needs {source.module}: pip install 'fedjax_sim[{EXTRA}]'"}
        elif missing := source.missing():
            for folder in dict.fromkeys(one.folder for one in missing):
                with contextlib.suppress(OSError):  # a directory that others keep: what is missing is said all the same
                    (data_dir() / folder).mkdir(parents=True, exist_ok=True)
            terms = f"All files are {source.size}; terms: {source.terms}."
            lines = [f"{data_dir() / one.folder / one.names[0]} is missing" for one in missing]
            get = dict.fromkeys(f"{one.get}." for one in missing)
            told[name] = {"ready": False, "why": "\n".join([*lines, *get, terms])}
        else:
            told[name] = _read(name)
        about = told[name]
        say(f"{name}: {about['why'] if about['ready'] else 'not ready'}")
        if not about["ready"]:
            say("\n".join(f"    {line}" for line in about["why"].splitlines()))
    if options.json:
        print(json.dumps({"directory": str(data_dir()), "sets": told}))
    return 0 if all(about["ready"] for about in told.values()) else 1


def _read(name: str) -> dict[str, Any]:
    """Reads a set with its defaults, which checks its files against the published sums."""
    from fedjax_sim.core.descriptions import registered_factory

    try:
        data = registered_factory(f"{_KIND}.{name}")()
    except (ValueError, TypeError, OSError, ImportError) as error:
        return {"ready": False, "why": " ".join(str(error).split())}
    statistics = data.statistics()
    return {"ready": True, "why": f"ready, {statistics.clients:,} clients, {statistics.examples:,} training examples"}
