"""What partitioners ask of their arguments; from counts (examples of each class at each client) to rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.core.values import check_count, shapes
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.flat import offsets_of, ranges
from fedjax_sim.datasets.parts import Partition


def checked_labels(what: str, labels: Any) -> np.ndarray:
    """Labels renumbered 0 .. C-1 without gaps, int64[n]."""
    if isinstance(labels, tuple) and len(labels) == 2 and all(hasattr(one, "__len__") for one in labels):
        raise TypeError(f"{what}(labels) is {shapes(labels)}: give the labels alone, {what}(y, ...)")
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
        # A table instead of a sort: ten times as fast for millions of rows.
        if high - low < 4 * values.size + 1000 and high < 2**63:
            shifted = values.astype(np.int64) - low
            return (np.cumsum(np.bincount(shifted) > 0) - 1)[shifted]
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


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


def apportioned(weights: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Splits each total, int[R], in proportion to its row of weights, float[R, K], by rounding cumulative shares down.

    Row r of the result, int64[R, K], adds up to ``totals[r]`` and is within one of the exact shares. A margin of 1e-9
    keeps a share that is a whole number from being rounded down for its last bit.
    """
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    cuts = np.floor(cumulative * totals[:, None] + 1e-9).astype(np.int64)
    cuts[:, -1] = totals
    return np.diff(np.minimum(cuts, totals[:, None]), axis=1, prepend=0)


def even_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes that differ by at most one, the larger ones first, int64[parts]."""
    return total // parts + (np.arange(parts) < total % parts)


def hands(rows: np.ndarray, owner: np.ndarray, num_clients: int, moved: int = 0, redraws: int = 0) -> Partition:
    """The partition in which row ``rows[j]`` goes to client ``owner[j]``."""
    bits = np.uint64(max(1, int(rows.max(initial=0)).bit_length()))
    keys = (owner.astype(np.uint64) << bits) | rows.astype(np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return Partition(keys.astype(np.int64), np.bincount(owner, minlength=num_clients), redraws, moved)


def dealt(draws: Draws, classes: np.ndarray, counts: np.ndarray, moved: int = 0, redraws: int = 0) -> Partition:
    """Deals random rows of each class as ``counts``, int64[C, N], says; what a class has beyond its row is left out."""
    deck = draws.shuffled_by(classes)
    taken, of_class = counts.sum(axis=1), np.bincount(classes, minlength=counts.shape[0])
    if not np.array_equal(taken, of_class):
        deck = deck[ranges(offsets_of(of_class), taken)]
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), counts.shape[0]), counts.reshape(-1))
    return hands(deck, owner, counts.shape[1], moved, redraws)


def within_bounds(draws: Draws, counts: np.ndarray, min_size: int, max_size: int | None) -> tuple[np.ndarray, int]:
    """Counts in which every client has ``min_size`` to ``max_size`` examples, and how many were moved for it.

    The largest are lowered to a common level to fill those below ``min_size``, and the smallest raised to one by what
    others have above ``max_size``. A client gives of its classes in proportion, and receives few classes.
    """
    sizes = counts.sum(axis=0)
    gives, takes = np.zeros_like(sizes), np.zeros_like(sizes)
    if max_size is not None and sizes.max() > max_size:
        gives = np.maximum(sizes - max_size, 0)
        takes = _lowered(-np.minimum(sizes, max_size), int(gives.sum()))
    reached = sizes - gives + takes
    short = np.maximum(min_size - reached, 0)
    if short.any():
        lowered = _lowered(reached, int(short.sum()))
        net = short - lowered + takes - gives
        gives, takes = np.maximum(-net, 0), np.maximum(net, 0)
    moved = int(gives.sum())
    return (_moved(draws, counts, gives, takes), moved) if moved else (counts, 0)


def _lowered(sizes: np.ndarray, amount: int) -> np.ndarray:
    """What each client loses when the largest are lowered to one level (or one above it) that frees ``amount``."""
    order = np.argsort(-sizes, kind="stable")
    decreasing = sizes[order]
    totals = np.cumsum(decreasing)
    counts = np.arange(1, sizes.size + 1)
    # lowering the k largest to the size of the next one frees so many; lowering all of them has no limit here
    frees = totals[:-1] - counts[:-1] * decreasing[1:]
    touched = int(np.searchsorted(frees, amount)) + 1
    level, above = divmod(int(totals[touched - 1]) - amount, touched)
    loses = np.zeros_like(sizes)
    loses[order[:touched]] = decreasing[:touched] - level - (np.arange(touched) < above)
    return loses


def _moved(draws: Draws, counts: np.ndarray, gives: np.ndarray, takes: np.ndarray) -> np.ndarray:
    """Counts after client i gave ``gives[i]`` examples, of its classes in proportion, and received ``takes[i]``."""
    sizes = np.maximum(counts.sum(axis=0), 1)
    cuts = np.cumsum(counts, axis=0) * gives // sizes  # whole numbers: no class gives more than it has
    given = np.diff(cuts, axis=0, prepend=0)
    receivers = draws.shuffled(gives.size)
    receivers = receivers[takes[receivers] > 0]
    client = np.repeat(receivers, takes[receivers])
    label = np.repeat(np.arange(counts.shape[0]), given.sum(axis=1))
    received = np.bincount(label * gives.size + client, minlength=counts.size).reshape(counts.shape)
    return counts - given + received
