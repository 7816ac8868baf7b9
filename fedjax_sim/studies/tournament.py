"""``tournament``: candidate methods of any kind, compared in rungs; for programs that look for better algorithms."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.core.devices import is_first, together
from fedjax_sim.core.files import Lock, write_atomically
from fedjax_sim.core.tabular import in_notebook, table
from fedjax_sim.core.values import as_plain, check_count, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import RunArguments, takes_run
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.run.checkpoints.store import paths_in, round_of
from fedjax_sim.run.configuration.own_objects import own_factory
from fedjax_sim.run.history import History
from fedjax_sim.run.simulation import simulate

LEDGER = "ledger.json"
_NAME = re.compile(r"\w[\w.,=+-]*")

Candidate = Method | Callable[[], Method] | Mapping[str, Any] | str


class Entry(NamedTuple):
    """How far a candidate came.

    Attributes:
      name: of the candidate.
      rung: the last it finished, from 0; -1 where its first failed.
      rounds: that it was run for.
      score: the metric after these, mean over seeds; NaN where a seed diverged or the candidate failed.
      by_seed: its values, [S].
      seconds: of all its rounds so far, after compilation.
      error: "" or what became of it: what its code raised, or where a seed diverged.
      algorithm: its description; None where it could not be made.
    """

    name: str
    rung: int
    rounds: int
    score: float
    by_seed: list[float]
    seconds: float
    error: str
    algorithm: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Tournament:
    """The standing of all candidates after one :func:`fedjax_sim.tournament` call.

    Attributes:
      entries: the best first: by the last rung, then by the score there; what failed is last.
      metric: that they are compared by.
      seeds: of every run.
      rungs: rounds at the end of each.
      spent: rounds that these candidates have been run for, in this call and before.
      complete: whether every rung was played; false where the budget came first, and in the ledger while it goes on.
    """

    entries: list[Entry]
    metric: str
    seeds: list[int]
    rungs: list[int]
    spent: int
    complete: bool

    @property
    def best(self) -> Entry:
        """The first of :attr:`entries`."""
        return self.entries[0]

    def as_json(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite become None. What the ledger has."""
        return as_plain(vars(self) | {"entries": [entry._asdict() for entry in self.entries]})

    def __str__(self) -> str:
        return self._table("text")

    def __repr__(self) -> str:
        return (
            f"Tournament({len(self.entries)} candidates; best: {self.best.name}, {self.metric} {self.best.score:.4g})"
        )

    def _repr_html_(self) -> str:
        return in_notebook(self, self._table("html"))

    def _table(self, form: str) -> str:
        several = len(self.seeds) > 1
        spread = [
            f"{entry.score:.4g}" + (f" ± {np.std(entry.by_seed, ddof=1):.2g}" if several else "")
            if np.isfinite(entry.score) else "–"
            for entry in self.entries
        ]  # fmt: skip
        columns = [
            ("candidate", [entry.name for entry in self.entries]),
            ("rounds", [str(entry.rounds) for entry in self.entries]),
            (self.metric, spread),
        ]
        ended = "" if self.complete else "; the budget ended it"
        rungs = ", ".join(map(str, self.rungs))
        over = f"mean ± standard deviation over {len(self.seeds)} seeds" if several else "one seed"
        said = f"rungs of {rungs} rounds; {over}; {self.spent} rounds spent{ended}"
        errors = [f"{entry.name}: {entry.error}" for entry in self.entries if entry.error]
        return table(columns, form, notes=[*errors, said])


