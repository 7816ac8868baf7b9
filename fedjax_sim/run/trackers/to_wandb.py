"""Weights & Biases."""

from __future__ import annotations

from typing import Any

from fedjax_sim.run.callbacks import Callback, Reported, Started
from fedjax_sim.run.history import History
from fedjax_sim.run.trackers.scalars import configuration, needed, scalars


class WeightsAndBiases(Callback):
    """See :func:`wandb`."""

    def __init__(self, arguments: dict[str, Any], *, each_seed: bool) -> None:
        self._module = needed("wandb", "wandb", "wandb")
        self._arguments, self._each_seed = arguments, each_seed
        self._seeds: list[int] = []
        self._run: Any = None

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        given = configuration(started.description) | {"seeds": started.seeds, "rounds": started.rounds}
        self._run = self._module.init(
            **{**self._arguments, "config": given | dict(self._arguments.get("config") or {})}
        )
        self._run.define_metric("round", hidden=True)
        self._run.define_metric("*", step_metric="round")

    def report(self, reported: Reported) -> None:
        numbers = scalars(reported, self._seeds, each_seed=self._each_seed)
        self._run.log({"round": reported.round, **numbers})

    def end(self, history: History | None) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(history is None))


def wandb(*, each_seed: bool = False, **arguments: Any) -> WeightsAndBiases:
    """Logs to Weights & Biases: scalars against ``round``, and the configuration.

    Args:
      each_seed: also every seed's own numbers, beside mean and standard deviation.
      **arguments: of ``wandb.init``: ``project="fl"``, ``name="fedavg"``, ``mode="offline"``, ``dir="runs"``.

    Raises:
      ImportError: wandb is not installed.
    """
    return WeightsAndBiases(arguments, each_seed=each_seed)
