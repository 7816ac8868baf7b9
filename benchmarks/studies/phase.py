"""Where SCAFFOLD beats FedAvg: a phase diagram over heterogeneity and local steps.

    python -m benchmarks.studies.phase [--size cpu] [--resume FOLDER]

Scikit-learn's digits on 20 clients by Dirichlet label skew alpha, five of them a round, 30 rounds of K local steps on
20 examples, logistic regression with a penalty: 32 values of alpha by 32 of K, five seeds, each with a partition of its
own. Both methods average by sample sizes, SCAFFOLD takes option II, server rates are 1; in every cell each takes its
best of six client rates, by the mean training loss of two other seeds. Compared is the training loss after the last
round; cells are corrected by Benjamini and Hochberg. Writes ``phase.csv`` with all runs, ``phase.json`` and
``phase.png``.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import rounded, with_folder
from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.plots import save_figure

_FULL = {"seeds": 5, "choosing": 2, "rates": [0.03, 0.1, 0.3, 1.0, 3.0, 10.0], "most": 64, "rounds": 30}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"cells": 2, "seeds": 2, "choosing": 1, "rates": [0.1, 1.0], "most": 4, "rounds": 2},
    "small": {"cells": 6, **_FULL},
    "cpu": {"cells": 32, **_FULL},
}
RATE = "client_optimizer.learning_rate"


def steps(count: int, most: int) -> list[int]:
    """So many distinct numbers from 1 to ``most``, geometric as far as integers go."""
    lists = (np.unique(np.geomspace(1, most, number).round().astype(int)) for number in itertools.count(count))
    return next(found.tolist() for found in lists if len(found) == count)


def compared(size: str, resume: pathlib.Path | None = None) -> Any:
    """The diagram."""
    n, sgd = SIZES[size], fjs.optim.sgd(0.1)
    return fjs.phase(
        {"FedAvg": fjs.fedavg(client_optimizer=sgd), "SCAFFOLD": fjs.scaffold(client_optimizer=sgd, option="II")},
        lambda alpha, seed: fjs.datasets.digits(num_clients=20, alpha=alpha, seed=seed),
        x={"alpha": np.geomspace(0.01, 100, n["cells"])},
        y={"K": steps(n["cells"], n["most"])},
        seeds=range(n["seeds"]),
        best_of=fjs.sweeps.grid({RATE: n["rates"]}),
        choosing_seeds=range(100, 100 + n["choosing"]),
        progress=True,
        resume=resume,
        task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3),
        rounds=n["rounds"],
        batch_size=20,
        cohort=fjs.cohort.uniform(5, average="sample"),
        work=lambda K: fjs.local.given_steps(K, most=n["most"]),
    )


def about(diagram: Any, size: str) -> dict[str, Any]:
    """What is said of it: who wins in how many cells, and what it cost."""
    winner, rates = diagram.verdict().winner, diagram.chosen[RATE]
    wins = {name: int((winner == number).sum()) for number, name in enumerate(diagram.methods)}
    tried = SIZES[size]["rates"]
    return {
        "size": size,
        "cells": int(diagram.computed.sum()),
        "wins": wins | {"neither": int((winner == -1).sum())},
        "cells_with_divergence": int(diagram.diverged.sum()),
        "at_the_lowest_rate": int((rates == tried[0]).sum()),
        "at_the_highest_rate": int((rates == tried[-1]).sum()),
        "reported_steps_needed": int(diagram.steps[..., 0].sum()),
        "reported_steps_computed": int(diagram.steps[..., 1].sum()),
    }


def figure(diagram: Any) -> Any:
    """Who wins, beside the difference of the means."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(9.6, 4.4), layout="constrained")
    for ax, what in zip(found.subplots(1, 2), ("winner", "difference"), strict=True):
        diagram.plot(what, ax)
        ax.set(xlabel="α of the Dirichlet split", ylabel="local steps K")
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the study, prints it and writes its files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="cpu")
    parser.add_argument("--resume", type=pathlib.Path, help="a folder for finished runs")
    options = with_folder(parser, arguments)
    wall, cpu = time.perf_counter(), time.process_time()
    diagram = compared(options.size, options.resume)
    result = about(diagram, options.size) | {
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "date": datetime.date.today().isoformat(),
        "environment": {"jax": jax.__version__, "device": str(jax.devices()[0]), "cores": os.cpu_count()},
    }
    print(diagram, json.dumps(result, indent=1), sep="\n")
    if options.out is not None:
        diagram.to_csv(options.out / "phase.csv")
        write_atomically(options.out / "phase.json", json.dumps(rounded(result), indent=1).encode())
        save_figure(figure(diagram), options.out / "phase.png")
    return result


if __name__ == "__main__":
    main()
