"""FedProx's mu and learning rate, learned by gradient and searched on grids.

    python -m benchmarks.studies.fedprox [--size cpu]

synthetic(1, 1), 30 clients, logistic regression, ten clients a round, half of them stragglers; smaller than the paper's
experiment (clients of at most 120 examples, up to 3 local epochs, 20 rounds), so that reverse mode through whole runs
takes seconds. Hyper-parameters are chosen by the loss on validation examples with the tuning seeds, and reported on
other examples with other seeds. The paper's grid (Li et al. 2020, arXiv:1812.06127: mu in 0.001, 0.01, 0.1, 1 at a
learning rate of 0.01) is run as it is, and extended by 32 learning rates, which costs about the time of the tuning
(512 runs forward, against 60 with their derivative); both times are reported.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study, at_points, validation_and_test
from fedjax_sim.studies.hyper import final, tune

MU, RATE = "mu", "client_optimizer.learning_rate"
PAPER_MU, PAPER_RATE = (0.001, 0.01, 0.1, 1.0), 0.01
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 4, "largest": 30, "rounds": 3, "steps": 6, "rates": 2, "seeds": 1},
    "cpu": {"clients": 30, "largest": 120, "rounds": 20, "steps": 14, "rates": 32, "seeds": 4},
}


def run(size: str) -> dict[str, Any]:
    """All candidates; see the module."""
    n = SIZES[size]
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=n["clients"], max_size=n["largest"], test_fraction=0.4, seed=0)
    tuning, reporting = validation_and_test(data)
    setting = {
        "task": fjs.classification(fjs.models.LogisticRegression(10)),
        "rounds": n["rounds"],
        "eval_every": n["rounds"],
        "batch_size": 10,
        "cohort": fjs.cohort.uniform(min(10, n["clients"])),
        "work": fjs.local.stragglers(0.5, 3),
    }
    seeds, fresh = list(range(n["seeds"])), list(range(100, 100 + 5 * n["seeds"]))
    start = fjs.fedprox(client_optimizer=fjs.optim.sgd(PAPER_RATE), mu=PAPER_MU[2])

    tuned = tune(
        start, tuning, over=[MU, RATE], optimizer=fjs.optim.adam(0.4, b2=0.9), steps=n["steps"], seeds=seeds, **setting
    )
    grid = [{MU: mu, RATE: PAPER_RATE} for mu in PAPER_MU]
    grid += [{MU: mu, RATE: float(rate)} for mu in PAPER_MU for rate in np.geomspace(0.003, 1.0, n["rates"])]
    validated, seconds = at_points(start, tuning, grid, [final()], seeds, setting)
    scores = np.nan_to_num(validated[:, 0].mean(axis=1), nan=np.inf)
    chosen = {
        "paper's grid of mu": grid[int(np.argmin(scores[:4]))],
        "grid of mu and rate": grid[4 + int(np.argmin(scores[4:]))],
        "learned": tuned.found,
    }
    objectives = [final("test_loss"), final("test_accuracy")]
    reported, _ = at_points(start, reporting, list(chosen.values()), objectives, fresh, setting)
    losses, accuracies = reported[:, 0], reported[:, 1]
    runs = [4 * len(seeds), (len(grid) - 4) * len(seeds), tuned.runs]
    spent = [seconds * 4 / len(grid), seconds * (len(grid) - 4) / len(grid), tuned.seconds]
    validation = [float(scores[:4].min()), float(scores[4:].min()), tuned.value]
    return {
        "candidates": {
            name: {
                "mu": point[MU],
                "learning_rate": point[RATE],
                "validation_loss": validation[i],
                "test_loss": losses[i].tolist(),
                "test_accuracy": accuracies[i].tolist(),
                "runs": runs[i],
                "search_seconds": round(spent[i], 2),
            }
            for i, (name, point) in enumerate(chosen.items())
        },
        "grid": [{**point, "validation_loss": float(score)} for point, score in zip(grid, scores, strict=True)],
        "tuned": tuned.as_json(),
        "fresh_seeds": fresh,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """One line a candidate."""
    table = [f"{'':<22}{'mu':>9}{'rate':>9}{'validation':>12}{'test loss':>19}{'test acc.':>11}{'runs':>6}{'s':>8}"]
    for name, row in result["candidates"].items():
        loss, accuracy = np.array(row["test_loss"]), np.array(row["test_accuracy"])
        table.append(
            f"{name:<22}{row['mu']:>9.4g}{row['learning_rate']:>9.4g}{row['validation_loss']:>12.4f}"
            f"{loss.mean():>10.4f} ± {loss.std(ddof=1):.4f}{accuracy.mean():>11.4f}{row['runs']:>6}"
            f"{row['search_seconds']:>8.1f}"
        )
    return table


def plot(result: dict[str, Any]) -> Any:
    """Validation loss by learning rate for every mu of the grid, with the path of the tuning."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = figure.subplots()
    rows = result["grid"][4:]
    for index, mu in enumerate(PAPER_MU):
        own = [row for row in rows if row[MU] == mu]
        ax.plot(
            [row[RATE] for row in own], [row["validation_loss"] for row in own],
            color=COLOURS[index], linewidth=1.2, marker=".", label=f"grid, μ = {mu:g}",
        )  # fmt: skip
    paper = result["grid"][:4]
    ax.plot(
        [row[RATE] for row in paper], [row["validation_loss"] for row in paper],
        linestyle="", marker="s", markersize=4, color="0.4", label="the paper's grid",
    )  # fmt: skip
    tuned = result["tuned"]
    values = np.mean(np.array(tuned["by_seed"], float)[0], axis=-1)
    ax.plot(
        tuned["hyper"][RATE][0], values, color="black", linewidth=1.6, marker="o", markersize=3, label="by gradient"
    )
    ax.set_xscale("log")
    worst = values[np.isfinite(values)].max()
    ax.set_ylim(0.95 * values[np.isfinite(values)].min(), 1.15 * worst)
    ax.set_xlabel("client learning rate")
    ax.set_ylabel("validation loss")
    ax.legend(**LEGEND)
    plain(ax)
    return figure


STUDY = Study("fedprox", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
