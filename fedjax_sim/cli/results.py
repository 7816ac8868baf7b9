"""Results that a command is given: which runs are in them, and what they are called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fedjax_sim.run.history import History
    from fedjax_sim.studies.sweeps.result import Sweep

HELP = ("folders that `fedjax-sim run`, `compare`, `sweep`, `tune` or `demo` wrote, or files written by History.save "
        "or Sweep.save")  # fmt: skip
MOST_POINTS = 12
_OF_FOLDERS = ("history.npz", "sweep.npz")  # of `run`, of `sweep`: such a file goes by the name of its folder
_BESIDE = (".json", ".toml", ".png", ".pdf", ".svg", ".html")  # what commands write beside histories
_CHOOSING = ("test_accuracy", "test_data_loss", "test_loss", "loss")  # by the first that is recorded points are best
_LONGEST = 200  # characters of a label


class Result(NamedTuple):
    """A file with runs.

    Attributes:
      path: where it is.
      names: what it may be called by, the last ones first: the folders, and its own name or label.
    """

    path: Path
    names: tuple[str, ...]


class Read(NamedTuple):
    """What was read.

    Attributes:
      histories: the runs by short names that differ; of a sweep its points.
      notes: what of the results is not among them, a line each.
      heading: of a page of them, where they are some points of one sweep.
    """

    histories: dict[str, History]
    notes: list[str]
    heading: str | None = None


def read(results: Sequence[str]) -> Read:
    """Reads the runs of results.

    Args:
      results: files of runs and sweeps, or folders as commands write them.

    Raises:
      ValueError: one of them is given twice, or damaged.
      FileNotFoundError: there is no run in them.
    """
    from fedjax_sim.run.history import is_sweep, read_record

    files, notes = files_of(results)
    histories: dict[str, History] = {}
    for name, path in named(files).items():
        record = read_record(path)
        if not is_sweep(record):
            histories[name] = record
            continue
        from fedjax_sim.studies.sweeps.result import Sweep  # which needs all that runs need, as single runs do not

        points, left_out = _points(Sweep.load(path))
        histories |= {point if len(files) == 1 else f"{name}: {point}": run for point, run in points.items()}
        notes += [f"{path}: {left_out}"] if left_out else []
    return Read(histories, notes, notes[0] if len(files) == len(notes) == 1 else None)


def say(command: str, notes: Sequence[str]) -> None:
    """Prints notes where they are in nobody's way."""
    for note in notes:
        print(f"fedjax-sim {command}: note: {note}", file=sys.stderr)


def named(files: Sequence[Result]) -> dict[str, Path]:
    """The files by short names that differ: of ``runs/a/history.npz`` and ``runs/b`` they are a and b.

    Raises:
      ValueError: one of them is given twice.
    """
    places = [file.path.resolve() for file in files]
    twice = [str(path) for path, count in Counter(places).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice: give each result once")
    lengths = [1] * len(files)
    while True:
        names = ["/".join(file.names[-length:]) for file, length in zip(files, lengths, strict=True)]
        clashing = {name for name, count in Counter(names).items() if count > 1}
        grown = [
            min(length + 1, len(file.names)) if name in clashing else length
            for name, length, file in zip(names, lengths, files, strict=True)
        ]
        if grown == lengths:
            names = [str(place) if name in clashing else name for name, place in zip(names, places, strict=True)]
            return dict(zip(names, (file.path for file in files), strict=True))
        lengths = grown


def files_of(results: Sequence[str]) -> tuple[list[Result], list[str]]:
    """The files of results, and notes on what has none: ``results/*`` names everything that is there.

    Raises:
      FileNotFoundError: there are none at all.
    """
    files: list[Result] = []
    without: list[str] = []
    for result in results:
        path = Path(result)
        if path.is_dir():
            found = list(_of_folder(path))
            files += found
            without += [] if found else [result]
        elif path.suffix in _BESIDE and path.exists():
            without.append(result)
        else:
            files.append(_result(path, _labels(path.parent)))
    if not files:
        raise FileNotFoundError(_nothing(results))
    return files, [f"no runs in {', '.join(without)}"] if without else []


def _nothing(results: Sequence[str]) -> str:
    """What to give instead."""
    first = Path(results[0])
    if not first.is_dir():
        return f"{results[0]} is no history: give the folder that it is in, or a file written by History.save (.npz)"
    inside = any(folder.is_dir() and any(_of_folder(folder)) for folder in sorted(first.iterdir()))
    if inside:
        return f"{results[0]} has no runs itself, but folders of runs: give {results[0]}/*"
    return f"{results[0]} has no {' or '.join(_OF_FOLDERS)}, nor other .npz files: give the folder of a run, or a file"


def _of_folder(folder: Path) -> Iterator[Result]:
    """The one file of a run or sweep; of a comparison its runs, in its order; else all histories there."""
    labels = _labels(folder)
    one = next((folder / name for name in _OF_FOLDERS if (folder / name).is_file()), None)
    compared = [folder / name for name in labels if (folder / name).is_file()]
    for path in [one] if one is not None else compared or sorted(folder.glob("*.npz")):
        yield _result(path, labels)


def _result(path: Path, labels: dict[str, str]) -> Result:
    place = path.resolve()
    own = () if path.name in _OF_FOLDERS else (labels.get(path.name, place.stem),)
    return Result(path, (*place.parent.parts, *own))


def _labels(folder: Path) -> dict[str, str]:
    """What the runs of a folder that ``fedjax-sim compare`` wrote were called there, by the names of their files."""
    from fedjax_sim.core.files import read_json

    try:
        about = read_json(folder / "results.json")
        told = {Path(run["files"]["history"]).name: run["label"] for run in about["runs"] if "files" in run}
    except (OSError, ValueError, TypeError, KeyError):  # not there, or of the demo, or anybody's
        return {}
    return {name: label for name, label in told.items() if _is_label(label)}


def _is_label(label: Any) -> bool:
    return isinstance(label, str) and 0 < len(label) <= _LONGEST and label.isprintable()


def _points(sweep: Sweep) -> tuple[dict[str, History], str]:
    """The points of a sweep by their values, the best of them where there are many, and what was left out."""
    from fedjax_sim.reporting.recorded import in_words
    from fedjax_sim.reporting.table import one_number

    count = sweep.space.num_points
    numbers, left_out = list(range(count)), ""
    if count > MOST_POINTS:
        metric = next((name for name in _CHOOSING if one_number(sweep.runs, name)), None)
        ranked = [] if metric is None else [one.number for one in sweep.ranked(metric)]
        numbers = (ranked or numbers)[:MOST_POINTS]
        which = f"best {len(numbers)} of {count} points by {in_words(str(metric), [sweep.runs])}"
        left_out = f"the {which if ranked else f'first {len(numbers)} of {count} points'}"
    labels = _point_labels(sweep, numbers)
    return {label: sweep.at(number) for label, number in zip(labels, numbers, strict=True)}, left_out


def _point_labels(sweep: Sweep, numbers: Sequence[int]) -> list[str]:
    """``mu=0.1``; with the points' numbers where values alone do not tell them apart."""
    import numpy as np

    from fedjax_sim.studies.sweeps.export import short_names

    short = short_names(sweep.space.names)
    labels = [
        ", ".join(
            f"{short[name]}={value:.4g}" if np.ndim(value) == 0 else f"{short[name]}=[...]"
            for name, value in sweep.space.point(number).items()
        )
        for number in numbers
    ]
    if len(set(labels)) == len(labels):
        return labels
    return [f"point {number}: {label}" for number, label in zip(numbers, labels, strict=True)]
