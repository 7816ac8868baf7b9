"""The protocol, and its runs: points are drawn and chosen, the chosen one is run with seeds of its own."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.clients import cohort, systems
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import dataset_fingerprint
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.studies.benchmark.methods import BASE, METHODS, Entry, plain
from fedjax_sim.studies.benchmark.personal import OWN, own_models
from fedjax_sim.studies.benchmark.problems import PROBLEMS, Problem, by_clients
from fedjax_sim.studies.sweeps.result import Sweep, means
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import Distribution, LogUniform, Space, log_uniform, points, random

# Everybody computes and sends at a speed of its own; nobody fails, and the server waits, so no model depends on it.
FLEET = systems.devices(flops_per_second=systems.lognormal(1e9, 0.5), upload=systems.lognormal(1e6, 0.5),
                        download=systems.lognormal(4e6, 0.5), latency=0.05)  # fmt: skip


class Protocol(NamedTuple):
    """What decides a comparison beside problems and methods.

    Attributes:
      version: results of one version may be put in one table.
      points: drawn for every method, problem and draw.
      deep_points: likewise, on deep problems.
      draws: of the data: partitions, splits, generators.
      deep_draws: likewise.
      chosen_with: the seed of the runs among which a point is chosen.
      seeds: of the runs of the chosen point, which are reported.
      edge: share of a logarithmic range at each end within which the best point makes the range wider.
      widenings: how often at most.
      evaluations: of a run.
      rounds: of a run; None for the problem's.
    """

    version: str = "1"
    points: int = 16
    deep_points: int = 8
    draws: int = 10
    deep_draws: int = 5
    chosen_with: int = 0
    seeds: tuple[int, ...] = (101, 102, 103, 104, 105)
    edge: float = 0.1
    widenings: int = 2
    evaluations: int = 12
    rounds: int | None = None

    def of(self, problem: Problem) -> tuple[int, int]:
        """Points and draws."""
        return (self.deep_points, self.deep_draws) if problem.deep else (self.points, self.draws)


PROTOCOL = Protocol()
"""Version 1, of the size ``cpu``."""
SMOKE = Protocol("1, smoke", 2, 2, 2, 2, seeds=(101, 102), widenings=1, evaluations=2, rounds=2)
"""Shows that everything runs; its results mean nothing."""


class Choice(NamedTuple):
    """What the search found for a method on a problem: one draw of the data. A line of ``choices.csv``."""

    version: str
    problem: str
    method: str
    draw: int
    tried: int  # points, those of wider ranges among them
    wider: str  # the ranges that were made wider, in words
    point: str  # the chosen values, JSON; "{}" where every point diverged
    validation: float  # the metric by which it was chosen
    objective: str  # what the method minimises, by its run's own record
    data: str  # checksum of the draw
    computed: str  # the device and the versions of the runs that are reported


class Row(NamedTuple):
    """One evaluation of a run that is reported: one draw, one seed. A line of ``rows.csv.xz``.

    What a run has cost so far is all that it sent and computed: a budget is a column, and a share of it an evaluation.
    """

    version: str
    problem: str
    method: str
    draw: int
    seed: int
    rounds: int  # before this evaluation
    bytes: float  # both ways
    gradients: float
    seconds: float  # of the clock
    by_examples: float  # the metric, mean over all test examples; NaN where the run diverged
    by_clients: float  # mean over the clients that have some


@functools.lru_cache(maxsize=1)
def data_of(problem: str, draw: int) -> FederatedDataset:
    """A draw of a problem's data."""
    return PROBLEMS[problem].data(draw)


def compared(
    name: str, entry: Entry, problem: str, draw: int, folder: Path, protocol: Protocol = PROTOCOL,
    show: Callable[[str], None] = print,
) -> tuple[Choice, list[Row]]:  # fmt: skip
    """A method on one draw of a problem, beside FedAvg; what is in the folder is not run again."""
    data, found = data_of(problem, draw), {}
    for label, of in {BASE: METHODS[BASE], name: entry}.items():
        place = place_of(folder, problem, label, draw, protocol)
        runs = Runs(PROBLEMS[problem], data, of, place, protocol, f"{problem}, {label}, draw {draw}", show)
        chosen = runs.search(draw)
        found[label] = chosen, runs.report(chosen.point)
    (chosen, own), (_, base) = found[name], found[BASE]
    if base is None:
        raise RuntimeError(f"{problem}, draw {draw}: every point of {BASE} diverged: nothing can be compared with it")
    choice = Choice(
        protocol.version, problem, name, draw, chosen.tried, chosen.wider, json.dumps(chosen.point, sort_keys=True),
        chosen.worth, str(own.description["objective"]) if own else "", dataset_fingerprint(data),
        _computed(own or base),
    )  # fmt: skip
    return choice, [*_rows(name, problem, draw, own, base, protocol)]


