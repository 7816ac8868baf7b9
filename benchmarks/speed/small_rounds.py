"""Rounds so small that dealing them to two CPU devices does not pay (docs/devices.md, "A CPU").

    python -m benchmarks.speed.small_rounds [--repeats 7]

FedAvg of logistic regression 60 -> 10, batches of 20 in stored order, some clients of some steps a round: milliseconds
a round on one device and dealt to two, which take turns in one process, and the median of the ratios within pairs.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import jax
import numpy as np

import fedjax_sim as fjs

ROUNDS = 60
CASES = ((4, 1), (4, 5), (20, 5), (20, 20))  # clients a round, steps of each


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    repeats = parser.parse_args().repeats
    jax.config.update("jax_num_cpu_devices", 2)
    print("| clients | steps each | 1 device | 2 devices | ratio |\n|---:|---:|---:|---:|---:|")
    for cohort, steps in CASES:
        rng, size = np.random.default_rng(0), 20 * steps
        x = rng.normal(size=(100 * size, 60)).astype(np.float32)
        data = fjs.datasets.from_ids((x, rng.integers(0, 10, len(x))), np.repeat(np.arange(100), size))
        run: dict[str, Any] = {
            "task": fjs.classification(fjs.models.LogisticRegression(10)), "rounds": ROUNDS, "eval_every": ROUNDS,
            "batches": fjs.local.in_order(20), "cohort": fjs.cohort.uniform(cohort), "work": fjs.local.epochs(1),
            "evaluate_train": False, "evaluate": _bias, "progress": False,
        }  # fmt: skip
        method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))
        layouts = (fjs.layout.turns(), fjs.layout.mesh(2, fjs.layout.turns()))
        for layout in layouts:  # compiles
            fjs.simulate(method, data, **run, layout=layout)
        pairs = [[fjs.simulate(method, data, **run, layout=one).seconds for one in layouts] for _ in range(repeats)]
        one, two = (1e3 * statistics.median(times) / ROUNDS for times in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| {cohort} | {steps} | {one:.3f} | {two:.3f} | {ratio:.2f} |", flush=True)


def _bias(params: Any, dataset: Any) -> dict[str, jax.Array]:
    """An evaluation that costs nothing: it is rounds that are measured."""
    return {"bias": params["params"]["Dense_0"]["bias"][0]}


if __name__ == "__main__":
    main()
