"""Programs beside each other in one process: they take turns, so that a drift of the machine hits all alike."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

Row = dict[str, Any]


def machine() -> Row:
    """When and where it was measured."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "jax": jax.__version__,
    }


def first_calls(runs: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, float]]:
    """What each run returns, and the seconds of that call, compilation included."""
    found, seconds = {}, {}
    for name, run in runs.items():
        started = time.perf_counter()
        found[name] = jax.block_until_ready(run())
        seconds[name] = time.perf_counter() - started
    return found, seconds


def in_turns(runs: Mapping[str, Callable[[], Any]], repeats: int, parts: int = 1) -> dict[str, list[float]]:
    """The milliseconds of every call, over the number of its ``parts``: of rounds, of steps."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            jax.block_until_ready(run())
            taken[name].append(1e3 * (time.perf_counter() - started) / parts)
    return taken


def ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median of the ratios within repeats."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def beside_ours(taken: Mapping[str, Sequence[float]]) -> dict[str, Row]:
    """Of each run the median, the least, and the ratio to ours, which is the first."""
    ours = next(iter(taken.values()))
    return {
        name: {"ms": statistics.median(each), "min_ms": min(each), "ratio_to_ours": ratio(each, ours)}
        for name, each in taken.items()
    }


def show(title: str, part: str, rows: Mapping[str, Row], more: Mapping[str, str]) -> None:
    """Prints a line a run; ``more`` are its other columns, the row's keys by their headings."""
    heads = "".join(f" {head:>13}" for head in more)
    print(f"\n{title}\n{'variant':14} {f'ms a {part}':>10} {'min':>9} {'x ours':>8}{heads}")
    for name, row in rows.items():
        others = "".join(f" {row[key]:13.2f}" for key in more.values())
        print(f"{name:14} {row['ms']:10.2f} {row['min_ms']:9.2f} {row['ratio_to_ours']:8.2f}{others}", flush=True)
