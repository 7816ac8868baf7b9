"""Learned server optimisers against tuned FedAvg and its kin, on federations and data that they have not seen.

    python -m benchmarks.studies.learned [--size cpu]

Training: a rule for tensors and one for parameters, each with and without the dispersion of the cohort, over 64
federations of synthetic(alpha, beta), whose alpha, beta and sizes differ, with a small network; every run draws one of
them, a client rate, local work and how many clients are there. By PES in windows of half a run. It goes on from
checkpoints in results/learned, which are not committed; the rules are, as results/learned_NAME.safetensors, and a rule
that is there is not trained again.

Comparison: three federations, (1) synthetic data of another seed, (2) scikit-learn's digits, (3) a part of
Fashion-MNIST where FEDJAX_SIM_DATA has it, the last two by Dirichlet partitions, with other networks, and twice
the rounds of the training. Every method has a grid of as many client and server rates, and the same seeds to choose by
the validation loss at the end; reported are test losses and accuracies of other seeds. Rules with the server rate 1 are
reported too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fjs
from benchmarks.studies.command import RESULTS, Study, at_points
from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.table import half_width

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {
        "federations": 3, "clients": 6, "episodes": 2, "pairs": 2, "rounds": 10, "tests": ["synthetic"], "grid": 3,
        "choose": 1, "seeds": 2, "rules": ["tensor"],
    },
    "cpu": {
        "federations": 64, "clients": 20, "episodes": 500, "pairs": 6, "rounds": 50, "grid": 7, "choose": 2,
        "seeds": 10, "tests": ["synthetic", "digits", "Fashion-MNIST"],
        "rules": ["tensor_dispersion", "tensor", "parameter_dispersion", "parameter"],
    },
}  # fmt: skip
CLIENT, SERVER = "client_optimizer.learning_rate", "server_learning_rate"
SGD = fjs.optim.sgd(0.1)


def rule_called(name: str) -> Any:
    """An untrained rule."""
    kind, _, dispersion = name.partition("_")
    return fjs.optim.learned(kind, dispersion=bool(dispersion))


def method(rule: Any) -> Any:
    """FedAvg with a rule at the server."""
    return (fjs.fedlopt if rule.dispersion else fjs.fedavg)(client_optimizer=SGD, server_optimizer=rule)


def problem(n: dict[str, Any], rule: Any) -> Any:
    """What a rule is trained on."""
    draw = np.random.default_rng(0)

    def federation(seed: int) -> Any:
        alpha, beta = draw.uniform(0, 1.5, 2)
        sizes = np.clip(draw.lognormal(3.3, 0.8, n["clients"]), 20, 150).astype(int)
        return fjs.datasets.synthetic(alpha, beta, n["clients"], seed, sizes=sizes, test_fraction=0.3)

    return fjs.learned.federations(
        method(rule), [federation(1000 + seed) for seed in range(n["federations"])],
        vary={
            CLIENT: fjs.sweeps.log_uniform(0.003, 0.3), "work.mean": fjs.sweeps.uniform(2, 20),
            "cohort.availability.probability": fjs.sweeps.uniform(0.4, 1.0),
        },
        task=fjs.classification(fjs.models.MLP(10, hidden=(16,))), rounds=n["rounds"], eval_every=5, batch_size=10,
        cohort=fjs.cohort.available(fjs.cohort.uniform(n["clients"] // 2), fjs.cohort.bernoulli(0.7)),
        work=fjs.local.gaussian_steps(8, 3.0, most=25), evaluate_train=False,
    )  # fmt: skip


def trained(size: str, name: str) -> Any:
    """A rule, of its file where it is there."""
    n, path = SIZES[size], RESULTS / f"learned_{name}.safetensors"
    if size == "cpu" and path.exists():
        return fjs.learned.load(path)
    rate = optax.cosine_decay_schedule(0.01, 2 * n["episodes"])  # a step after each of two windows
    result = fjs.learned.train(
        problem(n, rule_called(name)), episodes=n["episodes"], key=jax.random.key(7), save_every=50,
        estimator=fjs.outer.pes(sigma=0.1, pairs=n["pairs"], window=n["rounds"] // 10),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate)),
        checkpoint=RESULTS / "learned" / size / name,
    )  # fmt: skip
    rule = result.algorithm.server_optimizer
    if size == "cpu":
        fjs.learned.save(rule, path)
    return rule


def tests(n: dict[str, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Unseen data with the arguments of their runs, by name."""
    made: dict[str, tuple[Callable[[], Any], int]] = {
        "synthetic": (lambda: fjs.datasets.synthetic(1.0, 1.0, 30, 5, max_size=200, test_fraction=0.3), 32),
        "digits": (lambda: fjs.datasets.digits(20, alpha=0.3, seed=1, test_fraction=0.3), 32),
        "Fashion-MNIST": (_fashion, 32),
    }
    found = {}
    for name in n["tests"]:
        make, hidden = made[name]
        try:
            data = fjs.datasets.with_validation(make(), 0.2, seed=1)
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}")
            continue
        found[name] = data, {
            "task": fjs.classification(fjs.models.MLP(10, hidden=(hidden,))), "rounds": 2 * n["rounds"],
            "eval_every": n["rounds"] // 5, "batch_size": 10, "cohort": fjs.cohort.uniform(5),
            "work": fjs.local.random_epochs(1, 3), "evaluate_train": False,
        }  # fmt: skip
    return found


def _fashion() -> Any:
    """Fifty of 500 clients."""
    data = fjs.datasets.fashion_mnist(500, 0.3, seed=1)
    return fjs.datasets.from_clients([data.client(i) for i in range(50)], test_fraction=0.3, num_classes=10)


