"""One round of FedAvg on the FEMNIST CNN: our convolutions against PyTorch and against ``jax.lax``'s.

    python -m benchmarks.speed.convolution [--rounds 1] [--repeats 5] [--out results/convolution.json]

The model and the local work of workload W3 (benchmarks/speed/workloads.py): conv 3x3x32, conv 3x3x64, pool 2x2, dense
128, dense 62 (1.2 million parameters), one local epoch, batch 20, SGD 0.05; 200 clients of 20 to 200 random images of
28 x 28, 20 a round. Cohorts are drawn once and all variants see the same batches.

Variants:
  ours         one program, layout chosen automatically, models.conv.Conv and max_pool
  torch loop   (a) a plain PyTorch loop over clients and batches (the `bench` extra)
  lax in loop  (b) `ours` with flax's Conv and max_pool; needs about a second a step, so it is measured on one client of
               40 images, and its ratio is to `ours` on that same client
  lax step     (c) a jitted step with jax.lax's convolutions and pooling, called from Python

Variants take turns inside every repeat, so that a drift of the machine hits all alike; a ratio is the median of the
ratios within repeats. Final training losses must agree before any time is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed import turns
from benchmarks.speed.peers import ours, torch_loop
from benchmarks.speed.peers.contract import Rounds
from benchmarks.speed.peers.jax_models import masked_loss
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload, make
from fedjax_sim.core.files import write_atomically

CLASSES = 62


class LaxNet(nn.Module):
    """The FEMNIST CNN with flax's convolutions and pooling."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES)(x)


def workload(sizes: np.ndarray, cohorts: np.ndarray) -> Workload:
    """Random images of clients with these sizes, and a start."""
    rng, total = np.random.default_rng(0), int(sizes.sum())
    x, y = rng.normal(size=(total, 28, 28, 1)).astype(np.float32), rng.integers(0, CLASSES, total).astype(np.int32)
    return Workload("W3", x, y, sizes, cohorts, make("W3", 1, 0.01).start)


def lax_step(work: Workload) -> Rounds:
    """(c) A jitted step in Python loops; a client's last batch is padded, so that one program serves all."""

    @jax.jit
    def step(weights, x, y, mask):
        return jax.tree.map(lambda p, g: p - RATE * g, weights, jax.grad(masked_loss)(weights, x, y, mask))

    add = jax.jit(lambda total, weights, share: jax.tree.map(lambda t, w: t + share * w, total, weights))

    def rounds(start: Weights, first: int, last: int) -> Weights:
        weights = jax.tree.map(jnp.asarray, start)
        for cohort in work.cohorts[first:last]:
            total, mass = jax.tree.map(jnp.zeros_like, weights), work.sizes[cohort].sum()
            for c in cohort:
                o, n, local = int(work.offsets[c]), int(work.sizes[c]), weights
                for k in range(0, n, BATCH):
                    rows = o + np.minimum(np.arange(k, k + BATCH), n - 1)
                    mask = (np.arange(k, k + BATCH) < n).astype(np.float32)
                    local = step(local, work.x[rows], work.y[rows], mask)
                total = add(total, local, np.float32(n / mass))
            weights = total
        return jax.tree.map(np.asarray, weights)

    return rounds


def compare(name: str, work: Workload, variants: dict[str, Rounds], repeats: int) -> turns.Row:
    """Runs the variants in turns and prints a table; the first is the one that the others are compared with."""
    count = len(work.cohorts)
    runs = {variant: lambda rounds=rounds: rounds(work.start, 0, count) for variant, rounds in variants.items()}
    found, first = turns.first_calls(runs)
    losses = {variant: work.loss(weights) for variant, weights in found.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise SystemExit(f"final losses differ, nothing to compare: {losses}")
    steps, rows = work.steps(), turns.beside_ours(turns.in_turns(runs, repeats, count))
    for variant, row in rows.items():
        row |= {"ms_a_step": row["ms"] / steps, "first_minus_median_s": first[variant] - row["ms"] * count / 1e3}
    title = f"{name}: {steps:.0f} steps a round, final loss {min(losses.values()):.4f}"
    turns.show(title, "round", rows, {"ms a step": "ms_a_step", "compile s": "first_minus_median_s"})
    return {"steps": steps, "losses": losses, **rows}


def main() -> None:
    """Runs both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    sizes = rng.integers(20, 201, 200)
    work = workload(sizes, np.stack([rng.choice(200, 20, replace=False) for _ in range(arguments.rounds)]))
    short = workload(np.array([2 * BATCH]), np.array([[0]]))
    report: dict[str, Any] = turns.machine()
    whole = {"ours": ours.make(work), "torch loop": torch_loop.make(work), "lax step": lax_step(work)}
    report["W3"] = compare("W3, a whole round", work, whole, arguments.repeats)
    cut = {"ours": ours.make(short), "lax in loop": ours.make(short, model=LaxNet())}
    cut_name = "W3 shortened to one client of 40 images"
    report["W3, one client"] = compare(cut_name, short, cut, min(3, arguments.repeats))
    if arguments.out:
        write_atomically(arguments.out, json.dumps(report, indent=1).encode())


if __name__ == "__main__":
    main()
