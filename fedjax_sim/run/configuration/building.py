"""Tables to the arguments of ``simulate``, through the registry of descriptions."""

from __future__ import annotations

import datetime
import inspect
import os
import re
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedjax_sim.core.descriptions import all_registered, decode, registered_factory
from fedjax_sim.core.keys import GENERATOR, generator, switch
from fedjax_sim.core.values import close, shown, suggest
from fedjax_sim.run.configuration.own_objects import is_own, own_factory
from fedjax_sim.run.configuration.tables import MAX_DEPTH, ConfigurationError, Place, Tables, load
from fedjax_sim.run.simulation import simulate

# The arguments of `simulate` that have tables of their own, and the kind of name that stands there without its kind.
_OWN_KIND = ("algorithm", "dataset", "task", "cohort", "work", "batches", "layout", "client_states", "system")
PARTS = {name: name for name in (*_OWN_KIND, "asynchronous")} | {"evaluate": "evaluation", "stop": "stopping"}
# Keys by which a table says that it is neither an object nor a mapping, as in a description; TOML has no null.
SPECIAL = ("name", "array", "mapping", "dtype", "opaque", "none")
_PRECISIONS = ("float32", "float64")


def read(path: str | os.PathLike[str], changes: Iterable[str] = ()) -> dict[str, Any]:
    """The run that a TOML file configures: ``fjs.simulate(**fjs.configuration.read("run.toml"))``.

    Args:
      path: the file.
      changes: as ``--set`` takes them, ``["algorithm.mu = 0.1"]``.

    Returns:
      The arguments of :func:`fedjax_sim.simulate` by name.

    Raises:
      FileNotFoundError: no such file; also files of a data set that are not there.
      ConfigurationError: a ``ValueError``: not TOML, an unknown key or name (the nearest one is named, and all), a
        value that the part refuses, or another precision than JAX has now.
    """
    return arguments(load(path, changes))


def precision(tables: Tables) -> str | None:
    """The precision that a configuration asks for, ``"float32"`` or ``"float64"``; None if it does not say."""
    environment, place = _environment(tables)
    asked = environment.get("float")
    if asked not in (None, *_PRECISIONS):
        raise place.error(f"float is {shown(asked)}: it must be {' or '.join(map(repr, _PRECISIONS))}")
    return asked


def random_generator(tables: Tables) -> dict[str, Any]:
    """What a configuration asks of the random generator, by the names of ``keys.GENERATOR``; mostly nothing."""
    environment, place = _environment(tables)
    asked, place = _table(environment.get("generator", {}), place / "generator"), place / "generator"
    _check_keys(asked, GENERATOR, place)
    for key, value in asked.items():
        if type(value) is not type(GENERATOR[key]):
            raise place.error(f"{key} is {shown(value)}: it must be like {shown(GENERATOR[key])}")
    return asked


def _environment(tables: Tables) -> tuple[Mapping[str, Any], Place]:
    place = tables.place / "environment"
    environment = _table(tables.content.get("environment", {}), place)
    _check_keys(environment, ("float", "generator"), place)
    return environment, place


def _check_keys(table: Mapping[str, Any], known: Collection[str], place: Place) -> None:
    for key, value in table.items():
        if key not in known:
            raise place.error(f"unknown key {shown(key)} (it is {shown(value)}): {suggest(key, known)}", key)


def arguments(tables: Tables) -> dict[str, Any]:
    """The arguments of ``simulate`` that tables stand for; a ConfigurationError as :func:`read`."""
    content, place = tables
    known = [*PARTS, "run", "environment"]
    for key, value in content.items():
        if key == "sweep":
            raise place.error(
                "the table [sweep] is for `fedjax-sim sweep` alone: call that, or take the table out", key
            )
        if key not in known:
            said = f"unknown table [{key}]" if isinstance(value, dict) else f"unknown key {shown(key)} ({shown(value)})"
            # Keys without their table are the commonest slip, in files of [run]'s, and in changes.
            tables_of = [".".join(path) for path in (_owners(key, content) if not isinstance(value, dict) else ())]
            meant = f"it belongs into {' or '.join(f'[{table}]' for table in tables_of)}"
            if (key,) in place.changes:
                meant += f": did you mean {' or '.join(f'{table}.{key}' for table in tables_of)}?"
            raise place.error(f"{said}: {meant if tables_of else suggest(key, known)}", key)
    _check_environment(tables)
    given = {name: _part(name, content[name], place / name) for name in PARTS if name in content}
    run, at = _table(content.get("run", {}), place / "run"), place / "run"
    plain = _plain_arguments()
    for key, value in run.items():
        if key not in plain and not (key in PARTS and isinstance(value, str)):
            hint = f"it has a table of its own, [{key}]" if key in PARTS else suggest(key, plain)
            raise at.error(f"unknown key {shown(key)} (it is {shown(value)}): {hint}", key)
        if key in given:
            raise at.error(f"{key} is {shown(value)}, and there is a table [{key}]: give one of them")
        given[key] = _part(key, value, at / key) if key in PARTS else value_of(value, at / key)
    _check_complete(given, place)
    return given


