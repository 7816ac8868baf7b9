"""What it costs to leave the data on the host: rounds with all data on the device, in host memory, and on disk.

    python benchmarks/speed/host.py [--clients 500] [--size 200] [--cohort 20] [--rounds 8 40] [--repeats 5]

An MLP 784-200-200-10 on random images in float32 (500 clients of 200: 314 MB), one epoch of batches of 20, FedAvg. Each
repeat runs all variants one after another, each for the two numbers of rounds; the difference is the time of the
rounds alone, without the evaluations at both ends. A line gives the median ms a round, the ratio to the first line
within the repeats (median), the seconds of one evaluation of all data, and the bytes that a round's window takes.
"On disk" is a memory-mapped file, which the operating system may well keep in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--rounds", type=int, nargs=2, default=[8, 40])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    total = options.clients * options.size
    x = rng.normal(size=(total, 784)).astype(np.float32)
    y = rng.integers(0, 10, total).astype(np.int32)
    ids = rng.permutation(np.arange(total) % options.clients)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        on_disk = np.load(Path(folder) / "x.npy", mmap_mode="r")
        variants = {
            "device": fjs.datasets.from_ids((x, y), ids),
            "host memory": fjs.datasets.host.from_ids((x, y), ids),
            "disk": fjs.datasets.host.from_ids((on_disk, y), ids),
        }
        print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores")
        print(f"{total} examples, {x.nbytes / 1e6:.0f} MB")
        times: dict[str, list[float]] = {name: [] for name in variants}
        for data in variants.values():
            run(data, options, min(options.rounds))  # compiles
        for _ in range(options.repeats):
            for name, data in variants.items():
                times[name].append(a_round(data, options))
        evaluations = {name: one_evaluation(data) for name, data in variants.items()}
    print(f"{'data in':<12} {'ms a round':>10} {'ratio':>6} {'evaluation s':>13} {'window MB':>10}")
    first = times["device"]
    for name, of in times.items():
        ratio = statistics.median(mine / base for mine, base in zip(of, first, strict=True))
        window = options.cohort * options.size * 784 * 4 / 1e6 if name != "device" else 0.0
        print(
            f"{name:<12} {1e3 * statistics.median(of):>10.1f} {ratio:>6.2f} {evaluations[name]:>13.2f} {window:>10.1f}"
        )


TASK = fjs.classification(fjs.models.MLP(10))


def run(data: fjs.FederatedDataset, options: argparse.Namespace, rounds: int) -> float:
    """Seconds of a run."""
    return fjs.simulate(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05)), data, task=TASK, rounds=rounds,
        eval_every=max(options.rounds), cohort=fjs.cohort.uniform(options.cohort), work=fjs.local.epochs(1),
        batch_size=20, initial_params=PARAMS, progress=False,
    ).seconds  # fmt: skip


ONE = (np.zeros((1, 784), np.float32), np.zeros(1, np.int32))
PARAMS = TASK.init(jax.random.key(0), fjs.datasets.from_clients([ONE], num_classes=10))


def a_round(data: fjs.FederatedDataset, options: argparse.Namespace) -> float:
    """Seconds of one round."""
    few, many = sorted(options.rounds)
    less = run(data, options, few)
    return (run(data, options, many) - less) / (many - few)


def one_evaluation(data: fjs.FederatedDataset) -> float:
    """Seconds of one evaluation of all data, compiled before."""
    jax.block_until_ready(fjs.evaluate(TASK, PARAMS, data))
    start = time.perf_counter()
    jax.block_until_ready(fjs.evaluate(TASK, PARAMS, data))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
