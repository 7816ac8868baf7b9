"""What a run has recorded so far: rounds and evaluations of all seeds, and which seeds have stopped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.values import is_real, shown, wrong_name
from fedjax_sim.reporting.divergence import KINDS, OF_IDS, Divergence, divergences
from fedjax_sim.run.stopping import Stopping

_PENDING = 512  # calls whose arrays may wait on the device: a long run must not collect them there


class Stop(NamedTuple):
    """Why and when a seed stopped before the last round.

    Attributes:
      round: rounds finished.
      reason: in words.
    """

    round: int
    reason: str


class Recording:
    """The record of a run while it grows.

    Args:
      algorithm: name of the method.
      seeds: one a run.
      skipped: whether clients that are not finite are left out.
      factor: times its first value, above which a loss has exploded; None for never.
    """

    def __init__(self, algorithm: str, seeds: list[int], *, skipped: bool, factor: float | None) -> None:
        self._algorithm, self._seeds, self._skipped, self._factor = algorithm, seeds, skipped, factor
        self._evaluated: list[int] = []
        self._metrics, self._rounds = _Growing(), _Growing()
        self.finished = 0
        self.stops: dict[int, Stop] = {}  # by the seed's position

    @property
    def running(self) -> np.ndarray:
        """bool[seeds], which seeds have not stopped."""
        return np.asarray([row not in self.stops for row in range(len(self._seeds))])

    @property
    def evaluated(self) -> np.ndarray:
        """int[E], rounds finished at the evaluations."""
        return np.asarray(self._evaluated)

    def add(self, record: Any, metrics: Any, count: int) -> None:
        """``count`` rounds, leaves [seeds, count, ...], and the evaluation after them, leaves [seeds, ...].

        Arrays may still be computing on the device: nothing here waits for them.
        """
        self.finished += count
        if count:
            self._rounds.add(record, count)
        self._evaluated.append(self.finished)
        self._metrics.add({name: values[:, None] for name, values in metrics.items()}, 1)

    def metrics(self) -> dict[str, np.ndarray]:
        """[seeds, E, ...] by name."""
        return self._metrics.values()

    def rounds(self) -> dict[str, np.ndarray]:
        """[seeds, R, ...] by name; empty before the first round."""
        return self._rounds.values()

    def public_rounds(self) -> dict[str, np.ndarray]:
        """What a history shows: :meth:`rounds`, with nobody among the ids of the rounds after a seed has stopped."""
        found = self.rounds()
        for name in OF_IDS:
            if name in found and self.stops:
                found[name] = found[name].copy()
                for row, stop in self.stops.items():
                    found[name][row, stop.round :] = -1
        return found

    def divergences(self) -> list[Divergence]:
        """The first sign of divergence of every seed that shows one."""
        return divergences(
            self._algorithm, self._seeds, self.evaluated, self.metrics(), self.rounds(),
            skipped=self._skipped, factor=self._factor,
        )  # fmt: skip

    def judge(self, rule: Stopping | None, *, diverged: bool) -> None:
        """Stops the seeds for which the rule gives a reason, and those that diverge where ``diverged`` says so."""
        running = np.flatnonzero(self.running)
        if diverged:
            for sign in self.divergences():
                for row in running:
                    if self._seeds[row] == sign.seed:
                        self.stops.setdefault(int(row), Stop(self.finished, f"diverged: {sign}"))
        if rule is not None:
            metrics, evaluated = self.metrics(), self.evaluated
            for row in running:
                reason = rule.reason(evaluated, {name: values[row] for name, values in metrics.items()})
                if reason is not None:
                    if not isinstance(reason, str):
                        raise TypeError(
                            f"{type(rule).__name__}.reason(...) returned {shown(reason)}: it must return why the run "
                            "should stop, in words, or None to go on"
                        )
                    self.stops.setdefault(int(row), Stop(self.finished, reason))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it but the stops, for a file."""
        metrics = {f"metrics/{name}": values for name, values in self.metrics().items()}
        rounds = {f"rounds/{name}": values for name, values in self.rounds().items()}
        return {"evaluated": self.evaluated, **metrics, **rounds}

    def restore(self, arrays: dict[str, np.ndarray], stops: dict[int, Stop]) -> None:
        """Goes back to what :meth:`arrays` gave."""
        self._evaluated = [int(number) for number in arrays["evaluated"]]
        self.finished, self.stops = self._evaluated[-1], dict(stops)
        parts: dict[str, dict[str, np.ndarray]] = {"metrics": {}, "rounds": {}}
        for name, values in arrays.items():
            part, _, rest = name.partition("/")
            if part in parts:
                parts[part][rest] = values
        self._metrics, self._rounds = _Growing(), _Growing()
        self._metrics.add(parts["metrics"], len(self._evaluated))
        if parts["rounds"]:
            self._rounds.add(parts["rounds"], self.finished)


