"""What the partitioners ask of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count
from fedjax_sim.datasets.array_checks import host_array


def checked_labels(what: str, labels: Any) -> np.ndarray:
    """Labels renumbered 0 .. C-1 without gaps, int64[n].

    Raises:
      ValueError: not one-dimensional.
      TypeError: not integers.
    """
    array = host_array(f"{what}(labels)", labels)
    if array.ndim != 1:
        raise ValueError(f"{what}: the labels have shape {array.shape}; they must be one-dimensional, one per example")
    if array.dtype.kind not in "iub":
        raise TypeError(f"{what}: the labels have dtype {array.dtype}; they must be integers, cast with .astype(int)")
    return renumbered(array)


def renumbered(values: np.ndarray) -> np.ndarray:
    """The place of each entry among the distinct values in sorted order, int64[n]."""
    if values.dtype.kind in "iub" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * values.size + 1000:  # a table instead of a sort: ten times as fast for millions of rows
            shifted = values.astype(np.int64) - low if values.dtype.kind != "u" else (values - values.min()).astype(int)
            present = np.bincount(shifted, minlength=high - low + 1) > 0
            of_table: np.ndarray = (np.cumsum(present) - 1)[shifted]
            return of_table
    places: np.ndarray = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return places


def check_clients(what: str, num_examples: int, num_clients: int, min_size: int) -> None:
    """Checks that there are examples enough for ``min_size`` at each client."""
    check_count(f"{what}(num_examples)", num_examples)
    check_count(f"{what}(num_clients)", num_clients)
    check_count(f"{what}(min_size=...)", min_size)
    if num_clients * min_size > num_examples:
        raise ValueError(
            f"{what}: {num_clients} clients with at least {min_size} each need {num_clients * min_size} examples but "
            f"there are {num_examples}: use fewer clients"
        )


def checked_client_sizes(what: str, sizes: Any, num_examples: int, num_clients: int | None = None) -> np.ndarray:
    """``sizes`` as int64[N], each at least 1 and together at most ``num_examples``; N may be prescribed."""
    array = host_array(f"{what}(sizes=...)", sizes)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise TypeError(f"{what}(sizes=...) is {array.dtype}{list(array.shape)}: give one integer for each client")
    if num_clients is not None and array.size != num_clients:
        raise ValueError(f"{what}(sizes=...) has {array.size} entries: there are {num_clients} clients")
    for client in np.flatnonzero(array < 1)[:1]:
        raise ValueError(f"{what}(sizes=...): client {client} has size {array[client]}: it must be at least 1")
    total = sum(array.tolist())  # of any size, where numpy's would wrap round
    if total > num_examples:
        raise ValueError(
            f"{what}(sizes=...): they add up to {total} but there are {num_examples} examples: use fewer or smaller "
            "clients"
        )
    return array.astype(np.int64)


def checked_weights(what: str, weights: Any, num_clients: int) -> np.ndarray:
    """``weights`` as float64[N], finite and positive."""
    array = host_array(f"{what}(weights=...)", weights)
    if array.shape != (num_clients,) or array.dtype.kind not in "iuf":
        raise TypeError(
            f"{what}(weights=...) is {array.dtype}{list(array.shape)}: give one number for each of the {num_clients} "
            "clients"
        )
    for client in np.flatnonzero(~(np.isfinite(array) & (array > 0)))[:1]:
        raise ValueError(f"{what}(weights=...): client {client} has {array[client]}: weights are finite and positive")
    return array.astype(np.float64)
