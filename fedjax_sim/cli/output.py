"""What the commands that run configurations do alike: what is said to JAX first, folders, errors, summaries."""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedjax_sim.core.locks import Lock
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History

USAGE = 2  # the exit status of a configuration that cannot be run
# Arguments of simulate, and the values with which they say nothing that other functions would not do.
_NOTHING_SAID = {
    "on_divergence": "record", "divergence_factor": 10.0, "checkpoint": None, "every": None, "keep": 2, "stop": None,
    "allow_opaque": False, "client_states": None, "keep_state": False, "initial_state": None,
}  # fmt: skip


def begin(
    options: argparse.Namespace, tables: Tables, *, devices: int | None = None, threads: int | None = None
) -> str | None:
    """Precision, generator, CPU devices, kept programs, before JAX starts; returns the devices in words, if set."""
    import jax

    from fedjax_sim.cli.before_jax import settle
    from fedjax_sim.core.keys import use_generator
    from fedjax_sim.run.configuration.building import precision, random_generator

    asked, drawn = precision(tables), random_generator(tables)
    if asked is not None and options.own_process:
        jax.config.update("jax_enable_x64", asked == "float64")
    if drawn and options.own_process:
        use_generator(drawn)
    chosen = settle(options, devices=devices, threads=threads, cache=not options.no_cache)
    return None if chosen is None else str(chosen)


def hardware(chosen: str | None, asked: int | None) -> str:
    """The devices of a run in words.

    Args:
      chosen: what :func:`begin` returned.
      asked: the number of devices that were asked for.
    """
    import jax

    if jax.default_backend() == "cpu" and chosen is not None:
        return chosen
    return f"{asked or jax.device_count()} x {jax.devices()[0].device_kind}"


def share_out(given: dict[str, Any], asked: int | None) -> None:
    """Gives a run the layout that uses as many accelerators as were asked for; a CPU's devices are used anyway.

    Raises:
      ValueError: there are fewer.
    """
    import jax

    if asked is None or jax.default_backend() == "cpu":
        return
    from fedjax_sim.engine.layout.mesh import mesh

    check_devices(asked)
    given.setdefault("layout", mesh(asked))


def check_devices(asked: int) -> None:
    """Raises ``ValueError`` where there are fewer devices than were asked for."""
    import jax

    present = jax.device_count()
    if asked > present:
        raise ValueError(f"--devices {asked}: there are {present} of {jax.devices()[0].device_kind}")


def taken_by(function: Callable[..., Any], given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those arguments of a run that ``function`` takes too, and the names of the others, left out if they matter."""
    accepted = inspect.signature(function).parameters
    rest = [name for name, value in given.items() if name not in accepted and value != _NOTHING_SAID.get(name, ...)]
    return {name: value for name, value in given.items() if name in accepted}, rest


def folder_of(options: argparse.Namespace, configuration: str, ending: str = "") -> Path:
    """``--out``, else ``results/NAME`` and the ending."""
    return Path("results", Path(configuration).stem + ending) if options.out is None else Path(options.out)


def results_in(folder: Path, *files: str) -> Lock:
    """The folder for results, which nobody else writes to until the lock is released.

    Args:
      folder: it is made where it is missing.
      files: names of the results.

    Raises:
      OSError: before the run, and not after it: they cannot be written there, or another run writes to the folder.
    """
    from fedjax_sim.core.atomic import check_replaceable
    from fedjax_sim.core.locks import Lock

    for name in files:
        check_replaceable(folder / name)
    return Lock(folder, "results", ".results.lock")


def refused(options: argparse.Namespace, error: Exception, source: str | None = None) -> int:
    """The configuration cannot be run: what is refused is refused before anything is compiled."""
    if getattr(options, "traceback", False):
        raise error
    where = "" if source is None or str(error).startswith((source, "--")) else f"{source}: "
    print(f"fedjax-sim {options.command}: {where}{error}", file=sys.stderr)
    return USAGE


def refused_by_run(options: argparse.Namespace, error: Exception, tables: Tables) -> int:
    """As :func:`refused`, with the table of the configuration that the error is about."""
    from fedjax_sim.run.configuration.building import placed
    from fedjax_sim.run.configuration.tables import ConfigurationError

    if isinstance(error, ConfigurationError) or str(error).startswith("--") or getattr(options, "traceback", False):
        return refused(options, error)
    return refused(options, placed(str(error), tables))


def in_short(given: dict[str, Any]) -> str:
    """``fedprox on synthetic, 100 rounds, 3 seeds``."""
    from fedjax_sim.core.descriptions import describe
    from fedjax_sim.engine.checks import check_seeds

    names = [describe(given[part]).get("name", "?").rpartition(".")[2] for part in ("algorithm", "dataset")]
    seeds = check_seeds(given.get("seeds", 0))
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"{' on '.join(names)}, {given['rounds']} rounds, {said}"


def summary(history: History, files: dict[str, Path]) -> dict[str, Any]:
    """What scripts need of a run; what is not finite is null, as JSON has no other word for it."""
    final = {name: history.final(name) for name in history.metrics}
    return {
        "algorithm": history.algorithm,
        "rounds": int(history.evaluated[-1]),
        "seeds": history.seeds,
        "final": {name: finite(value.tolist()) for name, value in final.items()},
        "seconds": history.seconds,
        "compile_seconds": history.compile_seconds,
        "layout": history.description["run"]["layout"],
        "device": history.description["environment"]["device"],
        "stops": {str(seed): list(stop) for seed, stop in history.stops.items()},
        "divergences": [str(one) for one in history.divergences],
        "files": {name: str(path) for name, path in files.items()},
    }


def finite(value: Any) -> Any:
    """Numbers, lists and tables of them with None for what is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def write_run(history: History, tables: Tables, place: Path, configuration: Path) -> None:
    """Writes a history, and beside it its full configuration."""
    from fedjax_sim.core.atomic import write_atomically
    from fedjax_sim.run.configuration.writing import written

    history.save(place)
    write_atomically(configuration, written(history, tables.content.get("run", {})).encode())


def drawn(draw: Callable[[], object]) -> str | None:
    """Draws a figure; returns why not, where matplotlib is missing."""
    try:
        draw()
    except ImportError as error:
        return str(error)
    return None
