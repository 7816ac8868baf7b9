"""``fedjax-sim show``, ``report``, ``verify``, ``cite``: results that are there, the runs in them, and their names."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_sim.cli.options import add_json, add_place, add_voice, voice
from fedjax_sim.cli.output import CHOOSING, finite, pairs, settle, summary
from fedjax_sim.core.tabular import FORMS

if TYPE_CHECKING:
    from fedjax_sim.run.history import History
    from fedjax_sim.run.verification import Verification
    from fedjax_sim.studies.sweeps.result import Sweep

MOST_POINTS = 12
_OF_FOLDERS = ("history.npz", "sweep.npz")  # of `run`, of `sweep`: such a file goes by the name of its folder
_WRITTEN = (*_OF_FOLDERS, "start.npz", "tuned.npz")  # the last two of `tune`
_BESIDE = (".json", ".toml", ".png", ".pdf", ".svg", ".html")  # what commands write beside histories
_LONGEST = 200  # characters of a label


def add_to(commands: Any) -> None:
    """Adds the commands."""
    results = (
        "folders that `fedjax-sim run`, `compare`, `sweep`, `tune` or `demo` wrote, or files written by History.save "
        "or Sweep.save"
    )
    report = commands.add_parser("report", help="one HTML page that compares saved runs, to open in any browser")
    add_place(report, "results", nargs="+", of="RESULT", help=results)
    add_place(report, "--out", default="report.html", of="FILE", help="the page (default: report.html)")
    report.add_argument("--title", metavar="TEXT", help="its heading")
    add_voice(report)
    report.set_defaults(run=_report)

    show = commands.add_parser("show", help="print saved runs and sweeps as one table")
    add_place(show, "results", nargs="+", of="RESULT", help=results)
    show.add_argument("--target", type=float, help="also count the rounds until this accuracy (or loss)")
    show.add_argument("--against", metavar="RUN", help="instead of final values: the differences of all from this run, "
                      "seed by seed, with 95 %% intervals and paired tests")  # fmt: skip
    show.add_argument("--form", choices=FORMS, default="text", help="of the table (default: text)")
    show.add_argument("--markdown", action="store_const", const="markdown", dest="form", help="as --form markdown")
    add_json(show)
    show.set_defaults(run=_show)

    verify = commands.add_parser("verify", help="run a saved result again, from its own description, and compare")
    about = "a file that History.save or Sweep.save wrote, or a folder of them: that of a comparison is all its runs"
    add_place(verify, "result", of="RESULT", help=about)
    about = "of a sweep: which point, by its number, or by its values: --point mu=0.1 --point weight_decay=0"
    verify.add_argument("--point", action="append", default=[], metavar="N|NAME=VALUE", help=about)
    about = (
        "largest relative distance that passes (default: none where versions and device are those of the result, else "
        "1e-3, which is also that of a sweep's point: another program computed it)"
    )
    verify.add_argument("--tolerance", type=float, help=about)
    about = (
        "of a result with parts of your own (module:object): its configuration, which the command wrote beside it; "
        "their code is imported from there"
    )
    add_place(verify, "--configuration", of="CONFIG.toml", help=about)
    add_json(verify)
    verify.set_defaults(run=_verify)

    cite = commands.add_parser("cite", help="BibTeX of the package and of the papers of methods, data, configurations")
    about = "a name (scaffold, optim.fedyogi), a configuration (.toml), or a file or folder of results"
    add_place(cite, "what", nargs="+", of="WHAT", help=about)
    add_json(cite)
    cite.set_defaults(run=_cite)


def _report(options: argparse.Namespace) -> int:
    from fedjax_sim.core.files import check_replaceable, check_writable
    from fedjax_sim.reporting.html import report

    page = Path(options.out)
    check_replaceable(page)
    check_writable(page.parent)
    found = _read(options)
    report(found.histories, options.out, title=options.title or found.heading)
    voice(options)(f"wrote {options.out} ({page.stat().st_size / 1000:,.0f} kB)")
    if options.json:
        print(json.dumps({"runs": list(found.histories), "notes": found.notes, "files": {"report": options.out}}))
    return 0


def _show(options: argparse.Namespace) -> int:
    from fedjax_sim.reporting.paired import paired_table
    from fedjax_sim.reporting.table import results_table

    if options.target is not None and (options.json or options.against is not None):
        other = "--json" if options.json else "--against"
        raise ValueError(f"--target counts rounds in the table of final values, which {other} does not print")
    if options.json and options.form != "text":
        raise ValueError(f"--form {options.form} is of a table, and --json prints none: give one of them")
    found = _read(options)
    runs = found.histories
    if options.json:
        about = [{"label": label, **summary(history, {})} for label, history in runs.items()]
        paired = None if options.against is None else pairs(runs, options.against)
        print(json.dumps({"runs": about, "paired": paired, "notes": found.notes}, allow_nan=False))
    elif options.against is not None:
        print(paired_table(runs, against=options.against, form=options.form))
    else:
        print(results_table(runs, target=options.target, form=options.form))
    return 0


def _cite(options: argparse.Namespace) -> int:
    from fedjax_sim.reporting.citations import cite
    from fedjax_sim.run.configuration.building import named_in
    from fedjax_sim.run.configuration.tables import load

    found: list[Any] = []
    for what in options.what:
        if Path(what).suffix == ".toml":
            found.append(named_in(load(what)))
        else:
            found += read([what]).histories.values() if Path(what).exists() else [what]
    print(json.dumps({"bibtex": cite(*found)}) if options.json else cite(*found))
    return 0


def _read(options: argparse.Namespace) -> Read:
    """The results of a command; notes on them go where they are in nobody's way."""
    found = read(options.results)
    for note in found.notes:
        print(f"fedjax-sim {options.command}: note: {note}", file=sys.stderr)
    return found


