"""Which cells of a grid are computed where not all are: coarse ones, then those near a boundary."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

Place = tuple[int, int]


def refined(
    nx: int, ny: int, budget: int, run: Callable[[list[Place]], None], winners: Callable[[], np.ndarray]
) -> None:
    """Computes at most ``budget`` cells: coarse ones, then the halves of what lies between unlike corners.

    Coarse are about five to nine an axis, fewer where these would be more than half of the budget. Corners are unlike
    that have different winners, which come first, or of which one has none (-1).
    """
    lines, done = _coarse((nx, ny), budget), set[Place]()
    batch = list(itertools.product(*lines))[:budget]
    while batch:
        run(batch)
        done.update(batch)
        winner, finer = winners(), (_halved(lines[0]), _halved(lines[1]))
        wanted: dict[Place, int] = {}
        for (a, b), (c, d) in itertools.product(itertools.pairwise(lines[0]), itertools.pairwise(lines[1])):
            corners = set(itertools.product((a, b), (c, d)))
            found = {int(winner[place]) for place in corners}
            if corners <= done and (len(found) > 1 or -1 in found):
                rank = 0 if len(found - {-1}) > 1 else 1
                for place in itertools.product((a, (a + b) // 2, b), (c, (c + d) // 2, d)):
                    if place not in done:
                        wanted[place] = min(rank, wanted.get(place, rank))
        lines = finer
        batch = sorted(wanted, key=lambda place: (wanted[place], place))[: budget - len(done)]


def _coarse(shape: tuple[int, int], budget: int) -> tuple[list[int], list[int]]:
    """Every 2^k-th of an axis, and its last."""
    steps = [1, 1]
    for axis, n in enumerate(shape):
        while (n - 1) // (2 * steps[axis]) >= 4:
            steps[axis] *= 2
    while True:
        x, y = (sorted({*range(0, n, step), n - 1}) for n, step in zip(shape, steps, strict=True))
        if len(x) * len(y) <= max(budget // 2, 4):
            return x, y
        steps[int(len(y) > len(x))] *= 2


def _halved(line: list[int]) -> list[int]:
    return sorted({*line, *((a + b) // 2 for a, b in itertools.pairwise(line))})