def run(size: str) -> dict[str, Any]:
    """Trains what is not there, then compares."""
    n = SIZES[size]
    rules = {name: trained(size, name) for name in n["rules"]}
    kept = sorted(path.stem for path in (RESULTS / "learned" / size).glob("*.json"))  # whose seconds are not counted
    found = {test: compared(size, test, *of, rules) for test, of in tests(n).items()}
    return {"tests": found, "rounds": 2 * n["rounds"], "kept": kept}


def compared(size: str, test: str, data: Any, arguments: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    """All methods on one test, kept beside the checkpoints: it takes minutes."""
    path = RESULTS / "learned" / size / f"{test}.json"
    if size == "cpu" and path.exists():
        return json.loads(path.read_text())
    n = SIZES[size]
    clients, wide = np.geomspace(0.003, 1.0, n["grid"] - 1), np.geomspace(0.1, 10.0, n["grid"])
    small = np.geomspace(0.001, 0.3, n["grid"])
    methods = {
        "FedAvg": (fjs.fedavg(client_optimizer=SGD), wide), "FedAvgM": (fjs.fedavgm(client_optimizer=SGD), wide / 10),
        "FedAdam": (fjs.fedadam(client_optimizer=SGD), small), "FedYogi": (fjs.fedyogi(client_optimizer=SGD), small),
    } | {name: (method(rule), wide) for name, rule in rules.items()}  # fmt: skip
    found: dict[str, Any] = {}
    for name, (one, servers) in methods.items():
        one = one.replace(server_learning_rate=1.0)
        points = [{CLIENT: float(c), SERVER: float(s)} for c in clients for s in servers]
        each, _ = at_points(one, data, points, [_last("validation_loss")], range(n["choose"]), arguments)
        losses = np.where(np.isfinite(each[:, 0].mean(axis=1)), each[:, 0].mean(axis=1), np.inf)
        found[name] = _reached(one, data, points[int(np.argmin(losses))], arguments, n)
        found[name]["edge"] = [found[name]["rates"][0] in clients[[0, -1]], found[name]["rates"][1] in servers[[0, -1]]]
        if name in rules:
            plain = [place for place, point in enumerate(points) if abs(np.log(point[SERVER])) < 0.6 / n["grid"]]
            best = points[min(plain or [0], key=lambda place: losses[place])]
            found[f"{name}, rate 1"] = _reached(one, data, best, arguments, n) | {"edge": [False, False]}
        print(test, name, flush=True)
    if size == "cpu":
        write_atomically(path, json.dumps(found, default=bool).encode())
    return found


def _reached(one: Any, data: Any, point: dict[str, float], arguments: dict[str, Any], n: dict[str, Any]) -> Any:
    """What runs of other seeds reach at these rates."""
    recorded = [_last("test_loss"), _last("test_accuracy"), lambda result: jnp.mean(result.metrics["test_loss"][1:])]
    reached = at_points(one, data, [point], recorded, range(100, 100 + n["seeds"]), arguments)[0][0]
    names = ("loss", "accuracy", "mean_loss")
    return {"rates": [point[CLIENT], point[SERVER]]} | {
        name: values.tolist() for name, values in zip(names, reached, strict=True)
    }


def _last(name: str) -> Callable[[Any], jax.Array]:
    return lambda result: result.metrics[name][-1]


def interval(values: Any) -> tuple[float, float]:
    """The mean, and half the 95 % interval of it by Student's t."""
    values = np.asarray(values)
    return float(values.mean()), float(half_width(values))


def lines(result: dict[str, Any]) -> list[str]:
    """Losses, accuracies and rates; differences, seed by seed, to the baseline that came out best."""
    table = []
    for test, rows in result["tests"].items():
        heads = f"{'':<30}{'test loss':>18}{'less the best of 4':>20}{'accuracy, %':>16}{'mean loss':>18}{'rates':>16}"
        table += [f"{test}, {result['rounds']} rounds", heads]
        best = min(list(rows)[:4], key=lambda name: np.mean(rows[name]["loss"]))
        for name, row in rows.items():
            difference = np.subtract(row["loss"], rows[best]["loss"])
            cells = [interval(row["loss"]), interval(difference)]
            text = "".join(f"{mean:>10.3f} ± {half:.3f}" for mean, half in cells)
            mean, half = interval(100 * np.asarray(row["accuracy"]))
            whole = interval(row["mean_loss"])
            edge = "".join(kind for kind, at in zip("cs", row["edge"], strict=True) if at)
            table.append(f"{name:<30}{text}{mean:>10.1f} ± {half:.1f}{whole[0]:>10.3f} ± {whole[1]:.3f}"
                         f"{row['rates'][0]:>9.3f}{row['rates'][1]:>8.3f} {edge}")  # fmt: skip
        table.append("")
    return table


def plot(result: dict[str, Any]) -> Any:
    """Test losses with intervals."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.plots import plain

    figure = Figure(figsize=(2.7 * len(result["tests"]) + 1.5, 3.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(result["tests"]), sharey=True))
    for ax, (test, rows) in zip(axes, result["tests"].items(), strict=True):
        names = list(rows)
        for place, name in enumerate(names):
            mean, half = interval(rows[name]["loss"])
            learned = name.startswith(("tensor", "parameter"))
            style = {"color": "#0072B2" if learned else "#555555", "marker": "s" if "rate 1" in name else "o"}
            ax.errorbar(mean, place, xerr=half, capsize=3, linestyle="none", **style)
        ax.axvline(min(np.mean(rows[name]["loss"]) for name in names[:4]), color="#bbbbbb", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(names)), [name.replace("_", ", ") for name in names])
        ax.set_title(test, fontsize="medium")
        ax.set_xlabel(f"test loss after {result['rounds']} rounds")
        plain(ax)
    axes[0].invert_yaxis()
    return figure


STUDY = Study("learned", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
