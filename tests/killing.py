"""Runs of several kinds with checkpoints whose writes are slow and told of, for a test to kill at any moment.

    python -m tests.killing DIRECTORY ROUNDS KIND...

Prints a line at every write; once all runs are complete their histories are in ``DIRECTORY/<kind>.npz``. It ends by
itself, and a process that nobody reads from ends with its first write.
"""

import contextlib
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import fedjax_sim as fjs

EVERY = 2  # rounds between checkpoints
PAUSE = 0.02  # seconds after each step of a write, of which there are about ten


def small() -> dict[str, Any]:
    """A run whose every draw matters: of cohorts, of local epochs, of batches."""
    return {
        "dataset": fjs.datasets.synthetic(1.0, 1.0, num_clients=6, max_size=60, seed=0),
        "task": fjs.classification(fjs.models.LogisticRegression(10)),
        "cohort": fjs.cohort.uniform(3),
        "work": fjs.local.random_epochs(1, 3),
        "batch_size": 5,
        "eval_every": EVERY,
    }


def kinds() -> dict[str, dict[str, Any]]:
    """The arguments of ``simulate`` by kind: without and with state of the clients; it, or the data, off the device."""
    sgd = fjs.optim.sgd(0.05, momentum=0.5)
    common = small()
    return {
        "fedadam": common | {"algorithm": fjs.fedadam(client_optimizer=sgd, server_learning_rate=0.1), "seeds": [3, 5]},
        "scaffold": common | {"algorithm": fjs.scaffold(client_optimizer=fjs.optim.sgd(0.05)), "seeds": [0, 1]},
        "disk": common
        | {
            "algorithm": fjs.scaffold(client_optimizer=fjs.optim.sgd(0.05)),
            "seeds": [0, 1],
            "client_states": fjs.client_states.on_disk(tempfile.gettempdir(), dtype="bfloat16"),
        },
        "host": common
        | {"algorithm": fjs.fedavg(client_optimizer=sgd), "dataset": fjs.datasets.on_host(common["dataset"])},
    }


class _Slow:
    """A file whose bytes arrive on the disk slowly."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: Any) -> None:
        self._file.write(content)
        self._file.flush()
        time.sleep(PAUSE / 5)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Slow":
        print("write", flush=True)
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def slow_writes() -> None:
    """Makes every step of an atomic write take a while: the bytes, their way to the disk, the new name."""
    fdopen, slowed = os.fdopen, {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}
    os.fdopen = lambda *args: _Slow(fdopen(*args))  # type: ignore[assignment]
    for name, function in slowed.items():

        def slow(*args: Any, function: Any = function) -> None:
            time.sleep(PAUSE / 2)
            function(*args)
            time.sleep(PAUSE / 2)

        setattr(os, name, slow)


def main(directory: pathlib.Path, rounds: int, names: list[str]) -> None:
    slow_writes()
    for kind in names:
        history = fjs.simulate(**kinds()[kind], rounds=rounds, checkpoint=directory / kind, every=EVERY)
        history.save(directory / f"{kind}.npz")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
