"""A CPU as one device or as several, and threads for their operations: what `fedjax_sim.use_cpu_devices` chooses from.

    python -m benchmarks.speed.devices [--workloads W1,W2,W4] [--devices 1,2] [--rounds 10] [--repeats 5] [--out FILE]

Milliseconds a round of FedAvg (workloads: benchmarks/speed/workloads.py). Every number of devices is measured with as
many threads as XLA takes by itself and with one (NPROC=1), each in processes of its own that take turns, so that a
drift of the machine hits all alike; the ratio to one device is the median of the ratios within turns. Losses must
agree.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS_MEASURED = 3  # times that all rounds are run in one process, after a first time


def measure(name: str, rounds: int, devices: int) -> dict[str, float]:
    """Of one process: the median milliseconds a round, the first call's seconds, the final loss."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import fedjax_sim as fjs
    from benchmarks.speed.peers.ours import Program
    from benchmarks.speed.workloads import make

    work = make(name, rounds)
    program = Program(work, layout=fjs.layout.mesh(devices) if devices > 1 else None)
    started = time.perf_counter()
    program.advance(program.begin(work.start), 0, rounds)
    first = time.perf_counter() - started
    times = []
    for _ in range(ROUNDS_MEASURED):
        state = program.begin(work.start)
        started = time.perf_counter()
        state = program.advance(state, 0, rounds)
        times.append((time.perf_counter() - started) / rounds * 1e3)
    return {"ms": statistics.median(times), "first_s": first, "loss": work.loss(program.weights(state))}


def in_process(name: str, rounds: int, devices: int, threads: int | None) -> dict[str, float]:
    """:func:`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed.devices", "--one", name, str(rounds), str(devices)]
    environment = {key: value for key, value in os.environ.items() if key != "NPROC"}
    if threads is not None:
        environment["NPROC"] = str(threads)
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W2,W4")
    parser.add_argument("--devices", default="1,2", help="numbers of devices; the first is what ratios are to")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file of all figures")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, rounds, devices = options.one
        print(json.dumps(measure(name, int(rounds), int(devices))))
        return
    settings = [(int(devices), threads) for devices in options.devices.split(",") for threads in (None, 1)]
    rows: list[dict[str, Any]] = []
    print(
        "| workload | devices | threads | ms a round | times one device | first call s |\n|---|---:|---|---:|---:|---:|"
    )
    for name in options.workloads.split(","):
        turns = [{at: in_process(name, options.rounds, *at) for at in settings} for _ in range(options.repeats)]
        losses = [found["loss"] for turn in turns for found in turn.values()]
        if max(losses) - min(losses) > 1e-3 * abs(max(losses)):
            sys.exit(f"{name}: the losses differ ({min(losses)} to {max(losses)}), so no time is worth anything")
        for at in settings:
            ms = statistics.median(turn[at]["ms"] for turn in turns)
            ratio = statistics.median(turn[at]["ms"] / turn[settings[0]]["ms"] for turn in turns)
            first = statistics.median(turn[at]["first_s"] for turn in turns)
            rows.append(
                {"workload": name, "devices": at[0], "threads": at[1], "ms": ms, "ratio": ratio, "first_s": first}
            )
            print(f"| {name} | {at[0]} | {at[1] or 'XLA'} | {ms:.2f} | {ratio:.2f} | {first:.1f} |", flush=True)
    if options.out is not None:
        from fedjax_sim.core.files import write_atomically

        text = json.dumps({"rows": rows, "options": vars(options)}, indent=1, default=str)
        write_atomically(options.out, lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
