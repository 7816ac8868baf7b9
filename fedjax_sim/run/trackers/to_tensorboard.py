"""TensorBoard, by tensorboardX, which writes its files without TensorFlow."""

from __future__ import annotations

import json
import os
from typing import Any

from fedjax_sim.run.callbacks import Callback, Reported, Started
from fedjax_sim.run.history import History
from fedjax_sim.run.trackers.scalars import needed, scalars


class TensorBoard(Callback):
    """See :func:`tensorboard`."""

    def __init__(self, directory: str | os.PathLike[str], *, each_seed: bool) -> None:
        self._module = needed("tensorboardX", "tensorboardX", "tensorboard")
        self._directory, self._each_seed = os.fspath(directory), each_seed
        self._seeds: list[int] = []
        self._writer: Any = None

    def start(self, started: Started) -> None:
        self._seeds = started.seeds
        # Points of a run that is resumed, from where it is resumed on, take the place of older ones.
        purge = started.finished + 1 if started.finished else None
        self._writer = self._module.SummaryWriter(self._directory, purge_step=purge)
        written = json.dumps(started.description, indent=2, default=str)
        self._writer.add_text("configuration", "\n".join(f"    {line}" for line in written.splitlines()))

    def report(self, reported: Reported) -> None:
        for name, value in scalars(reported, self._seeds, each_seed=self._each_seed).items():
            self._writer.add_scalar(name, value, reported.round)
        self._writer.flush()

    def end(self, history: History | None) -> None:
        if self._writer is not None:
            self._writer.close()


def tensorboard(directory: str | os.PathLike[str], *, each_seed: bool = False) -> TensorBoard:
    """Writes TensorBoard's event files: scalars against the round, and the configuration as text.

    Args:
      directory: of the run; ``tensorboard --logdir`` its parent compares runs.
      each_seed: also a curve for every seed, beside mean and standard deviation.

    Raises:
      ImportError: tensorboardX is not installed.
    """
    return TensorBoard(directory, each_seed=each_seed)
