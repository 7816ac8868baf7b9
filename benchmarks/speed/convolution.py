"""One round of FedAvg on the FEMNIST CNN: our convolutions against PyTorch and against ``jax.lax``'s.

    python benchmarks/speed/convolution.py [--rounds 1] [--repeats 5] [--out results/convolution.json]

Workload W3: 200 clients of 20 to 200 random images of 28 x 28, 20 a round, one local epoch, batch 20, SGD 0.05; the
model is conv 3x3x32, conv 3x3x64, pool 2x2, dense 128, dense 62 (1.2 million parameters). Cohorts are drawn once and
all variants see the same batches.

Variants:
  ours         one program, layout chosen automatically, models.conv.Conv and max_pool
  torch loop   (a) a plain PyTorch loop over clients and batches (the `bench` extra)
  lax in loop  (b) `ours` with flax's Conv and max_pool; needs about a second a step, so it is measured on one client of
               40 images, and its ratio is to `ours` on that same client
  lax step     (c) a jitted step with flax's Conv and max_pool, called from Python

Variants take turns inside every repeat, so that a drift of the machine hits all alike; a ratio is the median of the
ratios within repeats. Final training losses must agree before any time is printed.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("FEDJAX_SIM_CACHE", "off")  # what is compiled is measured

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fjs
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, run_round
from fedjax_sim.models.conv import Conv, max_pool

BATCH, RATE, CLASSES = 20, 0.05, 62
Params = Any
Run = Callable[[], Params]


class Net(nn.Module):
    """The FEMNIST CNN with exchangeable parts."""

    conv: Any = Conv
    pool: Any = max_pool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(self.conv(32, (3, 3), padding="VALID", name="c1")(x))
        x = nn.relu(self.conv(64, (3, 3), padding="VALID", name="c2")(x))
        x = self.pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(128, name="d1")(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES, name="d2")(x)


OURS, LAX = Net(), Net(nn.Conv, nn.max_pool)


class Workload:
    """Images, cohorts and start point that all variants share."""

    def __init__(self, sizes: np.ndarray, cohorts: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        self.sizes, self.cohorts = sizes, cohorts
        self.offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        total = int(sizes.sum())
        self.x = rng.normal(size=(total, 28, 28, 1)).astype(np.float32)
        self.y = rng.integers(0, CLASSES, total).astype(np.int32)
        start = OURS.init(jax.random.key(0), self.x[:1])["params"]
        self.start = jax.tree.map(np.asarray, start)

    @classmethod
    def w3(cls, rounds: int) -> Workload:
        """The whole benchmark."""
        rng = np.random.default_rng(1)
        sizes = rng.integers(20, 201, 200)
        return cls(sizes, np.stack([rng.choice(200, 20, replace=False) for _ in range(rounds)]))

    @classmethod
    def short(cls) -> Workload:
        """Two steps."""
        return cls(np.array([2 * BATCH]), np.array([[0]]))

    def steps(self) -> float:
        """Mean steps a round."""
        return float(np.mean(np.sum(-(-self.sizes[self.cohorts] // BATCH), axis=1)))

    def loss(self, params: Params) -> float:
        """Mean cross-entropy of the first 2,000 examples, by one implementation for all variants."""
        return float(mean_loss(OURS, params, self.x[:2000], self.y[:2000], np.ones(len(self.y[:2000]), np.float32)))


def mean_loss(model: Net, params: Params, x: Any, y: Any, mask: Any) -> jax.Array:
    """Mean cross-entropy of the rows that are not padding."""
    logits = model.apply({"params": params}, x)
    losses = -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, CLASSES), -1)
    return jnp.sum(losses * mask) / jnp.sum(mask)


def one_program(work: Workload, model: Net) -> Run:
    """All rounds as one call of fedjax_sim."""
    data = fjs.datasets.from_clients(
        [
            (work.x[o : o + n], work.y[o : o + n])
            for o, n in zip(work.offsets.tolist(), work.sizes.tolist(), strict=True)
        ]
    )
    asked = Plan(
        fjs.classification(model),
        fjs.cohort.given(work.cohorts),
        fjs.local.epochs(1),
        fjs.local.in_order(BATCH),
        algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)),
        dataset=data,
        key=jax.random.key(0),
    )
    plan = resolve(asked, len(work.cohorts))

    @functools.partial(jax.jit, donate_argnums=1)
    def program(plan, state):
        return lax.fori_loop(0, len(work.cohorts), lambda t, state: run_round(plan, state, t)[0], state)

    def run() -> Params:
        state = init_state(plan, {"params": jax.tree.map(jnp.array, work.start)})
        return jax.block_until_ready(program(plan, state)).server.params["params"]

    return run


def lax_step(work: Workload) -> Run:
    """(c) A jitted step in Python loops; a client's last batch is padded, so that one program serves all."""

    @jax.jit
    def step(params, x, y, mask):
        gradient = jax.grad(lambda p: mean_loss(LAX, p, x, y, mask))(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient)

    add = jax.jit(lambda total, params, share: jax.tree.map(lambda t, p: t + share * p, total, params))

    def run() -> Params:
        params = jax.tree.map(jnp.asarray, work.start)
        for cohort in work.cohorts:
            total, mass = jax.tree.map(jnp.zeros_like, params), work.sizes[cohort].sum()
            for c in cohort:
                o, n, local = int(work.offsets[c]), int(work.sizes[c]), params
                for k in range(0, n, BATCH):
                    rows = o + np.minimum(np.arange(k, k + BATCH), n - 1)
                    mask = (np.arange(k, k + BATCH) < n).astype(np.float32)
                    local = step(local, work.x[rows], work.y[rows], mask)
                total = add(total, local, np.float32(n / mass))
            params = total
        return jax.block_until_ready(params)

    return run


