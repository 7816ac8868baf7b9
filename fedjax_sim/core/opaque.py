"""The opaque parts of descriptions: what no registered factory made, by paths, and objects in their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_sim.core.values import suggest


def opaque_parts(description: Any, path: str = "", *, unknown: bool = False) -> list[str]:
    """Paths of all opaque parts of a description, each with the name recorded for it; empty if it can be rebuilt.

    With ``unknown`` those alone of which it cannot be told whether another one is the same, and why.
    """
    if isinstance(description, Mapping) and "opaque" in description:
        if not unknown:
            return [f"{path or 'object'}: {description['opaque']}"]
        why = description.get("unknown")
        why = f", as {why}" if why else ""
        return [] if "known" in description else [f"{path or 'object'}: {description['opaque']}{why}"]
    return [part for key, value in _parts(description)
            for part in opaque_parts(value, f"{path}.{key}" if path else str(key), unknown=unknown)]  # fmt: skip


def check_known(what: str, description: Any) -> None:
    """Refuses, for ``what``, a description with opaque parts of which it cannot be told whether another is the same.

    Not arrays: of these there are checksums where results are kept.
    """
    if opaque := [part for part in opaque_parts(description, unknown=True) if ": array " not in part]:
        raise ValueError(
            f"{what} must be known by its description, and this has opaque parts ({'; '.join(opaque)}): give them "
            "plain values, or use registered factories"
        )


def _parts(description: Any) -> Iterable[tuple[Any, Any]]:
    """What is in a description, by the names that paths have for it."""
    if isinstance(description, Mapping) and "array" not in description:
        items: Any = description.get("mapping", description.get("arguments", description))
        return items.items() if isinstance(items, Mapping) else ()
    return enumerate(description) if isinstance(description, list) else ()


def with_parts(description: dict[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """A description in which objects have the places of parts, so that :func:`build` and :func:`decode` take them.

    Args:
      description: parts by name, as ``{"algorithm": ..., "run": {...}}``.
      parts: objects by the paths that :func:`opaque_parts` has, or by those of what holds them.

    Raises:
      ValueError: there is no such part. Whether it is the same is for the caller to compare.
    """
    for path, part in parts.items():
        description = _with_part(description, str(path).split("."), part, str(path))
    return description


def _with_part(node: Any, keys: list[str], part: Any, path: str) -> Any:
    if not keys:
        return Given(part)
    items = dict(_parts(node))
    key: Any = int(keys[0]) if isinstance(node, list) and keys[0].isdigit() else keys[0]
    if key not in items:
        raise ValueError(f"there is no part {path!r}: {suggest(keys[0], [*map(str, items)])}")
    new = _with_part(items[key], keys[1:], part, path)
    if isinstance(node, list):
        return [new if at == key else item for at, item in enumerate(node)]
    level = next((level for level in ("mapping", "arguments") if level in node), None)
    return {**node, key: new} if level is None else {**node, level: {**node[level], key: new}}


def part_at(description: Any, path: str) -> Any:
    """The part of a description that a path leads to; None where there is none."""
    for key in path.split("."):
        description = {str(name): item for name, item in _parts(description)}.get(key)
    return description


class Given:
    """In a description, an object in the place of a part."""

    def __init__(self, part: Any) -> None:
        self.part = part