def _verify(options: argparse.Namespace) -> int:
    """With the precision, the random generator and the number of CPU devices of the result."""
    import jax

    from fedjax_sim.core.keys import use_generator
    from fedjax_sim.run.verification import verify

    runs = _to_verify(options)
    every = {name: run.description.get("environment", {}) for name, (_, run) in runs.items()}
    first, environment = next(iter(every.items()))
    for name, other in every.items():
        if _of_process(other) != _of_process(environment):
            raise ValueError(
                f"{first} and {name} were computed in another precision, by another random generator or on another "
                "number of CPU devices, and one process has one of each: verify each by its file"
            )
    if environment.get("float") and options.own_process:
        jax.config.update("jax_enable_x64", environment["float"] == "float64")
    if options.own_process and isinstance(environment.get("generator"), dict):
        use_generator(environment["generator"])
    settle(options, devices=_of_process(environment)[-1])
    verified = {}
    for name, (path, history) in runs.items():
        parts = _own_parts(history, path, options.configuration)
        found = verify(history, parts=parts, tolerance=options.tolerance)
        verified[name] = found
        if not options.json:
            print(f"{name}: " * (len(runs) > 1), found, sep="")
    passed = all(found.passed for found in verified.values())
    if options.json:
        about = [{"label": name, **_as_json(found)} for name, found in verified.items()]
        print(json.dumps({"passed": passed, "runs": about}, allow_nan=False))
    return 0 if passed else 1


def _of_process(environment: dict[str, Any]) -> tuple[Any, Any, int]:
    """What one process has one of: the precision, the random generator and the number of CPU devices."""
    several = re.fullmatch(r"(\d{1,4}) x cpu( of \d{1,6} processes)?", str(environment.get("device")))
    return environment.get("float"), environment.get("generator"), int(several[1]) if several else 1


def _as_json(found: Verification) -> dict[str, Any]:
    return {
        "passed": found.passed,
        "tolerance": found.tolerance,
        "arrays": len(found.differences),
        "equal": sum(one.equal for one in found.differences),
        "differs": [{"name": one.name, "distance": finite(one.distance)} for one in found.failed],
        "said": list(found.said),
        "unsaid": list(found.unsaid),
        "environment": found.environment,
        "models": found.models,
    }


def _to_verify(options: argparse.Namespace) -> dict[str, tuple[Path, History]]:
    """The runs of a result, and the files in which they are, by short names."""
    from fedjax_sim.run.history import is_sweep, read_record

    runs = {}
    for name, path in named(files_of([options.result])[0]).items():
        record = read_record(path)
        if is_sweep(record):
            record = _point(path, options.point)
        elif options.point:
            raise ValueError(f"{path} is no sweep: --point is for one")
        runs[name] = path, record
    return runs


def _point(path: Path, asked: Sequence[str]) -> History:
    """A point of a stored sweep, by its number or by its values."""
    from fedjax_sim.cli.spaces import key_and_text, leaf, numbers
    from fedjax_sim.studies.sweeps.export import short_names
    from fedjax_sim.studies.sweeps.result import Sweep

    sweep = Sweep.load(path)
    if not asked:
        count = sweep.space.num_points
        raise ValueError(f"{path} is no run but a sweep of {count} points: --point 0 to --point {count - 1} take one")
    full = {short: name for name, short in short_names(sweep.space.names).items()}
    values = {}
    for said in asked if len(asked) > 1 or not asked[0].isdecimal() else ():
        key, text = key_and_text(said, "--point", "mu=0.1, or a number")
        found = numbers(text, f"--point {said}")
        values[full.get(leaf(key), leaf(key))] = found[0] if len(found) == 1 else found
    try:
        return sweep.at(values or int(asked[0]))
    except (KeyError, IndexError) as error:
        raise ValueError(f"{path}: {error.args[0]}") from error


