"""The main job in two minutes: four methods on two problems, a table, a plot and the numbers."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import fedjax_sim as fjs
from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.panels import comparison
from fedjax_sim.reporting.table import results_table
from fedjax_sim.run.history import History

ROUNDS, SEEDS = 100, 3
TARGETS = {"synthetic(1, 1)": 0.75, "digits, Dir(0.1)": 0.85}


def methods(rate: float) -> dict[str, fjs.Algorithm]:
    """The four methods with plain SGD at one local learning rate."""
    sgd = fjs.optim.sgd(rate)
    return {
        "FedAvg": fjs.fedavg(client_optimizer=sgd),
        "FedProx": fjs.fedprox(client_optimizer=sgd, mu=1.0 if rate < 0.05 else 0.1),
        "FedNova": fjs.fednova(client_optimizer=sgd),
        "SCAFFOLD": fjs.scaffold(client_optimizer=sgd),
    }


def problems() -> dict[str, tuple[fjs.FederatedDataset, dict[str, fjs.Algorithm], dict[str, Any]]]:
    """Data, methods and run settings by name."""

    def setting(model: Any) -> dict[str, Any]:
        work = fjs.local.random_epochs(1, 5)
        cohort = fjs.cohort.uniform(10)
        return {"task": fjs.classification(model), "cohort": cohort, "work": work, "batch_size": 20}

    synthetic = fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=0)
    digits = fjs.datasets.digits(num_clients=20, alpha=0.1, seed=0)
    return {
        "synthetic(1, 1)": (synthetic, methods(0.02), setting(fjs.models.LogisticRegression(10))),
        "digits, Dir(0.1)": (digits, methods(0.05), setting(fjs.models.MLP(10, (64,)))),
    }


def run_demo(
    out: str | os.PathLike[str],
    *,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
    checkpoint: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] = print,
) -> dict[str, dict[str, History]]:
    """Compares FedAvg, FedProx, FedNova and SCAFFOLD under heterogeneous local epochs, E_i(t) ~ U{1..5}.

    The folder gets ``comparison.png``, ``results.json`` and an ``.npz`` history of each run; the histories are returned
    by problem and method. ``checkpoint`` is a folder for checkpoints, in which each run has its own.
    """
    folder = pathlib.Path(out)
    results: dict[str, dict[str, History]] = {}
    for name, (data, algorithms, settings) in problems().items():
        show(f"\n{name}: {data.num_clients} clients, {data.num_examples:,} training examples")
        show(f"compiling and running {', '.join(algorithms)}: half a minute the first time")
        histories = {}
        for method, algorithm in algorithms.items():
            histories[method] = fjs.simulate(
                algorithm, data, rounds=rounds, eval_every=max(rounds // 50, 1), seeds=range(seeds), **settings,
                checkpoint=None if checkpoint is None else pathlib.Path(checkpoint) / stem(name, method),
            )  # fmt: skip
        results[name] = histories
        layout = next(iter(histories.values())).description["run"]["layout"]["name"].rpartition(".")[2]
        total = sum(h.seconds for h in histories.values())
        compiling = sum(h.compile_seconds for h in histories.values())
        show(f"{rounds} rounds, 10 clients a round, 1 to 5 local epochs each\n")
        show(results_table(histories, target=TARGETS[name]))
        show(f"compiling {compiling:.1f} s, running {total:.1f} s; layout {layout!r}: how clients share the hardware")

    comparison(results, folder / "comparison.png")
    summary = {
        problem: {method: _summary(history, TARGETS[problem]) for method, history in histories.items()}
        for problem, histories in results.items()
    }
    write_atomically(folder / "results.json", json.dumps(summary, indent=1).encode())
    for problem, histories in results.items():
        for method, history in histories.items():
            history.save(folder / f"{stem(problem, method)}.npz")
    show(f"\nwrote {folder / 'comparison.png'}, {folder / 'results.json'} and a history for each run")
    return results


def _summary(history: History, target: float) -> dict[str, Any]:
    reached = history.rounds_to("test_accuracy", target).tolist()
    return {
        "final_loss": history.final("loss").tolist(),
        "final_test_accuracy": history.final("test_accuracy").tolist(),
        "rounds_to_target": [value if value < float("inf") else None for value in reached],
        "target": target,
        "seconds": history.seconds,
        "compile_seconds": history.compile_seconds,
        "useful_ratio": history.useful_ratio,
        "evaluated": history.evaluated.tolist(),
        "loss": history["loss"].tolist(),
        "test_accuracy": history["test_accuracy"].tolist(),
        "description": history.description,
    }


def stem(problem: str, method: str) -> str:
    """The name of a run's files, without an ending."""
    return f"{problem.partition('(')[0].partition(',')[0]}-{method.lower()}"
