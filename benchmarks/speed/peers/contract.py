"""What a peer is, and what a run of it measures."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Protocol

from benchmarks.speed.workloads import Weights, Workload

PEERS = {
    "ours": "ours",
    "ours-2": "ours_devices",
    "fedjax": "fedjax",
    "drjax": "drjax",
    "flwr": "flwr",
    "pfl": "pfl",
    "fedlab": "fedlab",
    "blazefl": "blazefl",
    "blazefl-threads": "blazefl_threads",
    "torch-loop": "torch_loop",
    "naive-jax": "naive_jax",
}


@dataclasses.dataclass(frozen=True)
class Peer:
    """One way to run the workloads.

    Attributes:
      title: its name in tables.
      requirements: what pip installs into its environment, pinned; nothing means the environment of this project.
      python: the Python it needs, "3.12"; None for the one that runs the harness.
      configuration: how it is used, in a line.
      framework: a federated framework, among which the best is looked for; not ours, and not a loop written by hand.
      versions: distributions whose versions are recorded.
      environment: the peer whose environment it uses, one with the same requirements; None for one of its own.
    """

    title: str
    requirements: tuple[str, ...]
    configuration: str
    python: str | None = None
    framework: bool = True
    versions: tuple[str, ...] = ()
    environment: str | None = None


class Simulate(Protocol):
    """The function ``simulate`` of a peer's file."""

    def __call__(self, work: Workload, tick: Callable[..., None]) -> Weights:
        """Trains ``len(work.cohorts)`` rounds from ``work.start`` and returns the weights.

        It calls ``tick()`` when the new model of a round is there, or ``tick(k)`` after k rounds in one piece; the
        first round is a piece of its own.
        """


Rounds = Callable[[Weights, int, int], Weights]
"""Trains the rounds [first, last) from these weights: what programs are that keep nothing else between rounds."""


class Clock:
    """When the rounds of a run ended."""

    def __init__(self, started: float) -> None:
        self._stamps = [started]
        self._rounds: list[int] = []

    def __call__(self, rounds: int = 1) -> None:
        """``rounds`` more rounds are done."""
        self._stamps.append(time.monotonic())
        self._rounds.append(rounds)

    def summary(self) -> dict[str, object]:
        """Seconds per round, the median over the pieces after the first, and what all before cost beyond a round.

        Raises:
          ValueError: fewer than two rounds, or a first piece of more than one.
        """
        if len(self._rounds) < 2 or self._rounds[0] != 1:
            raise ValueError(f"pieces of {self._rounds} rounds: the first round is one piece, and others follow it")
        spans = [after - before for before, after in itertools.pairwise(self._stamps)]
        per_round = [span / rounds for span, rounds in zip(spans, self._rounds, strict=True)][1:]
        middle = statistics.median(per_round)
        return {"round_s": middle, "set_up_s": spans[0] - middle, "per_round_s": per_round, "pieces": self._rounds}


def step_through(rounds: Rounds, work: Workload, tick: Callable[..., None]) -> Weights:
    """Trains round after round."""
    weights = work.start
    for t in range(len(work.cohorts)):
        weights = rounds(weights, t, t + 1)
        tick()
    return weights


def describe(name: str) -> Peer:
    """What the file of a peer says about it."""
    peer = importlib.import_module(f"benchmarks.speed.peers.{PEERS[name]}").PEER
    if not isinstance(peer, Peer):
        raise TypeError(f"benchmarks/speed/peers/{PEERS[name]}.py: PEER is {peer!r}, not a Peer")
    return peer


def program(name: str) -> Simulate:
    """How a peer trains."""
    return importlib.import_module(f"benchmarks.speed.peers.{PEERS[name]}").simulate
