"""A learning rate for every round, learned by gradient, beside eta0 / (1 + t) and a constant.

    python -m benchmarks.studies.schedule [--size cpu]

FedAvg on synthetic(1, 1), five clients of 20 a round, five local steps: a constant rate stalls at a distance from the
minimum, eta0 / (1 + t) gets closer but slows down early. All schedules are tuned by the same optimiser for the same
number of steps on the same seeds, each starting from the best constant rate of a short scan (the schedule of round t
from the best of the one- and two-number ones), and compared on other seeds.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study, at_points
from fedjax_sim.studies.hyper import final, tune

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 4, "cohort": 2, "largest": 30, "rounds": 4, "steps": 8, "seeds": 1},
    "cpu": {"clients": 20, "cohort": 5, "largest": 100, "rounds": 20, "steps": 25, "seeds": 16},
}
SCAN = (0.01, 0.03, 0.1, 0.3, 1.0)


def run(size: str) -> dict[str, Any]:
    """Tunes the schedules on some seeds and compares them on others."""
    n = SIZES[size]
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=n["clients"], max_size=n["largest"], test_fraction=0.0, seed=0)
    rounds, seeds, fresh = n["rounds"], list(range(n["seeds"])), list(range(100, 100 + 4 * n["seeds"]))
    setting = {
        "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3),
        "rounds": rounds,
        "eval_every": rounds,
        "batch_size": 10,
        "cohort": fjs.cohort.uniform(n["cohort"]),
        "work": fjs.local.steps(5),
    }
    unit = fjs.optim.sgd(1.0)

    def with_rate(rate: Any) -> Any:
        return fjs.fedavg(client_optimizer=unit, client_learning_rate=rate)

    def learn(rate: Any, *over: str) -> Any:
        paths = [f"client_learning_rate{path}" for path in over]
        return tune(
            with_rate(rate), data, over=paths, objective=final("loss"), optimizer=fjs.optim.adam(0.1),
            steps=n["steps"], seeds=seeds, **setting,
        )  # fmt: skip

    scan, _ = at_points(
        with_rate(0.1), data, [{"client_learning_rate": rate} for rate in SCAN], [final("loss")], seeds, setting
    )
    first = SCAN[int(np.argmin(np.nan_to_num(scan[:, 0].mean(axis=1), nan=np.inf)))]
    inverse = fjs.rates.inverse_time
    tuned = {
        "constant": learn(first, ""),
        "eta0 / (1 + t)": learn(inverse(3 * first, 1.0), ".initial"),
        "eta0 / (1 + d t)": learn(inverse(first, 1 / rounds), ".initial", ".decay"),
    }
    t = np.arange(rounds)
    found = {name: [*one.found.values()] for name, one in tuned.items()}
    schedules = {
        "constant": np.full(rounds, found["constant"][0]),
        "eta0 / (1 + t)": found["eta0 / (1 + t)"][0] / (1 + t),
        "eta0 / (1 + d t)": found["eta0 / (1 + d t)"][0] / (1 + found["eta0 / (1 + d t)"][1] * t),
    }
    best = min(tuned, key=lambda name: tuned[name].value)
    start = jnp.asarray(schedules[best], jnp.float32)
    tuned["learned"] = learn(fjs.rates.over_rounds(start), ".values")
    schedules["learned"] = tuned["learned"].found["client_learning_rate.values"]

    points = [{"client_learning_rate.values": np.asarray(values, np.float32)} for values in schedules.values()]
    reported, _ = at_points(with_rate(fjs.rates.over_rounds(start)), data, points, [final("loss")], fresh, setting)
    return {
        "started_from": best,
        "fresh_seeds": fresh,
        "schedules": {
            name: {
                "rates": [float(value) for value in values],
                "tuning_loss": tuned[name].value,
                "loss": reported[index, 0].tolist(),
                "seconds": round(tuned[name].seconds, 2),
                "compile_seconds": round(tuned[name].compile_seconds, 2),
                "rejected": tuned[name].rejected,
            }
            for index, (name, values) in enumerate(schedules.items())
        },
    }


def lines(result: dict[str, Any]) -> list[str]:
    """One line a schedule; differences to the learned one are paired by seed."""
    learned = np.array(result["schedules"]["learned"]["loss"])
    table = [f"{'':<18}{'tuning seeds':>13}{'other seeds':>20}{'less learned':>20}{'first':>8}{'last':>8}{'s':>6}"]
    for name, row in result["schedules"].items():
        loss = np.array(row["loss"])
        gap = loss - learned
        error = gap.std(ddof=1) / np.sqrt(len(gap))
        table.append(
            f"{name:<18}{row['tuning_loss']:>13.4f}{loss.mean():>11.4f} ± {loss.std(ddof=1):.4f}"
            f"{gap.mean():>11.4f} ± {error:.4f}{row['rates'][0]:>8.3f}{row['rates'][-1]:>8.3f}{row['seconds']:>6.1f}"
        )
    return table


def plot(result: dict[str, Any]) -> Any:
    """The schedules, and their losses on other seeds."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.figures import plain_numbers
    from fedjax_sim.reporting.plots import LEGEND, line_style, plain

    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = list(result["schedules"])
    for index, (name, row) in enumerate(result["schedules"].items()):
        style = line_style(index)
        left.semilogy(row["rates"], label=_shown(name), **style)
        loss = np.array(row["loss"])
        right.errorbar(index, loss.mean(), loss.std(ddof=1), color=style["color"], marker="o", capsize=3)
    plain_numbers(left.yaxis, (1.0, 2.0, 5.0))
    left.set_xlabel("round t")
    left.set_ylabel("client learning rate")
    left.legend(**LEGEND)
    right.set_xticks(range(len(names)), [_shown(name) for name in names], rotation=20, ha="right", fontsize="small")
    right.set_xlim(-0.5, len(names) - 0.5)
    right.set_ylabel("final loss, other seeds")
    for ax in (left, right):
        plain(ax)
    return figure


def _shown(name: str) -> str:
    return name.replace("eta0", "η₀")


STUDY = Study("schedule", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
