"""Does a long run stay as it was? Memory of the process and compilations over 20,000 rounds.

    python -m benchmarks.speed.long_run [--rounds 20000] [--eval-every 10] [--clients 100]

SCAFFOLD (a state for every client) on synthetic(1, 1), 10 clients a round, with checkpoints; the program is called once
every ``--eval-every`` rounds. A thread notes the resident memory, and JAX reports every compilation. What is printed at
a tenth, a half and the end of the run should differ by the arrays of the History alone, whose size is printed too, and
there should be no compilation after the first calls.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

import fedjax_sim as fjs

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Samples of (seconds, resident bytes, compilations so far), taken by a thread while the context is open."""

    def __init__(self, interval: float) -> None:
        self.samples: list[tuple[float, int, int]] = []
        self.compilations = 0
        self._interval, self._end = interval, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _heard(self, event: str, seconds: float, **_: object) -> None:
        self.compilations += event == "/jax/core/compile/backend_compile_duration"

    def _sample(self) -> None:
        while not self._end.is_set():
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
            self.samples.append((time.perf_counter(), resident, self.compilations))
            self._end.wait(self._interval)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--clients", type=int, default=100)
    options = parser.parse_args()
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=options.clients, max_size=100, seed=0)
    algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(0.01))
    with tempfile.TemporaryDirectory() as folder, Watch(0.1) as watch:
        history = fjs.simulate(
            algorithm, data, task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=options.rounds,
            eval_every=options.eval_every, batch_size=20, cohort=fjs.cohort.uniform(10), work=fjs.local.epochs(1),
            checkpoint=folder,
        )  # fmt: skip
    recorded = sum(array.nbytes for array in [*history.metrics.values(), *history.rounds.values()])
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores")
    print(f"{options.rounds} rounds in {history.seconds:.1f} s; History: {recorded / 1e6:.2f} MB")
    begin, end = watch.samples[-1][0] - history.seconds, watch.samples[-1][0]
    print(f"{'part of the run':>16} {'resident MB':>12} {'compilations':>13}")
    for part in (0.1, 0.25, 0.5, 0.75, 1.0):
        at = min(watch.samples, key=lambda sample: abs(sample[0] - begin - part * (end - begin)))
        print(f"{part:>16.0%} {at[1] / 1e6:>12.1f} {at[2]:>13}")


if __name__ == "__main__":
    main()
