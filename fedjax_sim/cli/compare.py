"""``fedjax-sim compare``: several runs with the same seeds, in one table and one figure."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_sim.cli.completion import FILES, completed
from fedjax_sim.cli.options import Say, add_changes, add_devices, add_no_cache, add_out, add_voice, voice
from fedjax_sim.cli.output import (
    begin,
    drawn,
    finite,
    folder_of,
    hardware,
    refused,
    results_in,
    share_out,
    summary,
    write_run,
)
from fedjax_sim.cli.variants import Variant, differences, variants

if TYPE_CHECKING:
    from fedjax_sim.run.history import History

_ACCURACIES = ("test_accuracy", "accuracy")


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
      variant: the run.
      history: its record, without models; None where it failed.
      error: why it failed.
      files: what was written.
    """

    variant: Variant
    history: History | None
    error: str = ""
    files: dict[str, Path] = {}  # noqa: RUF012, an empty one is never written to

    @property
    def status(self) -> str:
        """``"done"``, ``"diverged"`` or ``"failed"``."""
        if self.history is None:
            return "failed"
        return "diverged" if self.history.divergences else "done"


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("compare", help="several runs with the same seeds: one table, one plot")
    files = command.add_argument("configurations", nargs="+", metavar="CONFIG.toml", help="what to run")
    completed(files, FILES)
    several = command.add_mutually_exclusive_group()
    several.add_argument("--algorithms", nargs="+", default=[], metavar="NAME", help="methods in the place of the "
                         "configuration's, with its optimisers and rates: --algorithms fedavg fednova")  # fmt: skip
    several.add_argument("--variant", nargs="+", action="append", default=[], metavar="KEY=VALUE", dest="each",
                         help="a run with these values, for instance --variant algorithm.mu=0.01 --variant "
                         "algorithm.mu=0.1; a first word without = is its name")  # fmt: skip
    add_changes(command)
    add_out(command, "histories, configurations, comparison.png and results.json", "results/NAME-compare")
    add_devices(command, "the cohort")
    add_no_cache(command)
    add_voice(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it; 1 if a run failed."""
    try:
        chosen = variants(options.configurations, options.changes, options.each, options.algorithms)
        _check_precision(chosen)
        devices = begin(options, chosen[0].tables, devices=options.devices, threads=options.threads)
        about = _checked(chosen)
        if options.devices is not None:
            share_out({}, options.devices)
    except (ValueError, TypeError) as error:
        return refused(options, error)
    folder = folder_of(options, options.configurations[0], "-compare")
    runs = [f"{variant.stem}.{kind}" for variant in chosen for kind in ("npz", "toml")]
    with results_in(folder, "comparison.png", "results.json", *runs):
        return _compare(chosen, about, folder, hardware(devices, options.devices), options)


def _compare(
    chosen: Sequence[Variant], about: dict[str, dict[str, Any]], folder: Path, where: str, options: argparse.Namespace
) -> int:
    """Runs all of them and writes what became of them."""
    say = voice(options)
    say(f"{len(chosen)} runs on {where}")
    notes = differences(about) if about else []
    for note in notes:
        say(f"note: {note}")
    for left_out in dict.fromkeys(variant.left_out for variant in chosen if variant.left_out):
        without = ", ".join(variant.label for variant in chosen if variant.left_out == left_out)
        say(f"note: not {', '.join(left_out)}, but defaults of their own: {without}")
    outcomes = []
    for number, variant in enumerate(chosen, start=1):
        say(f"{number}/{len(chosen)} {variant.label}")
        outcomes.append(_outcome(variant, folder, options))
        if outcomes[-1].history is None:
            print(f"fedjax-sim compare: {variant.label} failed: {outcomes[-1].error}", file=sys.stderr)
    _write(outcomes, notes, folder, options, say)
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


def _outcome(variant: Variant, folder: Path, options: argparse.Namespace) -> Outcome:
    """Runs one; whatever it fails of, the others go on."""
    from fedjax_sim.run.configuration.building import arguments, placed
    from fedjax_sim.run.configuration.tables import ConfigurationError
    from fedjax_sim.run.simulation import simulate

    files = {"history": folder / f"{variant.stem}.npz", "configuration": folder / f"{variant.stem}.toml"}
    try:
        given = arguments(variant.tables)
        share_out(given, options.devices)
        if given.get("checkpoint") is not None:  # a folder for each
            given["checkpoint"] = Path(given["checkpoint"]) / variant.stem
        history = simulate(**given, progress=False if options.quiet or options.json else None)
        write_run(history, variant.tables, files["history"], files["configuration"])
    except Exception as error:
        if options.traceback:
            raise
        if isinstance(error, (ValueError, TypeError)) and not isinstance(error, ConfigurationError):
            error = placed(str(error), variant.tables)
        return Outcome(variant, None, " ".join(str(error).split())[:500] or type(error).__name__)
    return Outcome(variant, dataclasses.replace(history, params={}), files=files)


def _write(outcomes: list[Outcome], notes: list[str], folder: Path, options: argparse.Namespace, say: Say) -> None:
    from fedjax_sim.core.atomic import write_atomically
    from fedjax_sim.reporting.table import objectives

    done = {outcome.variant.label: outcome.history for outcome in outcomes if outcome.history is not None}
    plotted = drawn(lambda: _plot(done, folder / "comparison.png")) if done else "no run was finished"
    found = objectives(done)  # known in the end: a method may choose its average
    files = {"results": folder / "results.json"}
    if plotted is None:
        files["plot"] = folder / "comparison.png"
    about = {
        "runs": [_as_json(outcome) for outcome in outcomes],
        "notes": [*notes, *found],
        "files": {name: str(path) for name, path in files.items()},
    }
    write_atomically(files["results"], json.dumps(about, indent=1, allow_nan=False).encode())
    if options.json:
        print(json.dumps(about, allow_nan=False))
        return
    say(f"\n{table(outcomes)}")
    for line in found:
        say(f"note: {line}")
    for outcome in outcomes:
        for divergence in outcome.history.divergences if outcome.history is not None else ():
            say(f"{outcome.variant.label} diverged: {divergence}")
    said = f"{', '.join(map(str, files.values()))} and a history and a configuration of each run"
    say(f"wrote {said}{'' if plotted is None else f'; no plot: {plotted}'}")


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each run, those that failed too."""
    from fedjax_sim.reporting.recorded import in_words, loss_of_data
    from fedjax_sim.reporting.table import USEFUL_STEPS, WITHOUT_PENALTY, final_values, text_rows

    runs = [outcome.history for outcome in outcomes if outcome.history is not None]
    if not runs:
        return "\n".join(f"{outcome.variant.label}  failed: {outcome.error}" for outcome in outcomes)
    accuracy = next((name for name in _ACCURACIES if any(name in run.metrics for run in runs)), None)
    loss = loss_of_data(runs)
    columns: dict[str, list[str]] = {in_words(loss, runs): final_values(list(runs), loss, None)}
    if accuracy is not None:
        columns[in_words(accuracy)] = final_values(list(runs), accuracy, 4)
    columns["seconds"] = [f"{run.seconds:.2f}" for run in runs]
    columns["useful steps"] = [f"{run.useful_ratio:.1%}" for run in runs]
    rows: list[tuple[str, list[str]]] = []
    for title, cells in columns.items():
        left, instead = iter(cells), "–" if rows else "failed"
        rows.append((title, [instead if outcome.history is None else next(left) for outcome in outcomes]))
    lines = text_rows([("run", [outcome.variant.label for outcome in outcomes]), *rows])
    counts = sorted({len(run.seeds) for run in runs})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    note = "one seed" if counts == [1] else f"mean ± standard deviation over {seeds} seeds"
    notes = [WITHOUT_PENALTY, USEFUL_STEPS] if loss != "loss" else [USEFUL_STEPS]
    return "\n".join([*lines, "", *notes, f"{note}; seconds: all seeds, without compilation"])


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
    """``synthetic(alpha=1.0, beta=1.0)``."""
    given = described.get("arguments", {})
    said = ", ".join(f"{key}={value}" for key, value in given.items() if isinstance(value, (int, float, str)))
    return f"{str(described.get('name', '?')).rpartition('.')[2]}({said})"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    told: dict[str, Any] = {"label": outcome.variant.label, "status": outcome.status}
    if outcome.history is None:
        return {**told, "error": outcome.error}
    import numpy as np

    from fedjax_sim.reporting.recorded import measured

    finals = {name: measured(outcome.history, name)[:, -1].astype(float) for name in outcome.history.metrics}
    with np.errstate(all="ignore"):
        means = {name: final.mean(axis=0).tolist() for name, final in finals.items()}
        ddof = min(len(outcome.history.seeds) - 1, 1)
        deviations = {name: final.std(axis=0, ddof=ddof).tolist() for name, final in finals.items()}
    return {**told, **summary(outcome.history, outcome.files), "mean": finite(means), "std": finite(deviations)}