class Chosen(NamedTuple):
    """The point that a search found."""

    point: dict[str, float]  # empty where every point diverged
    tried: int
    wider: str
    worth: float  # of the validation part


class Runs(NamedTuple):
    """The runs of one method on one draw of a problem."""

    problem: Problem
    data: FederatedDataset
    entry: Entry
    place: Path | None  # None: nothing is stored
    protocol: Protocol
    label: str
    show: Callable[[str], None]

    def first(self, draw: int) -> tuple[np.ndarray, np.ndarray]:
        """float[P] twice, the metric of the first points on the validation and the test part; NaN where it diverged."""
        swept = self.swept("search-0", self._points(draw, 0, self._ranges()), [self.protocol.chosen_with])
        return means(*self.last(swept, "validation")), means(*self.last(swept, "test"))

    def _ranges(self) -> dict[str, Distribution]:
        return dict.fromkeys(self.entry.rates, log_uniform(*self.problem.rates)) | dict(self.entry.space)

    def _points(self, draw: int, stage: int, ranges: Mapping[str, Distribution]) -> Space:
        # Draws go by names: inside a wrapper a parameter has the values that it has without, unless both have one.
        plainly = [plain(name) for name in ranges]
        names = {name: of if plainly.count(of) == 1 else name for name, of in zip(ranges, plainly, strict=True)}
        drawn = random({names[name]: of for name, of in ranges.items()}, self.protocol.of(self.problem)[0],
                       100 * draw + stage)  # fmt: skip
        if all(name == of for name, of in names.items()):
            return drawn
        return points([{name: drawn.point(at)[of] for name, of in names.items()} for at in range(drawn.num_points)])

    def search(self, draw: int) -> Chosen:
        """Draws points, and more of them over wider ranges as long as the best one is at an edge."""
        count, _ = self.protocol.of(self.problem)
        ranges = self._ranges()
        tried: list[tuple[float, dict[str, float]]] = []
        wider: dict[str, str] = {}
        for stage in range(self.protocol.widenings + 1):
            space = self._points(draw, stage, ranges)
            swept = self.swept(f"search-{stage}", space, [self.protocol.chosen_with])
            worth = means(*self.last(swept, "validation"))
            tried += [(value, space.point(at)) for at, value in enumerate(worth.tolist()) if np.isfinite(value)]
            if not tried:
                return Chosen({}, count * (stage + 1), "every point diverged", float("nan"))
            less = less_is_better(self.problem.metric)
            worth_of_best, best = (min if less else max)(tried, key=lambda found: found[0])
            if stage == self.protocol.widenings:
                break
            moved = widened(ranges, best, self.protocol.edge)
            if not moved:
                break
            wider |= {name: f"{name} {of.low:.2g} to {of.high:.2g}" for name, of in moved.items()}
            ranges |= moved
        return Chosen(best, count * (stage + 1), "; ".join(wider.values()), worth_of_best)

    def report(self, point: Mapping[str, float]) -> Sweep | None:
        """The chosen point with seeds of its own; None where there is none."""
        return self.swept("report", points([point]), self.protocol.seeds) if point else None

    def measured(self) -> float:
        """Seconds of one run, by a part of it that ends with an evaluation, as the whole has them."""
        rounds = self.protocol.rounds or self.problem.rounds
        part = max(1, rounds // self.protocol.evaluations)
        brief = self._replace(protocol=self.protocol._replace(rounds=part, evaluations=1))
        space = random(self._ranges(), 2)
        return brief.swept("cost", space, [0]).seconds / 2 * rounds / part

    def swept(self, what: str, space: Space, seeds: Sequence[int]) -> Sweep:
        """All points and seeds; stored in a folder of that name."""
        problem, rounds = self.problem, self.protocol.rounds or self.problem.rounds
        place = None if self.place is None else self.place / what
        known = place is not None and place.exists()
        some = None if self.entry.everyone else problem.cohort
        judged = own_models(problem.task, problem.batch) if self.entry.personal else by_clients(problem.task)
        found = sweep(
            self.entry.method(), self.data, space, seeds=list(seeds), task=problem.task, rounds=rounds,
            eval_every=max(1, rounds // self.protocol.evaluations), evaluate_train=False,
            evaluate=judged, work=problem.work, batch_size=problem.batch, system=FLEET,
            cohort=cohort.full() if some is None else cohort.uniform(some), resume=place,
        )  # fmt: skip
        if not known:
            self.show(f"{self.label}, {what}: {found.seconds:.0f} s, compiling {found.compile_seconds:.0f} s")
        return found

    def last(self, swept: Sweep, part: str) -> tuple[np.ndarray, np.ndarray]:
        """float[P, seeds], the metric at the end, and bool[P, seeds], whether the run diverged on the way."""
        shape = (-1, len(swept.seeds), len(swept.evaluated))
        own = OWN if self.entry.personal else ""
        lost = ~np.isfinite(swept[f"validation_{own}loss"].reshape(shape)).all(axis=2)
        return swept[f"{part}_{own}{self.problem.metric}"].reshape(shape)[:, :, -1].astype(float), lost


def widened(ranges: Mapping[str, Distribution], best: Mapping[str, float], edge: float) -> dict[str, LogUniform]:
    """The logarithmic ranges within whose outer share the best value lies, each longer by half on that side.

    Others, of momentum and weights in a mean, stay: they reach nearly as far as the parameter does.
    """
    found = {}
    for name, of in ranges.items():
        if isinstance(of, LogUniform):
            length = np.log(of.high / of.low)
            place, more = np.log(best[name] / of.low) / length, float(np.exp(length / 2))
            if place < edge:
                found[name] = log_uniform(of.low / more, of.high)
            elif place > 1 - edge:
                found[name] = log_uniform(of.low, of.high * more)
    return found


def _rows(name: str, problem: str, draw: int, own: Sweep | None, base: Sweep, protocol: Protocol) -> Iterator[Row]:
    """Every evaluation; where all points of a method diverged, FedAvg's without values."""
    history, metric = (own or base).at(0), PROBLEMS[problem].metric
    gradients = np.cumsum(np.asarray(history["useful_steps"], float), axis=1)
    gradients = np.concatenate([np.zeros_like(gradients[:, :1]), gradients], axis=1)[:, history.evaluated]
    kind = f"test_{OWN}" if f"test_{OWN}loss" in history.metrics else "test_"
    values = np.stack([history[f"{kind}{metric}"], history[f"{kind}clients_{metric}"]]).astype(float)
    lost = np.logical_or.accumulate(~np.isfinite(history[f"{kind}loss"]), axis=1) | (own is None)
    numbers = np.stack([history.bytes, gradients, history.virtual_time, *np.where(lost, np.nan, values)], axis=-1)
    for (row, seed), (at, rounds) in itertools.product(enumerate(protocol.seeds), enumerate(history.evaluated)):
        yield Row(protocol.version, problem, name, draw, seed, int(rounds), *numbers[row, at].tolist())


def _computed(swept: Sweep) -> str:
    found = swept.description["environment"]
    here = f"{found['device']}, jax {found['jax']}, fedjax_sim {found['fedjax_sim']}"
    return "; ".join([here, *(f"some of it elsewhere ({of})" for of in found.get("earlier", ()))])


def place_of(folder: Path, problem: str, method: str, draw: int, protocol: Protocol = PROTOCOL) -> Path:
    """Where the runs of a draw are stored; those of other versions than the protocol's have folders of their own."""
    own = () if protocol.version == PROTOCOL.version else (protocol.version,)
    names = ["".join(letter if letter.isalnum() else "-" for letter in of).lower() for of in (*own, problem, method)]
    return folder.joinpath(*(name.strip("-") for name in names), f"draw-{draw}")
