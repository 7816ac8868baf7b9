"""The main job in two minutes: four methods on two problems, a table, a plot and the numbers."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import fedjax_sim as fjs
from fedjax_sim.core.atomic import write_atomically
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
    synthetic = fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=0)
    digits = fjs.datasets.digits(num_clients=20, alpha=0.1, seed=0)
    work = fjs.local.random_epochs(1, 5)
    return {
        "synthetic(1, 1)": (
            synthetic,
            methods(0.02),
            {
                "task": fjs.classification(fjs.models.LogisticRegression(10)),
                "cohort": fjs.cohort.uniform(10),
                "work": work,
                "batch_size": 20,
            },
        ),
        "digits, Dir(0.1)": (
            digits,
            methods(0.05),
            {
                "task": fjs.classification(fjs.models.MLP(10, (64,))),
                "cohort": fjs.cohort.uniform(10),
                "work": work,
                "batch_size": 20,
            },
        ),
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

    Args:
      out: folder for ``comparison.png``, ``results.json`` and one ``.npz`` history a run; made where missing.
      rounds: number of rounds.
      seeds: number of seeds, all in one program.
      checkpoint: folder for checkpoints, one folder a run in it; None for none.
      show: what to do with each line of text.

    Returns:
      The histories by problem and method.
    """
    folder = pathlib.Path(out)
    results: dict[str, dict[str, History]] = {}
    for name, (data, algorithms, settings) in problems().items():
        show(f"\n{name}: {data.num_clients} clients, {data.num_examples:,} training examples")
        show(f"compiling and running {', '.join(algorithms)}: half a minute the first time")
        histories = {}
        for method, algorithm in algorithms.items():
            stem = _stem(name, method)
            histories[method] = fjs.simulate(
                algorithm, data, rounds=rounds, eval_every=max(rounds // 50, 1), seeds=range(seeds), **settings,
                checkpoint=None if checkpoint is None else pathlib.Path(checkpoint) / stem,
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
        problem: {
            method: {
                "final_loss": history.final("loss").tolist(),
                "final_test_accuracy": history.final("test_accuracy").tolist(),
                "rounds_to_target": [
                    value if value < float("inf") else None
                    for value in history.rounds_to("test_accuracy", TARGETS[problem]).tolist()
                ],
                "target": TARGETS[problem],
                "seconds": history.seconds,
                "compile_seconds": history.compile_seconds,
                "useful_ratio": history.useful_ratio,
                "evaluated": history.evaluated.tolist(),
                "loss": history["loss"].tolist(),
                "test_accuracy": history["test_accuracy"].tolist(),
                "description": history.description,
            }
            for method, history in histories.items()
        }
        for problem, histories in results.items()
    }
    write_atomically(folder / "results.json", json.dumps(summary, indent=1).encode())
    for problem, histories in results.items():
        for method, history in histories.items():
            history.save(folder / f"{_stem(problem, method)}.npz")
    show(f"\nwrote {folder / 'comparison.png'}, {folder / 'results.json'} and a history for each run")
    return results


def _stem(problem: str, method: str) -> str:
    """The name of a run's files."""
    return f"{problem.partition('(')[0].partition(',')[0]}-{method.lower()}"
