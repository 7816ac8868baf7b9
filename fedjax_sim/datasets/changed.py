"""Data sets made of others: with a validation part to choose by, with wrong labels at some clients (poisoning)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count, check_real, shown
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import FederatedDataset, client_names, named, packed, whole
from fedjax_sim.datasets.flat import offsets_of, ranges
from fedjax_sim.datasets.from_arrays import held_by_id, kept_of
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
        held = held_by_id("validation", np.asarray(dataset.client_ids), sizes, fraction, seed)
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


@recipe("dataset.flip_labels")
def flip_labels(
    data: FederatedDataset, clients: Sequence[int] | np.ndarray, labels: Sequence[int] | None = None
) -> FederatedDataset:
    """The data set with the training labels of some clients exchanged, y -> labels[y].

    Held-out examples keep their labels.

    Args:
      data: a labelled data set.
      clients: indices of the clients (numbered in the order of their ids), for instance of
        ``fedjax_sim.attacks.draw_attackers``.
      labels: int[C], the new label of each class; None for C - 1 - y.

    Returns:
      A copy; it describes itself where ``data`` does.

    Raises:
      TypeError: no data set on the device.
      ValueError: no labels, an index that no client has, or a table that is not one class for each.
    """
    rows, old, classes = _labels_of("flip_labels", data, clients)
    table = np.arange(classes)[::-1] if labels is None else host_array("flip_labels(labels=...)", labels)
    if table.shape != (classes,) or not np.isin(table, np.arange(classes)).all() or table.dtype.kind not in "iu":
        raise ValueError(
            f"flip_labels(labels={shown(labels)}): give the new label of each of the {classes} classes, integers from "
            f"0 to {classes - 1}"
        )
    return _with_labels(data, rows, table[old])


@recipe("dataset.random_labels")
def random_labels(data: FederatedDataset, clients: Sequence[int] | np.ndarray, seed: int = 0) -> FederatedDataset:
    """The data set with the training labels of some clients drawn uniformly from all classes.

    Arguments, result and errors as in :func:`flip_labels`, and the ``seed`` of the labels.
    """
    rows, old, classes = _labels_of("random_labels", data, clients)
    drawn = Draws("random_labels", seed).uniform(old.size).reshape(old.shape)
    return _with_labels(data, rows, np.floor(drawn * classes).astype(np.int64))


def _labels_of(what: str, data: FederatedDataset, clients: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows of the clients, their labels, and how many classes there are."""
    if not isinstance(data, FederatedDataset):
        raise TypeError(f"{what}({shown(data)}): give a data set of fedjax_sim.datasets that is on the device")
    if data.num_classes is None:
        raise ValueError(f"{what}: the data set has no labels to change; give one whose examples have classes")
    chosen = host_array(f"{what}(clients=...)", clients)
    whole = chosen.dtype.kind in "iu" or not chosen.size
    if chosen.ndim != 1 or not whole or ((chosen < 0) | (chosen >= data.num_clients)).any():
        raise ValueError(
            f"{what}(clients={shown(clients)}): give one row of client indices, integers from 0 to "
            f"{data.num_clients - 1}"
        )
    # In the order of the ids, each once: where clients are stored must not matter to what is drawn.
    stored = np.asarray(data.order)[np.unique(chosen.astype(np.int64))]
    rows = ranges(np.asarray(data.offsets)[stored], np.asarray(data.sizes)[stored])
    return rows, np.asarray(data.examples["y"])[rows], data.num_classes


def _with_labels(data: FederatedDataset, rows: np.ndarray, new: np.ndarray) -> FederatedDataset:
    labels = np.array(data.examples["y"])
    labels[rows] = new.astype(labels.dtype)
    return data.replace(examples={**data.examples, "y": jnp.asarray(labels)})
