"""What a recorded run says about divergence: the seed, the round, the method and the clients where it began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.reporting.recorded import telling_loss

IDS = "nonfinite_ids"  # the record of every round that becomes the clients of a Divergence
OF_IDS = ("client_ids", IDS)  # records whose numbers are clients, -1 for nobody: nothing to draw or to average
FACTOR = 10.0  # times its first value: the loss of a run that explodes
KINDS = ("clients", "model", "loss")


class Divergence(NamedTuple):
    """Where a run began to diverge.

    Attributes:
      seed: of the run.
      round: number of rounds finished when it was seen, from 1; 0 if the start itself was not finite.
      what: ``"clients"`` (messages or state of clients were not finite), ``"model"`` (the new global model was not) or
        ``"loss"`` (the evaluated loss was not finite, or it exploded).
      clients: ids of the first clients that were not finite in that round, at most 4.
      algorithm: name of the method.
      factor: of a loss that exploded, above how many times |F(x_0)| that is; else None.
    """

    seed: int
    round: int
    what: str
    clients: tuple[int, ...]
    algorithm: str
    factor: float | None = None

    def __str__(self) -> str:
        who = f" of the clients {', '.join(map(str, self.clients))}" if self.clients else ""
        exploded = self.factor and f"the loss is more than {self.factor:,g} times what it was at first"
        seen = {
            "clients": f"updates{who} are not finite",
            "model": "the global model is not finite",
            "loss": exploded or "the loss is not finite",
        }[self.what]
        return f"{self.algorithm}, seed {self.seed}, round {self.round}: {seen}"


class DivergenceError(FloatingPointError):
    """Raised by ``simulate(on_divergence="raise")``.

    Attributes:
      divergences: what was seen, at most one a seed.
    """

    def __init__(self, divergences: list[Divergence]) -> None:
        super().__init__("; ".join(map(str, divergences)))
        self.divergences = divergences


def divergences(
    algorithm: str,
    seeds: list[int],
    evaluated: np.ndarray,
    metrics: Mapping[str, Any],
    rounds: Mapping[str, Any],
    *,
    skipped: bool,
    factor: float | None,
) -> list[Divergence]:
    """The first sign of divergence of every seed that shows one, in the order of the seeds.

    ``evaluated`` is int[E], metrics are [seeds, E, ...] and records of rounds [seeds, R, ...] by name. ``skipped``:
    clients that were not finite were left out, and so did no harm. A loss above ``factor`` |F(x_0)| has exploded, or
    above ``factor`` where F(x_0) is 0; None for never.
    """
    loss = telling_loss(metrics)
    losses = np.zeros((len(seeds), len(evaluated))) if loss is None else np.asarray(metrics[loss], float)
    start = np.where(losses[:, :1] == 0, 1, np.abs(losses[:, :1]))
    with np.errstate(invalid="ignore", over="ignore"):
        exploded = np.isfinite(losses) & (losses > (np.inf if factor is None else factor) * start)
        seen = {
            "clients": (np.asarray(rounds.get("nonfinite_clients", ())) > 0) & (not skipped),
            "model": np.asarray(rounds.get("diverged", ()), bool),
            "loss": exploded | ~np.isfinite(losses),
        }
    found = []
    for row, seed in enumerate(seeds):
        signs = []
        for order, (what, where) in enumerate(seen.items()):
            if where.ndim > 1 and where[row].any():
                first = int(where[row].argmax())
                signs.append((int(evaluated[first]) if what == "loss" else first + 1, order, what))
        if signs:
            number, _, what = min(signs)
            ids = np.asarray(rounds[IDS])[row, number - 1] if what == "clients" else np.empty(0, int)
            much = factor if what == "loss" and exploded[row, np.searchsorted(evaluated, number)] else None
            found.append(Divergence(seed, number, what, tuple(int(i) for i in ids if i >= 0), algorithm, much))
    return found
