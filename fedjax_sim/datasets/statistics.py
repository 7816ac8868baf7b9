"""The sizes of a data set's clients, and the classes they hold."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """What :meth:`FederatedDataset.statistics` returns; ``str()`` of it is for reading.

    Attributes:
      clients: number of clients N.
      examples: number of examples n.
      mean: mean of the client sizes.
      std: standard deviation of the client sizes (of this population: divided by N).
      min: smallest client size.
      max: largest client size.
      label_table: int[N, C], examples of each class at each client, or None without labels.
    """

    clients: int
    examples: int
    mean: float
    std: float
    min: int
    max: int
    label_table: np.ndarray | None

    def __str__(self) -> str:
        lines = [
            f"clients              {self.clients:,}",
            f"examples             {self.examples:,}",
            f"examples per client  mean {self.mean:,.1f}, std {self.std:,.1f}, min {self.min:,}, max {self.max:,}",
        ]
        if self.label_table is not None:
            held = (self.label_table > 0).sum(axis=1)
            shown = ", ".join(f"{label}: {count:,}" for label, count in enumerate(self.label_table.sum(axis=0)[:20]))
            more = ", ..." if self.label_table.shape[1] > 20 else ""
            lines.append(f"classes per client   mean {held.mean():.1f}, min {held.min()}, max {held.max()}")
            lines.append(f"examples per class   {shown}{more}")
        return "\n".join(lines)


def label_table(labels: np.ndarray, sizes: np.ndarray, classes: int) -> np.ndarray:
    """How many labels of each class each client holds, int[N, C]; the labels lie end to end, client after client."""
    owner = np.repeat(np.arange(sizes.size), sizes * int(np.prod(labels.shape[1:])))
    cells: np.ndarray = np.bincount(owner * classes + labels.reshape(-1), minlength=sizes.size * classes)
    return cells.reshape(sizes.size, classes)
