"""``fjs.benchmark.run``: one method through the comparison, what that costs, and its results as files."""

from __future__ import annotations

import csv
import io
import lzma
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.files import parsing, write_atomically
from fedjax_sim.core.values import check_choice, check_count, suggest
from fedjax_sim.studies.benchmark import running
from fedjax_sim.studies.benchmark.evidence import Difference, as_table, differences
from fedjax_sim.studies.benchmark.methods import BASE, METHODS, Entry, entered
from fedjax_sim.studies.benchmark.personal import PERSONAL, fitting
from fedjax_sim.studies.benchmark.problems import PROBLEMS, Problem
from fedjax_sim.studies.benchmark.running import PROTOCOL, SMOKE, Choice, Protocol, Row, Runs
from fedjax_sim.studies.sweeps.space import Distribution

T = TypeVar("T", Choice, Row)
Make = str | Entry | Callable[..., Method]
FILES = ("choices.csv", "rows.csv.xz")
KNOWN = METHODS | PERSONAL


class Result(NamedTuple):
    """What a comparison found.

    Attributes:
      choices: a :class:`Choice` for each problem, method and draw.
      rows: a :class:`Row` for each of these, seed and evaluation.
    """

    choices: list[Choice]
    rows: list[Row]

    def differences(
        self, budget: str = "rounds", share: float = 1.0, by: str = "examples", base: str = BASE
    ) -> list[Difference]:
        """Every method minus FedAvg, or another, on every problem; see :func:`fedjax_sim.benchmark.differences`."""
        return differences(self.rows, budget, share, by, base)

    def table(self, form: str = "text", *, base: str = BASE, **read: Any) -> str:
        """The differences as a table: ``read`` are the other arguments of :meth:`differences`."""
        versions = sorted({row.version for row in self.rows} - {PROTOCOL.version})
        notes = [f"note: version {version!r}, not the protocol's {PROTOCOL.version!r}" for version in versions]
        return as_table(self.differences(**read, base=base), form, notes, base)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``choices.csv`` and ``rows.csv.xz``, real numbers to six digits; a choice's point has all of them."""
        choices, rows = Path(folder) / FILES[0], Path(folder) / FILES[1]
        write_atomically(choices, _csv(Choice, self.choices))
        write_atomically(rows, lzma.compress(_csv(Row, self.rows)))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Result:
        """Reads what :meth:`save` wrote."""
        return cls(_read(Path(folder) / FILES[0], Choice), _read(Path(folder) / FILES[1], Row))

    def joined(self, other: Result) -> Result:
        """Both, of what both have the other's; ``ValueError`` where their versions differ."""
        versions = sorted({row.version for row in [*self.rows, *other.rows]})
        if len(versions) > 1:
            raise ValueError(f"results of the versions {', '.join(versions)} of the protocol are not comparable")
        choices = {choice[:4]: choice for choice in [*self.choices, *other.choices]}
        rows = {row[:6]: row for row in [*self.rows, *other.rows]}
        return Result([*choices.values()], [*rows.values()])


class Cost(NamedTuple):
    """What a method costs on a problem, FedAvg's runs included where they are not stored yet."""

    problem: str
    fewest: int  # runs, if no range is made wider
    most: int  # if all are, as often as the protocol allows
    hours: tuple[float, float]  # of these, by a few rounds measured here


def protocol_of(size: str = "cpu", points_: int | None = None) -> Protocol:
    """The protocol at a size; with another number of points its version says so."""
    check_choice("benchmark(size=...)", size, ("smoke", "cpu"))
    protocol = SMOKE if size == "smoke" else PROTOCOL
    if points_ is None:
        return protocol
    check_count("benchmark(points=...)", points_)
    return protocol._replace(version=f"{protocol.version}, {points_} points", points=points_, deep_points=points_)


def run(
    method: Make,
    space: Mapping[str, Distribution] | None = None,
    *,
    name: str | None = None,
    problems: Sequence[str] | None = None,
    size: str = "cpu",
    points: int | None = None,
    folder: str | os.PathLike[str] = "benchmark-runs",
    show: Callable[[str], None] = print,
) -> Result:
    """Runs FedAvg and a method through the protocol, :data:`PROTOCOL`, on problems of :data:`PROBLEMS`.

    Both are tuned alike on every draw of a problem's data: as many points, drawn at random over the whole space, the
    best by the validation part; it is run anew with seeds of its own, and these runs are reported on the test part.

    Args:
      method: a name of :data:`METHODS` or :data:`PERSONAL`, or what makes one's own from ``client_optimizer=``. Where
        clients have models of their own, these are judged, each on the client's own held-out examples.
      space: of one's own, what its parameters are drawn from: ``{"mu": fjs.sweeps.log_uniform(1e-3, 1)}``. The clients'
        rate is drawn over the problem's range, and the server's, of a method that has one, over FedAvg's, if they are
        not among them.
      name: what to call one's own; None for the factory's name.
      problems: names; None for all twelve; of methods with personal models for the small ones on which clients have
        held-out examples of their own.
      size: ``"cpu"``, or ``"smoke"``, which only shows that everything runs.
      points: another number of them; results are then not those of the protocol's version.
      folder: for finished runs: what is there is not run again, so that a comparison that was stopped goes on.
      show: called with a line for every part that was run.

    Returns:
      A :class:`Result`, with FedAvg's rows beside the method's.

    Raises:
      ValueError: an unknown name, a name of the benchmark's for a method of one's own, or a problem on which the method
        cannot be judged.
      FileNotFoundError: the files of a problem's data are missing.

    Example, hours of work for all twelve problems; ``cost`` says how many::

        def mine(client_optimizer):
            return Mine(client_optimizer=client_optimizer)

        found = fjs.benchmark.run(mine, {"mu": fjs.sweeps.log_uniform(1e-3, 1.0)})
        print(found.table())
    """
    name, entry = named(method, space, name)
    protocol, found = protocol_of(size, points), Result([], [])
    for problem in problems_of(name, entry, problems):
        found = found.joined(performed(problem, {BASE: METHODS[BASE], name: entry}, protocol, Path(folder), show))
    return found


