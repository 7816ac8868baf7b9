"""Learned server optimisers against tuned FedAvg, FedAdam and FedYogi, on federations and data that they have not seen.

    python -m benchmarks.studies.learned [--size cpu]

Training: FedLOpt with a per-tensor and a per-parameter rule, each with and without the dispersion of the cohort, over 64
federations of synthetic(alpha, beta), whose alpha, beta and sizes differ, with a small network; every run draws one of
them, a client rate, local work and how many clients are there. By PES, a step after every five rounds. It goes on from
checkpoints in results/learned, which are not committed; the rules are, as results/learned_NAME.safetensors.

Comparison: federations of three kinds, (1) synthetic data of other seeds, (2) scikit-learn's digits, (3) Fashion-MNIST
where FEDJAX_SIM_DATA has it, the last two by Dirichlet partitions, with networks of other shapes. Every method has the same
grid of client and server rates and the same seeds to choose by the validation loss at the end; reported are test losses
and accuracies of other seeds, after as many rounds. Rules without a choice of the server's rate, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from benchmarks.studies.command import RESULTS, Study

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"federations": 4, "clients": 6, "steps": 2, "pairs": 2, "rounds": 10, "grid": 2, "choose": 1, "seeds": 2},
    "cpu": {"federations": 64, "clients": 20, "steps": 4000, "pairs": 6, "rounds": 50, "grid": 5, "choose": 2, "seeds": 10},
}  # fmt: skip
RULES: dict[str, Callable[..., Any]] = {"tensor": fjs.optim.per_tensor, "parameter": fjs.optim.per_parameter}
CLIENT, SERVER = "client_optimizer.learning_rate", "server_learning_rate"


def training(n: dict[str, Any], name: str, dispersion: bool) -> Any:
    """The problem that a rule is trained on."""
    draw = np.random.default_rng(0)

    def federation(seed: int) -> Any:
        alpha, beta = draw.uniform(0, 1.5, 2)
        sizes = np.clip(draw.lognormal(3.3, 0.8, n["clients"]), 20, 150).astype(int)
        return fjs.datasets.synthetic(alpha, beta, n["clients"], seed, sizes=sizes, test_fraction=0.3)

    return fjs.learned.federations(
        method(RULES[name](dispersion=dispersion)), [federation(1000 + seed) for seed in range(n["federations"])],
        vary={
            CLIENT: fjs.sweeps.log_uniform(0.003, 0.3), "work.mean": fjs.sweeps.uniform(2, 20),
            "cohort.availability.probability": fjs.sweeps.uniform(0.4, 1.0),
        },
        task=fjs.classification(fjs.models.MLP(10, hidden=(16,))), rounds=n["rounds"], eval_every=5, batch_size=10,
        cohort=fjs.cohort.available(fjs.cohort.uniform(n["clients"] // 2), fjs.cohort.bernoulli(0.7)),
        work=fjs.local.gaussian_steps(8, 3.0, most=25), evaluate_train=False,
    )  # fmt: skip


def method(rule: Any) -> Any:
    """FedAvg with a rule at the server."""
    make = fjs.fedlopt if rule.dispersion else fjs.fedavg
    return make(client_optimizer=fjs.optim.sgd(0.1), server_optimizer=rule)


def trained(size: str) -> dict[str, tuple[Any, np.ndarray]]:
    """The rules by name, and the losses of their training."""
    n, found = SIZES[size], {}
    for name in RULES:
        for dispersion in (True, False):
            called = f"{name}{'_dispersion' if dispersion else ''}"
            result = fjs.learned.train(
                training(n, name, dispersion), steps=n["steps"], key=jax.random.key(7), save_every=200,
                estimator=fjs.outer.pes(sigma=0.03, pairs=n["pairs"]), optimizer=fjs.optim.adam(0.005),
                checkpoint=RESULTS / "learned" / size / called,
            )  # fmt: skip
            found[called] = result.algorithm.server_optimizer, result.losses
    return found
