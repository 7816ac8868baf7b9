"""The sizes of a data set's clients, and the classes they hold."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

_TITLE = "Class frequencies:"  # the first line of a partition report


@dataclasses.dataclass(frozen=True, eq=False)
class Statistics:
    """What :meth:`FederatedDataset.statistics` returns; ``str()`` of it is for reading.

    Attributes:
      sizes: int[N], the client sizes.
      label_table: int[N, C], examples of each class at each client, or None without labels. Where examples have several
        labels (a text that is predicted word by word, y of shape [n, L]) each of them counts.
      test_sizes: int[N], the test examples of each client, or None without a test part.
      validation_sizes: likewise.
      clients: number of clients N.
      examples: number of examples n.
      mean: mean of the client sizes.
      std: standard deviation of the client sizes (of this population: divided by N).
      min: smallest client size.
      max: largest client size.
    """

    sizes: np.ndarray
    label_table: np.ndarray | None = None
    test_sizes: np.ndarray | None = None
    validation_sizes: np.ndarray | None = None
    clients: int = dataclasses.field(init=False)
    examples: int = dataclasses.field(init=False)
    mean: float = dataclasses.field(init=False)
    std: float = dataclasses.field(init=False)
    min: int = dataclasses.field(init=False)
    max: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        sizes = self.sizes
        object.__setattr__(self, "clients", sizes.size)
        object.__setattr__(self, "examples", int(sizes.sum()))
        for name in ("mean", "std", "min", "max"):
            object.__setattr__(self, name, getattr(sizes, name)().item())

    def quantiles(self, *at: float) -> tuple[float, ...]:
        """Quantiles of the client sizes, interpolated linearly: those ``at`` values in [0, 1], or the quartiles."""
        return tuple(np.quantile(self.sizes, at or (0.25, 0.5, 0.75)).tolist())

    @property
    def median(self) -> float:
        """Median of the client sizes."""
        return self.quantiles(0.5)[0]

    @property
    def classes_per_client(self) -> np.ndarray:
        """Classes with at least one example, int[N]."""
        return np.asarray((self._table() > 0).sum(axis=1))

    @property
    def commonest_share(self) -> np.ndarray:
        """max_c n_ic / sum_c n_ic, the share of each client's commonest class, float[N]; 0 for a client without any."""
        return np.asarray(self._shares().max(axis=1))

    @property
    def label_entropy(self) -> np.ndarray:
        """-sum_c p_ic log p_ic with p_ic = n_ic / sum_c n_ic, float[N], in nats; log C for all equally."""
        shares = self._shares()
        return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))

    @property
    def effective_classes(self) -> np.ndarray:
        """exp(label_entropy), float[N]: how many equally frequent classes would be as diverse."""
        return np.asarray(np.exp(self.label_entropy))

    def __str__(self) -> str:
        low, middle, high = self.quantiles()
        lines = [
            f"clients              {self.clients:,}",
            f"examples             {self.examples:,}",
            f"examples per client  mean {self.mean:,.1f}, std {self.std:,.1f}, min {self.min:,}, max {self.max:,}",
            f"  quartiles          {low:,.1f}, {middle:,.1f}, {high:,.1f}",
        ]
        for name, held in (("validation", self.validation_sizes), ("test", self.test_sizes)):
            if held is not None:
                counts = f"{held.sum():,}; per client min {held.min():,}, max {held.max():,}"
                lines.append(f"{f'{name} examples':20} {counts}")
        if self.label_table is not None:
            held, effective = self.classes_per_client, self.effective_classes
            shown = ", ".join(f"{label}: {count:,}" for label, count in enumerate(self.label_table.sum(axis=0)[:20]))
            more = ", ..." if self.label_table.shape[1] > 20 else ""
            lines.append(
                f"classes per client   mean {held.mean():.1f}, min {held.min()}, max {held.max()}; "
                f"effective mean {effective.mean():.2f}"
            )
            lines.append(f"commonest class      {100 * self.commonest_share.mean():.1f} % of a client on average")
            lines.append(f"examples per class   {shown}{more}")
        return "\n".join(lines)

    def _table(self) -> np.ndarray:
        if self.label_table is None:
            raise ValueError("these statistics have no label table: the data set has no labels (integer 'y')")
        return self.label_table

    def _shares(self) -> np.ndarray:
        table = self._table()
        # Of the labels: an example may have several, so that a client's size is not their number.
        return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1))


def read_report(path: str | os.PathLike[str]) -> Statistics:
    """The statistics in one of FedLab's partition reports.

    A report has shares with three decimals, so the label table is exact for clients of up to 500 examples and within
    n_i / 2000 of the truth for others; sizes and the numbers of classes are exact.

    Args:
      path: a csv file: a line "Class frequencies:", a header, one line per client.

    Raises:
      FileNotFoundError: no such file.
      ValueError: not such a file; the message names the line.

    Source: the reports in FedLab's data partitioner tutorials (SMILELab-FL/FedLab).
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    header = lines[1].split(",") if len(lines) > 1 else []
    if not lines or lines[0].strip() != _TITLE or len(header) < 3 or header[-1].strip() != "Amount":
        raise ValueError(
            f"{path} is not a partition report: it must start with a line {_TITLE!r} and a header "
            "client,class0,...,Amount"
        )
    rows = []
    for number, line in enumerate(lines[2:], start=3):
        cells = line.split(",")
        try:
            shares, amount = np.array(cells[1:-1], float), int(cells[-1])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if len(cells) != len(header) or amount < 1:
            raise ValueError(f"{path}, line {number} has {len(cells)} of {len(header)} cells, and {amount} examples")
        # 0.00 is none and 0.000 a few; a sum is off by half a thousandth a class at most
        if not (np.all(shares >= 0) and abs(shares.sum() - 1) <= 0.0005 * shares.size + 1e-9):
            raise ValueError(f"{path}, line {number}: the shares add up to {shares.sum():.4f}, not to 1")
        held = np.array([cell.strip() != "0.00" for cell in cells[1:-1]])
        counts = np.where(held, np.maximum(np.rint(shares * amount), 1), 0).astype(np.int64)
        counts[np.argmax(counts)] += amount - counts.sum()
        rows.append(counts)
    if not rows:
        raise ValueError(f"{path} has no clients: a report has one line for each after its header")
    table = np.array(rows)
    return Statistics(table.sum(axis=1), table)


def label_table(labels: np.ndarray, sizes: np.ndarray, classes: int) -> np.ndarray:
    """How many labels of each class each client holds, int[N, C]; the labels lie end to end, client after client."""
    owner = np.repeat(np.arange(sizes.size), sizes * int(np.prod(labels.shape[1:])))
    cells: np.ndarray = np.bincount(owner * classes + labels.reshape(-1), minlength=sizes.size * classes)
    return cells.reshape(sizes.size, classes)
