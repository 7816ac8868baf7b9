"""Data sets of one kind, padded alike, so that a program that is compiled for one of them serves the others.

Another draw of clients' sizes, or another partition of the same images, has other numbers of rows and other largest
clients. As shapes and static numbers they would be another program; here they are data: n is an array, rows of padding
follow the n-th, and what bounds the clients' sizes is rough. A program that reads rows by clients' offsets, and stops
after n where it reads all of them, computes nothing for the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.core import trees
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.datasets.placement import lengthened_rows

_SMALL = 1 << 24  # bytes of examples up to which padding may take four times the memory: nobody reads it
_MIDDLE = 1 << 26  # likewise, twice the memory
_COPIED = 1 << 28  # bytes beyond which nothing is copied to be padded


class InBucket(FederatedDataset, kw_only=True, eq=False):
    """A data set as the program of a run sees it, of which others of its kind differ in arrays alone.

    Rows of examples and of their weights may be more than n. Python's arithmetic with ``num_examples`` is traced, and
    what takes it for a static size fails before anything runs.

    Attributes:
      num_examples: n, int32.
      max_size: an upper bound of the n_i.
    """

    num_examples: jax.Array  # type: ignore[assignment]

    @property
    def num_rows(self) -> int:
        """Rows of the arrays, padding included."""
        return int(jax.tree.leaves(self.examples)[0].shape[0])


def in_bucket(dataset: FederatedDataset, *, rough: bool) -> InBucket:
    """The data set, held-out parts included, as the program of all of its kind sees it.

    Args:
      dataset: on one device, of concrete arrays.
      rough: whether the bounds of the training part's sizes are those of its bucket too; else they are its own, which
        others do not share. Of held-out parts they always are.
    """
    parts = {name: in_bucket(part, rough=True) for name, part in held_out_parts(dataset).items()}
    return _in_rows(dataset, bucket(dataset), parts, rough=rough)


def in_one_bucket(datasets: Sequence[FederatedDataset]) -> list[InBucket]:
    """Data sets with the same parts, all with the rows of the largest, and rough bounds: others in arrays alone."""
    rows = max(map(bucket, datasets))
    parts = {name: in_one_bucket([getattr(one, name) for one in datasets]) for name in held_out_parts(datasets[0])}
    return [
        _in_rows(one, rows, {name: of_all[place] for name, of_all in parts.items()}, rough=True)
        for place, one in enumerate(datasets)
    ]


def _in_rows(dataset: FederatedDataset, rows: int, parts: dict[str, InBucket], *, rough: bool) -> InBucket:
    own = dataset.num_examples
    fields = {name: getattr(dataset, name) for name in FederatedDataset.__dataclass_fields__}
    padded = {name: _lengthened(fields[name], rows - own) for name in ("examples", "example_weights")}
    bounds = {"max_size": rows, "largest": ((dataset.num_clients, rows, 0),)} if rough else {}
    return InBucket(**fields | parts | padded | bounds | {"num_examples": jax.device_put(np.int32(own))})


def bucket(dataset: FederatedDataset) -> int:
    """Rows of the arrays of data sets like this one: a power of four, of two, or of four significant bits, by bytes.

    One that is too large to be copied, or lies on several devices, is its own bucket: others of as many rows are in it.
    """
    own = dataset.num_examples
    if any(isinstance(leaf, jax.Array) and len(leaf.devices()) > 1 for leaf in jax.tree.leaves(dataset.examples)):
        return own
    one = max(trees.size_in_bytes(dataset.examples) // own, 1)
    wide, middle, narrow = 4 ** -(-(own - 1).bit_length() // 2), 1 << (own - 1).bit_length(), rounded_up(own)
    sizes = ((wide, _SMALL), (middle, _MIDDLE), (narrow, _COPIED))
    return next((int(rows) for rows, most in sizes if rows * one <= most), own)


def rounded_up(rows: int) -> int:
    """The next number with at most four significant bits."""
    unit = 1 << max(rows.bit_length() - 4, 0)
    return -(-rows // unit) * unit


def _lengthened(tree: Any, extra: int) -> Any:
    """Arrays of rows with rows of zeros behind, on the devices where they are."""
    if not extra:
        return tree

    def put(made: np.ndarray, leaf: jax.Array) -> Any:
        return jax.device_put(made, leaf.sharding if getattr(leaf, "committed", False) else None)

    return jax.tree.map(put, lengthened_rows(tree, extra), tree)
