"""Whose model is best for a client: shared, fine-tuned, personal, clustered, or its own alone.

    python -m benchmarks.studies.personal [--size cpu]

A network with one hidden layer on four sets of clients that differ in different things:

- people: smartphone activity of 30 people (`hapt`), who move differently but all do the same six things;
- habits: WISDM's 36 people, who differ in what they did, too;
- labels: Fashion-MNIST, 20 clients with two classes each and 150 images;
- targets: digits, 20 clients in four groups, each of which has numbered the classes in its own way.

A fifth of the clients take part in a round (of labels all), for one epoch in batches of 10. Every method's rate, and
its own parameter where it has one, are those of a grid with the best accuracy on one half of each client's test
examples after the last round, mean over clients and seeds; its row is of other seeds on the other half. "FedAvg,
fine-tuned" trains the shared model for one more epoch at each client, as a round of any method does, with the rate that
is best for that; Per-FedAvg's model, which is made to be fine-tuned, is measured in the same way. Intervals are
Student's for 95 %, over seeds.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study
from fedjax_sim.reporting.table import half_width

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rounds": 2, "rates": (0.1,), "chosen": (10, 11), "seeds": (0, 1), "problems": ("targets",)},
    "cpu": {
        "rounds": 60, "rates": (0.03, 0.1, 0.3), "chosen": range(10, 15), "seeds": range(5),
        "problems": ("targets", "habits", "people", "labels"),
    },
}  # fmt: skip
HIDDEN = 64
TUNED = "FedAvg, fine-tuned"


def _fashion() -> fjs.FederatedDataset:
    def two(labels: np.ndarray) -> list[np.ndarray]:
        rng = np.random.Generator(np.random.PCG64(0))
        return [rng.permutation(rows)[:150] for rows in fjs.datasets.partition.classes(labels, 20, 2, seed=0)]

    return fjs.datasets.fashion_mnist(partition=two, test="local", test_fraction=0.4)


def _renumbered_digits() -> fjs.FederatedDataset:
    data = fjs.datasets.digits(num_clients=20, alpha=1000.0, seed=0, test_fraction=0.4)
    rng = np.random.Generator(np.random.PCG64(0))
    names = [rng.permutation(10) for _ in range(4)]

    def of(part: fjs.FederatedDataset) -> list[Any]:
        clients = [part.client(i) for i in range(20)]
        return [{**one, "y": names[i % 4][np.asarray(one["y"])]} for i, one in enumerate(clients)]

    assert data.test is not None
    return fjs.datasets.from_clients(of(data), test=of(data.test), num_classes=10)


# By problem: its data, and how many clients take part in a round.
PROBLEMS: dict[str, tuple[Callable[[], fjs.FederatedDataset], int]] = {
    "people": (lambda: fjs.datasets.hapt(flat=True, test_fraction=0.4), 6),
    "habits": (lambda: fjs.datasets.wisdm(test_fraction=0.4), 7),
    "labels": (_fashion, 20),
    "targets": (_renumbered_digits, 4),
}
SGD = fjs.optim.sgd
HEAD = "Dense_1"
# By method: the values of its own parameter, and it at a rate and one of them.
METHODS: dict[str, tuple[tuple[Any, ...], Callable[[float, Any], Any]]] = {
    "FedAvg": ((None,), lambda rate, _: fjs.fedavg(client_optimizer=SGD(rate))),
    "local alone": ((None,), lambda rate, _: fjs.mr_mtl(lam=0.0, client_optimizer=SGD(rate))),
    "Ditto": ((0.1, 1.0), lambda rate, lam: fjs.ditto(lam=lam, client_optimizer=SGD(rate))),
    "MR-MTL": ((0.1, 1.0), lambda rate, lam: fjs.mr_mtl(lam=lam, client_optimizer=SGD(rate))),
    "pFedMe": (
        (0.005, 0.05),
        lambda rate, outer: fjs.pfedme(lam=15.0, outer_learning_rate=outer, client_optimizer=SGD(rate)),
    ),
    "APFL": ((0.25, 0.75), lambda rate, alpha: fjs.apfl(alpha=alpha, client_optimizer=SGD(rate))),
    "FedPer": ((None,), lambda rate, _: fjs.keep(fjs.fedavg(client_optimizer=SGD(rate)), HEAD)),
    "FedRep": (
        (5, 20),
        lambda rate, steps: fjs.fedrep(fjs.fedavg(client_optimizer=SGD(rate)), HEAD, head_steps=steps),
    ),
    "Fed-RoD": ((None,), lambda rate, _: fjs.fedrod(head=HEAD, client_optimizer=SGD(rate))),
    "FedALA": ((None,), lambda rate, _: fjs.fedala(client_optimizer=SGD(rate))),
    "Per-FedAvg": (
        (0.01, 0.1),
        lambda rate, alpha: fjs.perfedavg(alpha=alpha, form="first_order", client_optimizer=SGD(rate)),
    ),
    "IFCA": ((2, 4), lambda rate, clusters: fjs.ifca(clusters=clusters, client_optimizer=SGD(rate))),
    "FedEM": ((2, 4), lambda rate, parts: fjs.fedem(components=parts, client_optimizer=SGD(rate))),
}

# By method: its rows, and which of the models each is of; the others have one row, of their personal models.
KINDS = {"FedAvg": {"FedAvg": "shared", TUNED: "tuned"}, "Per-FedAvg": {"Per-FedAvg": "tuned"}}


def run(size: str) -> dict[str, Any]:
    """All methods on all problems."""
    n, found = SIZES[size], {}
    for problem in n["problems"]:
        make, cohort = PROBLEMS[problem]
        parts = _halves(make())
        task = fjs.classification(fjs.models.MLP(parts[0].num_classes, hidden=(HIDDEN,)))
        rows: dict[str, Any] = {}
        for method, (values, at) in METHODS.items():
            grid = list(itertools.product(n["rates"], values))
            kinds = KINDS.get(method, {method: "personal"})
            tune = "tuned" in kinds.values()
            common = {"task": task, "rounds": n["rounds"], "cohort": cohort, "tune": tune}
            tried = [_ended(at(*point), parts[0], n["chosen"], point[0], **common) for point in grid]
            for row, kind in kinds.items():
                worth = [float(np.nan_to_num(one.final(f"{kind}_accuracy")).mean()) for one in tried]
                rate, value = grid[int(np.argmax(worth))]
                final = _ended(at(rate, value), parts[1], n["seeds"], rate, **common)
                of_clients = f"{kind if kind != 'shared' else 'test'}_client_accuracy"
                rows[row] = {
                    "rate": rate,
                    "value": value,
                    "accuracy": final.final(f"{kind}_accuracy").tolist(),
                    "worst": final.final(f"{kind}_accuracy_worst").tolist(),
                    "clients": final.final(of_clients).tolist(),
                    "diverged": len(final.divergences),
                }
            print(problem, {row: float(np.mean(rows[row]["accuracy"]).round(4)) for row in kinds}, flush=True)
        found[problem] = {
            "clients": parts[0].num_clients, "cohort": cohort, "examples": parts[0].num_examples,
            "test_examples": parts[1].test.num_examples, "rows": rows,
        }  # fmt: skip
    return {"rounds": n["rounds"], "problems": found}


def _halves(data: fjs.FederatedDataset) -> tuple[fjs.FederatedDataset, fjs.FederatedDataset]:
    """The same training data with the first and the second half of every client's test examples, equally many."""
    test = [data.test.client(i) for i in range(data.num_clients)]
    half = [len(one["y"]) // 2 for one in test]
    cut = [
        [{name: leaf[k * n : (k + 1) * n] for name, leaf in one.items()} for one, n in zip(test, half, strict=True)]
        for k in range(2)
    ]
    clients = [data.client(i) for i in range(data.num_clients)]
    first, second = (fjs.datasets.from_clients(clients, test=one, num_classes=data.num_classes) for one in cut)
    return first, second


def _ended(
    method: Any, data: Any, seeds: Any, rate: float, *, task: Any, rounds: int, cohort: int, tune: bool
) -> fjs.History:
    """A run, evaluated after its last round."""
    one_epoch = {"work": fjs.local.epochs(1), "batches": fjs.local.shuffled(10)}
    tuned = fjs.personalise(task, SGD(rate), **one_epoch) if tune else None
    return fjs.simulate(
        method, data, task=task, rounds=rounds, eval_every=rounds, cohort=fjs.cohort.uniform(cohort), seeds=seeds,
        evaluate=fjs.per_client(task, worst=0.1, tuned=tuned), progress=False, **one_epoch,
    )  # fmt: skip


def lines(result: dict[str, Any]) -> list[str]:
    """A markdown table a problem."""
    said = []
    for problem, about in result["problems"].items():
        beside = np.array(about["rows"][TUNED]["clients"])
        said += [
            f"{problem}: {about['clients']} clients, {about['cohort']} a round, {about['examples']:,} examples",
            "| method | rate | its own | mean of clients, % | worst tenth, % | clients below fine-tuned FedAvg, % |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for method, row in sorted(about["rows"].items(), key=lambda item: -np.mean(item[1]["accuracy"])):
            mean, spread = 100 * np.mean(row["accuracy"]), 100 * half_width(np.array(row["accuracy"]))
            lost = 100 * np.mean(np.array(row["clients"]) < beside)
            own = "–" if row["value"] is None else f"{row['value']:g}"
            said.append(
                f"| {method} | {row['rate']:g} | {own} | {mean:.1f} ± {spread:.1f} | {100 * np.mean(row['worst']):.1f} "
                f"| {lost:.0f} |"
            )
        said.append("")
    return said


def plot(result: dict[str, Any]) -> Any:
    """Each method's accuracy on each problem, with its interval."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.plots import COLOURS, plain

    problems = result["problems"]
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    names = [TUNED, *METHODS]
    for ax, (problem, about) in zip(
        figure.subplots(1, len(problems), sharey=True, squeeze=False)[0], problems.items(), strict=True
    ):
        for place, name in enumerate(reversed(names)):
            values = 100 * np.array(about["rows"][name]["accuracy"])
            first = name in ("FedAvg", TUNED)
            ax.errorbar(
                values.mean(), place, xerr=half_width(values), fmt="o", markersize=4, capsize=2,
                color=COLOURS[1] if first else COLOURS[0],
            )  # fmt: skip
        ax.axvline(100 * np.mean(about["rows"][TUNED]["accuracy"]), color="0.8", linewidth=1, zorder=0)
        ax.set_yticks(range(len(names)), list(reversed(names)), fontsize="small")
        ax.set_title(problem, fontsize="medium")
        ax.set_xlabel("accuracy, mean of clients, %", fontsize="small")
        plain(ax)
    return figure


STUDY = Study("personal", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
