"""Table 5: the best test accuracy of a two-layer network on EMNIST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.scaffold import images
from fedjax_sim.papers.scaffold.tuning import METRIC
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

HIDDEN = 100
EPOCHS = 5
ROUNDS = 1000
RATES = {"SGD": (10.0, 3.0, 1.0), "FedAvg": (3.0, 1.0, 0.3), "SCAFFOLD": (3.0, 1.0, 0.3)}
SIMILARITIES = images.SIMILARITIES[:2]
ALIKE = 0.02  # accuracies of SGD that differ by less are called equal

PAPER = {"SGD": (0.766, 0.764), "FedAvg": (0.787, 0.828), "SCAFFOLD": (0.801, 0.842)}


def perform(bench: Bench) -> Outcome:
    """Each method with the best step size of its grid, at two similarities."""
    runs: dict[str, dict[str, History]] = {}
    best: dict[tuple[str, float], float] = {}
    rates: dict[tuple[str, float], float] = {}
    for similarity in SIMILARITIES:
        data = images.clients_of(bench, similarity)
        of = runs[f"{similarity:g} % similarity"] = {}
        for method in PAPER:
            grid = RATES[method][: bench.choose(1, None)]
            histories = bench.runs(
                f"similarity {similarity:g}, {method}", images.METHODS[method](1.0), data,
                fjs.sweeps.grid({"client_optimizer.learning_rate": list(grid)}), **_run(bench, data),
            )  # fmt: skip
            accuracies = [float(history[METRIC].max(axis=1).mean()) for history in histories]
            number = accuracies.index(max(accuracies))
            of[method] = histories[number]
            best[method, similarity], rates[method, similarity] = accuracies[number], grid[number]
    row = [Panel(of, METRIC, title) for title, of in runs.items()]
    return Outcome(_settings(bench), _claims(best), {"table5": panels([row])}, [_table(best, rates)])


def _run(bench: Bench, data: fjs.FederatedDataset) -> dict[str, Any]:
    epochs = bench.choose(1, EPOCHS)
    rounds = bench.choose(2, ROUNDS)
    classes = data.num_classes or 0
    return {
        "task": fjs.classification(bench.model(fjs.models.MLP(classes, (HIDDEN,)), classes)),
        "rounds": rounds,
        "eval_every": bench.choose(1, 10),
        "cohort": fjs.cohort.uniform(bench.choose(images.SMOKE_SAMPLED, images.SAMPLED)),
        "work": images.work(epochs, epochs, rounds, data),
        "batches": fjs.local.fraction(images.BATCH),
    }


def _settings(bench: Bench) -> list[Setting]:
    grids = "; ".join(f"{name} {', '.join(f'{rate:g}' for rate in rates)}" for name, rates in RATES.items())
    hidden = f"one hidden layer of {bench.choose(16, HIDDEN)}, ReLU"
    return [
        *images.settings(bench),
        bench.setting("model", "2 layer fully connected network, width not given", hidden),
        bench.setting("rounds", "1000", smoke="2"),
        bench.setting("clients sampled, epochs", "20 %, 5", smoke="half, 1"),
        bench.setting("local step size", "tuned for each algorithm, grid not given", f"best of: {grids}"),
    ]


def _claims(best: Mapping[tuple[str, float], float]) -> list[Claim]:
    low, high = SIMILARITIES
    numbers = {method: {f"{s:g} %": best[method, s] for s in SIMILARITIES} for method in PAPER}
    others = ("SGD", "FedAvg")
    return [
        Claim("SCAFFOLD has the best accuracy, at both similarities",
              all(best["SCAFFOLD", s] > best[other, s] for s in SIMILARITIES for other in others), numbers),
        Claim("SGD has the least accuracy, at both similarities",
              all(best["SGD", s] < best[other, s] for s in SIMILARITIES for other in ("FedAvg", "SCAFFOLD")), numbers),
        Claim(f"SGD is not affected by similarity (by less than {ALIKE:g})",
              abs(best["SGD", low] - best["SGD", high]) < ALIKE, numbers["SGD"]),
        Claim("FedAvg and SCAFFOLD are better with 10 % similarity than with 0 %",
              all(best[method, high] > best[method, low] for method in ("FedAvg", "SCAFFOLD")), numbers),
        Claim("FedAvg is better than SGD even with 0 % similarity",
              best["FedAvg", low] > best["SGD", low], {"0 %": {method: best[method, low] for method in others}}),
    ]  # fmt: skip


def _table(best: Mapping[tuple[str, float], float], rates: Mapping[tuple[str, float], float]) -> Table:
    columns = [name for s in SIMILARITIES for name in (f"{s:g} %: paper", "ours", "difference", "step size")]
    rows = []
    for method, theirs in PAPER.items():
        cells: list[str | float | int | None] = [method]
        for s, paper in zip(SIMILARITIES, theirs, strict=True):
            cells += [paper, best[method, s], best[method, s] - paper, rates[method, s]]
        rows.append(cells)
    return Table("Table 5: best test accuracy", ("method", *columns), rows)
