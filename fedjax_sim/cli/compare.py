"""``fedjax-sim compare``: several runs with the same seeds, in one table and one figure."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_sim.cli.list_names import methods_by_name
from fedjax_sim.cli.options import add_changes, add_place, add_running, completed
from fedjax_sim.cli.output import Results, begin, finite, hardware, pairs, refusing, share_out, short_name, summary

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History


class Variant(NamedTuple):
    """One run of a comparison."""

    label: str  # as it is printed; unique
    stem: str  # of its files; unique, without signs that file systems or shells read
    tables: Tables  # its configuration
    left_out: tuple[str, ...] = ()  # keys of the configuration's method that the other method does not take over


class Outcome(NamedTuple):
    """What became of a run: its record, without models, and what was written; or why it failed."""

    variant: Variant
    history: History | None
    error: str = ""
    files: dict[str, Path] = {}  # noqa: RUF012, an empty one is never written to


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("compare", help="several runs with the same seeds: one table, one plot")
    add_place(command, "configurations", nargs="+", of="CONFIG.toml", help="what to run")
    several = command.add_mutually_exclusive_group()
    about = "methods in the place of the configuration's, with its optimisers and rates: --algorithms fedavg fednova"
    completed(several.add_argument("--algorithms", nargs="+", default=[], metavar="NAME", help=about), methods_by_name)
    several.add_argument("--variant", nargs="+", action="append", default=[], metavar="KEY=VALUE", dest="each",
                         help="a run with these values, for instance --variant algorithm.mu=0.01 --variant "
                         "algorithm.mu=0.1; a first word without = is its name")  # fmt: skip
    add_changes(command)
    files = "histories, configurations, comparison.png and results.json"
    add_running(command, files, "results/NAME-compare", "the cohort")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs all of them and writes what became of them; 1 if a run failed."""
    with refusing():
        chosen = variants(options.configurations, options.changes, options.each, options.algorithms)
        _check_precision(chosen)
        devices = begin(options, chosen[0].tables, devices=options.devices, threads=options.threads)
        notes = differences(_checked(chosen))
        if options.devices is not None:
            share_out({}, options.devices)
    runs = [f"{variant.stem}.{kind}" for variant in chosen for kind in ("npz", "toml")]
    with Results(options, options.configurations[0], "-compare") as results:
        results.hold("comparison.png", "results.json", *runs)
        results.say(f"{len(chosen)} runs on {hardware(devices, options.devices)}")
        for note in notes:
            results.say(f"note: {note}")
        for left_out in dict.fromkeys(variant.left_out for variant in chosen if variant.left_out):
            without = ", ".join(variant.label for variant in chosen if variant.left_out == left_out)
            results.say(f"note: {without}: without {', '.join(left_out)} of the configuration, with their own defaults")
        outcomes = []
        for number, variant in enumerate(chosen, start=1):
            results.say(f"{number}/{len(chosen)} {variant.label}")
            outcomes.append(_outcome(variant, results, options))
            if outcomes[-1].history is None:
                print(f"fedjax-sim compare: {variant.label} failed: {outcomes[-1].error}", file=sys.stderr)
        _write(outcomes, notes, results)
    return 1 if any(outcome.history is None for outcome in outcomes) else 0


def _check_precision(chosen: Sequence[Variant]) -> None:
    from fedjax_sim.run.configuration.building import precision, random_generator

    asked = {precision(variant.tables): variant.label for variant in chosen}
    if len(asked) > 1:
        said = ", ".join(f"{label}: {one or 'not said'}" for one, label in asked.items())
        raise ValueError(f"the precisions differ ({said}): one process has one; --set environment.float=float32")
    drawn = [random_generator(variant.tables) for variant in chosen]
    if any(one != drawn[0] for one in drawn):
        raise ValueError("the random generators differ (environment.generator): one process has one; leave it out")