@takes_run()
def tournament(
    candidates: Mapping[str, Candidate],
    dataset: FederatedDataset | HostDataset,
    *,
    folder: str | os.PathLike[str],
    metric: str = "validation_loss",
    rungs: int = 3,
    eta: int = 3,
    budget: int | None = None,
    seeds: int | Iterable[int] = range(3),
    show: Callable[[str], None] | None = None,
    **run: Unpack[RunArguments],
) -> Tournament:
    """Compares methods by successive halving, whatever they are, and keeps a ledger of it.

    Rung k = 0 .. K - 1 ends after R / eta^(K - 1 - k) rounds, rounded up to an evaluation. All candidates play the
    first; after each rung the best 1 / eta of those that played it, one at least, go on from where they are. All see
    the same cohorts, batches and initial models, seed by seed.

    The folder is the memory: every run is checkpointed there, so that the same call after a kill goes on where it was,
    and a call with MORE candidates plays only what is new: a program can propose some, look at the ledger, and propose
    others. A candidate whose code raises, or of which a seed diverges, is entered with what happened, and the others go
    on; it is tried again in the next call. A name is for one candidate: changed code or hyper-parameters under a name
    that has been played are its failure, with what differs.

    Args:
      candidates: by name (letters, digits and ``. , = + - _``; names of folders): a method; a function of no arguments
        that makes one; a description of one (``fjs.describe``); or ``"module:object"``, a method or such a function of
        one's own code.
      dataset: whose data. What chooses has seen the part it chooses by: :func:`fedjax_sim.datasets.with_validation`
        makes one, and what is chosen is judged by another.
      folder: of the checkpoints and of ``ledger.json``, which is written anew after every candidate, never half.
      metric: one number an evaluation; its name says whether less is better.
      rungs: K.
      eta: of so many candidates one goes on.
      budget: rounds of these candidates together, former calls counted; what would exceed it is not begun.
        None for no limit. A round has the same local work for every candidate, not the same cost.
      seeds: of every run.
      show: called with a line for each candidate that has been played.
      **run: the arguments of :func:`fedjax_sim.simulate` that say what a run is: task, rounds R, cohort, work, ...

    Returns:
      A :class:`Tournament`.

    Raises:
      TypeError, ValueError: bad input: no candidates, a name that is no folder's; also where no candidate could be
        judged: a metric that none recorded, another run in the folder, nothing but failures. The ledger is there.
      OSError: the folder cannot be written, or another process plays a tournament in it.

    Reference: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".

    Example:
      >>> import tempfile
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=8, max_size=60, test_fraction=0.4, seed=0)
      >>> sgd = fjs.optim.sgd(0.02)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     found = fjs.tournament(
      ...         {"fedavg": fjs.fedavg(client_optimizer=sgd), "scaffold": lambda: fjs.scaffold(client_optimizer=sgd)},
      ...         fjs.datasets.with_validation(data, 0.5), folder=folder, rungs=2, eta=2, rounds=4, eval_every=2,
      ...         task=fjs.classification(fjs.models.LogisticRegression(10)), cohort=fjs.cohort.uniform(4),
      ...         work=fjs.local.epochs(1), batch_size=20,
      ...     )
      >>> [entry.rounds for entry in found.entries], found.spent
      ([4, 2], 6)
    """
    seed_list = check_seeds(seeds)
    for name, value in {"rungs": rungs, "eta": eta - 1, "budget": 1 if budget is None else budget}.items():
        check_count(f"tournament({name}=...)", value)
    _check_names(candidates)
    every = run["eval_every"]
    total = run["rounds"]
    ends = [min(-(-total // (eta ** (rungs - 1 - rung) * every)) * every, total) for rung in range(rungs)]
    if len({*ends}) < rungs:
        raise ValueError(
            f"tournament(rungs={rungs}, eta={eta}): of {total} rounds, evaluated every {every}, the rungs would end "
            f"after {ends}: give more rounds, fewer rungs or a smaller eval_every"
        )
    place = Path(folder)
    lock = together(lambda: Lock(place, "a tournament") if is_first() else None)  # of several processes' run one writes
    with lock or contextlib.nullcontext():
        entries: dict[str, Entry] = {}
        ran = {name: _known(place / name, ends) for name in candidates}  # rounds, of former calls too
        left_out = False  # of the budget

        def standing(complete: bool = False) -> Tournament:
            """What is known, which the ledger has too; complete in the end alone."""
            known = _ranked(entries.values(), metric)
            found = Tournament(known, metric, seed_list, ends, sum(ran.values()), complete)
            write_atomically(place / LEDGER, json.dumps(found.as_json(), indent=1, allow_nan=False).encode())
            return found

        playing = list(candidates)
        for rung, rounds in enumerate(ends):
            for name in playing:
                more = max(rounds - ran[name], 0)  # nothing for what is there already, which is read
                if budget is not None and more and sum(ran.values()) + more > budget:
                    left_out = True
                    continue  # others may be there already
                before = entries.get(name, Entry(name, -1, 0, float("nan"), [], 0.0, "", None))
                given = run | {"rounds": max(rounds, ran[name])}  # a run that went farther is read where it was
                entries[name] = _played(
                    before, candidates[name], dataset, place / name, metric, seed_list, rounds, given
                )
                ran[name] = max(entries[name].rounds, ran[name])
                standing()
                if show is not None:
                    show(f"rung {rung}, {name}: {entries[name].error or f'{metric} {entries[name].score:.4g}'}")
            able = _ranked((entries[name] for name in playing if name in entries), metric)
            able = [entry for entry in able if np.isfinite(entry.score)]
            if left_out:  # nothing is chosen, and what went on in former calls is read where it is
                able = [entry for entry in able if ran[entry.name] > rounds]
            else:
                able = able[: max(1, len(playing) // eta)]
            playing = [entry.name for entry in able]
            if not playing:
                break
        _check_any(entries, place / LEDGER, metric)
        return standing(not left_out)


def _check_names(candidates: Any) -> None:
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(f"tournament(candidates={shown(candidates)}): give a dict of methods by name")
    wrong = [name for name in candidates if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if wrong:
        raise ValueError(
            f"tournament: candidates are named {shown(wrong)}: a name is a folder's, of letters, digits and . , = + - _"
        )
    lower = [name.lower() for name in candidates]
    if len({*lower}) < len(lower):
        raise ValueError("tournament: names of candidates differ in more than upper and lower case, for folders' sake")


def _made(candidate: Candidate) -> Method:
    """The method that a candidate is."""
    made: Any = candidate
    if isinstance(candidate, str):
        made = own_factory(candidate, "algorithm", False)()
    elif isinstance(candidate, Mapping):
        made = build(candidate)
    elif not isinstance(candidate, Method):
        made = candidate()
    if not isinstance(made, Method):
        raise TypeError(f"it is or makes {shown(made)}: it must be a method, as fedjax_sim.fedavg(...) is one")
    return made


def _known(folder: Path, ends: list[int]) -> int:
    """The rounds to ask for of a run that has checkpoints: the end of the rung that it is in; 0 without any."""
    done = max(map(round_of, paths_in(folder)), default=0)
    return next((end for end in ends if end >= done), done) if done else 0


def _played(
    before: Entry,
    candidate: Candidate,
    dataset: Any,
    folder: Path,
    metric: str,
    seeds: list[int],
    rounds: int,
    run: Any,
) -> Entry:
    """A candidate after one more rung; what its code raises is what became of it."""
    try:
        algorithm = _made(candidate)
        before = before._replace(algorithm=describe(algorithm))
        history = simulate(
            algorithm, dataset, seeds=seeds, checkpoint=folder, keep=1, on_divergence="stop", progress=False, **run
        )
        values = _values(history, metric, rounds)
    except Exception as error:  # of code that is tried out anything may come, and the others should not be lost for it
        words = f"{type(error).__name__}: {error}".partition("\n")[0]
        return before._replace(score=float("nan"), error=words)
    lost = next((one for one in history.divergences if one.round <= rounds), None)
    return before._replace(
        rung=before.rung + 1, rounds=rounds, score=float("nan") if lost else float(values.mean()),
        by_seed=values.tolist(), seconds=history.seconds, error=f"diverged: {lost}" if lost else "",
    )  # fmt: skip


def _values(history: History, metric: str, rounds: int) -> np.ndarray:
    """The metric by seed at the last evaluation up to so many rounds (the last of all where every seed diverged)."""
    values = np.asarray(history[metric], float)
    if values.ndim != 2:
        raise ValueError(f"{metric} is not one number an evaluation and seed but {list(values.shape[2:])}")
    return values[:, np.searchsorted(history.evaluated, rounds, side="right") - 1]


def _ranked(entries: Iterable[Entry], metric: str) -> list[Entry]:
    """The best first; what has no score is last, the one that came farther before."""
    sign = 1 if less_is_better(metric) else -1
    return sorted(
        entries,
        key=lambda entry: (
            not np.isfinite(entry.score), -entry.rung, sign * entry.score if np.isfinite(entry.score) else 0.0
        ),
    )  # fmt: skip


def _check_any(entries: Mapping[str, Entry], ledger: Path, metric: str) -> None:
    """Where nothing could be judged it is the call's fault, as a rule, and there is no best."""
    if not entries:
        raise ValueError("tournament: the budget is below the rounds of the first rung: nothing was played")
    failed = [f"{entry.name}: {entry.error}" for entry in entries.values() if not np.isfinite(entry.score)]
    if len(failed) == len(entries):
        hint = " (hold some examples out: fjs.datasets.with_validation(data, 0.2))" * metric.startswith("validation")
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise ValueError(
            f"tournament: no candidate could be judged by {metric!r}{hint}: {'; '.join(failed[:3])}{more}: {ledger}"
        )
