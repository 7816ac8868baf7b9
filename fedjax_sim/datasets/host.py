"""Examples that stay in host memory or on disk: :class:`HostDataset`.

Who holds how many examples is known on the device (a few bytes a client); the examples of a round's cohort are gathered
on the host into a *window*, and the round runs on the window as it would on all the data.

:func:`from_clients`, :func:`from_ids` and :func:`from_partition` are those of :mod:`fedjax_sim.datasets` for such data.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import shown
from fedjax_sim.datasets import construct
from fedjax_sim.datasets.calls import MEANT_BY_CLIENTS, MEANT_BY_IDS, MEANT_BY_PARTITION, answers, arguments_of
from fedjax_sim.datasets.federated import (
    FederatedDataset,
    check_copy,
    held_out_parts,
    in_html,
    in_short,
    training_part,
    whole,
)
from fedjax_sim.datasets.flat import int32, offsets_of, ranges
from fedjax_sim.datasets.from_arrays import given_clients, given_ids, given_partition
from fedjax_sim.datasets.placement import as_here
from fedjax_sim.datasets.statistics import Statistics, label_table
from fedjax_sim.datasets.validate import Given, checked_parts, type_alone


@dataclasses.dataclass(frozen=True, eq=False)
class HostDataset:
    """The examples of N clients in host arrays, for :func:`fedjax_sim.simulate`.

    Made by the functions of :mod:`fedjax_sim.datasets.host`, which copy nothing: arrays from
    ``numpy.load(..., mmap_mode="r")`` stay on disk. Results are those of the same data on the device.

    Attributes:
      frame: sizes, ids and counts as every part of a run sees them; its ``examples`` are a single row of zeros of the
        types in which examples reach the device.
      examples: pytree of host arrays in any order of rows, as they were given.
      rows: int64[n], the row of the j-th example of the flat order (client after client); None where that is j.
      example_weights: float[n] in the flat order, or None.
      validation: held-out examples of the same clients, to choose by, or None.
      test: held-out examples, to report on, likewise.
    """

    known_apart = True  # as FederatedDataset

    frame: FederatedDataset
    examples: Any
    rows: np.ndarray | None = None
    example_weights: np.ndarray | None = None
    validation: HostDataset | None = None
    test: HostDataset | None = None

    @property
    def num_clients(self) -> int:
        """N."""
        return self.frame.num_clients

    @property
    def num_examples(self) -> int:
        """n."""
        return self.frame.num_examples

    @property
    def num_classes(self) -> int | None:
        """Number of classes, or None without labels."""
        return self.frame.num_classes

    @property
    def max_size(self) -> int:
        """The largest n_i."""
        return self.frame.max_size

    @property
    def sizes(self) -> jax.Array:
        """int32[N], n_i in storage order."""
        return self.frame.sizes

    @property
    def client_ids(self) -> jax.Array:
        """int32[N], in storage order."""
        return self.frame.client_ids

    def take(self, where: np.ndarray, length: int | None = None) -> Any:
        """Examples by their places in the flat order, int64[k], in the types of the device; new host arrays.

        Their leading axis is ``length``, k or more, with zeros beyond k; None for k.
        """
        rows = where if self.rows is None else self.rows[where]

        def gathered(leaf: np.ndarray, like: jax.Array) -> np.ndarray:
            made = np.zeros((len(rows) if length is None else length, *leaf.shape[1:]), like.dtype)
            made[: len(rows)] = leaf[rows]
            return made

        return jax.tree.map(gathered, self.examples, self.frame.examples)

    def window(self, positions: np.ndarray, length: int) -> tuple[Any, np.ndarray | None, np.ndarray]:
        """The examples of the clients at some storage positions end to end.

        Returns:
          ``(examples, example weights or None, starts)``: leaves [length, ...], and where each client begins.
        """
        sizes = self._sizes[positions]
        where = ranges(self._offsets[positions], sizes)
        weights = None
        if self.example_weights is not None:
            weights = np.zeros(length, self.example_weights.dtype)
            weights[: where.size] = self.example_weights[where]
        return self.take(where, length), weights, offsets_of(sizes)

    def client(self, position: int) -> Any:
        """As :meth:`FederatedDataset.client`."""
        if not 0 <= position < self.num_clients:
            raise IndexError(f"client({position}): storage positions are 0 to {self.num_clients - 1}")
        return self.window(np.array([position]), int(self._sizes[position]))[0]

    def statistics(self) -> Statistics:
        """As :meth:`FederatedDataset.statistics`."""
        table = None
        if self.num_classes is not None:
            labels = self.examples["y"] if self.rows is None else self.examples["y"][self.rows]
            table = label_table(labels.astype(np.int64), self._sizes, self.num_classes)
        return Statistics(
            self._sizes, table, **{f"{name}_sizes": of._sizes for name, of in held_out_parts(self).items()}
        )

    def on_device(self) -> FederatedDataset:
        """The same data set with all examples on the device."""
        weights = self.example_weights
        made: FederatedDataset = self.frame.replace(
            examples=jax.tree.map(jnp.asarray, self.take(np.arange(self.num_examples))),
            offsets=int32(self._offsets),
            example_weights=None if weights is None else jnp.asarray(weights),
            **{name: part.on_device() for name, part in held_out_parts(self).items()},
        )
        return made

    __repr__ = in_short
    _repr_html_ = in_html

    # Kept: every round's window asks, and the frame is on the device.
    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.asarray(self.frame.sizes)

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        return offsets_of(self._sizes.astype(np.int64))


@answers(MEANT_BY_CLIENTS)
@arguments_of(construct.from_clients)
def from_clients(*, num_classes: int | None, **given: Any) -> HostDataset:
    """As :func:`fedjax_sim.datasets.from_clients`, in host memory; the clients' arrays are joined there."""
    return _hosted(given_clients(**given), num_classes)