def _check_environment(tables: Tables) -> None:
    """Checks that JAX computes and draws as a configuration asks: when it has started, that is not ours to change."""
    place, drawn, now = tables.place / "environment", generator(), str(jnp.result_type(float))
    asked = precision(tables)
    if asked not in (None, now):
        x64 = switch("jax_enable_x64", asked == "float64")
        raise place.error(f"float is {asked!r}, and JAX computes in {now}: set {x64} before it starts")
    for name, wanted in random_generator(tables).items():
        if wanted != drawn[name]:
            raise place.error(
                f"the generator's {name} is {shown(wanted)}, and in JAX it is {shown(drawn[name])}: set "
                f"{switch(name, wanted)} before it starts"
            )


def placed(message: str, tables: Tables) -> ConfigurationError:
    """What a run refuses, with the table that it is about, as far as the words tell; else with the file alone.

    An argument is named by the first word, or as ``num_classes=``; a part by its name, as ``uniform(100)``. What two
    tables may mean says nothing.
    """
    every = list(_tables(tables.content))
    for word in re.findall(r"^\w+|\w+(?==)|\w+(?=\()", message):
        having = [path for path, table in every if word in table and word != "name"]
        if not having and word in _plain_arguments():
            having = [("run",)]
        called = [path for path, table in every if _short_name(table) == word]
        if len(having or called) == 1:
            return tables.place._replace(path=(having or called)[0]).error(message, word if having else None)
    return tables.place.error(message)


