"""What ten clients' data are worth: two first-order answers beside the truth, all 1,024 coalitions retrained.

    python -m benchmarks.studies.coalitions [--size cpu]

FedAvg with everybody on scikit-learn's digits, ten clients split by Dir(0.5), one of them with random labels; logistic
regression, run to rest. The change of the test loss when a client is left out, and its Shapley value, from one program
that trains without it, or with every set of the others; beside what the derivative in the weights of its examples
predicts, taken through the whole training, and taken at rest by products with the Hessian alone (the implicit function
theorem, which is the classical influence function for a federated round).
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.clients import poisoned, spearman
from benchmarks.studies.command import Study

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 3, "rounds": 5, "poisoned": (1,)},
    "cpu": {"clients": 10, "rounds": 200, "poisoned": (4,)},
}


def run(size: str) -> dict[str, Any]:
    """The two predictions and all coalitions."""
    n = SIZES[size]
    digits = fjs.datasets.digits(num_clients=n["clients"], alpha=0.5, seed=0, test_fraction=0.3)
    data = poisoned(digits, n["poisoned"])
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.2))
    setting: dict[str, Any] = {
        "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=0.05),
        "rounds": n["rounds"], "eval_every": n["rounds"], "batches": fjs.local.full_batch(),
        "cohort": fjs.cohort.full(), "work": fjs.local.steps(3),
    }  # fmt: skip
    seconds, found = {}, {}

    def timed(name: str, call: Any) -> Any:
        started = time.perf_counter()
        found[name] = call()
        seconds[name] = round(time.perf_counter() - started, 2)

    timed("training", lambda: fjs.hyper.influence(algorithm, data, **setting))
    implicit = fjs.adjoints.implicit(fjs.adjoints.neumann())
    timed("rest", lambda: fjs.hyper.influence(algorithm, data, adjoint=implicit, **setting))
    timed("coalitions", lambda: fjs.hyper.coalitions(algorithm, data, **setting))
    truth = found["coalitions"]
    shares = np.asarray(data.shares, np.float64)

    def predicted(clients: np.ndarray) -> np.ndarray:
        """J(all) - J(all but i): c_i, less that the others' shares grow by 1 / (1 - p_i)."""
        return (clients - shares * clients.sum()) / (1 - shares)

    worth = {
        "left out": truth.leave_one_out, "Shapley": truth.shapley,
        "through training": predicted(found["training"].clients), "at rest": predicted(found["rest"].clients),
    }  # fmt: skip
    pairs = [("through training", "left out"), ("at rest", "left out"), ("left out", "Shapley"), ("at rest", "Shapley")]
    return {
        "poisoned": list(n["poisoned"]),
        "sizes": np.asarray(data.sizes).tolist(),
        "worth": {name: np.asarray(values).tolist() for name, values in worth.items()},
        "loss": {"everybody": truth.value([True] * n["clients"]), "nobody": truth.value([False] * n["clients"])},
        "spearman": {f"{a}, {b}": spearman(np.asarray(worth[a]), np.asarray(worth[b])) for a, b in pairs},
        "pearson": {f"{a}, {b}": float(np.corrcoef(worth[a], worth[b])[0, 1]) for a, b in pairs},
        "runs": len(truth.members),
        "search_seconds": seconds,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Worth by client, correlations, seconds."""
    names = list(result["worth"])
    table = [f"{'client':>8}{'examples':>10}" + "".join(f"{name:>18}" for name in names)]
    for i, size in enumerate(result["sizes"]):
        mark = "*" if i in result["poisoned"] else ""
        table.append(f"{mark:>3}{i:>5}{size:>10}" + "".join(f"{result['worth'][name][i]:>18.4f}" for name in names))
    table += [
        f"{pair}: Spearman {value:.3f}, Pearson {result['pearson'][pair]:.3f}"
        for pair, value in result["spearman"].items()
    ]
    seconds = result["search_seconds"]
    return [*table, f"{result['runs']} runs {seconds['coalitions']} s, a gradient {seconds['training']} s, at rest "
                    f"{seconds['rest']} s, with compilation; * has random labels"]  # fmt: skip


def plot(result: dict[str, Any]) -> Any:
    """Predictions and Shapley values beside what leaving out does."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from fedjax_sim.reporting.plots import COLOURS, plain

    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    panels = [("through training", "left out"), ("at rest", "left out"), ("left out", "Shapley")]
    bad = np.isin(np.arange(len(result["sizes"])), result["poisoned"])
    for ax, (a, b) in zip(figure.subplots(1, 3), panels, strict=True):
        x, y = np.array(result["worth"][a]), np.array(result["worth"][b])
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
        ax.scatter(x[~bad], y[~bad], color=COLOURS[0], s=22)
        ax.scatter(x[bad], y[bad], color=COLOURS[1], s=30, marker="X", label="random labels")
        ax.set_xlabel({"left out": "left out"}.get(a, f"predicted {a}"))
        ax.set_ylabel(f"{b}: worth in test loss")
        ax.set_title(f"Spearman {result['spearman'][f'{a}, {b}']:.2f}", fontsize="medium")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        plain(ax)
    figure.axes[0].legend(frameon=False, fontsize="small")
    return figure


STUDY = Study("coalitions", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