# Integers that every run has of every round, and other records that are one number a round.
_COUNTS = ("cohort_size", "useful_steps", "computed_steps")
_NUMBERS = (*_COUNTS, "nonfinite_clients", "diverged", "duration", "virtual_time", "bytes_down", "bytes_up")
_LARGEST = 2**31  # rounds are int32 in a run's program


def check_record(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Checks that what was read has the structure of a run's record, on which all rests that shows one.

    Args:
      arrays: ``"evaluated"``, ``"metrics/..."``, ``"rounds/..."``, ``"params/..."``.
      about: the rest, as JSON.

    Raises:
      ValueError: it has another one.
    """
    seeds, evaluated = about["seeds"], arrays["evaluated"]
    if not (isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)):
        raise ValueError(f"its seeds are {shown(seeds)}, not a list of integers in [0, 2^32)")
    for name in ("seconds", "compile_seconds"):
        if type(about[name]) not in (int, float) or not 0 <= about[name] <= sys.float_info.max:
            raise ValueError(f"its {name} are {shown(about[name])}, not a number of at least 0")
    description = about["description"]
    if not isinstance(description, dict) or not isinstance(description.get("algorithm", {}), dict):
        raise ValueError(f"its description is {shown(description)}, not an object that has one for the algorithm")
    called = description.get("algorithm", {}).get("name", "run")
    if wrong_name(called) is not None:
        raise ValueError(f"its algorithm is called {shown(called)}: {wrong_name(called)}")
    if evaluated.ndim != 1 or evaluated.dtype.kind not in "iu":
        raise ValueError(f"'evaluated' is {evaluated.dtype}{list(evaluated.shape)}, not integers [E]")
    numbers = evaluated.tolist()
    if numbers[:1] != [0] or len(numbers) < 2 or numbers != sorted(set(numbers)) or numbers[-1] >= _LARGEST:
        raise ValueError(f"'evaluated' is {shown(numbers)}: it must start with 0 and increase")
    _check_arrays(arrays, len(seeds), len(numbers), numbers[-1])
    # Several runs of a sweep share a seed: what is said of one names it by its number.
    runs = description.get("runs", list(range(len(seeds))) if "space" in description else seeds)
    if not isinstance(runs, list) or not all(type(run) is int for run in runs):
        raise ValueError(f"its runs are {shown(runs)}, not a list of integers")
    _check_signs(about, set(runs), numbers[-1])


def _check_arrays(arrays: Mapping[str, np.ndarray], seeds: int, evaluations: int, rounds: int) -> None:
    """Checks names, types and shapes."""
    axes = {"metrics": (seeds, evaluations), "rounds": (seeds, rounds), "params": (seeds,), "state": (seeds,)}
    names: dict[str, set[str]] = {part: set() for part in axes}
    for full, array in arrays.items():
        part, _, name = full.partition("/")
        if part not in axes:
            continue
        names[part].add(name)
        if array.shape[: len(axes[part])] != axes[part]:
            raise ValueError(f"{shown(full)} has the shape {list(array.shape)}: the first axes are {list(axes[part])}")
        if part in ("params", "state"):
            continue
        if wrong_name(name) is not None:
            raise ValueError(f"{shown(full)}: {wrong_name(name)}")
        if not is_real(array.dtype):
            raise ValueError(f"{shown(full)} is {array.dtype}, not real numbers")
        if (part == "rounds" and name in _NUMBERS) or full == "metrics/loss":
            if array.ndim != 2:
                raise ValueError(f"{shown(full)} has the shape {list(array.shape)}, and it is one number at a time")
            if name in _COUNTS and array.dtype.kind not in "iu":
                raise ValueError(f"{shown(full)} is {array.dtype}, not integers")
            if part == "rounds" and (array < 0).any():
                raise ValueError(f"{shown(full)} has an entry below 0")
    missing = [f"metrics/{name}" for name in ("loss",) if name not in names["metrics"]]
    missing += [f"rounds/{name}" for name in _COUNTS if name not in names["rounds"]]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    both = sorted(names["metrics"] & names["rounds"])
    if both:
        raise ValueError(f"a metric and a record of every round are both called {shown(both[0])}")


def _check_signs(about: Mapping[str, Any], seeds: set[int], rounds: int) -> None:
    """Checks where seeds diverged and stopped."""
    for entry in about.get("divergences", ()):
        seed, number, what, clients, algorithm, *factor = entry
        sound = type(seed) is type(number) is int and seed in seeds and 0 <= number <= rounds and what in KINDS
        sound = sound and isinstance(clients, list) and all(type(one) is int for one in clients)
        sound = sound and isinstance(algorithm, str) and len(factor) <= 1
        if not sound or any(one is not None and type(one) is not float for one in factor):
            raise ValueError(
                f"it has the divergence {shown(entry)}, not [a seed of its, a round of its, one of {', '.join(KINDS)}, "
                "clients' ids, the method, a factor or null]"
            )
    stopped: set[int] = set()
    for entry in about.get("stops", ()):
        seed, number, reason = entry
        sound = type(seed) is type(number) is int and seed in seeds - stopped and 1 <= number <= rounds
        if not sound or not isinstance(reason, str):
            raise ValueError(f"it has the stop {shown(entry)}, not [a seed of its, a round of its, the reason]")
        stopped.add(seed)


class _Growing:
    """Arrays by name that grow along their second axis, without copying what is there at every step."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, int]] = []
        self._room: dict[str, np.ndarray] = {}
        self._kinds: dict[str, Any] = {}
        self._length = 0

    def add(self, arrays: Any, count: int) -> None:
        """``count`` more along the second axis; device arrays are fetched when values are asked for, or soon after.

        Raises:
          ValueError: other names, types or shapes than before.
        """
        kinds = {name: (values.dtype, values.shape[:1] + values.shape[2:]) for name, values in arrays.items()}
        if self._kinds and kinds != self._kinds:
            name = next(name for name in {**self._kinds, **kinds} if self._kinds.get(name) != kinds.get(name))
            before, now = ("nothing" if kind is None else f"{kind[0]}{list(kind[1][1:])}"
                           for kind in (self._kinds.get(name), kinds.get(name)))  # fmt: skip
            raise ValueError(
                f"{name!r} was {before} at first and is {now} now: what is recorded must have the same names, types "
                "and shapes at all evaluations (from evaluate= return arrays of a fixed dtype, jnp.float32(...))"
            )
        self._kinds = kinds
        self._pending.append((arrays, count))
        if len(self._pending) >= _PENDING:
            self.values()

    def values(self) -> dict[str, np.ndarray]:
        if self._pending:
            self._reserve(self._length + sum(count for _, count in self._pending))
            for arrays, count in self._pending:
                for name, room in self._room.items():
                    room[:, self._length : self._length + count] = np.asarray(arrays[name])
                self._length += count
            self._pending = []
        return {name: room[:, : self._length] for name, room in self._room.items()}

    def _reserve(self, length: int) -> None:
        like = self._room or {name: np.asarray(values) for name, values in self._pending[0][0].items()}
        have = next(iter(self._room.values())).shape[1] if self._room else 0
        if length <= have:
            return
        for name, old in like.items():
            room = np.zeros((old.shape[0], max(length, 2 * have), *old.shape[2:]), old.dtype)
            room[:, : self._length] = old[:, : self._length]
            self._room[name] = room
