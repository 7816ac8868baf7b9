"""What an experiment of a paper is, what it is given (size, seeds, runs that are stored and shared) and gives back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import jax
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.keys import GENERATOR, generator
from fedjax_sim.core.paths import real_leaves
from fedjax_sim.core.version import __version__
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import dataset_fingerprint, digest, fingerprint
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.layout import turns
from fedjax_sim.models.dense import MLP
from fedjax_sim.run.history import History
from fedjax_sim.run.simulation import simulate
from fedjax_sim.studies.sweeps.result import Sweep
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import Space, points

T = TypeVar("T")
Size = Literal["smoke", "cpu", "paper"]
SIZES: tuple[Size, ...] = ("smoke", "cpu", "paper")

INSTEAD = " in place of "  # between the data that were taken and those that the paper has
SMOKE_ROUNDS, SMOKE_CLIENTS = 3, 8  # the most of a smoke size, whose only aim is that every line is executed


Why = Literal["too small", "other data", "few seeds", "fragile", "unexplained"]
ENOUGH_SEEDS = 5  # fewer are few: of two seeds every fourth pair of equal methods gives "A before B" twice


class Scale(NamedTuple):
    """How much of the paper's size was run."""

    examples: float = 1.0  # share of the training examples
    rounds: float = 1.0  # share of the rounds
    model: str = ""  # what stands in for the paper's model; "" for the paper's own


class Claim(NamedTuple):
    """A qualitative claim of a paper, held against what was measured."""

    statement: str  # what the paper says, in our words, so that it can be true or false
    held: bool | None  # whether it did; None where this size cannot tell
    numbers: Mapping[str, Any]  # what the answer rests on, plain JSON data
    note: str = ""  # why it cannot be told, or what else a reader should know
    own: bool = False  # it is a check or a question of ours, which the paper does not claim
    quote: str = ""  # the paper's own words, the few that say it
    place: str = ""  # where they stand: "Section 5.2", "Figure 3"
    central: bool = False  # one of those for which the paper is cited
    ours: str = ""  # the part of the statement that is our reading: a threshold, a measure
    why: Why = "unexplained"  # should it not hold, the likeliest reason, by what the experiment's page says of it
    seeds: int | None = None  # that it rests on; None for the experiment's, 0 where nothing is random
    scale: Scale | None = None  # None for the experiment's
    identity: bool = False  # it follows from the definitions: only an error in the code could make it fail

    @property
    def counted(self) -> bool:
        """Whether it is a claim of the paper that could fail; boards count others apart."""
        return not (self.own or self.identity)

    @property
    def standing(self) -> str:
        """One of :data:`STANDINGS`."""
        if self.held is None:
            return "not testable"
        if not self.held:
            return self.why
        return "held on few seeds" if self.seeds is not None and 0 < self.seeds < ENOUGH_SEEDS else "held"


# What can become of a claim; all between the first two and the last are reasons for which one did not hold.
STANDINGS = ("held", "held on few seeds", *get_args(Why), "not testable")


class Effect(NamedTuple):
    """A number that the paper reports, and ours beside it."""

    what: str  # "FedNova less FedAvg, SGD, 2 epochs"
    unit: Literal["points", "ratio"]  # a difference in percentage points, or a ratio, which is drawn on a log scale
    paper: float | None  # None where the paper has a figure only
    values: Sequence[float]  # ours, by seed


class Setting(NamedTuple):
    """A part of the setting, the paper's beside the one that was run."""

    what: str  # "rounds", "clients", "model"
    paper: str  # as the paper states it; "not given" where it does not
    here: str  # as it was run; the same string where it is the same


class Table(NamedTuple):
    """A table of a paper, redrawn."""

    title: str  # what the rows are
    columns: Sequence[str]  # the headings
    # strings, numbers (printed with three digits), or None for nothing
    rows: Sequence[Sequence[str | float | int | None]]
    note: str = ""  # below the table


