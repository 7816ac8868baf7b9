"""One of several processes that compute a run together: ``python -m tests.meeting ADDRESS PROCESSES NUMBER DIRECTORY``.

Each process writes what it found to ``DIRECTORY/NUMBER.npz``.
"""

import pathlib
import sys

import jax
import numpy as np

import fedjax_sim as fjs

DEVICES = 2  # of each process


def main(address, processes, number, directory):
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, number, initialization_timeout=60)
    runs = {
        "whole": run(4),
        "first half": run(2, checkpoint=directory / "checkpoints"),
        "both halves": run(4, checkpoint=directory / "checkpoints"),
        "replicated": run(4, data=None),
        "on the host": run(4, data=None, client_states=fjs.client_states.on_host()),
    }
    assert jax.process_count() == processes
    failures = [
        failure_of(lambda: run(2, checkpoint=directory / "checkpoints", keep=0)),  # refused by the one that writes
        failure_of(lambda: run(4, layout=fjs.layout.mesh(DEVICES))),  # a process without a device
        failure_of(lambda: run(2, checkpoint=directory / str(number))),  # a directory that the others do not have
        failure_of(lambda: run(2, callbacks=[Lost()])),  # the one that is told fails
    ]
    found = {f"{name}/{index}": leaf for name, of_run in runs.items() for index, leaf in enumerate(of_run)}
    np.savez(directory / f"{number}.npz", failures=np.asarray(failures), **found)


class Lost(fjs.callbacks.Callback):
    """A tracker that is not there when the first rounds are."""

    def report(self, reported):
        if reported.round:
            raise OSError("no tracker")


def failure_of(action):
    """What an action raised, in words."""
    try:
        action()
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run(rounds, layout="mesh", data="sharded", **changes):
    """Losses, accuracies and the model's leaves of a run with client states."""
    clients = fjs.datasets.synthetic(1.0, 1.0, num_clients=13, max_size=60, seed=0)
    if layout == "mesh":
        layout = None if data is None else fjs.layout.mesh(data=data)
    history = fjs.simulate(
        fjs.scaffold(client_optimizer=fjs.optim.sgd(0.05)), clients,
        task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=rounds, eval_every=2, batch_size=8,
        cohort=fjs.cohort.uniform(7), work=fjs.local.epochs(1), layout=layout, progress=False, **changes,
    )  # fmt: skip
    return [history["loss"], history["test_accuracy"], *jax.tree.leaves(history.params)]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
