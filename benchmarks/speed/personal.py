"""Personal models against a loop in PyTorch: FedAvg, Ditto and FedRep, an MLP and a CNN, milliseconds a round.

    python -m benchmarks.speed.personal [--methods fedavg ditto fedrep] [--models mlp cnn] [--rounds 6] [--repeats 5]

20 clients, all in every round, 300 examples of two classes each (28x28x1), one epoch in stored order in batches of 10
at rate 0.005, as PFLlib runs by default; FedRep: an epoch of the head, then one of the body; Ditto: an epoch of either
model, lambda 1. The MLP has 784-100-10 units, the CNN two 5x5 convolutions of 32 and 64 channels with a 2x2 pooling
after each, and 512-10 units. The loop has no loader and copies no module: it slices tensors that are there.

The two take turns, each in a process of its own. A time counts if the models that the clients end up with are the same.
Columns: median ms a round after the first, the ratio to ours within the repeats (median), seconds before the second
round beyond a round, peak memory.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.workloads import Weights

CLIENTS, EXAMPLES, BATCH, RATE, LAM = 20, 300, 10, 0.005, 1.0
METHODS, MODELS = ("fedavg", "ditto", "fedrep"), ("mlp", "cnn")
SIDES = {"ours": "benchmarks.speed.personal", "PyTorch loop": "benchmarks.speed.personal_torch"}
ROOT = pathlib.Path(__file__).resolve().parents[2]
_TOLERANCE = {"mlp": 1e-3, "cnn": 0.02}  # of the way that training went: kinks of ReLUs and poolings in float32


def main() -> None:
    """Prints the table."""
    from benchmarks.speed.peers.contract import describe
    from benchmarks.speed.peers.environments import default_directory, ensure

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=6, help="the first is not timed; two at least")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--environments", type=pathlib.Path, default=default_directory())
    parser.add_argument("--child", nargs=4, metavar=("SIDE", "METHOD", "MODEL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: two at least")
    if options.child:
        child(*options.child, rounds=options.rounds)
        return
    torch = ensure("torch-loop", describe("torch-loop"), options.environments.resolve())
    interpreters = dict(zip(SIDES, (pathlib.Path(sys.executable), torch), strict=True))
    print(f"{'':12} {'':14} {'ms a round':>10} {'times ours':>10} {'set-up s':>9} {'peak MB':>8}")
    for model, method in itertools.product(options.models, options.methods):
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(options.repeats):
                for side in SIDES:
                    found[side].append(_process(interpreters[side], side, method, model, folder, options.rounds))
                check(model, [one[-1].pop("models") for one in found.values()])
        for side, runs in found.items():
            ratio = statistics.median(
                one["round_s"] / ours["round_s"] for one, ours in zip(runs, found["ours"], strict=True)
            )
            middle = {key: statistics.median(run[key] for run in runs) for key in ("round_s", "set_up_s", "peak_mb")}
            print(
                f"{f'{model} {method}':12} {side:14} {1e3 * middle['round_s']:>10.1f} {ratio:>10.2f} "
                f"{middle['set_up_s']:>9.1f} {middle['peak_mb']:>8,.0f}",
                flush=True,
            )


def problem(model: str) -> tuple[dict[str, np.ndarray], Weights]:
    """x [clients, examples, 28, 28, 1], y [clients, examples], and the weights of the start."""
    rng = np.random.default_rng(0)
    classes = (np.arange(CLIENTS)[:, None] + np.array([0, 3])) % 10
    y = np.take_along_axis(classes, rng.integers(0, 2, (CLIENTS, EXAMPLES)), axis=1).astype(np.int32)
    patterns = rng.random((10, 28, 28, 1), np.float32)
    x = patterns[y] + rng.random((CLIENTS, EXAMPLES, 28, 28, 1), np.float32) - np.float32(1)
    shapes = {
        "mlp": ((784, 100), (100, 10)),
        "cnn": ((5, 5, 1, 32), (5, 5, 32, 64), (1024, 512), (512, 10)),
    }[model]
    start = []
    for shape in shapes:
        limit = 1 / np.sqrt(np.prod(shape[:-1]))
        kernel = rng.uniform(-limit, limit, shape).astype(np.float32)
        start.append((kernel, np.zeros(shape[-1], np.float32)))
    return {"x": x, "y": y}, start


def check(model: str, ends: list[np.ndarray]) -> None:
    """Raises if the two sides' models, [models, numbers], are not the same."""
    _, start = problem(model)
    begun = _flat(start)
    ours, theirs = ends
    away = np.linalg.norm(ours - theirs) / np.linalg.norm(ours - begun)
    if not away <= _TOLERANCE[model]:
        raise SystemExit(f"{model}: the models differ by {away:.2g} of the way that ours went: no times")