def torch_loop(work: Workload) -> Run:
    """(a) Plain PyTorch: a module, an optimiser, a loop over clients and batches."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(9216, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES),
    )  # fmt: skip
    x = torch.from_numpy(np.ascontiguousarray(work.x.transpose(0, 3, 1, 2)))
    y = torch.from_numpy(work.y.astype(np.int64))
    criterion = torch.nn.CrossEntropyLoss()
    names = [name for name, _ in model.named_parameters()]
    layers = ("c1", "c2", "d1", "d2")

    def to_torch(layer: str, kernel: np.ndarray) -> np.ndarray:
        if layer == "d1":  # rows are pixels of channels-last images there and of channels-first images here
            kernel = kernel.reshape(12, 12, 64, 128).transpose(2, 0, 1, 3).reshape(9216, 128)
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T)

    def to_flax(layer: str, kernel: np.ndarray) -> np.ndarray:
        if layer == "d1":
            return kernel.T.reshape(64, 12, 12, 128).transpose(1, 2, 0, 3).reshape(9216, 128)
        return kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T

    def run(cohorts: np.ndarray = work.cohorts) -> Params:
        start = [(to_torch(layer, work.start[layer]["kernel"]), work.start[layer]["bias"].copy()) for layer in layers]
        current = dict(zip(names, [torch.from_numpy(a) for pair in start for a in pair], strict=True))
        for cohort in cohorts:
            mass, total = float(work.sizes[cohort].sum()), {n: torch.zeros_like(t) for n, t in current.items()}
            for c in cohort:
                model.load_state_dict(current)
                optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
                o, n = int(work.offsets[c]), int(work.sizes[c])
                for k in range(0, n, BATCH):
                    rows = slice(o + k, o + min(k + BATCH, n))
                    optimizer.zero_grad()
                    criterion(model(x[rows]), y[rows]).backward()
                    optimizer.step()
                with torch.no_grad():
                    for name, parameter in model.named_parameters():
                        total[name] += parameter * (n / mass)
            current = total
        arrays = [current[name].numpy() for name in names]
        return {
            layer: {"kernel": to_flax(layer, arrays[2 * i]), "bias": arrays[2 * i + 1]}
            for i, layer in enumerate(layers)
        }

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        run(work.cohorts[:1, :2])
        started = time.perf_counter()
        run(work.cohorts[:1, :2])
        return time.perf_counter() - started

    torch.set_num_threads(min(range(1, (os.cpu_count() or 1) + 1), key=seconds))
    return run


def compare(name: str, work: Workload, variants: dict[str, Callable[[], Run]], repeats: int) -> dict[str, Any]:
    """Runs the variants in turns and prints a table; the first is the one that the others are compared with."""
    runs, losses, first = {variant: make() for variant, make in variants.items()}, {}, {}
    for variant, run in runs.items():
        started = time.perf_counter()
        params = run()
        first[variant] = time.perf_counter() - started
        losses[variant] = work.loss(params)
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise SystemExit(f"final losses differ, nothing to compare: {losses}")
    times: dict[str, list[float]] = {variant: [] for variant in runs}
    for _ in range(repeats):
        for variant, run in runs.items():
            started = time.perf_counter()
            run()
            times[variant].append((time.perf_counter() - started) / len(work.cohorts) * 1e3)
    steps, reference = work.steps(), times[next(iter(runs))]
    print(f"\n{name}: {steps:.0f} steps a round, final loss {min(losses.values()):.4f}")
    print(f"{'variant':12} {'ms a round':>10} {'min':>9} {'ms a step':>10} {'x ours':>8} {'compile s':>10}")
    rows: dict[str, Any] = {"steps": steps, "losses": losses}
    for variant, values in times.items():
        ratio = statistics.median(t / o for t, o in zip(values, reference, strict=True))
        median = statistics.median(values)
        compiling = first[variant] - median * len(work.cohorts) / 1e3
        rows[variant] = {"ms": median, "min_ms": min(values), "ratio_to_ours": ratio, "first_minus_median_s": compiling}
        print(
            f"{variant:12} {median:10.1f} {min(values):9.1f} {median / steps:10.2f} {ratio:8.2f} {compiling:10.2f}",
            flush=True,
        )
    return rows


def main() -> None:
    """Runs both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    work, short = Workload.w3(arguments.rounds), Workload.short()
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "jax": jax.__version__,
    }
    report["W3"] = compare(
        "W3, a whole round", work,
        {
            "ours": lambda: one_program(work, OURS),
            "torch loop": lambda: torch_loop(work),
            "lax step": lambda: lax_step(work),
        },
        arguments.repeats,
    )  # fmt: skip
    report["W3, one client"] = compare(
        "W3 shortened to one client of 40 images", short,
        {"ours": lambda: one_program(short, OURS), "lax in loop": lambda: one_program(short, LAX)},
        min(3, arguments.repeats),
    )  # fmt: skip
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
