"""A population and successive halving beside random search and the gradient of whole runs, at equal cost.

    python -m benchmarks.studies.populations [--size cpu]

Three problems, each with a training, a validation and a test part: FedProx with stragglers on synthetic(1, 1) over mu
and the learning rate; FedAdam with a small MLP on scikit-learn's digits over both learning rates; FedAvg on
synthetic(1, 1) with few clients a round, where a constant learning rate stalls. Every search may take as many rounds as
16 whole runs: 16 points drawn at random; a population of 16; 52 points in four rungs; a descent from the middle of the
space with as many steps as the measured cost of a derivative leaves. Each chooses by the validation loss; the test loss
of the model it chose is reported, over repetitions with seeds, points and decisions of their own.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study
from fedjax_sim import hyper, paths, sweeps

CLIENT = "client_optimizer.learning_rate"
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"members": 4, "points": 5, "rungs": 2, "rounds": 8, "repetitions": 2, "pairs": 1},
    "cpu": {"members": 16, "points": 52, "rungs": 4, "rounds": 40, "repetitions": 8, "pairs": 5},
}
METHODS = ("random search", "population", "halving", "gradient")
VALIDATION = hyper.final("validation_loss")


def problems(rounds: int) -> dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]]:
    """By name: the method, the data, the distributions of its hyper-parameters, the run."""
    common = {"rounds": rounds, "eval_every": rounds // 8, "batch_size": 10}
    linear = fjs.classification(fjs.models.LogisticRegression(10))
    rates = {CLIENT: sweeps.log_uniform(1e-3, 1.0)}
    prox = fjs.datasets.synthetic(1.0, 1.0, num_clients=20, max_size=80, test_fraction=0.3, seed=0)
    digits = fjs.datasets.digits(num_clients=20, alpha=0.3, seed=0, test_fraction=0.3)
    noisy = fjs.datasets.synthetic(1.0, 1.0, num_clients=20, max_size=80, test_fraction=0.3, seed=1)
    return {
        "FedProx, stragglers": (
            fjs.fedprox(client_optimizer=fjs.optim.sgd(0.1), mu=0.1), prox,
            rates | {"mu": sweeps.log_uniform(1e-3, 1.0)},
            common | {"task": linear, "cohort": fjs.cohort.uniform(5), "work": fjs.local.stragglers(0.5, 3)},
        ),
        "FedAdam, digits": (
            fjs.fedadam(client_optimizer=fjs.optim.sgd(0.1), server_learning_rate=0.01), digits,
            rates | {"server_learning_rate": sweeps.log_uniform(1e-4, 1.0)},
            common | {
                "task": fjs.classification(fjs.models.MLP(10, (32,))), "cohort": fjs.cohort.uniform(5),
                "work": fjs.local.steps(5),
            },
        ),
        "FedAvg, 2 of 20": (
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), noisy, rates,
            common | {"task": linear, "cohort": fjs.cohort.uniform(2), "work": fjs.local.steps(5)},
        ),
    }  # fmt: skip


def run(size: str) -> dict[str, Any]:
    """All problems."""
    n = SIZES[size]
    found = {}
    for name, (method, data, space, setting) in problems(n["rounds"]).items():
        data = fjs.datasets.with_validation(data, 0.3)
        middle = {path: float(one.quantile(np.array(0.5))) for path, one in space.items()}
        method = paths.replace(method, middle)
        multiple = cost_of_derivative(method, data, middle, setting, n["pairs"])
        steps = max(int(n["members"] / multiple) - 1, 1)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
        for repetition in range(n["repetitions"]):
            for kind, row in one_repetition(method, data, space, setting, repetition, n, steps).items():
                rows[kind].append(row)
        found[name] = {"derivative_costs": multiple, "steps": steps, "middle": middle, "rows": rows}
    return {"rounds": n["rounds"], "members": n["members"], "problems": found}


def one_repetition(
    method: Any, data: Any, space: Any, setting: dict[str, Any], seed: int, n: dict[str, Any], steps: int
) -> dict[str, dict[str, Any]]:
    """What each method finds."""

    def searched(strategy: Any, members: int) -> dict[str, Any]:
        found = fjs.search(
            method,
            data,
            sweeps.random(space, members, seed=seed),
            strategy,
            objective=VALIDATION,
            seeds=seed,
            **setting,
        )
        history = {name: leaf[:, 0] for name, leaf in found.history().items()}
        return {
            "validation": float(history["validation_loss"][-1]),
            "test": float(history["test_loss"][-1]),
            "accuracy": float(history["test_accuracy"][-1]),
            "rate": found.schedule()[CLIENT].tolist(),
            "rounds": found.member_rounds,
            "seconds": found.seconds,
            "compile_seconds": found.compile_seconds,
        }

    tuned = hyper.tune(
        method, data, over=list(space), objective=VALIDATION, optimizer=fjs.optim.adam(0.4, b2=0.9), steps=steps,
        seeds=seed, **setting | {"eval_every": setting["rounds"]},
    )  # fmt: skip
    history = fjs.simulate(tuned.algorithm, data, seeds=seed, **tuned.run)
    return {
        "random search": searched(hyper.halving(rungs=1), n["members"]),
        "population": searched(hyper.population(factor=1.5), n["members"]),
        "halving": searched(hyper.halving(rungs=n["rungs"]), n["points"]),
        "gradient": {
            "validation": tuned.value,
            "test": float(history.final("test_loss")[0]),
            "accuracy": float(history.final("test_accuracy")[0]),
            "rate": [float(tuned.found[CLIENT])] * setting["rounds"],
            "rounds": None,
            "seconds": tuned.seconds,
            "compile_seconds": tuned.compile_seconds,
        },
    }


def cost_of_derivative(method: Any, data: Any, middle: dict[str, float], setting: dict[str, Any], pairs: int) -> float:
    """How many runs a run with its derivative costs: the median of ratios, each of one after the other."""
    train = fjs.make_train(**setting | {"eval_every": setting["rounds"]})

    def loss(values: Any, method: Any, data: Any, key: Any) -> Any:
        return VALIDATION(train(paths.replace(method, values), data, key))

    forward, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    ratios = []
    for pair in range(pairs + 1):  # the first compiles
        seconds = []
        for program in (forward, both):
            begun = time.perf_counter()
            jax.block_until_ready(program(middle, method, data, jax.random.key(pair)))
            seconds.append(time.perf_counter() - begun)
        ratios.append(seconds[1] / seconds[0])
    return float(np.median(ratios[1:]))


def lines(result: dict[str, Any]) -> list[str]:
    """One line a problem and method; differences to random search are paired by repetition."""
    table = [f"{'':<22}{'':<15}{'validation':>20}{'test loss':>20}{'less random':>20}{'accuracy':>10}{'s':>7}"]
    for name, problem in result["problems"].items():
        table.append(f"{name}: a derivative costs {problem['derivative_costs']:.2f} runs, {problem['steps']} steps")
        for method, rows in problem["rows"].items():
            validation, test, accuracy = (
                np.array([row[of] for row in rows]) for of in ("validation", "test", "accuracy")
            )
            gap = test - np.array([row["test"] for row in problem["rows"]["random search"]])
            cells = "".join(f"{one.mean():>11.4f} ± {_error(one):.4f}" for one in (validation, test, gap))
            seconds = sum(row["seconds"] for row in rows)
            table.append(f"{'':<22}{method:<15}{cells}{accuracy.mean():>10.4f}{seconds:>7.1f}")
    return table


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def plot(result: dict[str, Any]) -> Any:
    """Test losses by method, and the learning rates on the way to the chosen models."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.figures import plain_numbers
    from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    axes = figure.subplots(2, len(result["problems"]))
    for column, (name, problem) in enumerate(result["problems"].items()):
        above, below = axes[:, column]
        for index, (method, rows) in enumerate(problem["rows"].items()):
            test = np.array([row["test"] for row in rows])
            above.plot(np.linspace(index - 0.15, index + 0.15, len(test)), test, ".", color="0.75", markersize=4)
            above.errorbar(index, test.mean(), 2 * _error(test), color=COLOURS[index], marker="o", capsize=3)
            if method in ("random search", "population"):
                for place, row in enumerate(rows):
                    label = method if column == place == 0 else None
                    below.step(range(len(row["rate"])), row["rate"], color=COLOURS[index], linewidth=0.8, label=label)
        above.set_xticks(range(len(METHODS)), METHODS, rotation=20, ha="right", fontsize="small")
        above.set_title(name, fontsize="medium")
        below.set_yscale("log")
        plain_numbers(below.yaxis, (1.0, 2.0, 5.0))
        below.set_xlabel("round")
        for ax in (above, below):
            plain(ax)
    axes[0, 0].set_ylabel("test loss of the chosen model")
    axes[1, 0].set_ylabel("its client learning rate")
    axes[1, 0].legend(**LEGEND)
    return figure


STUDY = Study("populations", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