def _process(interpreter: pathlib.Path, side: str, method: str, model: str, folder: str, rounds: int) -> dict[str, Any]:
    command = [str(interpreter), "-m", "benchmarks.speed.personal", "--rounds", str(rounds), "--child"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*command, side, method, model, folder], check=True, cwd=ROOT, env=environment)
    found: dict[str, Any] = json.loads((pathlib.Path(folder) / "result.json").read_text(encoding="utf-8"))
    found["models"] = np.load(pathlib.Path(folder) / "models.npy")
    return found


def child(side: str, method: str, model: str, folder: str, *, rounds: int) -> None:
    """One side: trains, and writes the models and what was measured."""
    from benchmarks.speed.peers.child import peak_memory
    from benchmarks.speed.peers.contract import Clock

    arrays, start = problem(model)
    clock = Clock(time.monotonic())
    models = importlib.import_module(SIDES[side]).run(method, arrays, start, rounds, clock)
    np.save(pathlib.Path(folder) / "models.npy", np.stack([_flat(one) for one in models]))
    found = {**clock.summary(), "peak_mb": peak_memory()}
    (pathlib.Path(folder) / "result.json").write_text(json.dumps(found), encoding="utf-8")


def run(method: str, arrays: dict[str, Any], start: Weights, rounds: int, tick: Callable[[], None]) -> list[Weights]:
    """Our side: a round is a call of one program."""
    import flax.linen as nn
    import jax

    import fedjax_sim as fjs
    from fedjax_sim.engine.checks import resolve
    from fedjax_sim.engine.plan import Plan
    from fedjax_sim.engine.rounds import init_state, run_round

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for i, (kernel, bias) in enumerate(start):
                if kernel.ndim == 4:
                    x = fjs.models.Conv(bias.size, kernel.shape[:2], padding="VALID", name=f"Layer_{i}")(x)
                    x = fjs.models.max_pool(nn.relu(x), (2, 2), (2, 2))
                else:
                    x = fjs.models.Dense(bias.size, name=f"Layer_{i}")(x.reshape(x.shape[0], -1))
                    x = nn.relu(x) if i < len(start) - 1 else x
            return x

    local = {"client_optimizer": fjs.optim.sgd(RATE)}
    algorithm = {
        "fedavg": lambda: fjs.fedavg(**local),
        "ditto": lambda: fjs.ditto(lam=LAM, **local),
        "fedrep": lambda: fjs.fedrep(fjs.fedavg(**local), f"Layer_{len(start) - 1}", head_steps=EXAMPLES // BATCH),
    }[method]()
    asked = Plan(
        fjs.classification(Net()), fjs.cohort.full(), fjs.local.epochs(1), fjs.local.in_order(BATCH),
        algorithm=algorithm, dataset=fjs.datasets.from_clients(list(zip(arrays["x"], arrays["y"], strict=True))),
        key=jax.random.key(0),
    )  # fmt: skip
    plan = resolve(asked, rounds).placed().everywhere()
    params = {"params": {f"Layer_{i}": {"kernel": w, "bias": b} for i, (w, b) in enumerate(start)}}
    state = jax.jit(init_state)(plan, jax.device_put(params))
    program = jax.jit(lambda plan, state, t: run_round(plan, state, t)[0], donate_argnums=1)
    for t in range(rounds):
        state = jax.block_until_ready(program(plan, state, np.int32(t)))
        tick()
    if method == "fedavg":
        return [_weights(state.server.params)]
    of_client = jax.vmap(plan.algorithm.personal, in_axes=(None, 0))(state.server, state.clients)
    return [_weights(jax.tree.map(lambda leaf, i=i: leaf[i], of_client)) for i in range(CLIENTS)]


def _weights(params: Any) -> Weights:
    layers = params["params"]
    return [(np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in sorted(layers)]


def _flat(weights: Weights) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for pair in weights for leaf in pair])


if __name__ == "__main__":
    main()
