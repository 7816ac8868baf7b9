"""Which cells of a grid are computed where not all are: coarse ones, then those near a boundary."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

Place = tuple[int, int]


def refined(
    nx: int, ny: int, budget: int, run: Callable[[list[Place]], None], winners: Callable[[], np.ndarray]
) -> None:
    """Computes at most ``budget`` cells: about five an axis, then the halves of what lies between unlike corners.

    Corners are unlike that have different winners, which come first, or of which one has none (-1).
    """
    lines, done = (_coarse(nx), _coarse(ny)), set[Place]()
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


def _coarse(n: int) -> list[int]:
    step = 1
    while (n - 1) // (2 * step) >= 4:
        step *= 2
    return sorted({*range(0, n, step), n - 1})


def _halved(line: list[int]) -> list[int]:
    return sorted({*line, *((a + b) // 2 for a, b in itertools.pairwise(line))})
