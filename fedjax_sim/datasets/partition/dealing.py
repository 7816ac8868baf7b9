"""From counts (how many examples of each class each client gets) to rows, and the repair of counts."""

from __future__ import annotations

import numpy as np

from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.flat import offsets_of, ranges
from fedjax_sim.datasets.parts import Partition


def apportioned(weights: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Splits each total in proportion to its row of weights, by rounding the cumulative shares down.

    Args:
      weights: float[R, K], not negative, with a positive entry in every row.
      totals: int[R].

    Returns:
      int64[R, K]; row r adds up to ``totals[r]`` and is within one of the exact shares. A margin of 1e-9 keeps a
      share that is a whole number from being rounded down for its last bit.
    """
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    cuts = np.floor(cumulative * totals[:, None] + 1e-9).astype(np.int64)
    cuts[:, -1] = totals
    return np.diff(np.minimum(cuts, totals[:, None]), axis=1, prepend=0)


def even_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes that differ by at most one, the larger ones first, int64[parts]."""
    return total // parts + (np.arange(parts) < total % parts)


def hands(rows: np.ndarray, owner: np.ndarray, num_clients: int, redraws: int = 0, moved: int = 0) -> Partition:
    """The partition in which row ``rows[j]`` goes to client ``owner[j]``."""
    bits = np.uint64(max(1, int(rows.max(initial=0)).bit_length()))
    keys = (owner.astype(np.uint64) << bits) | rows.astype(np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return Partition(keys.astype(np.int64), np.bincount(owner, minlength=num_clients), redraws, moved)


def dealt(draws: Draws, classes: np.ndarray, counts: np.ndarray, redraws: int = 0, moved: int = 0) -> Partition:
    """Deals random rows of each class as ``counts`` says.

    Args:
      draws: the stream of the shuffle.
      classes: int64[n], 0 .. C-1.
      counts: int64[C, N]; what a class has beyond its row is left out.
      redraws: for the record.
      moved: for the record.
    """
    deck = draws.shuffled_by(classes)
    taken, of_class = counts.sum(axis=1), np.bincount(classes, minlength=counts.shape[0])
    if not np.array_equal(taken, of_class):
        deck = deck[ranges(offsets_of(of_class), taken)]
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), counts.shape[0]), counts.reshape(-1))
    return hands(deck, owner, counts.shape[1], redraws, moved)


def within_bounds(draws: Draws, counts: np.ndarray, min_size: int, max_size: int | None) -> tuple[np.ndarray, int]:
    """Counts in which every client has ``min_size`` to ``max_size`` examples, and how many were moved for it.

    The largest clients are lowered to a common level to fill those below ``min_size``, and the smallest are raised to
    a common level by what others have above ``max_size``. A client gives from its classes in proportion; what is
    given away goes to the receivers class after class, so that each receives few classes.

    Args:
      draws: decides which receiver gets which classes.
      counts: int64[C, N], enough in all for ``min_size`` and not too many for ``max_size``.
      min_size: fewest examples of a client.
      max_size: most examples of a client, or None.
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
    after: np.ndarray = counts - given + received
    return after
