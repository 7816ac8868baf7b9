"""A validation part for any data set, of its training examples: to choose by, so that the test part stays honest."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count, check_real, shown
from fedjax_sim.datasets.construct import packed
from fedjax_sim.datasets.federated import FederatedDataset, client_names, named, whole
from fedjax_sim.datasets.flat import offsets_of
from fedjax_sim.datasets.from_arrays import held_in, kept_of
from fedjax_sim.datasets.host import HostDataset, frame_of

T = TypeVar("T", FederatedDataset, HostDataset)


@recipe("dataset.with_validation")
def with_validation(dataset: T, fraction: float, seed: int = 0, *, gap: int | None = None) -> T:
    """``dataset`` with a part of every client's training examples as its validation part; of any data set.

    A client with n_i training examples keeps max(1, floor((1 - fraction) n_i)) of them. Runs record what is measured on
    the others as ``"validation_loss"``, ``"validation_accuracy"``, ... beside ``"test_loss"``, ...: to stop by, to keep
    the best model by, and to tune by, so that the test examples have chosen nothing.

    Args:
      dataset: a data set without a validation part, on the device or the host. Its test part stays as it is.
      fraction: the share to take, in (0, 1).
      seed: of the draw.
      gap: takes the last examples of every client, as they are stored, and not some drawn uniformly, and drops so many
        before them (at least one example stays): windows of a text or of a recording that overlap with those taken,
        which would be known from training. 0 drops none.

    Returns:
      The data set with the same clients, names included. Example weights are those of the training examples.

    Raises:
      ValueError: a validation part is there already, no client has two examples, a fraction out of range.
      TypeError: no data set.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=3, sizes=[50, 100, 150], test_fraction=0.2)
      >>> fjs.datasets.with_validation(data, 0.25)
      FederatedDataset(3 clients, 180 examples, 60 validation examples, 60 test examples, 10 classes)
    """
    check_real("with_validation(fraction=...)", fraction, low=0.0, below=1.0, host=True)
    check_count("with_validation(seed=...)", seed, low=0)
    if not isinstance(dataset, FederatedDataset | HostDataset):
        raise TypeError(f"with_validation was given {shown(dataset)}: give a data set, for instance of from_clients")
    if dataset.validation is not None:
        raise ValueError(f"with_validation: {dataset!r} has a validation part already")
    sizes = np.asarray(dataset.sizes).astype(np.int64)
    owner = np.repeat(np.arange(sizes.size), sizes)
    if gap is None:
        held = held_in("validation", owner, sizes, fraction, seed)
        dropped = np.zeros_like(held)
    else:
        check_count("with_validation(gap=...)", gap, low=0)
        place, kept = np.arange(owner.size) - offsets_of(sizes)[owner], kept_of(sizes, fraction)
        held = place >= kept[owner]
        dropped = ~held & (place >= np.maximum(1, kept - gap)[owner])
    if not held.any():
        raise ValueError(
            f"with_validation(fraction={fraction}): nothing to take, the largest client has {dataset.max_size} "
            "training examples: give a fraction above 0, and clients with two examples"
        )
    made: T = _split(dataset, held, ~held & ~dropped)
    try:
        return named(made, client_names(dataset))
    except ValueError:  # it has none
        return made


def _split(dataset: Any, held: np.ndarray, kept: np.ndarray) -> Any:
    """The data set that trains on the ``kept`` examples, bool[n], and validates on those ``held`` back."""
    data = whole(dataset) if isinstance(dataset, FederatedDataset) else dataset
    ids, count = np.asarray(data.client_ids), data.num_clients
    owner = np.repeat(np.arange(count), np.asarray(data.sizes))

    def part(mask: np.ndarray) -> Any:
        sizes = np.bincount(owner[mask], minlength=count)
        if isinstance(data, HostDataset):
            rows = np.flatnonzero(mask) if data.rows is None else data.rows[mask]
            return HostDataset(frame_of(packed(data.frame.examples, sizes, ids, data.num_classes)), data.examples, rows)
        return packed(jax.tree.map(lambda leaf: np.asarray(leaf)[mask], data.examples), sizes, ids, data.num_classes)

    weights = None if data.example_weights is None else data.example_weights[kept]
    change = dataclasses.replace if isinstance(data, HostDataset) else FederatedDataset.replace
    return change(part(kept), example_weights=weights, validation=part(held), test=data.test)
