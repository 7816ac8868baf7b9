"""What a run has recorded so far: rounds and evaluations of all seeds, and which seeds have stopped."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.divergence import OF_IDS, Divergence, divergences
from fedjax_sim.stopping import Stopping

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


class _Growing:
    """Arrays by name that grow along their second axis, without copying what is there at every step."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, int]] = []
        self._room: dict[str, np.ndarray] = {}
        self._length = 0

    def add(self, arrays: Any, count: int) -> None:
        """``count`` more along the second axis; device arrays are fetched when values are asked for, or soon after."""
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
