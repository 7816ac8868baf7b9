"""One round of FedAvg: our program against the loops people write.

    python benchmarks/speed/spine.py [--rounds 10] [--repeats 7] [--out results/spine.json]

Workloads (one local epoch, batch 20, SGD 0.05, cohorts drawn once and shared by all variants):
  W1  logistic regression 60 -> 10, 1,000 clients of min(int(LogNormal(4, 2)) + 50, 5000) examples, 100 a round
  W2  MLP 784-200-200-10, 1,000 clients of min(int(LogNormal(3, 1)) + 10, 1000) examples, 50 a round

Variants:
  ours          rounds of fedjax_sim in one program, batches in stored order as in the alternatives
  ours shuffled the same with a fresh random permutation per client and epoch
  ours lanes, ours stacked   the same as `ours` in the other layouts (--variants; `ours` runs in turns on a CPU)
  vmap          (a) naive JAX: vmap of a masked scan over the padded cohort, one jitted call a round
  jit loop      (b) a jitted client function called from Python, steps padded to powers of two
  torch loop    (c) a plain PyTorch loop (the `bench` extra)

Variants take turns inside every repeat, so that a drift of the machine hits all alike; what is reported is the median
of the ratios within repeats. Final training losses of all variants that see the same batches must agree before any
time is printed. Compilation time and peak memory come from a fresh process for each variant.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fjs
from fedjax_sim.rounds import Setting, init_state, run_round

BATCH, RATE = 20, 0.05
VARIANTS = ("ours", "ours shuffled", "ours lanes", "ours stacked", "vmap", "jit loop", "torch loop")


class Workload:
    """Arrays, cohorts and start point that all variants share."""

    def __init__(self, name: str, rounds: int) -> None:
        rng = np.random.default_rng(0)
        if name == "W1":
            sizes = np.minimum(rng.lognormal(4, 2, 1000).astype(int) + 50, 5000)
            self.shape, self.widths, sampled = (60,), (), 100
        else:
            sizes = np.minimum(rng.lognormal(3, 1, 1000).astype(int) + 10, 1000)
            self.shape, self.widths, sampled = (784,), (200, 200), 50
        total = int(sizes.sum())
        x = rng.normal(size=(total, *self.shape)).astype(np.float32)
        y = rng.integers(0, 10, total).astype(np.int32)
        self.name, self.sizes, self.x, self.y = name, sizes, x, y
        self.offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.cohorts = np.stack([rng.choice(1000, sampled, replace=False) for _ in range(rounds)])
        dims = (*self.shape, *self.widths, 10)
        scale = 0.0 if not self.widths else 1.0
        self.start = [
            (scale * rng.normal(size=(a, b)).astype(np.float32) * np.float32(np.sqrt(2 / a)), np.zeros(b, np.float32))
            for a, b in itertools.pairwise(dims)
        ]

    def steps(self) -> float:
        """Mean useful steps a round."""
        return float(np.mean(np.sum(-(-self.sizes[self.cohorts] // BATCH), axis=1)))

    def loss(self, weights: list[tuple[np.ndarray, np.ndarray]]) -> float:
        """Mean cross-entropy over all examples, in float64 numpy."""
        h = self.x.astype(np.float64)
        for i, (w, b) in enumerate(weights):
            h = h @ np.asarray(w, np.float64) + np.asarray(b, np.float64)
            if i + 1 < len(weights):
                h = np.maximum(h, 0)
        h -= h.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(h).sum(axis=1)) - h[np.arange(len(h)), self.y]))


Run = Callable[[], list[tuple[np.ndarray, np.ndarray]]]


def ours(work: Workload, *, shuffled: bool, layout: object = None) -> Run:
    """R rounds of FedAvg as one call."""
    data = fjs.datasets.from_clients(
        [
            (work.x[o : o + n], work.y[o : o + n])
            for o, n in zip(work.offsets.tolist(), work.sizes.tolist(), strict=True)
        ]
    )
    model = fjs.models.MLP(10, work.widths) if work.widths else fjs.models.LogisticRegression(10)
    setting = Setting(
        fjs.classification(model),
        fjs.cohort.given(work.cohorts),
        fjs.local.epochs(1),
        fjs.local.shuffled(BATCH) if shuffled else fjs.local.in_order(BATCH),
        layout,  # type: ignore[arg-type]
    )
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE))
    params = {
        "params": {
            f"Dense_{i}": {"kernel": jnp.asarray(w), "bias": jnp.asarray(b)} for i, (w, b) in enumerate(work.start)
        }
    }
    key = jax.random.key(0)

    @functools.partial(jax.jit, donate_argnums=4)
    def program(setting, algorithm, data, key, state):
        return lax.fori_loop(
            0, len(work.cohorts), lambda t, state: run_round(setting, algorithm, data, key, state, t)[0], state
        )

    def run() -> list[tuple[np.ndarray, np.ndarray]]:
        state = init_state(setting, algorithm, data, key, jax.tree.map(jnp.copy, params))
        final = program(setting, algorithm, data, key, state).server.params["params"]
        return [
            (np.asarray(final[f"Dense_{i}"]["kernel"]), np.asarray(final[f"Dense_{i}"]["bias"]))
            for i in range(len(final))
        ]

    return run


def client_loss(weights, x, y, mask):
    """Mean cross-entropy of the rows that are not padding."""
    h = x
    for i, (w, b) in enumerate(weights):
        h = h @ w + b
        if i + 1 < len(weights):
            h = jax.nn.relu(h)
    losses = jax.nn.logsumexp(h, axis=1) - jnp.take_along_axis(h, y[:, None], axis=1)[:, 0]
    return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)


def local_sgd(weights, x, y, size, steps):
    """``steps`` masked SGD steps on one padded client."""

    def step(weights, k):
        rows = k * BATCH + jnp.arange(BATCH)
        mask = (rows < size).astype(jnp.float32)
        xs, ys = lax.dynamic_slice_in_dim(x, k * BATCH, BATCH), lax.dynamic_slice_in_dim(y, k * BATCH, BATCH)
        g = jax.grad(client_loss)(weights, xs, ys, mask)
        return jax.tree.map(lambda p, d: jnp.where(k * BATCH < size, p - RATE * d, p), weights, g), None

    return lax.scan(step, weights, jnp.arange(steps))[0]


def padded(work: Workload, client: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's arrays, padded with zeros to ``rows`` examples."""
    o, n = work.offsets[client], work.sizes[client]
    x, y = np.zeros((rows, *work.shape), np.float32), np.zeros(rows, np.int32)
    x[:n], y[:n] = work.x[o : o + n], work.y[o : o + n]
    return x, y


