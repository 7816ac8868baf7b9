"""What differs between the configuration of a checkpoint and that of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_sim.core.sources import opaque_name

WORDS = ("in the checkpoint", "now")
_NOTHING = object()
_ENVIRONMENT = "environment"
_SILENT = ("python", "earlier")  # of an environment: Python computes nothing, and where a run was before is no change
_SHOWN = 8  # differences in a message
_LONG = 60  # characters of a value in a message


def differences(saved: Mapping[str, Any], given: Mapping[str, Any], words: tuple[str, str] = WORDS) -> list[str]:
    """The entries in which two descriptions differ, a line each; their environments are left out.

    >>> differences({"run": {"rounds": 10}}, {"run": {"rounds": 20}})
    ['run.rounds: 10 in the checkpoint, 20 now']
    """
    old, new = ({key: value for key, value in node.items() if key != _ENVIRONMENT} for node in (saved, given))
    return list(_lines(json.loads(json.dumps(old)), json.loads(json.dumps(new)), "", words))


def check_same(path: Any, saved: Mapping[str, Any], given: Mapping[str, Any], what: str, hint: str = "") -> None:
    """Refuses the checkpoint of another ``what``: a ValueError with the first differences."""
    if lines := differences(saved, given):
        raise ValueError(
            f"{path} is of another {what} ({listed(lines)}): give the same arguments to resume it, or another "
            f"directory{hint}"
        )


def by_names_alone(old: Any, new: Any) -> tuple[Any, Any]:
    """Two descriptions without the code of their opaque parts; where one does not say of a part what it is, by name."""
    if isinstance(old, dict) and isinstance(new, dict):
        if "opaque" in old and "opaque" in new and not _summed(old, new):  # those of bare data say more
            both = [{"opaque": node["opaque"], "known": {"value": node["known"]["value"]}} for node in (old, new)
                    if _known(node)]  # fmt: skip
            return (both[0], both[1]) if len(both) == 2 else ({"opaque": old["opaque"]}, {"opaque": new["opaque"]})
        pairs = {key: by_names_alone(old[key], new[key]) for key in old.keys() & new.keys()}
        return {**old, **{key: pair[0] for key, pair in pairs.items()}}, {
            **new, **{key: pair[1] for key, pair in pairs.items()}
        }  # fmt: skip
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = [by_names_alone(*pair) for pair in zip(old, new, strict=True)]
        return [pair[0] for pair in items], [pair[1] for pair in items]
    return old, new


def listed(lines: list[str]) -> str:
    """Differences for a message: the first ones, and how many there are more."""
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def environment_changes(
    saved: Mapping[str, Any], given: Mapping[str, Any], words: tuple[str, str] = WORDS
) -> str | None:
    """Which versions, settings or device in the ``environment`` of ``given`` differ from those of ``saved``, or None.

    Results are the same to the last bit in one environment only. What an older checkpoint does not say is not compared.
    """
    found, now = (one if isinstance(one := node.get(_ENVIRONMENT), dict) else {} for node in (saved, given))
    old = {key: value for key, value in found.items() if key not in _SILENT}
    new = {key: value for key, value in now.items() if key in old}
    return "; ".join(_lines(old, new, "", words)) or None


def _lines(old: Any, new: Any, path: str, words: tuple[str, str]) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict) and _same_kind(old, new):
        for key in {**old, **new}:
            # the arguments of a factory and the entries of a mapping are named as if they were its own
            inner = f"{path}.{key}" if path else key
            below = path if key in ("arguments", "mapping") and path else inner
            yield from _lines(old.get(key, _NOTHING), new.get(key, _NOTHING), below, words)
    elif _has_parts(old) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _lines(one, other, f"{path}.{index}" if path else str(index), words)
    elif not _equal(old, new) and _known(old) and _known(new) and old["opaque"] == new["opaque"]:
        yield from _of_own(old["known"], new["known"], path, words)
    elif not _equal(old, new):
        one, other = _texts(old, new)
        yield f"{path}: {one} {words[0]}, {other} {words[1]}"


def _known(node: Any) -> bool:
    return isinstance(node, dict) and "opaque" in node and "value" in (node.get("known") or {})


def _of_own(old: dict[str, Any], new: dict[str, Any], path: str, words: tuple[str, str]) -> Iterator[str]:
    """What differs between two parts of one's own of the same name: their values, then their code."""
    yield from _lines(_fields(old.get("value")), _fields(new.get("value")), path, words)
    codes = [one if isinstance(one := node.get("code"), dict) else {} for node in (old, new)]
    for name in sorted({**codes[0], **codes[1]}):
        one, other = (code.get(name, _NOTHING) for code in codes)
        if _equal(one, other):
            continue
        if _NOTHING in (one, other):
            yield f"{path}: it uses {name} {words[other is not _NOTHING]} only"
        elif (bare := [str(text).startswith("bytecode ") for text in (one, other)]) != [False, False] and (
            bare != [True, True] or old.get("python") != new.get("python")
        ):
            version = (old if bare[0] else new).get("python")
            yield (
                f"{path}: {name} cannot be compared: {words[not bare[0]]} it had no source, and bytecode is of one "
                f"version of Python ({version})"
            )
        elif all(isinstance(text, str) for text in (one, other)):
            yield f"{path}: the source of {name} {words[1]} differs from that {words[0]}"
        else:
            one, other = _texts(one, other)
            yield f"{path}: {name} is {one} {words[0]}, {other} {words[1]}"


def _fields(value: Any) -> Any:
    """The fields of an object beside what it is, so that paths to them are short."""
    fields = value.get("fields") if isinstance(value, dict) else None
    return {**value, **fields, "fields": None} if isinstance(fields, dict) else value


def _same_kind(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two nodes are compared entry by entry: not arrays, and not what two different factories made."""
    whole = () if _summed(old, new) else ("array", "opaque")  # bare data differ in their checksums alone
    return not any(key in node for key in whole for node in (old, new)) and old.get("name") == new.get("name")


def _summed(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether both have a checksum."""
    return "checksum" in old.keys() & new.keys()


def _has_parts(node: Any) -> bool:
    return isinstance(node, list) and any(isinstance(one, (dict, list)) for one in node)


def _equal(old: Any, new: Any) -> bool:
    # as text: NaN is equal to itself there, and 1 is not True
    return old is new or (
        _NOTHING not in (old, new) and json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    )


def _texts(old: Any, new: Any) -> tuple[str, str]:
    """Two values as a message has them: where they are long, the part in which they begin to differ."""
    one, other = ("nothing" if value is _NOTHING else _said(value) for value in (old, new))
    pairs = enumerate(zip(one, other, strict=False))
    first = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = 0 if first < _LONG else first - _LONG // 2
    end, dots = start + _LONG, "..." if start else ""
    one, other = (f"{dots}{text[start:end]}{'...' if len(text) > end else ''}" for text in (one, other))
    return one, other


def _said(value: Any) -> str:
    if isinstance(value, dict) and "array" in value:
        return f"{value.get('dtype', 'array')} {json.dumps(value['array'])}"
    if isinstance(value, dict) and "opaque" in value:
        return opaque_name(value)
    if isinstance(value, dict) and "name" in value and isinstance(value.get("arguments"), dict):
        return f"{value['name']}({', '.join(f'{key}={_said(v)}' for key, v in value['arguments'].items())})"
    if isinstance(value, dict) and "mapping" in value:
        return _said(value["mapping"])
    return value if isinstance(value, str) else json.dumps(value)