def _own_parts(history: History, file: Path, configuration: str | None) -> dict[str, Any]:
    """What of a result is one's own, made by its configuration; nothing is imported without one."""
    from fedjax_sim.core.opaque import opaque_parts
    from fedjax_sim.run.configuration.building import PARTS, read

    about = history.description
    parts = {"algorithm": about.get("algorithm"), "dataset": about.get("dataset"), "run": about.get("run")}
    opaque = {
        ".".join(part.partition(":")[0].split(".")[: 1 + part.startswith("run.")]) for part in opaque_parts(parts)
    }
    if opaque and configuration is None:
        beside = [file.with_name("configuration.toml"), file.with_suffix(".toml")]
        if found := next((path for path in beside if path.is_file()), None):
            raise ValueError(
                f"this result has parts of your own ({', '.join(sorted(opaque))}), whose code is imported only if you "
                f"say so: --configuration {found}"
            )
    if not opaque or configuration is None:
        return {}
    given = read(configuration)
    return {
        path: given[name] for path in sorted(opaque) if (name := path.rpartition(".")[2]) in PARTS and name in given
    }


class Result(NamedTuple):
    """A file with runs."""

    path: Path  # where it is
    names: tuple[str, ...]  # what it may be called by, the last ones first: the folders, and its own name or label


class Read(NamedTuple):
    """What was read."""

    histories: dict[str, History]  # the runs by short names that differ; of a sweep its points
    notes: list[str]  # what of the results is not among them, a line each
    heading: str | None = None  # of a page of them, where they are some points of one sweep


def read(results: Sequence[str]) -> Read:
    """Reads the runs of results: files of runs and sweeps, or folders as commands write them."""
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


def named(files: Sequence[Result]) -> dict[str, Path]:
    """The files by short names that differ: of ``runs/a/history.npz`` and ``runs/b`` they are a and b."""
    places = [file.path.resolve() for file in files]
    twice = [str(path) for path, count in Counter(places).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice: give each result once")
    found = {}
    for number, (file, place) in enumerate(zip(files, places, strict=True)):
        others = [other.names for other in (*files[:number], *files[number + 1 :])]
        ends = (file.names[-length:] for length in range(1, len(file.names) + 1))
        own = next((end for end in ends if all(other[-len(end) :] != end for other in others)), (str(place),))
        found["/".join(own)] = file.path
    return found


def files_of(results: Sequence[str]) -> tuple[list[Result], list[str]]:
    """The files of results, and notes on what has none: ``results/*`` names everything that is there."""
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
    if files:
        return files, [f"no runs in {', '.join(without)}"] if without else []
    first = Path(results[0])
    if not first.is_dir():
        said = "is no history: give the folder that it is in, or a file written by History.save (.npz)"
    elif any(folder.is_dir() and any(_of_folder(folder)) for folder in sorted(first.iterdir())):
        said = f"has no runs itself, but folders of runs: give {results[0]}/*"
    else:
        said = f"has no {' or '.join(_OF_FOLDERS)}, nor other .npz files: give the folder of a run, or a file"
    raise FileNotFoundError(f"{results[0]} {said}")


def _of_folder(folder: Path) -> Iterator[Result]:
    """What commands wrote there, of a comparison its runs in their order; else all histories."""
    labels = _labels(folder)
    compared = [name for name in labels if (folder / name).is_file()]
    beside = [name for name in _WRITTEN if name not in labels and (folder / name).is_file()]
    for path in [folder / name for name in (*beside, *compared)] or sorted(folder.glob("*.npz")):
        yield _result(path, labels)


def _result(path: Path, labels: dict[str, str]) -> Result:
    place = path.resolve()
    own = () if path.name in _OF_FOLDERS and path.name not in labels else (labels.get(path.name, place.stem),)
    return Result(path, (*place.parent.parts, *own))


def _labels(folder: Path) -> dict[str, str]:
    """What the runs of a folder that ``fedjax-sim compare`` wrote were called there, by the names of their files."""
    from fedjax_sim.core.files import read_json

    try:
        about = read_json(folder / "results.json")
        told = {Path(run["files"]["history"]).name: run["label"] for run in about["runs"] if "files" in run}
    except (OSError, ValueError, TypeError, KeyError):  # not there, or of the demo, or anybody's
        return {}
    texts = {name: label for name, label in told.items() if isinstance(label, str)}
    return {name: label for name, label in texts.items() if 0 < len(label) <= _LONGEST and label.isprintable()}


def _points(sweep: Sweep) -> tuple[dict[str, History], str]:
    """The points of a sweep by their values, the best of them where there are many, and what was left out."""
    from fedjax_sim.reporting.recorded import in_words
    from fedjax_sim.reporting.table import one_number
    from fedjax_sim.studies.sweeps.export import labels

    count = sweep.space.num_points
    numbers, left_out = list(range(count)), ""
    if count > MOST_POINTS:
        metric = next((name for name in CHOOSING if one_number(sweep.runs, name)), None)
        ranked = [] if metric is None else [one.number for one in sweep.ranked(metric)]
        numbers = (ranked or numbers)[:MOST_POINTS]
        which = f"best {len(numbers)} of {count} points by {in_words(str(metric), [sweep.runs])}"
        left_out = f"the {which if ranked else f'first {len(numbers)} of {count} points'}"
    return dict(zip(labels(sweep, numbers, "="), map(sweep.at, numbers), strict=True)), left_out
