"""``fedjax-sim run``: a configuration becomes a history, a plot and a table."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli import launch as processes
from fedjax_sim.cli import output
from fedjax_sim.cli.options import add_configuration, add_running, count, silent
from fedjax_sim.cli.output import Results, begin, configured, hardware, in_short, refusing, share_out, summary
from fedjax_sim.cli.process import status_of

if TYPE_CHECKING:
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History

_FILES = ("history.npz", "configuration.toml", "plot.png")


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("run", help="run a configuration (TOML): a history, a plot, a table")
    add_configuration(command)
    several = command.add_mutually_exclusive_group()
    several.add_argument("--processes", type=count, metavar="P", help="compute in P processes on this machine")
    about = "this is one of several processes that SLURM, mpirun or a TPU pod has started"
    several.add_argument("--distributed", action="store_true", help=about)
    several.add_argument("--seat", type=processes.Seat.read, help=argparse.SUPPRESS)  # given by --processes
    add_running(command, ", ".join(_FILES), "results/NAME of the configuration", "the cohort")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it, here or in several processes."""
    with configured(options) as (tables, results):
        if options.processes is None or options.processes == 1:
            return _run_here(options, tables, results)
        results.hold(*_FILES)
    return processes.start(_arguments(options), options.processes)  # the first process holds the folder


def _run_here(options: argparse.Namespace, tables: Tables, results: Results) -> int:
    """In this process, which may be one of several."""
    if options.seat is None and not options.distributed:
        return _run(options, tables, results)
    if options.seat is not None:
        processes.end_with_parent()
    options.run = lambda _: _run(options, tables, results)
    status = 1
    try:
        with processes.only_our_words():
            status = status_of(options)
    except BaseException:
        traceback.print_exc()
    if status:
        results.close()
        sys.stderr.flush()
        os._exit(status)  # at its end JAX would wait for the other processes, which may never come
    return 0


def _run(options: argparse.Namespace, tables: Tables, results: Results) -> int:
    with refusing(tables):
        devices = _prepare(options, tables)
        import jax

        from fedjax_sim.run.configuration.building import arguments
        from fedjax_sim.run.simulation import simulate

        first = jax.process_index() == 0
        if first:
            results.hold(*_FILES)
        else:
            results.say = silent
        given = arguments(tables)
        share_out(given, options.devices)
        results.begun(options.configuration, in_short(given), hardware(devices, options.devices))
        history = simulate(**given, progress=results.progress)
    if first:
        _write(history, tables, results)
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


def _write(history: History, tables: Tables, results: Results) -> None:
    import jax

    from fedjax_sim.reporting.panels import comparison

    results.files |= results.write_run(history, tables, "history", "configuration")
    dataset = output.short_name(history.description["dataset"])
    results.draw(lambda path: comparison({dataset: {history.algorithm: history}}, path), "plot.png")
    if results.tell(summary(history, results.files)):
        return
    results.say(f"\n{history.table()}")
    layout = output.short_name(history.description["run"]["layout"])
    results.say(f"compiling {history.compile_seconds:.1f} s, running {history.seconds:.1f} s; layout {layout!r}")
    if jax.process_count() > 1 and layout != "mesh":
        results.say(f"every process computed the same: layout {layout!r} does not share a run out, layout 'mesh' does")
    for seed, stop in history.stops.items():
        results.say(f"seed {seed} stopped after round {stop.round}: {stop.reason}")
    for divergence in history.divergences:
        results.say(f"diverged: {divergence}")
    results.end()


def _arguments(options: argparse.Namespace) -> list[str]:
    """The command line of the processes that ``--processes`` starts."""
    values = {name: getattr(options, name) for name in ("out", "devices", "threads")}
    flags = [name for name in ("no_cache", "quiet", "json", "traceback") if getattr(options, name)]
    return [
        *("run", options.configuration, *(f"--set={change}" for change in options.changes)),
        *(f"--{name}={value}" for name, value in values.items() if value is not None),
        *(f"--{name.replace('_', '-')}" for name in flags),
    ]
