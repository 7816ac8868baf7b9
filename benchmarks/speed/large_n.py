"""How a round depends on the number of clients, up to a million.

    python -m benchmarks.speed.large_n [--clients 1000 10000 100000 1000000] [--rounds 20 120] [--out FILE.json]

Clients of 20 examples with 60 features and 10 classes, 1,000 clients a round, one local epoch of batches of 20,
logistic regression in float32: FedAvg, which keeps nothing for a client, and SCAFFOLD, which keeps a model's worth for
each. Every line is a process of its own: seconds to make the data set, seconds until the program is ready, milliseconds
a round (the difference of a long and a short run, which leaves out the evaluation of all data; median of
``--repeats``), the seconds of one evaluation, and the peak of resident memory. Last, the exponent of N that fits the
milliseconds of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.core.files import write_atomically

SIZE, FEATURES, CLASSES = 20, 60, 10
METHODS = {"fedavg": fjs.fedavg, "scaffold": fjs.scaffold}


def dataset(num_clients: int) -> fjs.FederatedDataset:
    """Random examples, client after client."""
    rng = np.random.default_rng(0)
    rows = num_clients * SIZE
    x = rng.random((rows, FEATURES), np.float32)
    x -= 0.5
    y = rng.integers(0, CLASSES, rows, np.int32)
    return fjs.datasets.from_ids((x, y), np.repeat(np.arange(num_clients), SIZE), num_classes=CLASSES)


def measure(method: str, num_clients: int, cohort: int, rounds: list[int], repeats: int) -> dict[str, Any]:
    """One line of the table."""
    started = time.perf_counter()
    data = dataset(num_clients)
    jax.block_until_ready(data.examples)
    set_up = time.perf_counter() - started
    algorithm = METHODS[method](client_optimizer=fjs.optim.sgd(0.05))

    def run(count: int) -> fjs.History:
        return fjs.simulate(
            algorithm, data, task=fjs.classification(fjs.models.LogisticRegression(CLASSES)), rounds=count,
            eval_every=count, batch_size=SIZE, cohort=fjs.cohort.uniform(min(cohort, num_clients)),
            work=fjs.local.epochs(1),
        )  # fmt: skip

    short, long = rounds
    first = run(short)
    run(long)
    times = []
    for _ in range(repeats):
        less, more = run(short).seconds, run(long).seconds
        times.append((more - less) / (long - short))
    return {
        "method": method,
        "clients": num_clients,
        "set_up_s": set_up,
        "ready_s": first.compile_seconds,
        "round_ms": 1e3 * statistics.median(times),
        "evaluation_s": max(run(short).seconds - short * statistics.median(times), 0.0),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cohort", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, nargs=2, default=[20, 120])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        method, clients = options.one
        print(json.dumps(measure(method, int(clients), options.cohort, options.rounds, options.repeats)))
        return
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores; {options.cohort} clients a round")
    print(f"{'method':<9} {'clients':>9} {'set-up s':>9} {'ready s':>8} {'ms a round':>11}", end=" ")
    print(f"{'evaluation s':>13} {'peak MB':>8}")
    lines = []
    for method in options.methods:
        for clients in options.clients:
            command = [
                sys.executable, "-m", "benchmarks.speed.large_n", "--one", method, str(clients),
                "--cohort", str(options.cohort), "--rounds", *map(str, options.rounds),
                "--repeats", str(options.repeats),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
            if done.returncode:
                sys.exit(f"{method} with {clients} clients failed:\n{done.stderr[-2000:]}")
            line = json.loads(done.stdout)
            lines.append(line)
            print(
                f"{method:<9} {clients:>9,} {line['set_up_s']:>9.2f} {line['ready_s']:>8.2f} {line['round_ms']:>11.2f} "
                f"{line['evaluation_s']:>13.2f} {line['peak_mb']:>8.0f}",
                flush=True,
            )
    exponents = {}
    for method in options.methods:
        points = [(line["clients"], line["round_ms"]) for line in lines if line["method"] == method]
        if len(points) > 1:
            clients, times = np.log(np.asarray(points)).T
            exponents[method] = float(np.polyfit(clients, times, 1)[0])
            print(f"{method}: a round takes time proportional to N^{exponents[method]:.3f}")
    if options.out:
        write_atomically(options.out, json.dumps({"lines": lines, "exponents": exponents}, indent=1).encode())


if __name__ == "__main__":
    main()