def _tables(content: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """All tables in tables, with the keys that lead to them."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield (*path, key), value
            yield from _tables(value, (*path, key))


def _short_name(table: Mapping[str, Any]) -> str:
    return str(table.get("name", "")).rpartition(".")[2]


def _owners(key: str, content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The tables in which a key may stand: that of ``simulate``'s arguments, or those of parts that take it."""
    if key in _plain_arguments():
        return [("run",)]
    found = []
    for path, table in _tables(content):
        names = [name for name in all_registered() if _short(name) == _short_name(table)]
        kind = PARTS.get(path[0]) if len(path) == 1 else None
        of_kind = [name for name in names if name.startswith(f"{kind}.")] or names
        if len(of_kind) == 1 and key in accepted_arguments(registered_factory(of_kind[0])):
            found.append(path)
    return found


def _plain_arguments() -> list[str]:
    """The arguments of ``simulate`` that stand in [run]."""
    return [name for name in inspect.signature(simulate).parameters if name not in (*PARTS, "progress")]


def named_in(tables: Tables) -> dict[str, Any]:
    """What tables name, as a description that ``fjs.cite`` reads: with full names, and nothing is made or read."""

    def full(value: Any, place: Place, kind: str | None = None) -> Any:
        if isinstance(value, list):
            return [full(item, place) for item in value]
        if kind is not None and isinstance(value, str) and value not in _words(place.path[-1]):
            value = {"name": value}
        if not isinstance(value, dict):
            return value
        found = {key: full(item, place / key) for key, item in value.items()}
        name = value.get("name")
        if kind is not None and not is_own(name):
            found["name"] = _full_name(name, kind, place)
        elif name is not None and len(meant := [one for one in all_registered() if name in (one, _short(one))]) == 1:
            found["name"] = meant[0]
        return found

    content = tables.content
    return {key: full(value, tables.place / key, PARTS.get(key)) for key, value in content.items()}


def _check_complete(given: Mapping[str, Any], place: Place) -> None:
    run = place / "run"
    for name, parameter in inspect.signature(simulate).parameters.items():
        if parameter.default is not parameter.empty or name in given:
            continue
        if name not in PARTS:
            raise run.error(f"there is no {name}: add it, for instance {name} = 100")
        raise place.error(f"there is no table [{name}]: add it, with a name, one of: {_choices(PARTS[name])}")
    if "batch_size" not in given and "batches" not in given:
        raise run.error("there is no batch_size, and no table [batches]: add one, for instance batch_size = 20")


def _choices(kind: str) -> str:
    return ", ".join(_short(one) for one in all_registered() if one.startswith(f"{kind}."))


def _table(value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.error(f"it is {shown(value)}: it must be a table")
    return value


def _part(argument: str, value: Any, place: Place) -> Any:
    """An argument that is an object: a table with a name, or a name alone, or a word that ``simulate`` knows."""
    if isinstance(value, str):
        if value in _words(argument):  # layout = "tune"
            return value
        value = {"name": value}  # cohort = "full"
    table = _table(value, place)
    if "name" not in table:
        raise place.error(f"there is no name: add one of {_choices(PARTS[argument])}")
    return _object(table, place, PARTS[argument])


def value_of(value: Any, place: Place) -> Any:
    """What a TOML value stands for; a ConfigurationError for a name, an argument or a value that is refused."""
    if len(place.path) > MAX_DEPTH:
        raise place.error(f"tables are nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return tuple(value_of(item, place / str(number)) for number, item in enumerate(value))
    if isinstance(value, (datetime.date, datetime.time)):
        raise place.error(f"it is the date or time {value}: no argument is one")
    if isinstance(value, str) and place.path[-1:] == ("model",) and is_own(value):
        value = {"name": value}
    if not isinstance(value, dict):
        return value
    special = next((key for key in SPECIAL if key in value), None)
    if special is None:
        return {key: value_of(item, place / key) for key, item in value.items()}
    if is_own(value.get("name")):
        return _object(value, place, place.path[-1])
    return _object(value, place) if special == "name" else _special(special, value, place)


def _special(key: str, table: dict[str, Any], place: Place) -> Any:
    allowed = ("array", "dtype") if key == "array" else (key,)
    for other in table:
        if other not in allowed:
            raise place.error(
                f"the key {shown(other)} beside {key!r}: a table with {key!r} has {' and '.join(allowed)} only; write "
                f"{{ mapping = {{ ... }} }} for a mapping that has the key {key!r}"
            )
    value = table[key]
    if key == "opaque":
        raise place.error(f"{shown(value)} was given as a bare object, which cannot be made again")
    if key == "none" and value is not True:
        raise place.error(f"none is {shown(value)}: write {{ none = true }} for Python's None")
    if key == "none":
        return None
    if key == "mapping":
        return {name: value_of(item, place / name) for name, item in _table(value, place / key).items()}
    try:
        return decode(table)
    except (TypeError, ValueError) as error:
        raise place.error(str(error)) from error


def _words(argument: str) -> set[str]:
    """The words that ``simulate`` takes for an argument, as its annotation lists them."""
    annotation = typing.get_type_hints(simulate)[argument]
    return {word for one in typing.get_args(annotation) for word in typing.get_args(one) if isinstance(word, str)}


def _object(table: dict[str, Any], place: Place, kind: str | None = None) -> Any:
    """Calls the factory that a table names, with the table's other keys (or its ``arguments``)."""
    own = is_own(table["name"])
    name = table["name"] if own else _full_name(table["name"], kind, place)
    given = {key: item for key, item in table.items() if key != "name"}
    if "arguments" in given:
        for key in given:
            if key != "arguments":
                raise place.error(f"{shown(key)} stands beside 'arguments': write it into that table")
        place = place / "arguments"
        given = _table(given["arguments"], place)
    try:
        make = own_factory(name, kind, bool(given)) if own else registered_factory(name)
    except (TypeError, ValueError) as error:
        raise place.error(str(error), "name") from error
    accepted = accepted_arguments(make)
    for key, item in given.items():
        if key not in accepted:
            said = f"{name} has no argument {shown(key)} (it is {shown(item)}): {suggest(key, accepted)}"
            raise place.error(said, key)
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:  # it misses an argument
        raise place.error(f"{name} needs {str(error).rpartition(' ')[2][1:-1]}: add it") from error
    made = {key: value_of(item, place / key) for key, item in given.items()}
    try:
        return make(**made)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise place.error(str(error)) from error


def accepted_arguments(make: Any) -> list[str]:
    """Names of a factory's arguments; flax's own (``name``, ``parent``) are none."""
    whole = inspect.unwrap(make)
    module = isinstance(whole, type) and issubclass(whole, nn.Module)
    return [name for name in inspect.signature(make).parameters if not (module and name in ("parent", "name"))]


def _full_name(name: Any, kind: str | None, place: Place) -> str:
    """The registered name that ``name`` stands for: the kind may be left out where one thing alone is meant."""
    if not isinstance(name, str):
        raise place.error(f"name is {shown(name)}: it must be text")
    names = all_registered()
    if name in names:
        return name
    if kind is not None and f"{kind}.{name}" in names:
        return f"{kind}.{name}"
    meant = [one for one in names if _short(one) == name]
    if kind is not None:
        near = [_short(one) for one in names if one.startswith(f"{kind}.")]
        others = f" (there is {meant[0]!r}, which is no {kind})" if meant else ""
        if (kind, name) == ("work", "epochs"):  # a function of Python's, and no name of its own
            raise place.error("unknown name 'epochs': E epochs are name = \"random_epochs\" with low = E and high = E")
        raise place.error(f"unknown name {shown(name)}{others}: {suggest(name.rpartition('.')[2], near)}")
    if len(meant) > 1:
        raise place.error(f"name is {shown(name)}, which may be {' or '.join(map(repr, meant))}: write one of them")
    if not meant:
        raise place.error(f"unknown name {shown(name)}: {_nearest(name, names)}")
    return meant[0]


def _nearest(name: str, names: list[str]) -> str:
    """The nearest name, with its kind or without, and what else is of its kind; all kinds where none is near."""
    short = name.rpartition(".")[2]
    near = [one for one in names if _short(one) == short] or close(name, names)
    near = near or [one for one in names if _short(one) in close(short, [*map(_short, names)])]
    if not near:
        return f"{suggest(name, sorted({one.partition('.')[0] for one in names}))}; `fedjax-sim list` names all"
    kind = near[0].partition(".")[0]
    return f"did you mean {near[0]!r}? known: {', '.join(one for one in names if one.startswith(f'{kind}.'))}"


def _short(name: str) -> str:
    return name.partition(".")[2]
