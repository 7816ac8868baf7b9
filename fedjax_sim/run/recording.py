"""What a run has recorded so far: rounds and evaluations of all seeds, and which seeds have stopped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from fedjax_sim.core.values import shown
from fedjax_sim.reporting.divergence import OF_IDS, Divergence, divergences
from fedjax_sim.reporting.recorded import clocks, clocks_of
from fedjax_sim.run.records import Stop, joined, part_of, unwritable
from fedjax_sim.run.stopping import Stopping

_PENDING = 512  # calls whose arrays may wait on the device: a long run must not collect them there


class Recording:
    """The record of a run of a method, while it grows.

    ``skipped`` and ``factor`` are those of ``divergences``, ``recorded`` names of what every round will record.
    """

    def __init__(
        self, algorithm: str, seeds: list[int], *, skipped: bool, factor: float | None, recorded: Collection[str] = ()
    ) -> None:
        self._algorithm, self._seeds, self._skipped, self._factor = algorithm, seeds, skipped, factor
        self._clocks = clocks_of(recorded)
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

    def begin(self, metrics: Any, rule: Stopping | None) -> None:
        """The evaluation before the first round, leaves [seeds, ...]; refuses a rule that asks for more than it has."""
        self.add({}, metrics, 0)
        if rule is not None:
            started = {name: unwritable(values[0]) for name, values in self.metrics().items()}
            rule._check(started | {name: np.zeros(1) for name in self._clocks})

    def add(self, record: Any, metrics: Any, count: int) -> None:
        """``count`` rounds, leaves [seeds, count or more, ...], and the evaluation after them, leaves [seeds, ...].

        Arrays may still be computing on the device: nothing here waits for them.
        """
        self.finished += count
        if count:
            self._rounds.add(record, count)
        self._evaluated.append(self.finished)
        self._metrics.add(metrics, None)

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
        running = np.flatnonzero(self.running).tolist()
        signs = {sign.seed: sign for sign in reversed(self.divergences())} if diverged else {}
        for row in running:
            if self._seeds[row] in signs:
                self.stops[row] = Stop(self.finished, f"diverged: {signs[self._seeds[row]]}")
        if rule is None:
            return
        seen = clocks(self.rounds(), self.evaluated) | self.metrics()
        for row in running:
            own = {name: unwritable(values[row]) for name, values in seen.items()}
            reason = rule.reason(self.evaluated, own)
            if not isinstance(reason, str | None):
                raise TypeError(
                    f"{type(rule).__name__}.reason(...) returned {shown(reason)}: it must return why the run should "
                    "stop, in words, or None to go on"
                )
            if reason is not None:
                self.stops.setdefault(row, Stop(self.finished, reason))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it but the stops, for a file."""
        return {"evaluated": self.evaluated, **joined(metrics=self.metrics(), rounds=self.rounds())}

    def restore(self, arrays: dict[str, np.ndarray], stops: dict[int, Stop]) -> None:
        """Goes back to what :meth:`arrays` gave."""
        self._evaluated = [int(number) for number in arrays["evaluated"]]
        self.finished, self.stops = self._evaluated[-1], dict(stops)
        self._metrics, self._rounds = _Growing(), _Growing()
        self._metrics.add(part_of(arrays, "metrics"), len(self._evaluated))
        if self.finished:
            self._rounds.add(part_of(arrays, "rounds"), self.finished)


class _Growing:
    """Arrays by name that grow along their second axis, without copying what is there at every step."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, int | None]] = []
        self._room: dict[str, np.ndarray] = {}
        self._kinds: dict[str, Any] = {}
        self._length = 0

    def add(self, arrays: Any, count: int | None) -> None:
        """The first ``count`` rows along the second axis, None for one of arrays without that axis.

        Device arrays are fetched when values are asked for, or soon after; on the device an axis would be a program.
        """
        rest = 1 if count is None else 2
        kinds = {name: (values.dtype, values.shape[:1] + values.shape[rest:]) for name, values in arrays.items()}
        if self._kinds and kinds != self._kinds:
            name = next(name for name in {**self._kinds, **kinds} if self._kinds.get(name) != kinds.get(name))
            found = (self._kinds.get(name), kinds.get(name))
            before, now = ("nothing" if kind is None else f"{kind[0]}{list(kind[1][1:])}" for kind in found)
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
            fetched = [(_rows(arrays, single=count is None), count or 1) for arrays, count in self._pending]
            self._reserve(fetched[0][0], self._length + sum(count for _, count in fetched))
            for arrays, count in fetched:
                for name, room in self._room.items():
                    room[:, self._length : self._length + count] = arrays[name][:, :count]
                self._length += count
            self._pending = []
        return {name: room[:, : self._length] for name, room in self._room.items()}

    def _reserve(self, like: dict[str, np.ndarray], length: int) -> None:
        like = self._room or like
        have = next(iter(self._room.values())).shape[1] if self._room else 0
        if length <= have:
            return
        for name, old in like.items():
            room = np.zeros((old.shape[0], max(length, 2 * have), *old.shape[2:]), old.dtype)
            room[:, : self._length] = old[:, : self._length]
            self._room[name] = room


def _rows(arrays: Any, *, single: bool) -> dict[str, np.ndarray]:
    """Arrays of the host with rows along the second axis, which those of a single row do not have."""
    found = {name: np.asarray(values) for name, values in arrays.items()}
    return {name: values[:, None] for name, values in found.items()} if single else found