def naive_vmap(work: Workload) -> Run:
    """(a) The padded cohort under vmap; padding and stacking are part of a round, as they are of such code."""
    steps = int(-(-work.sizes.max() // BATCH))

    a_round = jax.jit(
        lambda weights, x, y, sizes: jax.tree.map(
            lambda leaf: jnp.tensordot(sizes / jnp.sum(sizes), leaf, 1),
            jax.vmap(lambda x, y, n: local_sgd(weights, x, y, n, steps))(x, y, sizes),
        )
    )

    def run() -> list[tuple[np.ndarray, np.ndarray]]:
        weights = jax.tree.map(jnp.asarray, work.start)
        for cohort in work.cohorts:
            arrays = [padded(work, c, steps * BATCH) for c in cohort]
            x, y = np.stack([a[0] for a in arrays]), np.stack([a[1] for a in arrays])
            weights = a_round(weights, x, y, work.sizes[cohort].astype(np.float32))
        return jax.tree.map(np.asarray, weights)  # type: ignore[no-any-return]

    return run


def jit_loop(work: Workload) -> Run:
    """(b) One jitted call a client; steps padded to powers of two, so that a dozen programs serve all sizes."""
    train = jax.jit(local_sgd, static_argnums=4)
    powers = [1 << int(np.ceil(np.log2(-(-n // BATCH)))) for n in work.sizes]
    clients = {
        int(c): tuple(jnp.asarray(a) for a in padded(work, c, powers[c] * BATCH)) for c in np.unique(work.cohorts)
    }

    @jax.jit
    def add(total, weights, share):
        return jax.tree.map(lambda t, w: t + share * w, total, weights)

    def run() -> list[tuple[np.ndarray, np.ndarray]]:
        weights = jax.tree.map(jnp.asarray, work.start)
        for cohort in work.cohorts:
            total, mass = jax.tree.map(jnp.zeros_like, weights), work.sizes[cohort].sum()
            for c in cohort:
                x, y = clients[int(c)]
                total = add(total, train(weights, x, y, work.sizes[c], powers[c]), work.sizes[c] / mass)
            weights = total
        return jax.tree.map(np.asarray, weights)  # type: ignore[no-any-return]

    return run


def torch_loop(work: Workload) -> Run:
    """(c) Plain PyTorch: a module, an optimiser, a loop over clients and batches."""
    import torch

    dims = (*work.shape, *work.widths, 10)
    layers: list[torch.nn.Module] = []
    for a, b in itertools.pairwise(dims):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y.astype(np.int64))
    criterion = torch.nn.CrossEntropyLoss()
    names = [name for name, _ in model.named_parameters()]

    def run(cohorts: np.ndarray = work.cohorts) -> list[tuple[np.ndarray, np.ndarray]]:
        flat = [torch.from_numpy(a) for w, b in work.start for a in (np.ascontiguousarray(w.T), b)]
        current = dict(zip(names, [t.clone() for t in flat], strict=True))
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
        return [(w.T.copy(), b.copy()) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        run(work.cohorts[:1])
        started = time.perf_counter()
        run(work.cohorts[:1])
        return time.perf_counter() - started

    torch.set_num_threads(min(range(1, (os.cpu_count() or 1) + 1), key=seconds))  # its best: one, for small models
    return run


def make(variant: str, work: Workload) -> Run:
    """The variant's function of nothing that trains all rounds and returns the weights."""
    return {
        "ours": lambda: ours(work, shuffled=False),
        "ours shuffled": lambda: ours(work, shuffled=True),
        "ours lanes": lambda: ours(work, shuffled=False, layout=fjs.layout.lanes(8)),
        "ours stacked": lambda: ours(work, shuffled=False, layout=fjs.layout.stacked()),
        "vmap": lambda: naive_vmap(work),
        "jit loop": lambda: jit_loop(work),
        "torch loop": lambda: torch_loop(work),
    }[variant]()


def measure_alone(variant: str, name: str, rounds: int) -> dict[str, float]:
    """First-call time and peak memory of one variant; meant for a fresh process."""
    work = Workload(name, rounds)
    run = make(variant, work)
    started = time.perf_counter()
    run()
    first = time.perf_counter() - started
    started = time.perf_counter()
    run()
    second = time.perf_counter() - started
    return {"first_minus_second_s": first - second, "peak_mb": peak_memory()}


def peak_memory() -> float:
    """Peak resident memory of this process in MB (Linux). Not ru_maxrss, which a child inherits from its parent."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def compile_large() -> dict[str, float]:
    """Time to trace, lower and compile a round over a 480 MB data set: data are arguments, not constants."""
    examples = 2_000_000
    data = fjs.datasets.from_ids(
        (np.zeros((examples, 60), np.float32), np.zeros(examples, np.int32)),
        np.repeat(np.arange(100_000), 20),
        num_classes=10,
    )
    train = fjs.make_train(
        task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=10, eval_every=10,
        cohort=fjs.cohort.uniform(100), work=fjs.local.epochs(1), batches=fjs.local.in_order(BATCH),
    )  # fmt: skip
    started = time.perf_counter()
    jax.jit(train).lower(fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)), data, jax.random.key(0)).compile()
    return {"data_mb": data.examples["x"].nbytes / 1e6, "compile_s": time.perf_counter() - started}


def main() -> None:
    """Runs both workloads and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workloads", nargs="*", default=["W1", "W2"])
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--alone", nargs=2, metavar=("VARIANT", "WORKLOAD"), help="internal: one variant, JSON")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(measure_alone(*arguments.alone, arguments.rounds)))
        return
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "jax": jax.__version__,
    }
    for name in arguments.workloads:
        report[name] = run_workload(name, arguments)
    report["480 MB data set"] = large = compile_large()
    print(f"\ncompiling ten rounds over {large['data_mb']:.0f} MB of data: {large['compile_s']:.2f} s")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1))


def run_workload(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One workload, all variants in turn."""
    work = Workload(name, arguments.rounds)
    runs = {variant: make(variant, work) for variant in arguments.variants}
    losses = {variant: work.loss(run()) for variant, run in runs.items()}
    same = [value for variant, value in losses.items() if variant != "ours shuffled"]  # another order of the batches
    if max(same) - min(same) > 1e-4:
        raise SystemExit(f"final losses differ, nothing to compare: {losses}")
    times: dict[str, list[float]] = {variant: [] for variant in runs}
    for _ in range(arguments.repeats):
        for variant, run in runs.items():
            started = time.perf_counter()
            run()
            times[variant].append((time.perf_counter() - started) / arguments.rounds * 1e3)
    print(f"\n{name}: {work.steps():.0f} steps a round, final loss {same[0]:.4f}")
    print(f"{'variant':14} {'ms a round':>10} {'min':>8} {'x ours':>8} {'first call s':>13} {'peak MB':>9}")
    rows: dict[str, object] = {"steps": work.steps(), "losses": losses}
    for variant in runs:
        ratio = statistics.median(t / o for t, o in zip(times[variant], times[arguments.variants[0]], strict=True))
        child = subprocess.run(
            [sys.executable, __file__, "--alone", variant, name, "--rounds", str(arguments.rounds)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        alone = json.loads(child.stdout.splitlines()[-1])
        median = statistics.median(times[variant])
        rows[variant] = {"ms": median, "min_ms": min(times[variant]), "ratio_to_ours": ratio, **alone}
        print(
            f"{variant:14} {median:10.2f} {min(times[variant]):8.2f} {ratio:8.2f} "
            f"{alone['first_minus_second_s']:13.2f} {alone['peak_mb']:9.0f}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
