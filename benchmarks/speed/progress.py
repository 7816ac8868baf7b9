"""What progress costs within long chunks: the same runs with it and without, in turns.

    python -m benchmarks.speed.progress [--seconds 5] [--repeats 7]

One chunk of about ``--seconds`` for each problem, evaluated at its start and end alone. A line gives the median time of
a round without progress and the ratio of the two within the repeats (median, lowest, highest), of ``simulate`` with its
bar, which calls the program every half a second, and of ``make_train(on_round=bar.update)``, which is told of every
round from within the program.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import statistics
import time
from collections.abc import Callable
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
        run = functools.partial(_seconds, data, setting, rounds)
        run(shown=False)  # compiles
        _say(f"{name}, simulate", rounds, run, options.repeats)
        with contextlib.redirect_stderr(io.StringIO()):
            inside = _inside(data, setting, rounds)
            _say(f"{name}, on_round", rounds, inside, options.repeats)


def _say(name: str, rounds: int, run: Callable[..., float], repeats: int) -> None:
    pairs = [[run(shown=shown) for shown in (False, True)] for _ in range(repeats)]
    without = 1e3 * statistics.median(plain for plain, _ in pairs) / rounds
    more = 1e6 * statistics.median(shown - plain for plain, shown in pairs) / rounds
    ratios = sorted(shown / plain for plain, shown in pairs)
    found = f"x {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    print(f"{name}: {without:.2f} ms a round, {rounds:,} rounds; progress {found}, {more:.0f} us a round", flush=True)


def _seconds(data: Any, setting: dict[str, Any], rounds: int, *, shown: bool) -> float:
    with contextlib.redirect_stderr(io.StringIO()):
        history = fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01)), data, **setting, rounds=rounds, eval_every=rounds,
            progress=shown,
        )  # fmt: skip
    return history.seconds


def _inside(data: Any, setting: dict[str, Any], rounds: int) -> Callable[..., float]:
    """The time of one call of a compiled ``make_train``, which is told of its rounds or not."""
    algorithm, key = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01)), jax.random.key(0)
    calls = {}
    for shown in (False, True):
        bar = fjs.reporting.progress_bar(rounds, shown)
        train = fjs.make_train(**setting, rounds=rounds, eval_every=rounds, on_round=bar.update if shown else None)
        calls[shown] = jax.jit(train).lower(algorithm, data, key).compile()

    def call(*, shown: bool) -> float:
        start = time.perf_counter()
        jax.block_until_ready(calls[shown](algorithm, data, key))
        jax.effects_barrier()
        return time.perf_counter() - start

    call(shown=False), call(shown=True)
    return call


if __name__ == "__main__":
    main()
