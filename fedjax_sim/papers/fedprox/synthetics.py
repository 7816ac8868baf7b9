"""The four synthetic data sets of the paper and what all its experiments on them have in common."""

from __future__ import annotations

from typing import Any

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Setting, Size
from fedjax_sim.run.history import History

LEARNING_RATE = 0.01  # appendix C.2
BATCH = 10
EPOCHS = 20
DEVICES, PER_ROUND = 30, 10
ROUNDS = 200  # the axes of Figures 2, 4, 5, 6, 11 and 12
DATA_SEED = 0
SEEDS: dict[Size, int] = {"smoke": 1, "cpu": 3, "paper": 3}
VARIANCE = "gradient_variance"

MUS = (0.0, 1.0)  # FedAvg, and the best mu of synthetic(1, 1) in the paper's grid
NAMES = ("synthetic IID", "synthetic(0, 0)", "synthetic(0.5, 0.5)", "synthetic(1, 1)")  # from alike to unlike


def synthetics(bench: Bench, names: tuple[str, ...] = NAMES) -> dict[str, fjs.FederatedDataset]:
    """The data sets by name."""
    clients = bench.choose(smoke=4, cpu=DEVICES, paper=DEVICES)
    largest = bench.choose(smoke=60, cpu=None, paper=None)
    spreads = dict(zip(NAMES, ((0.0, True), (0.0, False), (0.5, False), (1.0, False)), strict=True))
    return {
        name: fjs.datasets.synthetic(
            spreads[name][0], spreads[name][0], clients, seed=DATA_SEED, iid=spreads[name][1], max_size=largest
        )
        for name in names
    }


def run_setting(bench: Bench, epochs: int = EPOCHS) -> dict[str, Any]:
    """Keywords of a run in which every device does all its epochs."""
    return {
        "task": fjs.classification(fjs.models.LogisticRegression(10)),
        "rounds": bench.choose(smoke=2, cpu=ROUNDS, paper=ROUNDS),
        "cohort": fjs.cohort.uniform(bench.choose(smoke=2, cpu=PER_ROUND, paper=PER_ROUND)),
        "work": fjs.local.epochs(bench.choose(smoke=1, cpu=epochs, paper=epochs)),
        "batch_size": BATCH,
    }


def fixed_mus(bench: Bench, names: tuple[str, ...] = NAMES) -> dict[str, dict[float, History]]:
    """FedProx where every device does all its epochs: histories by data set and mu, 0 (FedAvg) and 1.

    Both values are one program, and the runs are those of Figures 2, 3, 4, 6, 11 and 12.
    """
    found = {}
    for name, data in synthetics(bench, names).items():
        result = bench.sweep(
            f"FedProx, {name}", fedprox(), data, fjs.sweeps.grid({"mu": list(MUS)}), **run_setting(bench),
            diagnostics=[VARIANCE],
        )  # fmt: skip
        found[name] = {mu: result.at(place) for place, mu in enumerate(MUS)}
    return found


def fedprox(**options: Any) -> Method:
    """FedProx with the local solver of these experiments."""
    return fjs.fedprox(client_optimizer=fjs.optim.sgd(LEARNING_RATE), **options)


def settings(bench: Bench) -> list[Setting]:
    """The paper's setting beside ours."""
    smoke = bench.size == "smoke"
    return [
        Setting("data", "synthetic, 30 devices", "the same, 4 small devices" if smoke else "synthetic, 30 devices"),
        Setting("devices a round", "10", "2" if smoke else "10"),
        Setting("local epochs", "20", "1" if smoke else "20"),
        Setting("batch size, learning rate", "10, 0.01", "10, 0.01"),
        Setting("rounds", "200", "2" if smoke else "200"),
        Setting("seeds", "not given", str(len(bench.seeds))),
        Setting("spread of synthetic(a, b)", "N(0, a): a variance; the authors' code: a standard deviation",
                "a standard deviation"),
    ]  # fmt: skip