def _checked(chosen: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """Builds every run once before the first is computed; returns what they should share."""
    from fedjax_sim.core.descriptions import describe
    from fedjax_sim.engine.checks import check_seeds
    from fedjax_sim.run.configuration.building import arguments

    about = {}
    for variant in chosen:
        try:
            given = arguments(variant.tables)
        except (OSError, ImportError):  # files or packages that this one lacks: it fails when its turn comes
            continue
        about[variant.label] = {
            "seeds": check_seeds(given.get("seeds", 0)),
            "rounds": given["rounds"],
            "data sets": _in_words(describe(given["dataset"])),
        }
    return about


def _outcome(variant: Variant, results: Results, options: argparse.Namespace) -> Outcome:
    """Runs one; whatever it fails of, the others go on."""
    from fedjax_sim.run.configuration.building import arguments
    from fedjax_sim.run.simulation import simulate

    try:
        with refusing(variant.tables):
            given = arguments(variant.tables)
            share_out(given, options.devices)
            if given.get("checkpoint") is not None:  # a folder for each
                given["checkpoint"] = Path(given["checkpoint"]) / variant.stem
            history = simulate(**given, progress=results.progress)
            files = results.write_run(history, variant.tables, variant.stem)
    except Exception as error:
        if options.traceback:
            raise
        return Outcome(variant, None, " ".join(str(error).split())[:500] or type(error).__name__)
    return Outcome(variant, dataclasses.replace(history, params={}), files=files)


def _write(outcomes: list[Outcome], notes: list[str], results: Results) -> None:
    from fedjax_sim.reporting.paired import paired_table
    from fedjax_sim.reporting.table import remarks, results_table

    done = {outcome.variant.label: outcome.history for outcome in outcomes if outcome.history is not None}
    results.place("results", "results.json")
    if done:
        results.draw(lambda path: _plot(done, path), "comparison.png")
    found = remarks(done)  # known in the end: a method may choose its average
    paired, why = None, ""
    if len(done) > 1:
        try:
            paired = pairs(done)
        except (KeyError, ValueError) as error:
            why = str(error.args[0])
    told = {"runs": [_as_json(outcome) for outcome in outcomes], "paired": paired, "notes": [*notes, *found]}
    if results.tell(told, "results.json"):
        return
    if done:
        results.say(f"\n{results_table(done)}")
    if paired is not None:
        results.say(f"\n{paired_table(done)}")
    elif len(done) > 1:
        results.say(f"no paired tests: {why}")
    for outcome in outcomes:
        if outcome.history is None:
            results.say(f"{outcome.variant.label}  failed: {outcome.error}")
        for divergence in outcome.history.divergences if outcome.history is not None else ():
            results.say(f"{outcome.variant.label} diverged: {divergence}")
    results.end(f" and a history and a configuration of each run{'' if done else '; no plot: no run was finished'}")


def _plot(histories: dict[str, History], path: Path) -> None:
    """A column for each data set."""
    from fedjax_sim.reporting.panels import comparison

    problems: dict[str, dict[str, Any]] = {}
    for label, history in histories.items():
        problems.setdefault(_in_words(history.description["dataset"]), {})[label] = history
    if len({title.partition("(")[0] for title in problems}) == len(problems):
        problems = {title.partition("(")[0]: runs for title, runs in problems.items()}
    comparison(problems, path)


def _in_words(described: dict[str, Any]) -> str:
    """``synthetic(alpha=1.0, beta=1.0)``, with the data sets that it is made of: they may be all that differs."""
    given = described.get("arguments", {})
    said = [
        f"{key}={_in_words(value) if isinstance(value, dict) else value}"
        for key, value in given.items()
        if isinstance(value, (int, float, str, list)) or (isinstance(value, dict) and "name" in value)
    ]
    return f"{short_name(described)}({', '.join(said)})"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    label = outcome.variant.label
    if outcome.history is None:
        return {"label": label, "status": "failed", "error": outcome.error}
    import numpy as np

    from fedjax_sim.reporting.recorded import measured

    finals = {name: measured(outcome.history, name)[:, -1].astype(float) for name in outcome.history.metrics}
    with np.errstate(all="ignore"):
        means = {name: final.mean(axis=0).tolist() for name, final in finals.items()}
        ddof = min(len(outcome.history.seeds) - 1, 1)
        deviations = {name: final.std(axis=0, ddof=ddof).tolist() for name, final in finals.items()}
    told = {"label": label, "status": "diverged" if outcome.history.divergences else "done"}
    return {**told, **summary(outcome.history, outcome.files), "mean": finite(means), "std": finite(deviations)}


def variants(
    files: Sequence[str], changes: Sequence[str], each: Sequence[Sequence[str]], algorithms: Sequence[str]
) -> list[Variant]:
    """All runs of a comparison, read but not built; ``changes`` are made to all of them.

    ``each`` makes variants of every file: ``[["algorithm.mu=0.1"], ["small", "algorithm.mu=0.01"]]``, in which a first
    word without ``=`` is a label. ``algorithms`` take the place of every file's own.
    """
    from fedjax_sim.run.configuration.tables import load

    stems = [Path(file).stem for file in files]
    if len(set(stems)) < len(stems):
        stems = [str(Path(file).with_suffix("")) for file in files]
    made: list[Variant] = []
    if algorithms:
        for (file, stem), name in itertools.product(zip(files, stems, strict=True), algorithms):
            tables, left_out = _with_method(load(file, changes), name)
            made.append(Variant(f"{stem}, {name}" if len(files) > 1 else name, "", tables, left_out))
    elif each:
        pairs = [_label_and_changes(words) for words in each]
        short = _short_keys(change for _, own in pairs for change in own)
        for (file, stem), (label, own) in itertools.product(zip(files, stems, strict=True), pairs):
            said = label or ", ".join(map(short, own))
            made.append(Variant(f"{stem}, {said}" if len(files) > 1 else said, "", load(file, [*changes, *own])))
    else:
        made = [Variant(stem, "", load(file, changes)) for file, stem in zip(files, stems, strict=True)]
    if len(made) < 2:
        raise ValueError(
            "there is one run, and nothing to compare it with: give several configurations, --algorithms fedavg "
            "fednova, or --variant algorithm.mu=0.01 --variant algorithm.mu=0.1"
        )
    labels = [variant.label for variant in made]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"two runs are called {twice!r}: give each once, or a name: --variant NAME KEY=VALUE")
    return [variant._replace(stem=stem) for variant, stem in zip(made, _file_names(labels), strict=True)]


