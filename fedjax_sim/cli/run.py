"""``fedjax-sim run``: a configuration becomes a history, a plot and a table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli import launch as processes
from fedjax_sim.cli.options import Say, add_configuration, add_devices, add_no_cache, add_out, add_voice, count, voice
from fedjax_sim.cli.output import (
    begin,
    drawn,
    folder_of,
    hardware,
    in_short,
    refused,
    refused_by_run,
    results_in,
    share_out,
    summary,
    write_run,
)

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History

_FILES = ("history.npz", "configuration.toml", "plot.png")


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("run", help="run a configuration (TOML): a history, a plot, a table")
    add_configuration(command)
    add_out(command, "history.npz, configuration.toml and plot.png", "results/NAME of the configuration")
    add_devices(command, "the cohort")
    several = command.add_mutually_exclusive_group()
    several.add_argument("--processes", type=count, metavar="P", help="compute in P processes on this machine")
    several.add_argument("--distributed", action="store_true", help="this is one of several processes that SLURM, "
                         "mpirun or a TPU pod has started")  # fmt: skip
    several.add_argument("--seat", type=processes.Seat.read, help=argparse.SUPPRESS)  # given by --processes
    add_no_cache(command)
    add_voice(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it, here or in several processes."""
    from fedjax_sim.run.configuration.tables import load

    try:
        tables = load(options.configuration, options.changes)
    except ValueError as error:
        return refused(options, error)
    if options.processes is not None and options.processes > 1:
        results_in(folder_of(options, options.configuration), *_FILES).release()  # the first process will hold it
        return processes.start(_arguments(options), options.processes)
    if options.seat is None and not options.distributed:
        return _run(options, tables)
    return _run_with_others(options, tables)


def _run_with_others(options: argparse.Namespace, tables: Tables) -> int:
    """In one of several processes."""
    if options.seat is not None:
        processes.end_with_parent()
    status = 1
    try:
        with processes.only_our_words():
            try:
                status = _run(options, tables)
            except (ValueError, OSError, ImportError, ArithmeticError) as error:
                print(f"fedjax-sim run: {error}", file=sys.stderr)
            except KeyboardInterrupt as error:
                print(f"fedjax-sim run: {str(error) or 'stopped'}", file=sys.stderr)
                status = 128 + int(getattr(error, "signal", 2))
    except BaseException:
        traceback.print_exc()
    if status:
        sys.stderr.flush()
        os._exit(status)  # at its end JAX would wait for the other processes, which may never come
    return 0


def _run(options: argparse.Namespace, tables: Tables) -> int:
    folder = folder_of(options, options.configuration)
    with contextlib.ExitStack() as stack:
        try:
            devices = _prepare(options, tables)
            import jax

            from fedjax_sim.run.configuration.building import arguments

            first = jax.process_index() == 0
            if first:
                stack.enter_context(results_in(folder, *_FILES))
            say = voice(options) if first else _nothing
            given = arguments(tables)
            share_out(given, options.devices)
            say(f"{Path(options.configuration).name}: {in_short(given)}")
            say(f"on {hardware(devices, options.devices)}")

            from fedjax_sim.run.simulation import simulate

            history = simulate(**given, progress=None if first and say is print else False)
        except (ValueError, TypeError) as error:
            return refused_by_run(options, error, tables)
        if first:
            _write(history, folder, tables, options, say)
    return 0


def _prepare(options: argparse.Namespace, tables: Tables) -> str | None:
    """All that must be said before JAX starts; returns what was chosen, in words."""
    from fedjax_sim.core.devices import MOST, available_cores

    devices, threads = options.devices, options.threads
    if options.seat is not None:  # the processes of one machine share its cores
        cores = max(1, available_cores() // options.seat.processes)
        devices, threads = devices or min(MOST, cores), threads or cores
    chosen = begin(options, tables, devices=devices, threads=threads)
    if options.seat is None and not options.distributed:
        return chosen
    processes.take(options.seat)
    import jax

    return f"{jax.process_count()} processes, each with {chosen}"


def _write(history: History, folder: Path, tables: Tables, options: argparse.Namespace, say: Say) -> None:
    places = [folder / name for name in _FILES]
    files = {"history": places[0], "configuration": places[1]}
    write_run(history, tables, *files.values())
    plotted = drawn(lambda: _plot(history, places[2]))
    if plotted is None:
        files["plot"] = places[2]
    if options.json:
        print(json.dumps(summary(history, files), allow_nan=False))
        return
    say(f"\n{history.table()}")
    layout = history.description["run"]["layout"]["name"].rpartition(".")[2]
    say(f"compiling {history.compile_seconds:.1f} s, running {history.seconds:.1f} s; layout {layout!r}")
    if processes.are_several() and layout != "mesh":
        say(f"every process computed the same: layout {layout!r} does not share a run out, layout 'mesh' does")
    for seed, stop in history.stops.items():
        say(f"seed {seed} stopped after round {stop.round}: {stop.reason}")
    for divergence in history.divergences:
        say(f"diverged: {divergence}")
    say(f"wrote {', '.join(map(str, files.values()))}{'' if plotted is None else f'; no plot: {plotted}'}")


def _plot(history: History, path: Path) -> None:
    """Draws the losses and accuracies."""
    from fedjax_sim.reporting.panels import comparison

    dataset = str(history.description["dataset"]["name"]).rpartition(".")[2]
    comparison({dataset: {history.algorithm: history}}, path)


def _arguments(options: argparse.Namespace) -> list[str]:
    """The command line of the processes that ``--processes`` starts."""
    given = ["run", options.configuration]
    given += [f"--set={change}" for change in options.changes]
    values = {name: getattr(options, name) for name in ("out", "devices", "threads")}
    given += [f"--{name}={value}" for name, value in values.items() if value is not None]
    return given + [f"--{name.replace('_', '-')}" for name in ("no_cache", "quiet", "json", "traceback")
                    if getattr(options, name)]  # fmt: skip


def _nothing(text: str) -> None:
    pass
