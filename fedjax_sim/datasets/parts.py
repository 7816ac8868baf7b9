"""The type of a partition: the rows of every client, end to end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.flat import offsets_of, ranges
from fedjax_sim.datasets.statistics import Statistics, label_table


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Partition(Sequence[np.ndarray]):
    """The rows of every client: ``partition[i]`` is a sorted int64 array, ``len(partition)`` is N.

    The clients lie end to end in one array, so that a hundred thousand of them cost no Python loop here nor in
    :func:`fedjax_sim.datasets.from_partition`. Both arrays are read-only.

    Attributes:
      rows: int64, the rows of client 0, then those of client 1, ...
      sizes: int64[N], rows of each client, all at least 1.
      redraws: how often the random shares were drawn again because a client came out with fewer than ``min_size``.
      moved: examples that were moved from one client to another afterwards, to keep ``min_size`` and ``max_size``.

    Raises:
      ValueError: sizes below one, or that do not add up to the number of rows.
      TypeError: arrays that are not one-dimensional integers.

    Example:
      >>> parts = Partition(np.array([0, 3, 1, 2]), np.array([2, 2]))
      >>> parts
      Partition(2 clients, 4 examples, redraws=0, moved=0)
      >>> parts[0].tolist(), [part.tolist() for part in parts]
      ([0, 3], [[0, 3], [1, 2]])
    """

    rows: np.ndarray
    sizes: np.ndarray
    redraws: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "sizes"):
            array = host_array(f"Partition({name}=...)", getattr(self, name))
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise TypeError(
                    f"Partition({name}=...) is {array.dtype}{list(array.shape)}: a 1-d array of integers is needed"
                )
            view = array.astype(np.int64, copy=False).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        for client in np.flatnonzero(self.sizes < 1)[:1]:
            raise ValueError(f"client {client} has no examples: drop this client or give it examples")
        if int(self.sizes.sum()) != self.rows.size:
            raise ValueError(
                f"Partition: the sizes add up to {int(self.sizes.sum())} but there are {self.rows.size} rows: give "
                "every client's rows end to end"
            )

    def __len__(self) -> int:
        return self.sizes.size

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> Partition: ...
    def __getitem__(self, client: int | slice) -> np.ndarray | Partition:
        """The rows of one client, or the partition of a slice of the clients."""
        if isinstance(client, slice):
            chosen = np.arange(len(self))[client]
            rows = self.rows[ranges(self._starts[chosen], self.sizes[chosen])]
            return dataclasses.replace(self, rows=rows, sizes=self.sizes[chosen])
        position = range(len(self))[client]
        first = int(self._starts[position])
        return self.rows[first : first + int(self.sizes[position])]

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return offsets_of(self.sizes)

    def statistics(self, labels: Any = None) -> Statistics:
        """Sizes and, given the labels of all rows, int[n] from 0, the classes of every client.

        Raises:
          ValueError: a label below 0, which would be counted at the client before; fewer labels than rows.
          TypeError: labels that are not integers.
        """
        if labels is None:
            return Statistics(self.sizes)
        of_rows = host_array("statistics(labels)", labels)
        if of_rows.ndim == 0 or of_rows.dtype.kind not in "iub":
            raise TypeError(
                f"statistics(labels) is {of_rows.dtype}{list(of_rows.shape)}: give the class of every row, integers; "
                "np.unique(labels, return_inverse=True)[1] numbers others"
            )
        if len(of_rows) <= (last := int(self.rows.max())):
            raise ValueError(
                f"statistics(labels) has {len(of_rows)} labels, and the partition has row {last}: give one for each "
                "row of the data that it is of"
            )
        if (low := of_rows.min(initial=0)) < 0:
            raise ValueError(
                f"statistics(labels): a label is {low}; classes are counted from 0: give "
                "np.unique(labels, return_inverse=True)[1]"
            )
        classes = int(of_rows.max(initial=0)) + 1
        return Statistics(self.sizes, label_table(of_rows[self.rows].astype(np.int64), self.sizes, classes))

    def __repr__(self) -> str:
        return f"Partition({len(self)} clients, {self.rows.size} examples, redraws={self.redraws}, moved={self.moved})"
