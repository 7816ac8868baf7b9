"""What the commands that compute do alike: what is said to JAX first, what is refused, results, summaries."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_sim.cli.options import Say, voice
from fedjax_sim.cli.process import Refused

if TYPE_CHECKING:
    from fedjax_sim.core.devices import CpuDevices
    from fedjax_sim.core.files import Lock
    from fedjax_sim.run.configuration.tables import Tables
    from fedjax_sim.run.history import History

# By the first of these that is recorded, points of a sweep are compared.
CHOOSING = (*(f"{part}_{of}" for part in ("validation", "test") for of in ("accuracy", "data_loss", "loss")), "loss")


@contextlib.contextmanager
def refusing(tables: Tables | None = None) -> Iterator[None]:
    """Inside, an error is one of what was asked for: it is said with the table of the configuration it is about."""
    try:
        yield
    except Refused:
        raise
    except (ValueError, TypeError) as error:
        from fedjax_sim.run.configuration.building import placed
        from fedjax_sim.run.configuration.tables import ConfigurationError

        if tables is not None and not isinstance(error, ConfigurationError) and not str(error).startswith("--"):
            error = placed(str(error), tables)
        raise Refused(str(error)) from error


def settle(
    options: argparse.Namespace, *, devices: int | None = None, threads: int | None = None, cache: bool = True
) -> CpuDevices | None:
    """Chooses CPU devices and where compiled programs are kept, before JAX starts.

    Nothing is done, and None returned, where a Python program called the command: its settings are left as they are.
    """
    if not options.own_process:
        return None
    import jax

    from fedjax_sim.core.devices import use_cpu_devices
    from fedjax_sim.core.programs import keep_programs

    chosen = use_cpu_devices(devices, threads)  # the number of threads is part of what programs are kept for
    if not cache:
        jax.config.update("jax_enable_compilation_cache", False)
    elif reason := keep_programs():
        print(f"fedjax-sim: compiled programs are not kept: {reason}", file=sys.stderr)
    return chosen


def begin(
    options: argparse.Namespace, tables: Tables, *, devices: int | None = None, threads: int | None = None
) -> str | None:
    """As :func:`settle`, with the configuration's precision and random generator; the devices in words, if set."""
    import jax

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
    """The devices of a run in words: those that :func:`begin` chose, or as many as were asked for."""
    import jax

    if jax.default_backend() == "cpu" and chosen is not None:
        return chosen
    return f"{asked or jax.device_count()} x {jax.devices()[0].device_kind}"


def share_out(given: dict[str, Any], asked: int | None) -> None:
    """Gives a run the layout that uses as many accelerators as were asked for; a CPU's devices are used anyway."""
    import jax

    if asked is not None and jax.default_backend() != "cpu":
        from fedjax_sim.engine.layout.mesh import mesh

        check_devices(asked)
        given.setdefault("layout", mesh(asked))


def check_devices(asked: int) -> None:
    """Raises ``ValueError`` where there are fewer devices than were asked for."""
    import jax

    if asked > jax.device_count():
        raise ValueError(f"--devices {asked}: there are {jax.device_count()} of {jax.devices()[0].device_kind}")


