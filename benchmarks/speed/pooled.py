"""Rounds as one gradient of the cohort (docs/layouts.md, "One step: one gradient") against rounds client by client.

    python -m benchmarks.speed.pooled [--repeats 7] [--problems W4,mlp] [--out results/pooled.json]

FedAvg, SGD 0.05, one local step on 20 examples in stored order (large-batch SGD in the last one), on
  W4        logistic regression 60 -> 10, 1,000 of 100,000 clients of 20 examples a round
  images    logistic regression 784 -> 10, 100 of 1,000 clients of 20 examples
  mlp       MLP 784-200-200-10, 50 of 1,000 clients of 20 examples
  many      the same MLP, 500 clients a round
  lenet     LeNet on 28 x 28, 20 clients a round
  whole     large-batch SGD of logistic regression 60 -> 10, 100 of 1,000 clients of W1's power-law sizes

All compute the same rounds, one after the other inside every repeat; the models must agree before a time is printed.
Columns: ms a round in turns, stacked and pooled, the ratio of pooled to the faster one of the two (median, lowest and
highest of the repeats), seconds of the first call of each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import statistics
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.workloads import make
from fedjax_sim.models import MLP, LeNet, LogisticRegression

ROUNDS = 10
PROBLEMS = ("W4", "images", "mlp", "many", "lenet", "whole")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, {datetime.date.today()}")
    print("| problem | turns | stacked | pooled | ratio | first call s |\n|---|---:|---:|---:|---|---|")
    rows = []
    for name in options.problems.split(","):
        rows.append(row := _measured(name, options.repeats))
        low, middle, high = row["ratio"]
        firsts = ", ".join(f"{first:.1f}" for first in row["first_s"].values())
        times = " | ".join(f"{ms:.2f}" for ms in row["ms"].values())
        print(f"| {name} | {times} | {middle:.2f} ({low:.2f} to {high:.2f}) | {firsts} |", flush=True)
    if options.out is not None:
        about = {"jax": jax.__version__, "cores": os.cpu_count(), "date": str(datetime.date.today())}
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _problem(name: str) -> tuple[Any, Any, int, Any]:
    """(data, model, clients a round, method)."""
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))
    if name in ("W4", "whole"):
        work = make("W4" if name == "W4" else "W1", 1)
        data = fjs.datasets.from_ids((work.x, work.y), np.repeat(np.arange(len(work.sizes)), work.sizes))
        if name == "W4":
            return data, LogisticRegression(10), 1000, method
        return data, LogisticRegression(10), 100, fjs.large_batch_sgd(client_optimizer=fjs.optim.sgd(0.05))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 28, 28, 1)).astype(np.float32)
    data = fjs.datasets.from_ids((x, rng.integers(0, 10, 20_000)), np.repeat(np.arange(1000), 20))
    models: dict[str, tuple[Any, int]] = {
        "images": (LogisticRegression(10), 100), "mlp": (MLP(10, (200, 200)), 50), "many": (MLP(10, (200, 200)), 500),
        "lenet": (LeNet(10), 20),
    }  # fmt: skip
    return data, *models[name], method


def _first(params: Any, dataset: Any) -> dict[str, jax.Array]:
    """An evaluation that costs nothing: it is rounds that are measured."""
    return {"first": jax.tree.leaves(params)[0].reshape(-1)[0]}


def _measured(name: str, repeats: int) -> dict[str, Any]:
    data, model, cohort, method = _problem(name)
    run: dict[str, Any] = {
        "task": fjs.classification(model), "rounds": ROUNDS, "eval_every": ROUNDS, "progress": False,
        "batches": fjs.local.in_order(20), "cohort": fjs.cohort.uniform(cohort), "work": fjs.local.steps(1),
        "evaluate_train": False, "evaluate": _first,
    }  # fmt: skip
    layouts = {"turns": fjs.layout.turns(), "stacked": fjs.layout.stacked(), "pooled": fjs.layout.pooled()}
    ends, firsts = {}, {}
    for way, layout in layouts.items():
        started = time.perf_counter()
        history = fjs.simulate(method, data, **run, layout=layout)
        firsts[way] = time.perf_counter() - started
        ends[way] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(history.params)])
    apart = float(np.linalg.norm(ends["pooled"] - ends["turns"]) / np.linalg.norm(ends["turns"]))
    if not apart < 1e-3:
        raise AssertionError(f"{name}: the models are {apart:.1e} of their norm apart")
    seconds: dict[str, list[float]] = {way: [] for way in layouts}
    for _ in range(repeats):
        for way, layout in layouts.items():
            seconds[way].append(fjs.simulate(method, data, **run, layout=layout).seconds)
    ms = {way: 1e3 * statistics.median(each) / ROUNDS for way, each in seconds.items()}
    best = min(("turns", "stacked"), key=lambda way: ms[way])
    ratios = sorted(b / a for a, b in zip(seconds[best], seconds["pooled"], strict=True))
    return {
        "problem": name, "ms": ms, "ratio": [ratios[0], statistics.median(ratios), ratios[-1]], "best": best,
        "first_s": firsts, "apart": apart,
    }  # fmt: skip


if __name__ == "__main__":
    main()
