"""The settings of runs, flat: what a run was told, and in what runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_sim.core.sources import opaque_name
from fedjax_sim.reporting.recorded import Recorded, described

_LONGEST = 240  # characters of a value
_DEEPEST = 24
_ELSEWHERE = ("run", "environment", "bounds", "personal")  # the last two follow from the method: nobody's choice
_SPECIAL = ("opaque", "array", "dtype")
# Of a description's "run": what has a table of its own in a configuration. All else is in [run].
_PARTS = frozenset(
    {"task", "cohort", "work", "batches", "layout", "client_states", "system", "asynchronous", "evaluate", "stop"}
)


def settings(run: Recorded) -> dict[str, str]:
    """What a run's description says, by the keys of ``fedjax-sim run --set``: ``{"algorithm.mu": "0.1", ...}``.

    Names stand without their kind, ``fedprox`` for ``algorithm.fedprox``. Anything is accepted, since files may hold
    anything; what is long or deep is cut.
    """
    about, inner = described(run), described(run, "run")
    if not isinstance(about, Mapping):
        return {}
    parts = {str(key): value for key, value in about.items() if key not in _ELSEWHERE}
    found: dict[str, str] = {}
    for key, value in inner.items() if isinstance(inner, Mapping) else ():
        parts[str(key) if key in _PARTS else f"run.{key}"] = value
    for key, value in parts.items():
        found |= _flat(key, value, 0)
    seeds = getattr(run, "seeds", None)
    if seeds is not None:
        found["run.seeds"] = _short(list(seeds))
    return found


def environment(run: Recorded) -> dict[str, str]:
    """Where a run ran: versions, device, precision."""
    where = described(run, "environment")
    return {str(key): _short(value) for key, value in where.items()} if isinstance(where, Mapping) else {}


def differing(each: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """The settings that are not the same in all runs, a value for each run; None where it has no such setting.

    Left out are arguments of a part that only some runs have, and all of these alike: there the part's name says it.
    Those of the algorithm stay, unless they are none.
    """
    keys = list(dict.fromkeys(key for run in each for key in run))
    parts = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    keys.sort(key=lambda key: parts.index(key.partition(".")[0]))
    rows = {key: [run.get(key) for run in each] for key in keys}
    rows = {key: values for key, values in rows.items() if len(set(values)) > 1}

    def telling(key: str) -> bool:
        present = set(rows[key]) - {None}
        inner = any(key.startswith(f"{other}.") for other in rows)
        return len(present) > 1 or not inner or (key.startswith("algorithm.") and present != {"none"})

    return {key: values for key, values in rows.items() if telling(key)}


def _flat(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        if "name" in value and isinstance(value.get("arguments", {}), Mapping):
            yield path, str(value["name"]).rpartition(".")[2]
            inner = value.get("arguments", {})
        elif isinstance(value.get("mapping"), Mapping):
            inner = value["mapping"]
        elif any(key in value for key in _SPECIAL):
            yield path, _short(opaque_name(value) if "opaque" in value else value)
            return
        else:
            inner = value
        for key, item in inner.items():
            yield from _flat(f"{path}.{key}", item, depth + 1)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value) and depth < _DEEPEST:
        inner = [list(_flat(f"{path}.{number}", item, depth + 1)) for number, item in enumerate(value)]
        yield path, _short(", ".join(rows[0][1] for rows in inner if rows))
        yield from (row for rows in inner for row in rows[1:])
    else:
        yield path, _short(value)


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, default=str, ensure_ascii=False)
        except (ValueError, RecursionError, TypeError):
            text = f"({type(value).__name__})"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
