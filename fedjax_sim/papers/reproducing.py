"""Performs experiments by name and writes down what came out, one or all of them."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from fedjax_sim.core.devices import environment
from fedjax_sim.core.files import check_writable, remove_left_overs, write_atomically
from fedjax_sim.core.values import check_count
from fedjax_sim.core.version import __version__
from fedjax_sim.papers import writing
from fedjax_sim.papers.bench import INSTEAD, SIZES, Bench, Claim, Effect, Scale, Size
from fedjax_sim.papers.catalogue import CATALOGUE, check_name, load, source
from fedjax_sim.papers.overview import Line, board
from fedjax_sim.reporting.table import number_of
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps.result import Sweep


def reproduce(
    name: str,
    *,
    size: Size = "cpu",
    seeds: int | None = None,
    out: str | os.PathLike[str] = "results/reproduce",
    fresh: bool = False,
    show: Callable[[str], None] = print,
) -> writing.Report:
    """Performs an experiment of a paper and writes its figures, tables, claims and raw results.

    They go to ``<out>/<size>/<name>``; finished runs to ``<out>/<size>/runs``, where experiments that are drawn from
    the same runs find them, and a call after an interruption goes on.

    Args:
      name: of the catalogue: ``"fednova-fig2"``.
      size: ``"smoke"`` (seconds, to see that everything works), ``"cpu"`` (minutes to an hour and a half: the
        catalogue's ``minutes``; what is smaller than the paper's setting is printed beside it) or ``"paper"`` (the
        paper's setting; some want a GPU).
      seeds: their number; None for the experiment's own at this size.
      out: folder.
      fresh: forget finished runs first (they are told apart by settings, data and the package's version, not by its
        code). With a name this forgets all of ``size``.
      show: what to do with each line of text.

    Returns:
      The report, as in ``claims.json``.

    Raises:
      ValueError: an unknown name or size.
      FileNotFoundError: at the paper's size, data is missing; the message says which and how to come by it.
      OSError: the folder cannot be written; before anything is run.
    """
    check_name(name)
    if size not in SIZES:
        raise ValueError(f"size={size!r}: it must be one of {', '.join(map(repr, SIZES))}")
    if seeds is not None:
        check_count("reproduce(seeds=...)", seeds)
    folder = Path(out) / size
    if fresh:
        _forget(folder)
    for place in (folder / "runs", folder / name):
        check_writable(place)
        remove_left_overs(place)
    entry, perform = CATALOGUE[name], load(name)
    bench = Bench(size, entry.seeds(size) if seeds is None else seeds, folder / "runs", show)
    show(f"\n{name} ({size}): {entry.title}. {source(name)}")
    begin = time.perf_counter()
    outcome = perform(bench)
    report = writing.Report(
        name=name, title=entry.title, source=source(name), size=size, seeds=len(bench.seeds), version=__version__,
        seconds=round(time.perf_counter() - begin, 1),
        run_seconds=round(sum(run.seconds + run.compile_seconds for run in bench.recorded.values()), 1),
        where=f"fedjax_sim {__version__}, {_places(bench.recorded.values())}",
        data=bench.data, settings=list(outcome.settings),
        claims=[_settled(claim, len(bench.seeds)) for claim in outcome.claims],
        figures=list(outcome.figures),
        # A seed that never came to a target has no ratio: then the tables say so, and there is no effect.
        effects=[Effect(**writing.plain(effect._asdict())) for effect in outcome.effects
                 if np.isfinite(effect.values).all()],
        scale=Scale(**writing.plain(outcome.scale._asdict())), see=outcome.see,
    )  # fmt: skip
    writing.write(folder / name, report, outcome, bench.recorded)
    different = [setting for setting in report.settings if setting.here != setting.paper]
    if different:
        width = max(len(setting.what) for setting in different)
        show("where this differs from the paper's setting:")
        for setting in different:
            show(f"  {setting.what:{width}}  {setting.here}; the paper: {setting.paper}")
    show("claims, which mean nothing at this size:" if size == "smoke" else "claims:")
    for line in writing.claims_in_words(report.claims):
        show(f"  {line}")
    show(f"wrote {folder / name} ({report.seconds:.0f} s)")
    return report


def _places(runs: Collection[History | Sweep]) -> str:
    """Where the runs were computed, which need not be here: "jax 0.10.1, 2 x cpu", with counts where they differ."""
    known = [run.description["environment"] for run in runs] or [environment()]
    places = Counter(f"jax {of['jax']}, {of['device']}" for of in known)
    if len(places) < 2:
        return "".join(places)
    return "; ".join(f"{place}: {number_of(number, 'run')}" for place, number in places.items())


def _settled(claim: Claim, seeds: int) -> Claim:
    """With plain numbers and a plain answer (numpy's False is not False), and the seeds it rests on."""
    held = None if claim.held is None else bool(claim.held)
    rests_on = seeds if claim.seeds is None else claim.seeds
    return claim._replace(held=held, numbers=writing.plain(claim.numbers), seeds=rests_on)


def reproduce_all(
    names: Sequence[str] = tuple(CATALOGUE),
    *,
    size: Size = "cpu",
    seeds: int | None = None,
    out: str | os.PathLike[str] = "results/reproduce",
    fresh: bool = False,
    show: Callable[[str], None] = print,
) -> list[Line]:
    """Performs many experiments one after another, and writes a board of their claims, ``<out>/<size>/board.md``.

    What is complete is not done again, so a call after an interruption goes on; what had other data than it asks for,
    since files were missing, is looked at again, and runs that would be the same are read. An experiment that fails is
    reported with its traceback and the others go on.
    """
    for name in names:
        check_name(name)
    folder = Path(out) / size
    check_writable(folder)
    if fresh:
        _forget(folder)
    show(cost(names, size))
    lines = []
    for name in names:
        try:
            wanted = CATALOGUE[name].seeds(size) if seeds is None else seeds
            known = writing.read(folder / name)
            if known is not None and (known.version, known.seeds) == (__version__, wanted) and _as_asked(known):
                show(f"{name}: complete already{'' if not known.data else f' ({known.data[0]})'}")
                lines.append(Line(name, known, ""))
                continue
            lines.append(Line(name, reproduce(name, size=size, seeds=seeds, out=out, show=show), ""))
        except Exception as error:  # the others should not be lost for one
            show(traceback.format_exc())
            lines.append(Line(name, None, f"{type(error).__name__}: {error}".partition("\n")[0]))
    rest = [Line(name, writing.read(folder / name), "") for name in CATALOGUE if name not in names]
    both = [*lines, *(line for line in rest if line.report is not None)]
    places = {name: place for place, name in enumerate(CATALOGUE)}
    write_atomically(folder / "board.md", board(sorted(both, key=lambda line: places[line.name])).encode())
    return lines


def _as_asked(report: writing.Report) -> bool:
    """Whether it was done on the data that its size asks for, and not on the nearest, for want of files."""
    return report.size == "smoke" or not any(INSTEAD in words for words in report.data)


def cost(names: Sequence[str], size: Size) -> str:
    """What a call will take, before it starts: hours as measured once; shared runs count once, stored runs too."""
    if size == "smoke":
        return f"{len(names)} experiments at size smoke: a few minutes"
    hours = {name: CATALOGUE[name].minutes / 60 if size == "cpu" else CATALOGUE[name].hours for name in names}
    known = {name: value for name, value in hours.items() if value is not None}
    total = sum(value for name, value in known.items() if CATALOGUE[name].of not in known)
    of = "" if len(known) == len(names) else f" for {len(known)} of them"
    where = "on a core or two beside other work" if size == "cpu" else "on two cores"
    said = f"{len(names)} experiments at size {size}: {total:.1f} hours {where}{of}, shared runs counted once"
    unknown = [name for name, value in hours.items() if value is None]
    return f"{said}; not measured, for most want a GPU: {', '.join(unknown)}" if unknown else said


def _forget(folder: Path) -> None:
    """Finished runs and what was made of them: an experiment is not complete without its runs."""
    runs = folder / "runs"  # perhaps a link to a larger disk, which stays
    for item in runs.iterdir() if runs.is_dir() else ():
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
    for head in folder.glob(f"*/{writing.CLAIMS}"):
        head.unlink()
