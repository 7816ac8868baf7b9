"""``fedjax-sim run``: a configuration becomes a history, a plot and a table."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.command import processes
from fedjax_sim.command.completion import FILES, FOLDERS, completed

if TYPE_CHECKING:
    from fedjax_sim.configuration.tables import Tables
    from fedjax_sim.history import History

USAGE = 2  # the exit status of a configuration that cannot be run


def add_to(commands: Any) -> None:
    """Adds the command."""
    command = commands.add_parser("run", help="run a configuration (TOML): a history, a plot, a table")
    add = command.add_argument
    file = add("configuration", metavar="CONFIG.toml", help="what to run; `fedjax-sim init` writes an example")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
        help="another value, as TOML: --set algorithm.mu=0.1; may be given several times")  # fmt: skip
    out = add("--out", metavar="DIR", help="where to write history.npz, configuration.toml and plot.png (default: "
              "results/NAME of the configuration)")  # fmt: skip
    add("--devices", type=_count, metavar="N", help="on a CPU: virtual devices that share the cohort (default: one a "
        "core, at most 8); on GPUs or TPUs: how many of those that are there (default: one)")  # fmt: skip
    add("--threads", type=_count, metavar="N", help="on a CPU: threads that all devices' operations share (default: 1 "
        "where every core has a device, else XLA's choice)")  # fmt: skip
    several = command.add_mutually_exclusive_group()
    several.add_argument("--processes", type=_count, metavar="P", help="compute in P processes on this machine")
    several.add_argument("--distributed", action="store_true", help="this is one of several processes that SLURM, "
                         "mpirun or a TPU pod has started")  # fmt: skip
    several.add_argument("--seat", type=processes.Seat.read, help=argparse.SUPPRESS)  # given by --processes
    add("--no-cache", action="store_true", help="compile anew: neither read nor keep compiled programs")
    said = command.add_mutually_exclusive_group()
    said.add_argument("--quiet", action="store_true", help="say nothing but errors")
    said.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add("--traceback", action="store_true", help="of an error, show where in the program it came from")
    completed(file, FILES)
    completed(out, FOLDERS)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs it, here or in several processes."""
    from fedjax_sim.configuration.tables import load

    try:
        tables = load(options.configuration, options.changes)
        if options.processes is not None and options.processes > 1:
            _writable(_folder(options))
            return processes.start(_arguments(options), options.processes)
        if options.seat is None and not options.distributed:
            return _run(options, tables)
    except (ValueError, TypeError) as error:
        return _refused(options, error)
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
            except (ValueError, TypeError) as error:
                status = _refused(options, error)
            except (OSError, ImportError, ArithmeticError) as error:
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
    devices = _prepare(options, tables)
    import jax

    from fedjax_sim.configuration.building import arguments

    first = jax.process_index() == 0
    folder = _folder(options)
    if first:
        _writable(folder)
    say = print if first and not (options.quiet or options.json) else _nothing
    given = arguments(tables)
    if options.devices is not None and jax.default_backend() != "cpu":
        given.setdefault("layout", _mesh(options.devices))
    say(f"{Path(options.configuration).name}: {_in_short(given)}")
    say(f"on {devices if jax.default_backend() == 'cpu' else _accelerators(options.devices)}")

    from fedjax_sim.simulation import simulate

    history = simulate(**given, progress=None if first and say is print else False)
    if first:
        _write(history, folder, tables, options, say)
    return 0


