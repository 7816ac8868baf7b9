"""Descriptions to TOML."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_sim.core.descriptions import registered_factory
from fedjax_sim.core.keys import GENERATOR
from fedjax_sim.core.opaque import opaque_parts
from fedjax_sim.run.configuration.building import PARTS, SPECIAL
from fedjax_sim.run.configuration.own_objects import is_own
from fedjax_sim.run.history import History
from fedjax_sim.run.simulation import simulate

_OWN = "own"  # in a description, before a table that stands for itself
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(history: History, more: Mapping[str, Any] | None = None, own: Mapping[str, Any] | None = None) -> str:
    """The full, resolved configuration of a run as TOML: every argument, also those that were defaults.

    :func:`fedjax_sim.configuration.read` makes the same run of it.

    Args:
      history: its result.
      more: arguments of ``simulate`` that decide nothing of the result and so are no part of its description, as they
        stand in [run]: ``{"checkpoint": "runs/a", "every": 10}``.
      own: the tables that configured it: those with a name ``module:object`` stay as they are there.

    Raises:
      ValueError: parts of the run were given as bare objects, so they cannot be made again (they are named).
    """
    about = history.description
    parts = {"algorithm": about["algorithm"], "dataset": about["dataset"], **about["run"]}
    parts |= {name: _with_own(parts.get(name), table) for name, table in (own or {}).items() if name in PARTS}
    opaque = opaque_parts(parts) + ["initial_state: the state of another run"] * ("initial_state" in parts)
    if opaque:
        raise ValueError(f"this run has no configuration: {'; '.join(opaque)} cannot be made from names and arguments")
    accepted = inspect.signature(simulate).parameters
    content: dict[str, Any] = {name: plain(parts[name]) for name in PARTS if parts.get(name) is not None}
    run = {
        key: value
        for key, value in parts.items()
        if key in accepted and key not in PARTS and (value is not None or accepted[key].default is not None)
    }
    told = {*content, *run, "batch_size", "seeds"}  # a batch_size has become a table [batches]
    content["run"] = {key: plain(value) for key, value in run.items()} | {"seeds": history.seeds}
    content["run"] |= {key: value for key, value in (more or {}).items() if key not in told}
    where = about["environment"]
    content["environment"] = {"float": where["float"]}
    drawn = where.get("generator", {})
    if other := {name: drawn[name] for name, usual in GENERATOR.items() if drawn.get(name, usual) != usual}:
        content["environment"]["generator"] = other
    ran = f"# fedjax_sim {where['fedjax_sim']}, jax {where['jax']}, Python {where['python']}, {where['device']}"
    return f"{ran}\n\n{text(content)}"


def _with_own(described: Any, table: Any) -> Any:
    """A description in which the tables of objects of one's own stand for themselves."""
    name = table.get("name") if isinstance(table, Mapping) else table
    if is_own(name):
        return {_OWN: table if isinstance(table, Mapping) else {"name": name}}
    if not isinstance(described, Mapping) or not isinstance(table, Mapping) or "arguments" not in described:
        return described
    inner, arguments = table.get("arguments", table), described["arguments"]
    return {**described, "arguments": {key: _with_own(item, inner.get(key)) for key, item in arguments.items()}}


def plain(described: Any) -> Any:
    """A description as TOML's data: name and arguments beside each other, what is None by default left out."""
    if described is None:
        return {"none": True}
    if isinstance(described, list):
        return [plain(item) for item in described]
    if not isinstance(described, Mapping):
        return described
    if "mapping" in described:
        mapping = {key: plain(item) for key, item in described["mapping"].items()}
        return {"mapping": mapping} if any(key in SPECIAL for key in mapping) else mapping
    if _OWN in described:
        return described[_OWN]
    if "name" not in described:  # an array, a dtype, something opaque
        return dict(described)
    defaults = inspect.signature(registered_factory(described["name"])).parameters
    given = {
        key: plain(item)
        for key, item in described["arguments"].items()
        if item is not None or defaults[key].default is not None
    }
    if {"name", "arguments"} & given.keys():
        return {"name": described["name"], "arguments": given}
    return {"name": described["name"], **given}


def text(content: Mapping[str, Any]) -> str:
    """Nested dictionaries, lists, text, numbers and truth values as TOML; other objects are refused (TypeError)."""
    return "\n".join(_lines(content, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Values first, then the tables that deserve a heading: those of the top and those that have a name."""
    headed = {
        key: value for key, value in table.items() if isinstance(value, Mapping) and (not path or "name" in value)
    }
    rest = {key: value for key, value in table.items() if key not in headed}
    if path and (rest or not headed):
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in rest.items():
        yield f"{_key(key)} = {_inline(value)}"
    if rest and headed:
        yield ""
    for number, (key, value) in enumerate(headed.items()):
        if number:
            yield ""
        yield from _lines(value, (*path, key))


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    raise TypeError(f"{value!r} cannot be written as TOML")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _inline(key)
