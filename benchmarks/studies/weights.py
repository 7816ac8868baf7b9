"""Aggregation weights learned by gradient, which turn out to be FedNova's rule.

    python -m benchmarks.studies.weights [--size cpu]

Quadratic clients F_i(x) = |x|^2 / 2 - e_i x; client i takes tau_i full-gradient steps of length eta. FedAvg with
weights w goes to sum w_i K_i e_i / sum w_i K_i with K_i = 1 - (1 - eta)^tau_i, the minimum of F is sum p_i e_i: with
e_i in general position the only weights that lead there are w_i proportional to p_i / K_i. FedNova's are p_i / tau_i,
which is the same as eta goes to 0. Nothing of this is told to the tuning: logits of the weights follow the gradient of
F at the end of the run, from w = p. Float64.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fjs
from benchmarks.studies.command import Study
from fedjax_sim.algorithms import reweighted
from fedjax_sim.core.devices import double_precision
from fedjax_sim.studies.hyper import final, tune

ETA = 0.1
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"clients": 3, "rounds": 40, "steps": 120},
    "cpu": {"clients": 8, "rounds": 40, "steps": 600},
}


def run(size: str) -> dict[str, Any]:
    """Learns the weights and compares them with the rule."""
    with double_precision():
        return _run(**SIZES[size])


def _run(clients: int, rounds: int, steps: int) -> dict[str, Any]:
    tau = np.arange(1, clients + 1) * 2
    sizes = np.random.default_rng(1).permutation(np.arange(1, clients + 1))
    data = fjs.datasets.quadratics(clients, dim=clients + 2, scale=1.0, seed=0, sizes=sizes.tolist())
    shares = sizes / sizes.sum()
    setting = {
        "task": fjs.quadratic(),
        "rounds": rounds,
        "eval_every": rounds,
        "batches": fjs.local.full_batch(),
        "cohort": fjs.cohort.full(),
        "work": fjs.local.given_steps(np.tile(tau, (rounds, 1))),
    }
    base = fjs.fedavg(client_optimizer=fjs.optim.sgd(ETA))
    tuned = tune(
        reweighted(base, jnp.log(shares)),
        data,
        over=["logits"],
        objective=final("loss"),
        optimizer=optax.adam(optax.cosine_decay_schedule(0.1, steps)),
        steps=steps,
        **setting,
    )
    learned = np.asarray(jax.nn.softmax(tuned.found["logits"]))
    rule = shares / (1 - (1 - ETA) ** tau)
    rule /= rule.sum()
    small_steps = shares / tau
    small_steps /= small_steps.sum()
    e = np.asarray(data.examples["e"])
    best = -0.5 * float(np.sum(np.mean(e, axis=0) ** 2))  # F at its minimum
    fednova = fjs.simulate(fjs.fednova(client_optimizer=fjs.optim.sgd(ETA)), data, **setting).final("loss")[0]
    history = jax.nn.softmax(jnp.asarray(tuned.hyper["logits"][0]), axis=-1)
    return {
        "tau": tau.tolist(),
        "shares": shares.tolist(),
        "learned": learned.tolist(),
        "rule": rule.tolist(),
        "shares_over_tau": small_steps.tolist(),
        "error": float(np.max(np.abs(learned / rule - 1))),
        "errors": np.max(np.abs(np.asarray(history) / rule - 1), axis=-1).tolist(),
        "gap": {
            "FedAvg": float(tuned.values[0, 0] - best),
            "FedNova": float(fednova - best),
            "learned weights": float(tuned.value - best),
        },
        "tuning_seconds": tuned.seconds,
        "rejected": tuned.rejected,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The weights beside the rule, and F above its minimum."""
    rows = zip(*(result[name] for name in ("tau", "shares", "learned", "rule", "shares_over_tau")), strict=True)
    return [
        f"{'tau':>4}{'p':>9}{'learned':>13}{'p/(1-(1-eta)^tau)':>20}{'p/tau':>9}",
        *(f"{tau:>4}{p:>9.4f}{w:>13.8f}{rule:>20.8f}{over:>9.4f}" for tau, p, w, rule, over in rows),
        f"largest relative error of a weight: {result['error']:.1e}",
        *(f"F above its minimum, {name}: {gap:.2e}" for name, gap in result["gap"].items()),
    ]


def plot(result: dict[str, Any]) -> Any:
    """Weights over shares against tau, and the error by steps."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

    figure = Figure(figsize=(7.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    tau, shares = np.array(result["tau"]), np.array(result["shares"])
    factor = np.array(result["rule"])[0] / shares[0]
    left.plot(tau, np.array(result["rule"]) / shares / factor, color=COLOURS[0], label="1 / (1 − (1 − η)$^τ$)")
    left.plot(tau, tau[0] / tau, color=COLOURS[4], linestyle="--", label="1 / τ (FedNova)")
    left.plot(tau, np.ones(len(tau)), color="0.6", linestyle=":", label="FedAvg")
    left.plot(
        tau, np.array(result["learned"]) / shares / factor,
        linestyle="", marker="o", color=COLOURS[1], label="learned",
    )  # fmt: skip
    left.set_xlabel("local steps τ")
    left.set_xticks(tau)
    left.set_ylabel("weight / share, relative")
    left.set_ylim(0, 1.08)
    left.legend(**LEGEND)
    right.semilogy(result["errors"], color=COLOURS[1])
    right.set_xlabel("step")
    right.set_ylabel("largest relative error of a weight")
    for ax in (left, right):
        plain(ax)
    return figure


STUDY = Study("weights", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
