"""``fedjax-sim sweep``: one configuration at many values of its hyper-parameters, in one program."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli import output
from fedjax_sim.cli.options import add_configuration, add_running, count
from fedjax_sim.cli.output import Results, begin, configured, finite, hardware, in_short, refusing, taken_by
from fedjax_sim.cli.spaces import check_over, space_of

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.studies.sweeps.result import Ranked, Sweep
    from fedjax_sim.studies.sweeps.space import Space

_FILES = ("sweep.npz", "sweep.json", "sweep.png", "best.toml")
_PANELS = 6
_TOP = 10
# What a configuration's table [sweep] may say, as the options of these names.
_ASKED: dict[str, type] = {"over": dict, "zip": bool, "random": int, "random_seed": int, "metric": str, "top": int}
_KINDS: dict[type, str] = {dict: "a table", bool: "true or false", int: "a whole number, at least 1", str: "text"}


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("sweep", help="one configuration at many values of its hyper-parameters, one program")
    add_configuration(command)
    add = command.add_argument
    add("--over", action="append", metavar="NAME=VALUES", help="a real hyper-parameter and its values: "
        "--over algorithm.mu=0,0.01,0.1, or geomspace(0.01, 1, 5), linspace(0, 1, 5), with --random "
        "log_uniform(a, b), uniform(a, b); given several times, all combinations; in the place of all that the table "
        "[sweep] of the configuration says of points")  # fmt: skip
    how = command.add_mutually_exclusive_group()
    how.add_argument("--zip", action="store_true", help="the first values together, the second, ..., not all "
                     "combinations")  # fmt: skip
    how.add_argument("--random", type=count, metavar="N", help="N points drawn at random")
    add("--random-seed", type=int, metavar="SEED", help="of the draws (default: 0)")
    add("--metric", metavar="NAME", help="what chooses the best point (default: of validation examples, else of test "
        "examples, the accuracy, else the loss without a penalty, else the loss; else the training loss)")  # fmt: skip
    add("--top", type=count, metavar="N", help=f"lines of the table (default: {_TOP})")
    add_running(command, "sweep.npz, sweep.json, sweep.png and best.toml", "results/NAME-sweep", "the runs")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it."""
    with configured(options, "-sweep") as (tables, results):
        with refusing(tables):
            devices = begin(options, tables, devices=options.devices, threads=options.threads)
            from fedjax_sim.run.configuration.building import arguments

            space = _space(options, tables)
            given = arguments(tables)
            check_over(given, space.names)
            results.hold(*_FILES)
            result = _result(given, space, options, devices, results)
        _write(result, tables, options, results)
    return 0


def _space(options: argparse.Namespace, tables: Tables) -> Space:
    """The points: those of the command line, or else of the configuration's table [sweep], which is taken out."""
    from fedjax_sim.core.values import suggest

    said: Any = tables.content.pop("sweep", {})
    place = tables.place / "sweep"
    if not isinstance(said, dict):
        raise place.error(f"it is {said!r}: it must be a table")
    for key, value in said.items():
        if key not in _ASKED:
            raise place.error(f"unknown key {key!r}: {suggest(key, [*_ASKED])}", key)
        if type(value) is not _ASKED[key] or (isinstance(value, int) and key in ("random", "top") and value < 1):
            raise place.error(f"{key} is {value!r}: it must be {_KINDS[_ASKED[key]]}", key)
        if key in ("metric", "top") and getattr(options, key) is None:
            setattr(options, key, value)
    if options.over:
        if options.random_seed is not None and options.random is None:
            raise ValueError("--random-seed is of the draws of --random: add it, or leave the seed out")
        return space_of(options.over, zipped=options.zip, random=options.random, seed=options.random_seed or 0)
    if options.zip or options.random is not None or options.random_seed is not None:
        raise ValueError("--zip, --random and --random-seed are of points that --over gives: add it")
    over = [f"{name}={_as_text(value)}" for name, value in _flat(said.get("over", {}))]
    if not over:
        raise place.error("nothing is varied: --over algorithm.mu=0,0.1, or a table [sweep.over] with such lines")
    if "random_seed" in said and "random" not in said:
        raise place.error("random_seed is of the draws of random: add it, or leave the seed out")
    if said.get("zip") and "random" in said:
        raise place.error("zip and random: give one of them")
    try:
        return space_of(over, zipped=said.get("zip", False), random=said.get("random"), seed=said.get("random_seed", 0))
    except ValueError as error:
        raise (place / "over").error(str(error).removeprefix("--over ")) from error


def _flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by dotted names, which TOML reads as tables in tables unless they are quoted."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{rest}", of) for rest, of in _flat(value))
        else:
            yield key, value


def _as_text(values: Any) -> str:
    """As ``--over`` takes them: numbers with commas between them, or a call, ``geomspace(0.01, 1, 5)``."""
    return ",".join(map(str, values)) if isinstance(values, list) else str(values)


def _result(
    given: dict[str, Any], space: Space, options: argparse.Namespace, devices: str | None, results: Results
) -> Sweep:
    import jax

    from fedjax_sim.studies.sweeps.running import sweep

    checkpoint = given.pop("checkpoint", None)
    kept, left_out = taken_by(sweep, given)
    about = f"{in_short(given)} at each of {space.num_points} points"
    results.begun(options.configuration, about, hardware(devices, options.devices))
    if left_out:
        results.say(f"note: a sweep runs all rounds of every point on the device: without {', '.join(left_out)}")
    if options.metric is not None:
        _check_metric(kept, options.metric)
    if options.devices is not None:
        output.check_devices(options.devices)
        kept["devices"] = jax.local_devices()[: options.devices]
    return sweep(**kept, space=space, resume=checkpoint, progress=results.progress)


