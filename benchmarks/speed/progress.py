"""What the progress bar costs within long chunks: the same runs with it and without, in turns.

    python -m benchmarks.speed.progress [--seconds 5] [--repeats 7]

One chunk of about ``--seconds`` for each problem, evaluated at its start and end alone. A line gives the median time of
a round without the bar and the ratio of the two within the repeats: median, lowest, highest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import fedjax_sim as fjs

PROBLEMS = {
    "logistic regression, 10 of 30 clients": (fjs.models.LogisticRegression(10), 30, 10),
    "MLP 60-64-10, 10 of 100 clients": (fjs.models.MLP(10, (64,)), 100, 10),
    "MLP 60-200-200-10, 20 of 100 clients": (fjs.models.MLP(10, (200, 200)), 100, 20),
}
CALIBRATION = 50  # rounds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a chunk (default: 5)")
    parser.add_argument("--repeats", type=int, default=7, help="(default: 7)")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores")
    for name, (model, clients, sampled) in PROBLEMS.items():
        data = fjs.datasets.synthetic(1.0, 1.0, num_clients=clients, max_size=200, seed=0)
        setting: dict[str, Any] = {
            "task": fjs.classification(model), "cohort": fjs.cohort.uniform(sampled), "work": fjs.local.epochs(1),
            "batch_size": 10,
        }  # fmt: skip
        rounds = max(2, int(options.seconds / _seconds(data, setting, CALIBRATION, shown=False) * CALIBRATION))
        _seconds(data, setting, rounds, shown=False)  # compiles
        pairs = [
            [_seconds(data, setting, rounds, shown=shown) for shown in (False, True)] for _ in range(options.repeats)
        ]
        without = 1e3 * statistics.median(plain for plain, _ in pairs) / rounds
        ratios = sorted(shown / plain for plain, shown in pairs)
        found = f"x {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{name}: {without:.2f} ms a round, {rounds:,} rounds, with the bar {found}", flush=True)


def _seconds(data: Any, setting: dict[str, Any], rounds: int, *, shown: bool) -> float:
    with contextlib.redirect_stderr(io.StringIO()):
        history = fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01)), data, **setting, rounds=rounds, eval_every=rounds,
            progress=shown,
        )  # fmt: skip
    return history.seconds


if __name__ == "__main__":
    main()
