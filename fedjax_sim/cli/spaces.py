"""``--over NAME=VALUES``: which hyper-parameters a sweep or a tuning varies; values and calls on command lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.studies.subject import Transform
    from fedjax_sim.studies.sweeps.space import Space

_OPTION = "--over"
_PARTS = ("algorithm", "task", "cohort", "work", "system", "asynchronous")  # of a configuration, with numbers to vary
_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)


class Call(NamedTuple):
    """``name(1, 2)``: a function's name, and its arguments as TOML values."""

    name: str
    arguments: list[Any]


def key_and_text(said: str, option: str, example: str) -> tuple[str, str]:
    """The two sides of ``KEY=VALUE``."""
    key, equals, text = said.partition("=")
    if not equals or not key.strip() or not text.strip():
        raise ValueError(f"{option} {said[:200]}: write KEY=VALUE, for instance {example}")
    return key.strip(), text.strip()


def call(text: str, where: str) -> Call | None:
    """``name(1, 2)`` as a call; None for another text."""
    from fedjax_sim.run.configuration.tables import toml_value

    found = _CALL.fullmatch(text.strip())
    return None if found is None else Call(found[1], toml_value(f"[{found[2]}]", where))


def numbers(text: str, where: str) -> list[float]:
    """``0, 0.01, 0.1``, with brackets around it or without."""
    from fedjax_sim.run.configuration.tables import toml_value

    listed = toml_value(text if text.strip().startswith("[") else f"[{text}]", where)
    for value in listed if isinstance(listed, list) else [listed]:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{where}: {value!r} is no number: give numbers with commas between them")
    return [float(value) for value in listed]


def leaf(name: str) -> str:
    """A hyper-parameter's name in the library: ``algorithm.mu`` is ``mu`` there, ``task.weight_decay`` is itself."""
    return name.strip().removeprefix("algorithm.")


def space_of(over: Sequence[str], *, zipped: bool, random: int | None, seed: int) -> Space:
    """The points of a sweep: all combinations of lists, or their k-th values together, or so many random draws.

    Texts are ``"algorithm.mu=0,0.1"`` and ``"algorithm.mu=geomspace(0.01, 1, 5)"``, or have ``uniform(a, b)`` and
    ``log_uniform(a, b)`` where ``random``.
    """
    import numpy as np

    from fedjax_sim.studies import sweeps

    draws: dict[str, Callable[..., Any]] = {"uniform": sweeps.uniform, "log_uniform": sweeps.log_uniform}
    ranges: dict[str, Callable[..., Any]] = {"linspace": np.linspace, "geomspace": np.geomspace}
    values: dict[str, Any] = {}
    for said in over:
        key, text = key_and_text(said, _OPTION, "algorithm.mu=0,0.01,0.1")
        name, where = leaf(key), f"{_OPTION} {said[:200]}"
        _check_new(name, values, where)
        asked = call(text, where)
        if random is None and asked is not None and asked.name in draws:
            raise ValueError(f"{where}: {asked.name} is for random points: add --random 20, or give geomspace(a, b, n)")
        if random is not None:
            if asked is None:
                raise ValueError(f"{where}: with --random values are drawn: write log_uniform(a, b) or uniform(a, b)")
            values[name] = _called(asked, draws, where)
        else:
            values[name] = numbers(text, where) if asked is None else _called(asked, ranges, where).tolist()
    if random is not None:
        return sweeps.random(values, random, seed)
    return sweeps.zipped(values) if zipped else sweeps.grid(values)


def check_over(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Checks that ``simulate``'s arguments have these hyper-parameters, and that they can be varied.

    Structure cannot, nor can values inside parts of one's own, of which no configuration could be written.
    """
    from fedjax_sim.core.descriptions import encode
    from fedjax_sim.core.paths import real_leaves
    from fedjax_sim.core.values import suggest

    missing = object()
    for name in names:
        part, _, rest = name.partition(".") if name.partition(".")[0] in given else ("algorithm", "", name)
        value, node = given[part], encode(given[part])
        for step in rest.split("."):
            node = node if isinstance(node, dict) else {}
            if "opaque" in node:
                raise ValueError(
                    f"{_OPTION} {name}: {node['opaque']} is a part of your own, and no configuration could have its "
                    "other values: call fedjax_sim.sweep or tune in Python"
                )
            value, node = getattr(value, step, missing), node.get("arguments", node).get(step)
        if any(f"{real}.".startswith(f"{rest}.") for real in real_leaves(given[part])):
            continue
        if value is missing:
            known = [f"{of}.{leaf}" for of in _PARTS if of in given for leaf in real_leaves(given[of])]
            raise ValueError(f"{_OPTION} {name}: there is no such hyper-parameter: {suggest(name, known)}")
        if value is not None:
            key = f"{part}.{rest}"
            raise ValueError(
                f"{_OPTION} {name}: it is {value!r}, which is fixed when a program is compiled, so that each value "
                f"needs a run of its own: fedjax-sim compare CONFIG.toml --variant {key}=... --variant {key}=..."
            )


def transforms_of(over: Sequence[str]) -> dict[str, Transform | None]:
    """What a tuning varies: ``["algorithm.mu", "algorithm.momentum=interval(0, 0.9)"]`` by the library's names."""
    from fedjax_sim.studies import hyper

    names = ("positive", "unit_interval", "interval", "simplex", "identity")
    known: dict[str, Callable[..., Any]] = {name: getattr(hyper, name) for name in names}
    chosen: dict[str, Transform | None] = {}
    for said in over:
        key, equals, text = said.partition("=")
        name, where = leaf(key), f"{_OPTION} {said[:200]}"
        _check_new(name, chosen, where)
        asked = (call(text, where) or Call(text.strip(), [])) if equals else None
        chosen[name] = None if asked is None else _called(asked, known, where)
    return chosen


def _check_new(name: str, known: Mapping[str, Any], where: str) -> None:
    if name in known:
        raise ValueError(f"{where}: {name} is there twice: write all its values once, NAME=1,2,3")


def _called(asked: Call, known: Mapping[str, Callable[..., Any]], where: str) -> Any:
    from fedjax_sim.core.values import suggest

    if asked.name not in known:
        raise ValueError(f"{where}: unknown {asked.name!r}: {suggest(asked.name, list(known))}")
    try:
        return known[asked.name](*asked.arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
