"""What more seeds cost: runs of several seeds one after another and at once, in turns; and what compiles again.

    python -m benchmarks.speed.seeds [--repeats 7]

A line a problem: ms a round of one seed alone, of the seeds one after another, and the ratio of the two ways (median,
lowest, highest of the repeats). On a CPU, at once is one thread a core, and results must agree to the last bit;
elsewhere (``JAX_PLATFORMS=cuda``) it is one program of all seeds, whose sums have another order. Then the seconds of a
first run and of runs with another number of seeds, other rounds and other evaluations, compilation included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.run import resident

# By name: the model, the shape of an example, clients (of 100), the cohort, rounds, from evaluation to evaluation.
PROBLEMS: dict[str, tuple[Any, tuple[int, ...], int, int, int, int]] = {
    "logistic regression, 60 inputs": (fjs.models.LogisticRegression(10), (60,), 20, 5, 400, 10),
    "the same, evaluated every round": (fjs.models.LogisticRegression(10), (60,), 20, 5, 200, 1),
    "MLP 784-200-10": (fjs.models.MLP(10, (200,)), (784,), 50, 5, 40, 10),
    "LeNet, 28 x 28": (fjs.models.LeNet(10), (28, 28, 1), 50, 5, 6, 3),
}
METHOD = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05))


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    parser.add_argument("--seeds", type=int, default=6, help="(default: 6)")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {resident.available_cores()} cores, {options.seeds} seeds")
    in_turn: dict[str, Any] = {"available_cores": lambda: 1, "_ONE_BY_ONE": (jax.default_backend(),)}
    apart = 0.0 if jax.default_backend() == "cpu" else 0.05
    for name, (model, shape, clients, sampled, rounds, every) in PROBLEMS.items():
        data = _clients(shape, clients)
        run: dict[str, Any] = {
            "task": fjs.classification(model), "rounds": rounds, "eval_every": every, "batch_size": 10,
            "cohort": fjs.cohort.uniform(sampled), "work": fjs.local.epochs(1), "progress": False,
        }  # fmt: skip
        _compiled(name, data, run)
        found: dict[str, list[fjs.History]] = {"alone": [], "in turn": [], "at once": []}
        for _ in range(options.repeats):
            found["alone"].append(fjs.simulate(METHOD, data, **run))
            found["at once"].append(fjs.simulate(METHOD, data, **run, seeds=range(options.seeds)))
            with mock.patch.multiple(resident, **in_turn):
                found["in turn"].append(fjs.simulate(METHOD, data, **run, seeds=range(options.seeds)))
        for metric, values in found["in turn"][0].metrics.items():
            np.testing.assert_allclose(values, found["at once"][0].metrics[metric], rtol=0, atol=apart, err_msg=metric)
        ms = {way: 1e3 * statistics.median(run.seconds for run in runs) / rounds for way, runs in found.items()}
        pairs = zip(found["at once"], found["in turn"], strict=True)
        ratios = sorted(one.seconds / other.seconds for one, other in pairs)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(
            f"{name}: one seed {ms['alone']:.2f} ms a round, in turn {ms['in turn']:.2f}; at once x {spread}",
            flush=True,
        )


def _clients(shape: tuple[int, ...], clients: int) -> fjs.FederatedDataset:
    rng = np.random.default_rng(0)
    made = [(rng.normal(size=(100, *shape)).astype(np.float32), rng.integers(0, 10, 100)) for _ in range(clients)]
    return fjs.datasets.from_clients(made, test_fraction=0.2, num_classes=10)


def _compiled(name: str, data: fjs.FederatedDataset, run: dict[str, Any]) -> None:
    """Prints what the first run takes, and the next ones, of which none should compile anything."""
    rounds, every = 4, run["eval_every"]
    changes = {
        "first": {}, "3 seeds": {"seeds": range(3)}, "5 seeds": {"seeds": range(5)}, "6 rounds": {"rounds": 6},
        "other evaluations": {"eval_every": 4 if every == 3 else 3},
    }  # fmt: skip
    said = []
    for what, change in changes.items():
        started = time.perf_counter()
        fjs.simulate(METHOD, data, **{**run, "rounds": rounds, **change})
        said.append(f"{what} {time.perf_counter() - started:.2f} s")
    print(f"{name}: {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