def taken_by(function: Callable[..., Any], given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those arguments of ``simulate`` that ``function`` takes too, and the names of others that are not defaults."""
    from fedjax_sim.run.simulation import simulate

    accepted, known = (inspect.signature(one).parameters for one in (function, simulate))
    rest = [name for name, value in given.items() if name not in accepted and value != known[name].default]
    return {name: value for name, value in given.items() if name in accepted}, rest


def results_in(folder: Path, *files: str) -> Lock:
    """The folder for results, which nobody else writes to until the lock is released.

    Before the run, and not after it, an ``OSError`` says that they cannot be written, or that another run does it.
    """
    from fedjax_sim.core.files import Lock, check_replaceable

    for name in files:
        check_replaceable(folder / name)
    return Lock(folder, "results", ".results.lock")


class Results(contextlib.ExitStack):
    """What a command writes to its folder, ``--out`` or ``results/NAME`` with an ending, and how it tells of it."""

    def __init__(self, options: argparse.Namespace, configuration: str, ending: str = "") -> None:
        super().__init__()
        self.folder = Path(options.out or Path("results", Path(configuration).stem + ending))
        self.files: dict[str, Path] = {}  # that were written, by what they are
        self.say: Say = voice(options)
        self._json = options.json
        self._no_plot = ""

    @property
    def progress(self) -> bool | None:
        """Of runs: shown on a terminal, unless nothing is to be said."""
        return None if self.say is print else False

    def begun(self, configuration: str, what: str, devices: str) -> None:
        """Says what is run where."""
        self.say(f"{Path(configuration).name}: {what}")
        self.say(f"on {devices}")

    def hold(self, *files: str) -> None:
        """Keeps the folder for these files, as :func:`results_in`, until the context is left."""
        self.enter_context(results_in(self.folder, *files))

    def place(self, what: str, name: str) -> Path:
        """Where a file goes, which is noted as written."""
        self.files[what] = self.folder / name
        return self.files[what]

    def draw(self, draw: Callable[[Path], object], name: str) -> None:
        """Draws the figure, unless matplotlib is missing."""
        reason = drawn(lambda: draw(self.folder / name))
        if reason is None:
            self.place("plot", name)
        else:
            self._no_plot = f"; no plot: {reason}"

    def write_run(self, history: History, tables: Tables, stem: str, configuration: str = "") -> dict[str, Path]:
        """Writes a history, and beside it its full configuration; returns where."""
        from fedjax_sim.core.files import write_atomically
        from fedjax_sim.run.configuration.writing import written

        told = self.folder / f"{configuration or stem}.toml"
        files = {"history": self.folder / f"{stem}.npz", "configuration": told}
        history.save(files["history"])
        write_atomically(
            files["configuration"], written(history, tables.content.get("run", {}), tables.content).encode()
        )
        return files

    def tell(self, about: dict[str, Any], file: str = "") -> bool:
        """Writes and prints what scripts read, with the files; returns whether that is all that should be printed."""
        about |= {"files": {name: str(path) for name, path in self.files.items()}}
        if file:
            from fedjax_sim.core.files import write_atomically

            write_atomically(self.folder / file, json.dumps(about, indent=1, allow_nan=False).encode())
        if self._json:
            print(json.dumps(about, allow_nan=False))
        return bool(self._json)

    def end(self, more: str = "") -> None:
        """Says what was written."""
        self.say(f"wrote {', '.join(map(str, self.files.values()))}{more}{self._no_plot}")


@contextlib.contextmanager
def configured(options: argparse.Namespace, ending: str = "") -> Iterator[tuple[Tables, Results]]:
    """The configuration of a command, and what it writes."""
    from fedjax_sim.run.configuration.tables import load

    with refusing():
        tables = load(options.configuration, options.changes)
    with Results(options, options.configuration, ending) as results:
        yield tables, results


def drawn(draw: Callable[[], object]) -> str | None:
    """Draws a figure; returns why not, where matplotlib is missing."""
    try:
        draw()
    except ImportError as error:
        return str(error)
    return None


def in_short(given: dict[str, Any]) -> str:
    """``fedprox on synthetic, 100 rounds, 3 seeds``."""
    from fedjax_sim.core.descriptions import describe
    from fedjax_sim.engine.checks import check_seeds

    names = [short_name(describe(given[part])) for part in ("algorithm", "dataset")]
    seeds = check_seeds(given.get("seeds", 0))
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"{' on '.join(names)}, {given['rounds']} rounds, {said}"


def short_name(described: dict[str, Any]) -> str:
    """What made a part, in one word."""
    return str(described.get("name", described.get("opaque", "?"))).rpartition(".")[2]


def summary(history: History, files: dict[str, Path]) -> dict[str, Any]:
    """What scripts need of a run; what is not finite, of a model that diverged, or not in an old file, is null."""
    from fedjax_sim.reporting.recorded import measured

    return {
        "algorithm": history.algorithm,
        "rounds": int(history.evaluated[-1]),
        "seeds": history.seeds,
        "final": {name: finite(measured(history, name)[:, -1].tolist()) for name in history.metrics},
        "seconds": history.seconds,
        "compile_seconds": history.compile_seconds,
        "layout": history.description.get("run", {}).get("layout"),
        "device": history.description.get("environment", {}).get("device"),
        "stops": {str(seed): list(stop) for seed, stop in history.stops.items()},
        "divergences": [str(one) for one in history.divergences],
        "files": {name: str(path) for name, path in files.items()},
    }


def pairs(histories: Mapping[str, History], against: str | None = None) -> list[dict[str, Any]]:
    """Every other run minus ``against``, or the first, with paired tests."""
    from fedjax_sim.reporting.paired import paired

    return [finite({**row._asdict(), "finals": row.finals.tolist()}) for row in paired(histories, against=against)]


def finite(value: Any) -> Any:
    """Numbers, lists and tables of them with None for what is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None
