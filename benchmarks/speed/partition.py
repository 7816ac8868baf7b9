"""Every partitioner at the size of a large simulation, and the data set made of the result.

    python benchmarks/speed/partition.py [--examples 10000000] [--clients 100000] [--classes 10] [--repeats 1]

Labels are 0 .. C-1 in turn. Times are the best of the repeats, in seconds; ``from_partition`` has four uint8 features
and uint8 labels per example and, in the second line, holds out a fifth of each client's examples. Peak memory is the
process's high-water mark, in MiB, after each line.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from fedjax_sim.datasets import from_partition, partition


def cases(labels: np.ndarray, clients: int) -> dict[str, Callable[[], partition.Partition]]:
    """What is timed, by the name to print."""
    total = labels.size
    ids = np.random.Generator(np.random.PCG64(0)).integers(0, clients, total)
    ids[:clients] = np.arange(clients)
    return {
        "iid": lambda: partition.iid(total, clients, 0),
        "sized, lognormal": lambda: partition.sized(total, partition.lognormal_sizes(total, clients, 1.0, 0), 0),
        "sized, power law": lambda: partition.sized(total, partition.power_law_sizes(total, clients, 2.0, 0), 0),
        "natural": lambda: partition.natural(ids),
        "shards(2)": lambda: partition.shards(labels, clients, 2, 0),
        "similarity(10)": lambda: partition.similarity(labels, clients, 10.0, 0),
        "dirichlet(0.1)": lambda: partition.dirichlet(labels, clients, 0.1, 0),
        "dirichlet(1.0)": lambda: partition.dirichlet(labels, clients, 1.0, 0),
        "dirichlet, balanced": lambda: partition.dirichlet(labels, clients, 0.1, 0, 10, balanced=True),
        "dirichlet, capped": lambda: partition.dirichlet(labels, clients, 0.1, 0, max_size=4 * total // clients),
        "dirichlet_per_client": lambda: partition.dirichlet_per_client(labels, clients, 0.1, 0),
        "classes(2)": lambda: partition.classes(labels, clients, 2, 0),
        "even_classes(2)": lambda: partition.even_classes(labels, clients, 2, 0),
        "consecutive_classes(2)": lambda: partition.consecutive_classes(labels, clients, 2, 0),
    }


def best(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Shortest time in seconds, and what came out."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times), found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    labels = (np.arange(options.examples) % options.classes).astype(np.uint8 if options.classes <= 256 else np.int32)
    examples = {"x": np.zeros((options.examples, 4), np.uint8), "y": labels}
    print(
        f"numpy {np.__version__}, jax {jax.__version__}, {os.cpu_count()} cores; {options.examples:,} examples, "
        f"{options.clients:,} clients, {options.classes} classes"
    )
    print(f"{'':<26} {'seconds':>8} {'redraws':>8} {'moved':>10} {'smallest':>9} {'largest':>9} {'peak MiB':>9}")

    def line(name: str, seconds: float, cells: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{name:<26} {seconds:8.2f} {cells:>39} {peak:9,}", flush=True)

    for name, make in cases(labels, options.clients).items():
        seconds, made = best(make, options.repeats)
        line(name, seconds, f"{made.redraws:8d} {made.moved:10,} {made.sizes.min():9,} {made.sizes.max():9,}")
    for name, fraction in (("from_partition", 0.0), ("from_partition, held out", 0.2)):
        seconds, data = best(lambda f=fraction: from_partition(examples, made, test_fraction=f), options.repeats)
        sizes = np.asarray(data.sizes)
        line(name, seconds, f"{'':8} {'':10} {sizes.min():9,} {sizes.max():9,}")


if __name__ == "__main__":
    main()
