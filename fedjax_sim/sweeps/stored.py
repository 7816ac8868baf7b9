"""Finished runs of a sweep in a folder, so that a sweep that was stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_sim.history import History
from fedjax_sim.reporting.files import write_atomically

_NAME = "sweep.json"
_FORMAT = 1
_SHOWN = 5  # differences in a message


class Folder:
    """A folder with one sweep: ``sweep.json`` says which, each ``runs-....npz`` has some of its runs.

    Every file is written whole or not at all, and an interrupted sweep leaves nothing to clean up.

    Args:
      path: of the folder; it is made where it does not exist.
      configuration: plain JSON data that decides the results.

    Raises:
      ValueError: the folder has a sweep of another configuration (the message lists the differences), or other files.
    """

    def __init__(self, path: str | os.PathLike[str], configuration: dict[str, Any]) -> None:
        self._path = Path(path)
        # through JSON, so that tuples and lists are one
        configuration = json.loads(json.dumps(configuration))
        self._digest = _digest(json.dumps(configuration, sort_keys=True).encode())
        about = self._path / _NAME
        if about.exists():
            self._compare(about, configuration)
        elif self._path.exists() and any(self._path.iterdir()):
            raise ValueError(f"sweep(resume={str(self._path)!r}): the folder has other files: give an empty or new one")
        else:
            content = {"format": _FORMAT, "configuration": configuration}
            write_atomically(about, json.dumps(content, indent=1).encode())

    def finished(self) -> list[tuple[list[int], History]]:
        """The stored runs: their numbers and what they recorded.

        Raises:
          ValueError: a file is damaged or of another sweep.
        """
        found = []
        for file in sorted(self._path.glob("runs-*.npz")):
            history = History.load(file)
            if history.description.get("sweep") != self._digest:
                raise ValueError(f"{file} has runs of another sweep: take it out of the folder")
            found.append((history.description["runs"], history))
        return found

    def add(self, numbers: list[int], history: History) -> None:
        """Stores runs.

        Args:
          numbers: of the runs, in the history's order.
          history: what they recorded, one "seed" a run.
        """
        about = {"sweep": self._digest, "runs": numbers}
        dataclasses.replace(history, description=about).save(self._path / f"runs-{numbers[0]:06d}.npz")

    def _compare(self, about: Path, configuration: dict[str, Any]) -> None:
        try:
            there = json.loads(about.read_text(encoding="utf-8"))["configuration"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{about} is damaged ({error}): delete the folder, or give another one") from error
        old, new = _flat(there), _flat(configuration)
        names = [name for name in {**old, **new} if old.get(name, _NOTHING) != new.get(name, _NOTHING)]
        if names:
            lines = [f"{name}: {old.get(name, _NOTHING)} there, {new.get(name, _NOTHING)} here" for name in names]
            more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
            raise ValueError(
                f"sweep(resume={str(self._path)!r}): the folder has another sweep ({'; '.join(lines[:_SHOWN])}{more}): "
                "give the same arguments, or another folder"
            )


_NOTHING = "nothing"


def fingerprint(tree: Any) -> str:
    """A checksum of a pytree's structure and values, of 16 hexadecimal digits."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    heads = [f"{array.dtype}{array.shape}" for array in arrays]
    return _digest(str(structure).encode(), *(head.encode() for head in heads), *(a.tobytes() for a in arrays))


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:16]


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    """The leaves of JSON data by dotted path."""
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else None
    if items is None:
        return {path: node}
    below = {}
    for key, value in items:
        below.update(_flat(value, f"{path}.{key}" if path else str(key)))
    return below
