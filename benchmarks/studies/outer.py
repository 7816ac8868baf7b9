"""Gradients of a learning rate where truncation has the wrong sign, what estimators cost, and a run that is chaotic.

    python -m benchmarks.studies.outer [--size cpu]

Three parts. (1) FedAvg on synthetic(1, 1), five clients of 20 a round: the derivative of the mean loss over a run in
the logarithm of the client learning rate, at rates from small to large, by each estimator. Windows of few rounds see
what a large rate costs at once and not what it gains later (short-horizon bias, Wu et al. 2018). (2) Standard deviation
of one estimate against its cost in forward runs, at one of these rates; ES, PES and forward gradients by their numbers
of samples, truncation by its bias. (3) A ReLU network trained by rates up to divergence: the loss at the end along the
learning rate, its exact derivative, and the derivative that ES estimates of the loss smoothed by sigma.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 4, "cohort": 2, "largest": 20, "rounds": 4, "rates": 2, "keys": 3, "pairs": 2, "fine": 3},
    "cpu": {"clients": 20, "cohort": 5, "largest": 60, "rounds": 20, "rates": 7, "keys": 48, "pairs": 8, "fine": 161},
}
RATE = "client_optimizer.learning_rate"
SIGMA = 0.1


def run(size: str) -> dict[str, Any]:
    """All three parts."""
    n = SIZES[size]
    problem = _problem(n)
    estimators = {
        "exact": fjs.outer.exact(),
        "truncated": fjs.outer.truncated(1),
        "ES": fjs.outer.es(SIGMA, n["pairs"]),
        "PES": fjs.outer.pes(SIGMA, n["pairs"]),
    }
    keys = jax.random.split(jax.random.key(0), n["keys"])
    rates = np.geomspace(0.01, 0.6, n["rates"])
    slopes: dict[str, Any] = {}
    for name, estimator in estimators.items():
        of_rate = _of_keys(estimator, problem, keys)
        found = [of_rate({RATE: jnp.log(jnp.float32(rate))})[0] for rate in rates]
        slopes[name] = {
            "mean": [float(np.mean(one)) for one in found],
            "error": [float(np.std(one, ddof=1) / len(one) ** 0.5) for one in found],
        }
    return {
        "rates": rates.tolist(),
        "slopes": slopes,
        "cost": _costs(n, problem, keys, rates[len(rates) // 2]),
        "chaos": _chaos(n),
    }


def _problem(n: dict[str, Any]) -> Any:
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=n["clients"], max_size=n["largest"], test_fraction=0.0, seed=0)
    return fjs.outer.federated(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, over=[RATE], objective=fjs.hyper.mean("loss"),
        task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3), rounds=n["rounds"], eval_every=1,
        batch_size=10, cohort=fjs.cohort.uniform(n["cohort"]), work=fjs.local.steps(5),
    )  # fmt: skip


def _of_keys(estimator: Any, problem: Any, keys: jax.Array) -> Any:
    """The estimates of all keys at a parameter, and their values."""

    @jax.jit
    def program(problem: Any, u: Any) -> Any:
        def one(key: jax.Array) -> Any:
            found = fjs.outer.estimate(estimator, problem, u, key)
            return found.gradient[RATE], found.value

        return jax.lax.map(one, keys)

    return lambda u: jax.tree.map(np.asarray, program(problem, u))


def _costs(n: dict[str, Any], problem: Any, keys: jax.Array, rate: float) -> dict[str, Any]:
    """Mean, spread and seconds over those of a forward run, of one estimate."""
    u = {RATE: jnp.log(jnp.float32(rate))}
    train = jax.jit(lambda problem, key: jax.lax.map(lambda key: _forward(problem, u, key), key))

    def seconds(call: Any) -> tuple[float, Any]:
        call()
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            found = jax.block_until_ready(call())
            taken.append((time.perf_counter() - start) / len(keys))
        return float(np.median(taken)), found

    forward, _ = seconds(lambda: train(problem, keys))
    windows = [1, max(n["rounds"] // 4, 1)]
    tried = {"exact": {0: fjs.outer.exact()}} | {
        _of_rounds("truncated", w): {0: fjs.outer.truncated(w)} for w in windows
    }
    few = [n["pairs"] // 4 or 1, n["pairs"], 4 * n["pairs"]]
    tried |= {"ES": {pairs: fjs.outer.es(SIGMA, pairs) for pairs in few}}
    tried |= {_of_rounds("PES", w): {pairs: fjs.outer.pes(SIGMA, pairs, window=w) for pairs in few} for w in windows}
    tried |= {"forward gradient": {count: fjs.outer.forward_gradient(count) for count in few}}
    found: dict[str, Any] = {"forward_seconds": forward, "rate": rate, "estimators": {}}
    for name, sizes in tried.items():
        rows = []
        for samples, estimator in sizes.items():
            program = _of_keys(estimator, problem, keys)
            taken, (gradients, _) = seconds(lambda program=program: program(u))
            rows.append({
                "samples": samples, "cost": taken / forward, "mean": float(np.mean(gradients)),
                "spread": float(np.std(gradients, ddof=1)),
            })  # fmt: skip
        found["estimators"][name] = rows
    return found


def _of_rounds(name: str, window: int) -> str:
    return f"{name}, {window} round" + "s" * (window > 1)


def _forward(problem: Any, u: Any, key: jax.Array) -> jax.Array:
    state = problem.begin(u, key)
    steps = jnp.arange(problem.segments, dtype=jnp.int32)
    return jnp.sum(jax.lax.scan(lambda state, s: problem.advance(u, state, s), state, steps)[1])


def _chaos(n: dict[str, Any]) -> dict[str, Any]:
    data = fjs.datasets.synthetic(0.5, 0.5, num_clients=4, max_size=30, test_fraction=0.0, seed=1)
    problem = fjs.outer.federated(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, over=[RATE], objective=fjs.hyper.final("loss"),
        task=fjs.classification(fjs.models.MLP(10, hidden=(16, 16))), rounds=n["rounds"], eval_every=n["rounds"],
        batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(10),
    )  # fmt: skip
    rates = np.geomspace(0.02, 1.0, n["fine"])
    key = jax.random.key(0)

    @jax.jit
    def along(problem: Any, us: jax.Array, key: jax.Array) -> Any:
        def one(u: jax.Array) -> Any:
            exact = fjs.outer.estimate(fjs.outer.exact(), problem, {RATE: u}, key)
            return exact.value, exact.gradient[RATE]

        return jax.lax.map(one, us)

    @jax.jit
    def smoothed(problem: Any, us: jax.Array, key: jax.Array) -> Any:
        def fixed(u: Any, drawn: jax.Array) -> jax.Array:  # the run's own key: nothing but the perturbation is drawn
            del drawn
            return _forward(problem, u, key)

        def one(u: jax.Array) -> Any:
            found = fjs.outer.estimate(fjs.outer.es(SIGMA, 4 * n["pairs"]), fixed, {RATE: u}, key)
            return found.value, found.gradient[RATE], found.error[RATE]

        return jax.lax.map(one, us)

    us = jnp.log(jnp.asarray(rates, jnp.float32))
    value, slope = jax.tree.map(np.asarray, along(problem, us, key))
    coarse = us[:: max(n["fine"] // 20, 1)]
    smooth, estimate, error = jax.tree.map(np.asarray, smoothed(problem, coarse, key))
    return {
        "rates": rates.tolist(), "loss": value.tolist(), "slope": slope.tolist(),
        "coarse": np.exp(np.asarray(coarse)).tolist(), "smoothed": smooth.tolist(), "estimate": estimate.tolist(),
        "error": error.tolist(),
    }  # fmt: skip


def lines(result: dict[str, Any]) -> list[str]:
    """Slopes by rate, costs, and how large derivatives get."""
    table = [f"{'d loss / d log rate at':<24}" + "".join(f"{rate:>16.3g}" for rate in result["rates"])]
    for name, row in result["slopes"].items():
        cells = zip(row["mean"], row["error"], strict=True)
        table.append(f"{name:<24}" + "".join(f"{mean:>8.3f} ± {error:.3f}" for mean, error in cells))
    table += ["", f"{'one estimate':<22}{'samples':>8}{'cost, runs':>12}{'mean':>9}{'spread':>9}"]
    for name, rows in result["cost"]["estimators"].items():
        for row in rows:
            table.append(
                f"{name:<22}{row['samples'] or '':>8}{row['cost']:>12.1f}{row['mean']:>9.3f}{row['spread']:>9.3f}"
            )
    chaos = result["chaos"]
    largest = max((abs(s) for s in chaos["slope"] if np.isfinite(s)), default=np.nan)
    table += ["", f"chaotic run: largest exact derivative {largest:.3g}, largest of the smoothed loss "
                  f"{np.nanmax(np.abs(chaos['estimate'])):.3g}"]  # fmt: skip
    return table


def plot(result: dict[str, Any]) -> Any:
    """Slopes along the rate, spread against cost, the chaotic run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    from fedjax_sim.reporting.plots import LEGEND, line_style, plain

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    below = {**LEGEND, "loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 2}
    left, middle, right = figure.subplots(1, 3)
    for index, (name, row) in enumerate(result["slopes"].items()):
        style = line_style(index)
        left.errorbar(result["rates"], row["mean"], 2 * np.asarray(row["error"]), label=name, capsize=2, **style)
    left.axhline(0, color="#888888", linewidth=0.8)
    left.set_xscale("log")
    left.set_yscale("symlog", linthresh=0.1)
    left.set_xlabel("client learning rate η")
    left.set_ylabel("d loss / d log η")
    left.legend(**below)
    true = result["cost"]["estimators"]["exact"][0]
    for index, (name, rows) in enumerate(result["cost"]["estimators"].items()):
        style = line_style(index)
        # Beside the exact derivative of the same keys: what an estimator adds to what the runs themselves vary by.
        error = [float(np.hypot(row["spread"], row["mean"] - true["mean"])) for row in rows]
        middle.plot([row["cost"] for row in rows], error, marker="o", label=name, **style)
    middle.set_xscale("log")
    middle.set_yscale("log")
    for axis, ticks in ((middle.xaxis, (1, 3, 10, 30)), (middle.yaxis, (0.01, 0.03, 0.1, 0.3))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    middle.set_xlabel("cost of an estimate, forward runs")
    middle.set_ylabel("root mean square error")
    middle.legend(**below)
    chaos = result["chaos"]
    right.plot(chaos["rates"], np.abs(chaos["slope"]), label="|exact|", **line_style(0))
    right.plot(chaos["coarse"], np.abs(chaos["estimate"]), marker="o", label="|ES|, σ = 0.1", **line_style(2))
    right.plot(chaos["rates"], chaos["loss"], label="loss", **line_style(1))
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("client learning rate η, ReLU network")
    right.legend(**below)
    for ax in (left, middle, right):
        plain(ax)
    return figure


STUDY = Study("outer", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