def _check_metric(given: dict[str, Any], metric: str) -> None:
    """Refuses what the runs will not record, before they are run: by tracing one."""
    import jax

    from fedjax_sim.core.values import suggest
    from fedjax_sim.reporting.recorded import known_as
    from fedjax_sim.run.training import make_train

    setting = taken_by(make_train, given)[0]
    result = jax.eval_shape(make_train(**setting), given["algorithm"], given["dataset"], jax.random.key(0))
    single = [name for name, leaf in {**result.rounds, **result.metrics}.items() if len(leaf.shape) == 1]
    if known_as(metric, single) not in single:
        raise ValueError(
            f"--metric {metric}: nothing of that name is recorded as one number: {suggest(metric, single)}"
        )


def _write(result: Sweep, tables: Tables, options: argparse.Namespace, results: Results) -> None:
    from fedjax_sim.core.files import write_atomically
    from fedjax_sim.run.configuration.writing import written

    metric = options.metric or next(name for name in output.CHOOSING if name in result.runs.metrics)
    result.save(results.place("sweep", "sweep.npz"))
    results.place("results", "sweep.json")
    ranked = result.ranked(metric)
    if ranked:
        best = written(result.at(ranked[0].number), own=tables.content)
        write_atomically(results.place("best", "best.toml"), best.encode())
    else:  # nobody is to take an earlier sweep's for this one's
        (results.folder / "best.toml").unlink(missing_ok=True)
    results.draw(lambda path: _plot(result, metric, bool(ranked), path), "sweep.png")
    if results.tell(_as_json(result, metric, ranked), "sweep.json"):
        return
    results.say(f"\n{result.table(metric, top=options.top or _TOP)}")
    results.say(f"compiling {result.compile_seconds:.1f} s, running {result.seconds:.1f} s")
    results.say(f"\n{_best_in_words(result, metric, ranked, results.files)}")
    results.end()


def _best_in_words(result: Sweep, metric: str, ranked: list[Ranked], files: dict[str, Path]) -> str:
    from fedjax_sim.reporting.recorded import in_words, part_of

    count = result.space.num_points
    bad = int(result.diverged.reshape(count, -1).any(axis=1).sum())
    ended = f"; {bad} of {count} points diverged" if bad else ""
    if not ranked:
        why = "try smaller learning rates" if bad == count else f"{metric} is not defined, choose another --metric"
        return f"no best point{ended}: {why}"
    best = ranked[0]
    point = ", ".join(f"{name} = {value:.6g}" for name, value in best.point.items())
    spread = "" if len(result.seeds) == 1 else f" ± {best.std:.4g}"
    by = {
        "test": "the test examples have chosen it, and look better for it: report it on others",
        "validation": "chosen on the validation examples: report it on the test examples",
        "training": "chosen on what was trained on, with these seeds",
    }[part_of(metric)]
    other = [max(result.seeds) + 1 + number for number in range(len(result.seeds))]
    return (
        f"best by {in_words(metric, [result.runs])}: {point} ({best.mean:.4g}{spread}){ended}\n{by}\n"
        f"with seeds that the sweep has not seen: fedjax-sim run {files['best']} --set 'run.seeds={other}'"
    )


def _as_json(result: Sweep, metric: str, ranked: list[Ranked]) -> dict[str, Any]:
    import numpy as np

    from fedjax_sim.reporting.recorded import measured

    diverged = result.diverged.reshape(result.space.num_points, -1)
    single = {
        name: measured(result.runs, name)[:, -1].reshape(diverged.shape)
        for name, values in result.runs.metrics.items()
        if values.ndim == 2
    }
    if metric in result.runs.rounds:  # a record of every round, of which nobody else asks for the last value
        single[metric] = result.final(metric).reshape(diverged.shape)
    places = {one.number: place for place, one in enumerate(ranked, start=1)}

    def point(number: int) -> dict[str, Any]:
        values = {name: np.asarray(value).tolist() for name, value in result.space.point(number).items()}
        final = {name: finite(of[number].astype(float).tolist()) for name, of in single.items()}
        return {"values": values, "place": places.get(number), "diverged": diverged[number].tolist(), "final": final}

    return {
        "algorithm": result.runs.algorithm,
        "rounds": int(result.evaluated[-1]),
        "seeds": result.seeds,
        "metric": metric,
        "best": None if not ranked else point(ranked[0].number) | {"mean": ranked[0].mean, "std": ranked[0].std},
        "points": [point(number) for number in range(result.space.num_points)],
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
    }


def _plot(result: Sweep, metric: str, some: bool, path: Path) -> None:
    """The metric over the hyper-parameters, and beside it the best points against rounds."""
    from fedjax_sim.reporting.figures import grid_of_axes
    from fedjax_sim.reporting.plots import check_matplotlib, save_figure

    check_matplotlib()
    names, dims = result.space.names[:_PANELS], result.space.dims
    mapped = len(dims) > 1
    figure, axes = grid_of_axes((1 if mapped else len(names)) + some, 5.6, 3.9)
    if mapped:
        result.heatmap(metric, ax=axes[0])
    else:
        for name, ax in zip(names, axes, strict=False):
            result.profile(metric, name, ax=ax)
    if some:
        result.curves(metric, ax=axes[-1], top=5)
    save_figure(figure, path)
