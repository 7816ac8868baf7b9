"""Writes the files of this folder, which are those of a user of version 0.1.0 (format 1).

    git worktree add /tmp/old cf51a0c
    PYTHONPATH=/tmp/old python tests/run/data_0_1_0/write.py

They are not written again: what present versions make of them is tested in ``tests/run/test_old_files.py``.
"""

import contextlib
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import optax

import fedjax_sim as fjs
from fedjax_sim import stopping
from fedjax_sim.run.checkpoints import Store

HERE = pathlib.Path(__file__).parent


def quadratic() -> dict[str, Any]:
    """The arguments of a small run but its method."""
    return {
        "dataset": fjs.datasets.quadratics(num_clients=6, dim=4, seed=0),
        "task": fjs.quadratic(),
        "rounds": 6,
        "eval_every": 2,
        "cohort": fjs.cohort.uniform(3),
        "work": fjs.local.random_epochs(1, 3),
        "batches": fjs.local.full_batch(),
    }


def sgd(rate: float = 0.1) -> Any:
    return fjs.optim.sgd(rate)


def runs() -> dict[str, dict[str, Any]]:
    """The arguments of ``simulate`` by the file's name."""
    steered = fjs.fedprox(client_optimizer=sgd(0.3), mu=0.3, adaptive=True, increment=0.25, patience=1)
    fleet = fjs.systems.devices(
        seconds_per_step=np.linspace(0.5, 2.0, 6).astype(np.float32), latency=0.1, upload=1e3, download=1e3
    )
    return {
        # a penalty, held-out examples, clients' metrics
        "fedavg": {
            "algorithm": fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05, momentum=0.5)),
            "dataset": fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=40, seed=0),
            "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=0.01),
            "rounds": 3,
            "cohort": fjs.cohort.uniform(2),
            "work": fjs.local.epochs(1),
            "batch_size": 10,
            "evaluate": fjs.per_client(
                fjs.classification(fjs.models.LogisticRegression(10), weight_decay=0.01), worst=0.5
            ),
            "diagnostics": ["e_lud", "communication"],
            "seeds": [3, 5],
        },
        # rounds without anybody among the others
        "fedprox_adaptive": quadratic()
        | {"algorithm": steered, "cohort": fjs.cohort.independent(0.25), "rounds": 12, "seeds": [0, 1, 2]},
        "wrapped_fedprox": quadratic() | {"algorithm": fjs.clipped(steered, 0.5), "rounds": 8},
        "scaffold": quadratic()
        | {
            "algorithm": fjs.scaffold(client_optimizer=sgd()),
            "initial_params": np.linspace(-1, 1, 4).astype(np.float32),
            "seeds": [3, 1],
        },
        "fednova": quadratic() | {"algorithm": fjs.fednova(client_optimizer=sgd(), mu=0.1, variance_reduction=True)},
        "wrapped": quadratic()
        | {"algorithm": fjs.top_k(fjs.clipped(fjs.fedavg(client_optimizer=sgd()), 1.0), 0.5), "seeds": [0, 1]},
        # one of the seeds stops
        "fedbuff": quadratic()
        | {
            "algorithm": fjs.fedavg(client_optimizer=sgd()),
            "system": fleet,
            "asynchronous": fjs.asynchronous.fedbuff(2),
            "stop": stopping.reached("loss", -0.00095),
            "seeds": [0, 1],
        },
        "opaque": quadratic()
        | {"algorithm": fjs.fedavg(client_optimizer=optax.sgd(0.1)), "evaluate": lambda params, _: {"x": params}},
        # a loss that is ten times what it was, and in the end a thousand times; one that is not finite
        "growing": quadratic()
        | {
            "algorithm": fjs.fedavg(client_optimizer=sgd(4.0)),
            "initial_params": np.full(4, 0.5, np.float32),
            "eval_every": 1,
            "on_divergence": "stop",
            "seeds": [0, 4],
        },
        "diverged": quadratic()
        | {"algorithm": fjs.fedavg(client_optimizer=sgd(1e20)), "rounds": 4, "on_divergence": "stop", "seeds": [0, 4]},
    }


def swept(**more: Any) -> fjs.sweeps.Sweep:
    """Four points with two seeds, of which the last point diverges."""
    given = quadratic()
    space = fjs.sweeps.grid({"mu": [0.0, 0.5], "client_optimizer.learning_rate": [0.1, 1e20]})
    return fjs.sweep(
        fjs.fedprox(client_optimizer=sgd(), adaptive=True, patience=1), given.pop("dataset"), space, **given,
        seeds=[5, 7], **more,
    )  # fmt: skip


class Died(BaseException):
    """What the run with checkpoints ends with."""


def interrupted(folder: pathlib.Path) -> None:
    """A run of SCAFFOLD that ended after its second checkpoint."""
    save, saved = Store.save, []

    def saves(self: Store, *args: Any) -> pathlib.Path:
        saved.append(save(self, *args))
        if len(saved) == 2:
            raise Died
        return saved[-1]

    Store.save = saves  # type: ignore[method-assign]
    with contextlib.suppress(Died):
        fjs.simulate(**runs()["scaffold"], checkpoint=folder, every=2)
    Store.save = save  # type: ignore[method-assign]
    (folder / ".lock").unlink()


def main() -> None:
    if fjs.__version__ != "0.1.0":
        raise SystemExit(f"this is fedjax_sim {fjs.__version__}: the files are those of 0.1.0")
    for old in ("sweep", "checkpoint"):
        shutil.rmtree(HERE / old, ignore_errors=True)
    for name, run in runs().items():
        fjs.simulate(**run).save(HERE / f"{name}.npz")
    with jax.enable_x64(True):  # noqa: TID251 (of that version's environment)
        fjs.simulate(**quadratic(), algorithm=fjs.fedavg(client_optimizer=sgd())).save(HERE / "float64.npz")
    swept(keep_params=True).save(HERE / "sweep.npz")
    swept(resume=HERE / "sweep", chunk=4)
    interrupted(HERE / "checkpoint")


if __name__ == "__main__":
    main()
