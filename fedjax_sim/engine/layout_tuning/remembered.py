"""Measured layouts, kept in a file of the user's cache: the same run need not measure again."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from fedjax_sim.core.atomic import remove_left_overs, write_atomically
from fedjax_sim.core.caches import cache_directory
from fedjax_sim.core.files import json_object, read_json
from fedjax_sim.engine.layout_tuning.report import Tuning

_VERSION = 1
_MOST = 256  # measurements; the oldest go first
_MOST_BYTES = 1 << 22  # of the file: many times what so many measurements take


def recall(key: str) -> Tuning | None:
    """The measurement of that key; None if there is none.

    Warns:
      UserWarning: the file is damaged; it is ignored, and replaced by the next measurement.
    """
    try:
        found = _read().get(key)
        return None if found is None else _tuning(found)
    except (ValueError, OSError) as error:
        warnings.warn(
            f"the layouts measured before are ignored, and the next measurement replaces them: {error}", stacklevel=2
        )
        return None


def remember(key: str, tuning: Tuning) -> None:
    """Keeps a measurement under that key, as the newest.

    Two processes that write at once both leave a whole file; one of the two measurements may be lost.

    Warns:
      UserWarning: the file cannot be written.
    """
    try:
        known = _read()
    except (ValueError, OSError):
        known = {}
    known.pop(key, None)
    kept = dict([*known.items(), (key, tuning.to_json())][-_MOST:])
    try:
        remove_left_overs(_path().parent)
        write_atomically(_path(), json.dumps({"version": _VERSION, "layouts": kept}, indent=1).encode())
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"the measured layout cannot be kept for the next run ({error}): set FEDJAX_SIM_CACHE to a directory "
            "that can be written",
            stacklevel=2,
        )


def _tuning(content: Any) -> Tuning:
    try:
        return Tuning.from_json(content)
    except ValueError as error:
        raise ValueError(f"{_path()} is damaged: {error}") from error


def _path() -> Path:
    return cache_directory() / "layouts.json"


def _read() -> dict[str, Any]:
    """All measurements by their keys, the oldest first; none where there is no file, or one of another version."""
    try:
        path = _path()
    except RuntimeError:
        return {}
    if not os.path.lexists(path):
        return {}
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
    content = json_object(path, read_json(path, fix="delete it"))
    if content.get("version") != _VERSION:
        return {}
    layouts = content.get("layouts")
    if not isinstance(layouts, dict):
        raise ValueError(f"{path} has no measured layouts")
    return layouts