def _with_method(tables: Tables, name: str) -> tuple[Tables, tuple[str, ...]]:
    """Another method in a configuration: what all methods have stays (optimisers, rates), its own arguments go."""
    from fedjax_sim.algorithms import Algorithm
    from fedjax_sim.core.descriptions import all_registered
    from fedjax_sim.core.values import suggest

    known = [one.partition(".")[2] for one in all_registered() if one.startswith("algorithm.")]
    short = name.removeprefix("algorithm.")
    if short not in known and ":" not in short:
        raise tables.place._replace(source=f"--algorithms {name}", path=()).error(
            f"unknown method: {suggest(short, known)}"
        )
    table = tables.content.get("algorithm", {})
    if not isinstance(table, dict):
        table = {"name": table}
    if str(table.get("name", "")).removeprefix("algorithm.") == short:
        return tables, ()
    given = table.get("arguments", {key: value for key, value in table.items() if key != "name"})
    common = {field.name for field in dataclasses.fields(Algorithm)}
    kept = {key: value for key, value in given.items() if key in common}
    left_out = tuple(f"algorithm.{key}" for key in given if key not in common)
    return tables._replace(content={**tables.content, "algorithm": {"name": short, **kept}}), left_out


def _label_and_changes(words: Sequence[str]) -> tuple[str, list[str]]:
    first, *rest = words
    label, changes = ("", list(words)) if "=" in first else (first, rest)
    bare = next((word for word in changes if "=" not in word), None)
    if bare is not None or not changes:
        hint = ": configurations stand before --variant" if str(bare or first).endswith(".toml") else ""
        raise ValueError(
            f"--variant {' '.join(words)}: {bare or first!r} is no KEY=VALUE{hint or ', as algorithm.mu=0.1 is'}; a "
            "variant is [NAME] KEY=VALUE [KEY=VALUE ...]"
        )
    return label, changes


def _short_keys(changes: Iterable[str]) -> Any:
    """A function that writes a change with the last part of its key alone, where that says which one is meant."""
    keys = {change.partition("=")[0].strip() for change in changes}
    last = [key.rpartition(".")[2] for key in keys]

    def short(change: str) -> str:
        key, _, value = change.partition("=")
        end = key.strip().rpartition(".")[2]
        alone = last.count(end) == 1 and end != "name"
        return f"{end if alone else key.strip()}={value.strip()}"

    return short


def _file_names(labels: Sequence[str]) -> list[str]:
    names = [re.sub(r"[^\w.=+-]+", "-", label).strip("-.")[:80] or "run" for label in labels]
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name}-{count}" for name, count in zip(names, counts, strict=True)]


def differences(described: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What runs should share to be comparable and do not, a line each; of what each has, by its label."""
    lines = []
    for what in next(iter(described.values()), ()):
        values = {label: about[what] for label, about in described.items()}
        distinct = list(dict.fromkeys(map(str, values.values())))
        if len(distinct) > 1:
            shown = ", ".join(f"{label}: {value}" for label, value in list(values.items())[:4])
            lines.append(f"{what} differ ({shown}{', ...' if len(values) > 4 else ''})")
    return lines
