"""One round of FedAvg: our program against the loops people write.

    python -m benchmarks.speed.spine [--rounds 10] [--repeats 7] [--out results/spine.json]

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
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from benchmarks.speed import turns
from benchmarks.speed.peers import naive_jax, ours, torch_loop
from benchmarks.speed.peers.child import peak_memory
from benchmarks.speed.peers.contract import Rounds
from benchmarks.speed.peers.naive_jax import local_sgd, padded
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload
from benchmarks.speed.workloads import make as make_workload
from fedjax_sim.core.files import write_atomically

VARIANTS = ("ours", "ours shuffled", "ours lanes", "ours stacked", "vmap", "jit loop", "torch loop")


Run = Callable[[], Weights]


def jit_loop(work: Workload) -> Rounds:
    """(b) One jitted call a client; steps padded to powers of two, so that a dozen programs serve all sizes."""
    train = jax.jit(local_sgd, static_argnums=4)
    powers = [1 << int(np.ceil(np.log2(-(-n // BATCH)))) for n in work.sizes]
    clients = {
        int(c): tuple(jnp.asarray(a) for a in padded(work, c, powers[c] * BATCH)) for c in np.unique(work.cohorts)
    }

    @jax.jit
    def add(total, weights, share):
        return jax.tree.map(lambda t, w: t + share * w, total, weights)

    def rounds(start: Weights, first: int, last: int) -> Weights:
        weights = jax.tree.map(jnp.asarray, start)
        for cohort in work.cohorts[first:last]:
            total, mass = jax.tree.map(jnp.zeros_like, weights), work.sizes[cohort].sum()
            for c in cohort:
                x, y = clients[int(c)]
                total = add(total, train(weights, x, y, work.sizes[c], powers[c]), work.sizes[c] / mass)
            weights = total
        return jax.tree.map(np.asarray, weights)

    return rounds


def make(variant: str, work: Workload) -> Run:
    """The variant's function of nothing that trains all rounds and returns the weights."""
    rounds = {
        "ours": lambda: ours.make(work),
        "ours shuffled": lambda: ours.make(work, shuffled=True),
        "ours lanes": lambda: ours.make(work, layout=fjs.layout.lanes(8)),
        "ours stacked": lambda: ours.make(work, layout=fjs.layout.stacked()),
        "vmap": lambda: naive_jax.make(work),
        "jit loop": lambda: jit_loop(work),
        "torch loop": lambda: torch_loop.make(work),
    }[variant]()
    return lambda: rounds(work.start, 0, len(work.cohorts))


def measure_alone(variant: str, name: str, rounds: int) -> dict[str, float]:
    """First-call time and peak memory of one variant; meant for a fresh process."""
    work = make_workload(name, rounds)
    run = make(variant, work)
    started = time.perf_counter()
    run()
    first = time.perf_counter() - started
    started = time.perf_counter()
    run()
    second = time.perf_counter() - started
    return {"first_minus_second_s": first - second, "peak_mb": peak_memory()}


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
    parser.add_argument("--workloads", nargs="*", default=["W1", "W2"], choices=["W1", "W2"])
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--alone", nargs=2, metavar=("VARIANT", "WORKLOAD"), help="internal: one variant, JSON")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(measure_alone(*arguments.alone, arguments.rounds)))
        return
    report: dict[str, object] = turns.machine()
    for name in arguments.workloads:
        report[name] = run_workload(name, arguments)
    report["480 MB data set"] = large = compile_large()
    print(f"\ncompiling ten rounds over {large['data_mb']:.0f} MB of data: {large['compile_s']:.2f} s")
    if arguments.out:
        write_atomically(arguments.out, json.dumps(report, indent=1).encode())


def run_workload(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One workload, all variants in turn."""
    work = make_workload(name, arguments.rounds)
    runs = {variant: make(variant, work) for variant in arguments.variants}
    losses = {variant: work.loss(run()) for variant, run in runs.items()}
    same = [value for variant, value in losses.items() if variant != "ours shuffled"]  # another order of the batches
    if max(same) - min(same) > 1e-4:
        raise SystemExit(f"final losses differ, nothing to compare: {losses}")
    rows = turns.beside_ours(turns.in_turns(runs, arguments.repeats, arguments.rounds))
    for variant, row in rows.items():
        child = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--alone", variant, name, "--rounds", str(arguments.rounds)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        row |= json.loads(child.stdout.splitlines()[-1])
    title = f"{name}: {work.steps():.0f} steps a round, final loss {same[0]:.4f}"
    turns.show(title, "round", rows, {"first call s": "first_minus_second_s", "peak MB": "peak_mb"})
    return {"steps": work.steps(), "losses": losses, **rows}


if __name__ == "__main__":
    main()