@answers(MEANT_BY_IDS)
@arguments_of(construct.from_ids)
def from_ids(*, num_classes: int | None, **given: Any) -> HostDataset:
    """As :func:`fedjax_sim.datasets.from_ids`; the arrays stay where they are, in their own order.

    Example:
      >>> import numpy as np
      >>> data = from_ids({"x": np.arange(4.0)}, [7, 3, 7, 3])
      >>> data, data.client(0)["x"]
      (HostDataset(2 clients, 4 examples), array([1., 3.], dtype=float32))
    """
    return _hosted(given_ids(**given), num_classes)


@answers(MEANT_BY_PARTITION)
@arguments_of(construct.from_partition)
def from_partition(*, num_classes: int | None, **given: Any) -> HostDataset:
    """As :func:`fedjax_sim.datasets.from_partition`; the arrays stay where they are, in their own order."""
    return _hosted(given_partition(**given), num_classes)


@recipe("dataset.on_host")
def on_host(dataset: FederatedDataset) -> HostDataset:
    """``dataset`` with its examples in host memory: for a run whose device has no room for all of them.

    Raises:
      TypeError: no data set on the device.
      ValueError: a copy by ``replace`` that no run takes.

    Example:
      >>> import fedjax_sim as fjs
      >>> on_host(fjs.datasets.synthetic(1.0, 1.0, num_clients=3, sizes=[50, 100, 150]))
      HostDataset(3 clients, 240 examples, 60 test examples, 10 classes)
    """
    if not isinstance(dataset, FederatedDataset):
        raise TypeError(f"on_host({shown(dataset)}): give a data set of fedjax_sim.datasets that is on the device")
    check_copy(dataset)
    dataset = whole(dataset)
    weights = dataset.example_weights
    return HostDataset(
        frame=as_here(frame_of(dataset)),
        examples=jax.tree.map(np.asarray, dataset.examples),
        example_weights=None if weights is None else np.asarray(weights),
        validation=None if dataset.validation is None else on_host(dataset.validation),
        test=None if dataset.test is None else on_host(dataset.test),
    )


def frame_of(dataset: FederatedDataset) -> FederatedDataset:
    """``dataset`` without its examples: one row of zeros in their place."""
    frame: FederatedDataset = training_part(dataset).replace(
        examples=jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), dataset.examples),
        offsets=jnp.zeros_like(dataset.offsets),
        example_weights=None,
    )
    object.__setattr__(frame, "_looked_at", True)  # see check_copy
    return frame


def _hosted(given: Given, num_classes: int | None) -> HostDataset:
    """Checks all values, piece by piece, and leaves the arrays alone."""
    made = {
        name: HostDataset(frame_of(data), part.examples, part.rows)
        for name, (part, data) in checked_parts(given, num_classes, type_alone).items()
    }
    data = dataclasses.replace(made["train"], validation=made.get("validation"), test=made.get("test"))
    return given.remembered(data)
