"""What it costs to keep client states off the device, or in fewer bits: SCAFFOLD, or Ditto's models, of many clients.

    python benchmarks/speed/client_states.py [--method scaffold] [--clients 100000] [--cohort 100] [--hidden 32]
        [--rounds 5 25] [--repeats 5] [--directory DIRECTORY]

An MLP on 60 features with one hidden layer (``--hidden 32``: 2,282 parameters, so 913 MB for 100,000 clients), ten
examples a client, one epoch in batches of 5. Each repeat runs all variants one after another, each for the two numbers
of rounds once its programs are compiled; the difference is the time of the rounds alone. A line gives the median ms a
round, its ratio to the first line within the repeats (median), and, from a process of its own, the peak memory of a
run. ``--directory`` should be on the disk that is to be measured; what was written may still be in the system's memory.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs

STATES = fjs.client_states
PLACES = {
    "device": lambda directory: STATES.on_device(),
    "host": lambda directory: STATES.on_host(),
    "disk": STATES.on_disk,
    "device, bfloat16": lambda directory: STATES.on_device(dtype="bfloat16"),
    "host, bfloat16": lambda directory: STATES.on_host(dtype="bfloat16"),
    "disk, bfloat16": lambda directory: STATES.on_disk(directory, dtype="bfloat16"),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("scaffold", "ditto"), default="scaffold")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rounds", type=int, nargs=2, default=[5, 25])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--alone", choices=PLACES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = clients(options)
    if options.alone:
        run(options.alone, data, options, max(options.rounds))
        print(round(peak_memory()))
        return
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores")
    times: dict[str, list[float]] = {name: [] for name in PLACES}
    for name in PLACES:
        run(name, data, options, min(options.rounds))  # compiles
    for _ in range(options.repeats):
        for name, of in times.items():
            of.append(a_round(name, data, options))
    print(f"{'client states':<18} {'ms a round':>10} {'ratio':>6} {'peak MB':>8}")
    for name, of in times.items():
        ratio = statistics.median(mine / base for mine, base in zip(of, times["device"], strict=True))
        print(f"{name:<18} {1e3 * statistics.median(of):>10.2f} {ratio:>6.2f} {peak(name):>8,}")


def clients(options: argparse.Namespace) -> fjs.FederatedDataset:
    """Random examples, ten a client."""
    rng = np.random.default_rng(0)
    total = 10 * options.clients
    x, y = rng.normal(size=(total, 60)).astype(np.float32), rng.integers(0, 10, total).astype(np.int32)
    return fjs.datasets.from_ids((x, y), np.arange(total) // 10)


def run(name: str, data: fjs.FederatedDataset, options: argparse.Namespace, rounds: int) -> float:
    """Seconds of a run."""
    method = {"scaffold": fjs.scaffold, "ditto": fjs.ditto}[options.method]
    return fjs.simulate(
        method(client_optimizer=fjs.optim.sgd(0.05)), data, rounds=rounds, eval_every=max(options.rounds),
        task=fjs.classification(fjs.models.MLP(10, hidden=(options.hidden,))), batch_size=5,
        cohort=fjs.cohort.uniform(options.cohort), work=fjs.local.epochs(1), progress=False,
        client_states=PLACES[name](options.directory),
    ).seconds  # fmt: skip


def a_round(name: str, data: fjs.FederatedDataset, options: argparse.Namespace) -> float:
    """Seconds of one round."""
    few, many = sorted(options.rounds)
    return (run(name, data, options, many) - run(name, data, options, few)) / (many - few)


def peak_memory() -> float:
    """Peak resident memory of this process in MB (Linux). Not ru_maxrss, which a child inherits from its parent."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def peak(name: str) -> int:
    """Peak memory in MB of a process that makes the data and one run."""
    command = [sys.executable, *sys.argv, "--alone", name]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


if __name__ == "__main__":
    main()
