"""Accuracy under attack: robust rules against Byzantine clients, on even and on skewed clients.

    python -m benchmarks.studies.byzantine [--size cpu]

The handwritten digits of scikit-learn, 20 clients, everybody in every round, an MLP, FedAvg with the plain mean; 0 to
40 % of the clients attack, others in every seed. Every rule is set for the worst case, 8 liars: trimmed_mean(0.4),
krum(8), multi_krum(8). Attacks: the message turned round and tripled; the message times 100; labels y -> 9 - y in the
attackers' data; a little is enough. All attacks, fractions and seeds of a rule are one program: two nested ``attacked``
with traced clients and factors, and traced labels.

What the papers say: a mean is at the mercy of one liar (breakdown point 0); median, trimmed mean (up to its beta) and
geometric median stand up to less than half; Krum and multi-Krum to f < |S|/2 - 1. None of this bounds the loss of
accuracy where clients differ by nature: a median leaves out minorities, Krum follows one client.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import Study
from fedjax_sim import aggregators, attacks
from fedjax_sim.papers.measuring import with_spread

CLIENTS = 20
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4)
MOST = 8  # attackers
ATTACKS = ("sign flip x3", "scaling x100", "label flip", "a little is enough")
FACTORS = {"sign flip x3": -3.0, "scaling x100": 100.0}
ALPHAS = {"even clients": 1000.0, "skewed clients": 0.3}
RULES = {
    "mean": aggregators.mean(),
    "median": aggregators.median(),
    "trimmed mean": aggregators.trimmed_mean(0.4),
    "Krum": aggregators.krum(MOST),
    "multi-Krum": aggregators.multi_krum(MOST),
    "geometric median": aggregators.geometric_median(iterations=10),
}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"rounds": 6, "seeds": 1, "rules": ("mean", "median"), "alphas": ("even clients",)},
    "cpu": {"rounds": 40, "seeds": 5, "rules": tuple(RULES), "alphas": tuple(ALPHAS)},
}


def run(size: str) -> dict[str, Any]:
    """Final test accuracies of every rule, attack, fraction and seed."""
    chosen = SIZES[size]
    accuracy = {
        clients: {
            rule: _accuracies(RULES[rule], ALPHAS[clients], chosen["rounds"], chosen["seeds"])
            for rule in chosen["rules"]
        }
        for clients in chosen["alphas"]
    }
    return {
        "clients": CLIENTS,
        "rounds": chosen["rounds"],
        "alphas": {name: ALPHAS[name] for name in chosen["alphas"]},
        "fractions": list(FRACTIONS),
        "attacks": list(ATTACKS),
        "accuracy": accuracy,
    }


def _accuracies(rule: Any, alpha: float, rounds: int, seeds: int) -> dict[str, list[list[float]]]:
    """{attack: [fraction][seed]}."""
    data = fjs.datasets.digits(CLIENTS, alpha=alpha, seed=0)
    cases = [("nobody", 0.0), *((attack, fraction) for attack in ATTACKS for fraction in FRACTIONS[1:])]
    inputs = [[_inputs(data, attack, fraction, seed) for seed in range(seeds)] for attack, fraction in cases]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[_stack(row) for row in inputs])
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds, dtype=jnp.uint32))
    train = fjs.make_train(
        task=fjs.classification(fjs.models.MLP(10, hidden=(32,))), rounds=rounds, eval_every=rounds, batch_size=20,
        cohort=fjs.cohort.full(average="plain"), work=fjs.local.epochs(1), layout=fjs.layout.stacked(),
    )  # fmt: skip
    base = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.2))

    @jax.jit
    def program(data: Any, stacked: Any, keys: jax.Array) -> jax.Array:
        def one(case: dict[str, Any], key: jax.Array) -> jax.Array:
            alone = fjs.attacked(base, case["alone"], attacks.scaling(case["factor"]))
            together = fjs.attacked(alone, case["together"], attacks.little_is_enough())
            poisoned = data.replace(examples={**data.examples, "y": case["labels"]})
            return train(fjs.robust(together, rule), poisoned, key).metrics["test_accuracy"][-1]

        return jax.lax.map(lambda row: jax.vmap(one)(row, keys), stacked)

    found = np.nan_to_num(np.asarray(program(data, stacked, keys), np.float64))  # [cases, seeds]
    by_case = dict(zip(cases, found.tolist(), strict=True))
    return {
        attack: [by_case[(attack, fraction) if fraction else ("nobody", 0.0)] for fraction in FRACTIONS]
        for attack in ATTACKS
    }


def _inputs(data: Any, attack: str, fraction: float, seed: int) -> dict[str, Any]:
    """What tells one case from another, as arrays of one shape."""
    who = attacks.draw_attackers(data, fraction, seed)
    nobody = np.full(MOST, -1, np.int32)
    attackers = np.concatenate([who, nobody])[:MOST].astype(np.int32)
    labels = fjs.datasets.flip_labels(data, who) if attack == "label flip" else data
    return {
        "alone": attackers if attack in FACTORS else nobody,
        "together": attackers if attack == "a little is enough" else nobody,
        "factor": np.float32(FACTORS.get(attack, 1.0)),
        "labels": np.asarray(labels.examples["y"]),
    }


def _stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def lines(result: dict[str, Any]) -> list[str]:
    """A Markdown table for each kind of clients: test accuracy in per cent, mean ± standard deviation of the seeds."""
    written = []
    for clients, rules in result["accuracy"].items():
        alpha = result["alphas"][clients]
        written += [f"{clients} (Dirichlet {alpha:g}), {result['rounds']} rounds", ""]
        shares = [f"{fraction:.0%}" for fraction in result["fractions"]]
        written += ["| attack | rule | " + " | ".join(shares) + " |", "|---" * (2 + len(shares)) + "|"]
        for attack in result["attacks"]:
            for rule, by_attack in rules.items():
                cells = [with_spread(100 * np.array(cell), 0) for cell in by_attack[attack]]
                written.append(f"| {attack} | {rule} | " + " | ".join(cells) + " |")
        written.append("")
    return written


def plot(result: dict[str, Any]) -> Any:
    """Accuracy against the fraction of attackers, one panel an attack and kind of clients."""
    from matplotlib.figure import Figure

    from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

    rows = list(result["accuracy"])
    figure = Figure(figsize=(7.6, 0.6 + 1.7 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(ATTACKS), sharex=True, sharey=True, squeeze=False)
    share = 100 * np.array(result["fractions"])
    for row, clients in zip(panels, rows, strict=True):
        for ax, attack in zip(row, result["attacks"], strict=True):
            for number, (rule, by_attack) in enumerate(result["accuracy"][clients].items()):
                cells = 100 * np.array(by_attack[attack])
                sample = min(cells.shape[1] - 1, 1)  # 0 of one seed
                style = {"color": COLOURS[number], "marker": "osD^vP"[number], "markersize": 4, "linewidth": 1.2}
                style["linestyle"] = "--" if rule == "mean" else "-"
                ax.errorbar(share, cells.mean(axis=1), cells.std(axis=1, ddof=sample), label=rule, **style)
            ax.set_ylim(0, 100)
            ax.set_xticks(share)
            plain(ax)
        row[0].set_ylabel(f"{clients}\ntest accuracy, %")
    for ax, attack in zip(panels[0], result["attacks"], strict=True):
        ax.set_title(attack, fontsize="small")
    for ax in panels[-1]:
        ax.set_xlabel("attackers, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **LEGEND)
    return figure


STUDY = Study("byzantine", __doc__, run, lines, plot)

if __name__ == "__main__":
    STUDY.main()
