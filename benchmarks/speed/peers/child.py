"""One peer on one workload, in the environment of the peer.

    python -m benchmarks.speed.peers.child PEER DIRECTORY OUT STARTED

Writes OUT/weights.npz and OUT/result.json. STARTED is the harness' monotonic clock when it started this process: the
start of the interpreter and the imports are part of the set-up.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
import sys

from benchmarks.speed import workloads
from benchmarks.speed.peers.contract import Clock, describe, program


def peak_memory(pid: int | None = None) -> float:
    """Peak resident memory in MB of this process and its descendants, one added to the other (Linux).

    Not ru_maxrss, which a child inherits from its parent. Pages that processes share are counted in each.
    """
    total = 0.0
    for process in descendants(os.getpid() if pid is None else pid):
        try:
            status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # gone meanwhile
            continue
        total += next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
    return total


def descendants(pid: int) -> list[int]:
    """A process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def main(peer: str, directory: str, out: str, started: str) -> None:
    """Trains and writes what was measured."""
    work, clock = workloads.load(pathlib.Path(directory)), Clock(float(started))
    rounds, peak = 0, 0.0

    def tick(count: int = 1) -> None:
        nonlocal rounds, peak
        clock(count)
        rounds += count
        if rounds == len(work.cohorts):  # while workers, if there are any, are still there
            peak = peak_memory()

    weights = program(peer)(work, tick)
    workloads.save_weights(pathlib.Path(out) / "weights.npz", weights)
    result = {
        **clock.summary(),
        "peak_mb": peak,
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in describe(peer).versions},
    }
    (pathlib.Path(out) / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
