"""Rounds in coordinates of the clients' examples (docs/layouts.md, "Factored first layers") against rounds in turns.

    python -m benchmarks.speed.factored [--repeats 7] [--out results/factored.json]

FedAvg, SGD 0.05, batches of 20 in fresh permutations, for some numbers of local epochs, on
  W2        MLP 784-200-200-10, 50 of 1,000 clients a round of min(int(LogNormal(3, 1)) + 10, 1000) examples
  logistic  logistic regression 784 -> 10 on the same clients
  even      MLP 784-200-10, 10 of 100 clients a round of 100 examples each

Both compute the same rounds, one after the other inside every repeat; the models must agree before a time is printed.
Columns: ms a round of each, the ratio (median, lowest and highest of the repeats), what the rule chooses.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import statistics
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.workloads import make
from fedjax_sim.engine.layout.choose import choose_width
from fedjax_sim.models import MLP, LogisticRegression

EPOCHS = (1, 2, 5, 10)
ROUNDS = 5


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    parser.add_argument("--epochs", type=int, nargs="*", default=EPOCHS, help="(default: 1 2 5 10)")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    work = make("W2", 1)
    uneven = fjs.datasets.from_clients(
        [(work.x[at : at + n], work.y[at : at + n]) for at, n in zip(work.offsets, work.sizes, strict=True)],
        num_classes=10,
    )
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(100, 784)).astype(np.float32), rng.integers(0, 10, 100)) for _ in range(100)]
    even = fjs.datasets.from_clients(made, num_classes=10)
    problems: dict[str, tuple[Any, Any, int]] = {
        "W2": (MLP(10, (200, 200)), uneven, 50),
        "logistic": (LogisticRegression(10), uneven, 50),
        "even": (MLP(10, (200,)), even, 10),
    }
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, {datetime.date.today()}")
    print("| problem | epochs | ms a round, turns | factored | ratio | by the rule |\n|---|---:|---:|---:|---|---|")
    rows = []
    for name, (model, data, cohort) in problems.items():
        for epochs in options.epochs:
            rows.append(row := _measured(name, model, data, cohort, epochs, options.repeats))
            low, middle, high = row["ratio"]
            print(
                f"| {name} | {epochs} | {row['turns']:.1f} | {row['factored']:.1f} "
                f"| {middle:.2f} ({low:.2f} to {high:.2f}) | {row['rule']} |",
                flush=True,
            )
    if options.out is not None:
        about = {"jax": jax.__version__, "cores": os.cpu_count(), "date": str(datetime.date.today())}
        options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _bias(params: Any, dataset: Any) -> dict[str, jax.Array]:
    """An evaluation that costs nothing: it is rounds that are measured."""
    return {"bias": params["params"]["Dense_0"]["bias"][0]}


def _measured(name: str, model: Any, data: fjs.FederatedDataset, cohort: int, epochs: int, repeats: int) -> Any:
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))
    run: dict[str, Any] = {
        "task": fjs.classification(model), "rounds": ROUNDS, "eval_every": ROUNDS, "batch_size": 20, "progress": False,
        "cohort": fjs.cohort.uniform(cohort), "work": fjs.local.epochs(epochs), "evaluate_train": False,
        "evaluate": _bias,
    }  # fmt: skip
    outputs = model.hidden[0] if isinstance(model, MLP) else 10
    width = choose_width(784, outputs, float("inf"), data)
    layouts = {"turns": fjs.layout.turns(), "factored": fjs.layout.factored(fjs.layout.turns(), width)}
    ends = [fjs.simulate(method, data, **run, layout=layout).params for layout in layouts.values()]  # compiles
    one, other = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(end)]) for end in ends)
    apart = float(np.linalg.norm(one - other) / np.linalg.norm(other))
    if not apart < 1e-3:
        raise AssertionError(f"{name}, {epochs} epochs: the models are {apart:.1e} of their norm apart")
    seconds: dict[str, list[float]] = {way: [] for way in layouts}
    for _ in range(repeats):
        for way, layout in layouts.items():
            seconds[way].append(fjs.simulate(method, data, **run, layout=layout).seconds)
    ratios = sorted(b / a for a, b in zip(seconds["turns"], seconds["factored"], strict=True))
    ms = {way: 1e3 * statistics.median(each) / ROUNDS for way, each in seconds.items()}
    rule = "factored" if choose_width(784, outputs, epochs, data) else "turns"
    return {
        "problem": name, "epochs": epochs, **ms, "ratio": [ratios[0], statistics.median(ratios), ratios[-1]],
        "width": width, "rule": rule, "apart": apart,
    }  # fmt: skip


if __name__ == "__main__":
    main()