def _prepare(options: argparse.Namespace, tables: Tables) -> str:
    """All that must be said before JAX starts; returns what was chosen, in words."""
    import jax

    from fedjax_sim.command.settling import settle
    from fedjax_sim.configuration.building import precision
    from fedjax_sim.devices import MOST, available_cores

    asked = precision(tables)
    if asked is not None and options.own_process:
        jax.config.update("jax_enable_x64", asked == "float64")
    count, threads = options.devices, options.threads
    if options.seat is not None:  # the processes of one machine share its cores
        cores = max(1, available_cores() // options.seat.processes)
        count, threads = count or min(MOST, cores), threads or cores
    chosen = settle(options, devices=count, threads=threads, cache=not options.no_cache)
    if options.seat is None and not options.distributed:
        return str(chosen or f"{jax.device_count()} x {jax.devices()[0].device_kind}")
    processes.take(options.seat)
    return f"{jax.process_count()} processes, each with {chosen}"


def _write(
    history: History, folder: Path, tables: Tables, options: argparse.Namespace, say: Callable[[str], None]
) -> None:
    from fedjax_sim.configuration.writing import written
    from fedjax_sim.reporting.files import write_atomically

    history.save(folder / "history.npz")
    run = tables.content.get("run", {})
    write_atomically(folder / "configuration.toml", written(history, run).encode())
    files = {"history": folder / "history.npz", "configuration": folder / "configuration.toml"}
    plotted = _plot(history, folder / "plot.png")
    if plotted is None:
        files["plot"] = folder / "plot.png"
    if options.json:
        print(json.dumps(_summary(history, files), allow_nan=False))
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


def _plot(history: History, path: Path) -> str | None:
    """Draws the losses and accuracies; returns why not, where matplotlib is missing."""
    from fedjax_sim.reporting.grid import comparison

    try:
        dataset = str(history.description["dataset"]["name"]).rpartition(".")[2]
        comparison({dataset: {history.algorithm: history}}, path)
    except ImportError as error:
        return str(error)
    return None


def _summary(history: History, files: dict[str, Path]) -> dict[str, Any]:
    """What scripts need; what is not finite is null, as JSON has no other word for it."""
    final = {name: history.final(name) for name in history.metrics}
    return {
        "algorithm": history.algorithm,
        "rounds": int(history.evaluated[-1]),
        "seeds": history.seeds,
        "final": {name: _finite(value.tolist()) for name, value in final.items()},
        "seconds": history.seconds,
        "compile_seconds": history.compile_seconds,
        "layout": history.description["run"]["layout"],
        "device": history.description["environment"]["device"],
        "stops": {str(seed): list(stop) for seed, stop in history.stops.items()},
        "divergences": [str(one) for one in history.divergences],
        "files": {name: str(path) for name, path in files.items()},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _in_short(given: dict[str, Any]) -> str:
    """``fedprox on synthetic, 100 rounds, 3 seeds``."""
    from fedjax_sim.descriptions import describe
    from fedjax_sim.simulation import check_seeds

    names = [describe(given[part]).get("name", "?").rpartition(".")[2] for part in ("algorithm", "dataset")]
    seeds = check_seeds(given.get("seeds", 0))
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"{' on '.join(names)}, {given['rounds']} rounds, {said}"


def _mesh(count: int) -> Any:
    import jax

    from fedjax_sim.layout.mesh import mesh

    present = jax.device_count()
    if count > present:
        raise ValueError(f"--devices {count}: there are {present} of {jax.devices()[0].device_kind}")
    return mesh(count)


def _accelerators(asked: int | None) -> str:
    import jax

    return f"{asked or jax.device_count()} x {jax.devices()[0].device_kind}"


def _folder(options: argparse.Namespace) -> Path:
    return Path("results", Path(options.configuration).stem) if options.out is None else Path(options.out)


def _writable(folder: Path) -> None:
    """Fails before the run, and not after it, where its results could not be written."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written: give another folder by --out")


def _refused(options: argparse.Namespace, error: Exception) -> int:
    """The configuration cannot be run: what ``simulate`` refuses, it refuses before anything is compiled."""
    if options.traceback:
        raise error
    source = str(options.configuration)
    where = "" if str(error).startswith((source, "--set")) else f"{source}: "
    print(f"fedjax-sim run: {where}{error}", file=sys.stderr)
    return USAGE


def _arguments(options: argparse.Namespace) -> list[str]:
    """The command line of the processes that ``--processes`` starts."""
    given = ["run", options.configuration]
    given += [f"--set={change}" for change in options.changes]
    values = {name: getattr(options, name) for name in ("out", "devices", "threads")}
    given += [f"--{name}={value}" for name, value in values.items() if value is not None]
    return given + [f"--{name.replace('_', '-')}" for name in ("no_cache", "quiet", "json", "traceback")
                    if getattr(options, name)]  # fmt: skip


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: it must be at least 1")
    return value


def _nothing(text: str) -> None:
    pass