def performed(
    problem: str, entries: Mapping[str, Entry], protocol: Protocol, folder: Path, show: Callable[[str], None] = print
) -> Result:
    """Some methods on all draws of one problem, FedAvg among them."""
    found = Result([], [])
    for name, entry in entries.items():
        fitting(name, entry, (problem,))
    for draw in range(protocol.of(PROBLEMS[problem])[1]):
        for name, entry in entries.items():
            choice, rows = running.compared(name, entry, problem, draw, folder, protocol, show)
            found.choices.append(choice)
            found.rows.extend(rows)
    return found


def cost(
    method: Make,
    space: Mapping[str, Distribution] | None = None,
    *,
    name: str | None = None,
    problems: Sequence[str] | None = None,
    size: str = "cpu",
    points: int | None = None,
    folder: str | os.PathLike[str] = "benchmark-runs",
) -> list[Cost]:
    """What :func:`run` with these arguments costs, before it does: a few rounds of the method are measured.

    Raises:
      ValueError: as :func:`run`; also where the folder has runs of another method of this name.
    """
    name, entry = named(method, space, name)
    protocol, found = protocol_of(size, points), []
    for problem, of in problems_of(name, entry, problems).items():
        count, draws = protocol.of(of)
        places = {
            (label, draw): running.place_of(Path(folder), problem, label, draw, protocol)
            for label in dict.fromkeys((BASE, name)) for draw in range(draws)
        }  # fmt: skip
        # A folder is made before what is in it is computed.
        stored = [key for key, place in places.items() if any(place.glob("report/runs-*.npz"))]
        missing, each = len(places) - len(stored), count + len(protocol.seeds)
        fewest, most = missing * each, missing * (each + count * protocol.widenings)
        own = [draw for label, draw in stored if label == name and name not in KNOWN]
        if own:  # are they of the method as it is now? refused here as in run()
            data = running.data_of(problem, own[0])
            Runs(of, data, entry, places[name, own[0]], protocol, problem, lambda line: None).search(own[0])
        seconds = 0.0
        if missing:
            data = running.data_of(problem, 0)
            seconds = Runs(of, data, entry, None, protocol, problem, lambda line: None).measured()
        found.append(Cost(problem, fewest, most, (fewest * seconds / 3600, most * seconds / 3600)))
    return found


def named(method: Make, space: Mapping[str, Distribution] | None, name: str | None) -> tuple[str, Entry]:
    """A method's name and entry."""
    if isinstance(method, str):
        if space is not None or name not in (None, method):
            raise ValueError(f"benchmark({method!r}): it has a space and a name; give these for a method of your own")
        if method not in KNOWN:
            raise ValueError(f"no method of the benchmark is called {method!r}: {suggest(method, list(KNOWN))}")
        return method, KNOWN[method]
    entry = method if isinstance(method, Entry) else entered(method, space)
    found = str(name or getattr(method, "__name__", "mine"))
    if found in KNOWN and KNOWN[found] != entry:
        raise ValueError(f"benchmark(name={found!r}): the benchmark has a method of this name: choose another one")
    return found, entry


def problems_of(method: str, entry: Entry, names: Sequence[str] | None) -> dict[str, Problem]:
    """Those of these names; None for all on which the method can be judged."""
    for name in names or ():
        if name not in PROBLEMS:
            raise ValueError(f"no problem of the benchmark is called {name!r}: known: {'; '.join(PROBLEMS)}")
    return {name: PROBLEMS[name] for name in fitting(method, entry, tuple(names) if names else None)}


def _csv(kind: type[T], rows: Iterable[T]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(kind._fields)
    writer.writerows([f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows)
    return text.getvalue().encode()


def _read(path: Path, kind: type[T]) -> list[T]:
    raw = path.read_bytes()
    with parsing(path, "is no result of the benchmark, or is damaged", "give a folder that Result.save wrote"):
        text = lzma.decompress(raw) if path.suffix == ".xz" else raw
        made = list(get_type_hints(kind).values())
        header, *lines = csv.reader(io.StringIO(text.decode()))
        if tuple(header) != kind._fields:
            raise ValueError(f"its columns are {', '.join(header)}")
        return [kind(*(of(value) for of, value in zip(made, line, strict=True))) for line in lines]