class Outcome(NamedTuple):
    """What an experiment gives back to be written down."""

    settings: Sequence[Setting]  # the paper's beside ours
    claims: Sequence[Claim]  # at least one, but where ``see`` says where they are
    figures: Mapping[str, Any] = {}  # matplotlib figures by the name of their file, without its ending
    tables: Sequence[Table] = ()  # in the order of printing
    # raw results beside the runs, which are recorded anyway; plain JSON data and arrays
    numbers: Mapping[str, Any] = {}
    effects: Sequence[Effect] = ()
    scale: Scale = Scale()
    see: str = ""  # the experiment that has the claims, where this one only redraws its runs


class Bench:
    """Runs methods for an experiment, at one size.

    Every run is stored under a checksum of all that decides it (algorithm, data, setting, seeds, precision, random
    generator, version), so that figures which are drawn from the same runs share them, and what was interrupted goes on
    where it was.

    Seeds are the same for all methods, which therefore see the same cohorts, stragglers, batches and initial models
    (common random numbers).
    """

    def __init__(self, size: Size, seeds: int, runs: Path, show: Callable[[str], None] = print) -> None:
        self.size: Size = size
        self.seeds = range(seeds)
        self.show = show
        self.recorded: dict[str, History | Sweep] = {}  # every run by its label, for the raw results
        self.data: list[str] = []  # in words, which data was used
        self._runs = runs

    def choose(self, smoke: T, cpu: T, paper: T | EllipsisType = ...) -> T:
        """The value for this size; the paper's is the CPU's where nothing else is said."""
        return {"smoke": smoke, "cpu": cpu, "paper": cpu if isinstance(paper, EllipsisType) else paper}[self.size]

    def load(self, what: str, real: Callable[[], T], nearest: Callable[[], T], name: str) -> T:
        """Real data where it is; else the nearest data set that needs no file (or None), and a line that says so.

        The smoke size always takes the nearest, the paper's size never; ``what`` and ``name`` are both in words.
        Without a ``name`` there is nothing like it, and it is left out.
        """
        made, words = None, f"{what} (real)"
        if self.size == "smoke":
            made, words = nearest(), f"{name}{INSTEAD}{what}: the smoke size reads no files"
        else:
            try:
                made = real()
            except FileNotFoundError as error:
                if self.size == "paper":
                    raise
                words = f"{name}{INSTEAD}{what}: {error}" if name else f"{what} left out: its files are not here"
        if words not in self.data:
            self.data.append(words)
            self.show(f"data: {words}")
        return nearest() if made is None else made

    def setting(self, what: str, paper: str, here: Any = None, *, smoke: Any = None, cpu: Any = None) -> Setting:
        """A part of the setting: ``here`` (None: as in the paper), but for what a size has of its own."""
        own = self.choose(smoke, cpu, None)
        return Setting(what, paper, str(own if own is not None else paper if here is None else here))

    def model(self, real: Any, num_outputs: int, hidden: tuple[int, ...] = (16,)) -> Any:
        """The experiment's model; at the smoke size a small MLP in its place, which compiles in a second."""
        return MLP(num_outputs, hidden) if self.size == "smoke" else real

    def simulate(
        self, label: str, algorithm: Method, dataset: FederatedDataset | HostDataset, **setting: Any
    ) -> History:
        """:func:`fedjax_sim.simulate` with the bench's seeds, unless the run is stored already.

        The label is unique in its experiment. Final models are dropped but with ``keep_params=True``.
        """
        setting, keep = self._checked(dataset, setting)
        place = self._place("run", label, algorithm, dataset, setting, keep)
        stored = place.with_name(f"{place.name}.npz")  # no with_suffix: labels have dots
        if stored.exists():
            history = History.load(stored)
        else:
            # On a CPU, the layout that uses one of its devices: the same to the last bit whatever number it has
            layout = {"layout": turns()} if jax.default_backend() == "cpu" else {}
            history = simulate(algorithm, dataset, **layout | setting)
            history = history if keep else dataclasses.replace(history, params={})
            history.save(stored)
            self._tell(label, history)
        return self._record(label, history)

    def sweep(
        self,
        label: str,
        algorithm: Method,
        dataset: FederatedDataset,
        space: Space,
        *,
        chunk: int | None = None,
        **setting: Any,
    ) -> Sweep:
        """:func:`fedjax_sim.sweep` with the bench's seeds; runs that are stored already are not run again.

        All points and seeds are one program and shared out over all devices, which on a CPU of several cores is the
        fastest way to run many small models. ``chunk`` runs at once at most are not part of what decides a run.
        """
        setting, keep = self._checked(dataset, setting)
        folder = self._place("sweep", label, algorithm, dataset, setting | {"space": space}, keep)
        new = not folder.exists()
        result = sweep(algorithm, dataset, space, **setting, keep_params=keep, chunk=chunk, resume=folder)
        if new:
            self._tell(label, result)
        return self._record(label, result)

    def runs(
        self, label: str, algorithm: Method, dataset: FederatedDataset, space: Space | None = None, **setting: Any
    ) -> list[History]:
        """The points of :meth:`sweep`; without a space one, the method as it is, of which the seeds are shared out."""
        if space is None:
            path, value = next(iter(real_leaves(algorithm).items()))
            space = points([{path: value}])
        swept = self.sweep(label, algorithm, dataset, space, **setting)
        return [swept.at(number) for number in range(space.num_points)]

    def _checked(self, dataset: FederatedDataset | HostDataset, setting: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        setting = {"seeds": self.seeds} | setting
        keep = bool(setting.pop("keep_params", False))
        if self.size == "smoke" and (setting["rounds"] > SMOKE_ROUNDS or dataset.num_clients > SMOKE_CLIENTS):
            raise ValueError(
                f"a smoke size has at most {SMOKE_ROUNDS} rounds and {SMOKE_CLIENTS} clients, not "
                f"{setting['rounds']} and {dataset.num_clients}: give smaller ones by bench.choose(smoke=...)"
            )
        return setting, keep

    def _record(self, label: str, record: T) -> T:
        if label in self.recorded:
            raise ValueError(f"two runs of one experiment have the label {label!r}: give each one of its own")
        self.recorded[label] = record  # type: ignore[assignment]
        return record

    def _tell(self, label: str, run: History | Sweep) -> None:
        self.show(f"{label}: {run.seconds:.1f} s, compiling {run.compile_seconds:.1f} s")

    def _place(
        self, kind: str, label: str, algorithm: Method, dataset: Any, setting: dict[str, Any], keep: bool
    ) -> Path:
        decides = {
            "version": __version__,
            "algorithm": describe(algorithm),
            "data": dataset_fingerprint(dataset),
            "setting": {name: _plain(value) for name, value in setting.items()},
            "arrays": fingerprint([leaf for leaf in jax.tree.leaves((algorithm, setting)) if hasattr(leaf, "dtype")]),
            "keep_params": keep,
            "precision": str(jax.numpy.result_type(float)),
        }
        if generator() != GENERATOR:
            decides["generator"] = generator()
        if jax.default_backend() != "cpu":  # another machine's results are near, not equal
            decides["backend"] = jax.default_backend()
        key = digest(json.dumps(decides, sort_keys=True).encode())
        stem = "".join(letter if letter.isalnum() or letter in "-_.,=" else "-" for letter in label)
        # Functions are known by their names alone: the label tells two apart, and such runs are not shared.
        known = "opaque" not in json.dumps(decides)
        return self._runs / (f"{kind}-{key}" if known else f"{kind}-{stem}-{key}")


def mapped(dataset: FederatedDataset, name: str, change: Callable[[Any], Any]) -> FederatedDataset:
    """The same data set with an array of its examples changed, in the training and in the test part."""
    test = None if dataset.test is None else mapped(dataset.test, name, change)
    made: FederatedDataset = dataset.replace(
        examples={**dataset.examples, name: change(dataset.examples[name])}, test=test
    )
    return made


def rounds_in_words(reached: float, limit: int) -> str:
    """A number of rounds as tables of papers print it: "77", or "1000+" where the target was not reached."""
    return f"{limit}+" if math.isinf(reached) else f"{reached:.0f}"


def _plain(value: Any) -> Any:
    """What a checksum needs to know of an argument, as JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array, dict)):
        return fingerprint(value)
    return describe(value)
