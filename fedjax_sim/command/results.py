"""Results that a command is given: which files they are, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_FILE = "history.npz"  # in the folder of a run


def named(results: Sequence[str]) -> dict[str, Path]:
    """The files of results by short names that differ: of ``runs/a/history.npz`` and ``runs/b`` they are a and b.

    Args:
      results: files, or folders with a ``history.npz``.

    Raises:
      ValueError: one of them is given twice.
      FileNotFoundError: a folder without that file.
    """
    files = []
    for result in results:
        path = Path(result)
        if path.is_dir():
            path = path / _FILE
            if not path.is_file():
                raise FileNotFoundError(f"{result} has no {_FILE}: give the folder of a run, or a file")
        files.append(path)
    places = [path.resolve() for path in files]
    twice = [str(path) for path, count in Counter(places).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice: give each result once")
    parts = [place.parent.parts if place.name == _FILE else (*place.parent.parts, place.stem) for place in places]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        clashing = {name for name, count in Counter(names).items() if count > 1}
        grown = [
            min(length + 1, len(part)) if name in clashing else length
            for name, length, part in zip(names, lengths, parts, strict=True)
        ]
        if grown == lengths:
            names = [str(place) if name in clashing else name for name, place in zip(names, places, strict=True)]
            return dict(zip(names, files, strict=True))
        lengths = grown
