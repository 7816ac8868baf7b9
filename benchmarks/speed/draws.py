"""What other draws of a data set cost: seconds of the first run on each, and whether padding slows a run down.

    python -m benchmarks.speed.draws [--repeats 7]

A line a kind of data: seconds of a run on each of five draws, compilation included, with data in buckets (as
``simulate`` has them) and as they are. Then a line a workload: ms a round and ms an evaluation of all examples in both
ways, which take turns, and the ratios (median, lowest, highest of the repeats); the final models must be equal to the
last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.workloads import make
from fedjax_sim.engine.plan import Plan

METHOD = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))
LOGISTIC = fjs.classification(fjs.models.LogisticRegression(10))
DRAWS: dict[str, Callable[[int], fjs.FederatedDataset]] = {
    "synthetic(1, 1), 30 clients": lambda seed: fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=seed),
    "Dirichlet partitions of 5,000 images": lambda seed: _partitioned(seed),
}
WORKLOADS: dict[str, tuple[Any, int, int]] = {  # of benchmarks/speed/workloads.py: the model, the cohort, rounds
    "W1": (fjs.models.LogisticRegression(10), 100, 30),
    "W2": (fjs.models.MLP(10, (200, 200)), 50, 4),
}


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    repeats = parser.parse_args().repeats
    print(f"jax {jax.__version__}, {jax.devices()[0]}")
    for name, draw in DRAWS.items():
        draws = [draw(seed) for seed in range(5)]
        for called, way in WAYS.items():
            jax.clear_caches()
            with way():
                seconds = [timed(data, LOGISTIC, 5, rounds=10, eval_every=5)[0] for data in draws]
            said = ", ".join(f"{one:.2f}" for one in seconds)
            print(f"{name}, {called}: {sum(seconds):.2f} s ({said})", flush=True)
    for name, (model, cohort, rounds) in WORKLOADS.items():
        _compared(name, _data(name), fjs.classification(model), cohort, rounds, repeats)


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """Runs on data without padding, whose sizes are part of the program."""
    shared = Plan.shared
    Plan.shared = lambda plan, evaluate: plan  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plan.shared = shared  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "in buckets": contextlib.nullcontext, "as they are": as_they_are,
}  # fmt: skip


def timed(data: fjs.FederatedDataset, task: Any, cohort: int, **run: Any) -> tuple[float, fjs.History]:
    """Seconds of a run, set-up and compilation included, and the run."""
    started = time.perf_counter()
    history = fjs.simulate(
        METHOD, data, task=task, batch_size=20, cohort=fjs.cohort.uniform(cohort), work=fjs.local.epochs(1),
        layout=fjs.layout.turns(), progress=False, **run,
    )  # fmt: skip
    return time.perf_counter() - started, history


def _compared(name: str, data: fjs.FederatedDataset, task: Any, cohort: int, rounds: int, repeats: int) -> None:
    found: dict[str, dict[str, list[float]]] = {"rounds": {}, "evaluations": {}, "set-up": {}}
    final = {}
    for repeat in range(-1, repeats):  # the first compiles
        for called, way in WAYS.items():
            with way():
                whole, once = timed(data, task, cohort, rounds=rounds, eval_every=rounds)
                _, every = timed(data, task, cohort, rounds=rounds, eval_every=1)
            final[called] = once.params
            if repeat >= 0:
                values = once.seconds / rounds, (every.seconds - once.seconds) / (rounds - 1), whole - once.seconds
                for what, value in zip(found, values, strict=True):
                    found[what].setdefault(called, []).append(1e3 * value)
    jax.tree.map(np.testing.assert_array_equal, *final.values())
    for what, ways in found.items():
        padded, plain = ways.values()
        ratios = sorted(a / b for a, b in zip(padded, plain, strict=True))
        ms = ", ".join(f"{statistics.median(of):.2f} ms {way}" for way, of in ways.items())
        print(
            f"{name}, {what}: {ms}, x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True
        )


def _partitioned(seed: int) -> fjs.FederatedDataset:
    draws = np.random.default_rng(0)
    images, labels = draws.normal(size=(5000, 784)).astype(np.float32), draws.integers(0, 10, 5000)
    rows = fjs.datasets.partition.dirichlet(labels, num_clients=30, alpha=0.3, seed=seed)
    return fjs.datasets.from_partition((images, labels), rows, test_fraction=0.2, num_classes=10)


def _data(name: str) -> fjs.FederatedDataset:
    work = make(name, 1)
    return fjs.datasets.from_ids((work.x, work.y), np.repeat(np.arange(len(work.sizes)), work.sizes), num_classes=10)


if __name__ == "__main__":
    main()
