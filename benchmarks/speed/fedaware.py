"""What FedAWARE's memory costs: a round against FedAvg's, by the number of clients that have been seen.

    python benchmarks/speed/fedaware.py [--clients 100 1000 10000] [--cohort 100] [--repeats 7]

Logistic regression 60 -> 10 on synthetic clients of 20 examples, one epoch, cohorts drawn uniformly. The server begins
with a memory of every client: small random changes around a common one. A line gives the median time of a round (of
--repeats, after two rounds that are not counted), the memory that the round's program needs beyond its arguments, and
the solver's steps and duality gap relative to |d|^2 in the last round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.fedaware import Memory
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, run_round
from fedjax_sim.optim.min_norm import full_gram


def data(num_clients: int) -> fjs.FederatedDataset:
    """Clients of 20 examples each, every one with its own centre."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(num_clients), 20)
    x = rng.normal(size=(len(owners), 60)).astype(np.float32)
    x += rng.normal(size=(num_clients, 60)).astype(np.float32)[owners]
    y = np.argmax(x @ rng.normal(size=(60, 10)), axis=1)
    return fjs.datasets.from_ids({"x": x, "y": y}, owners, num_classes=10)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores, {options.cohort} clients a round")
    print(f"{'clients':>8} {'method':<10} {'ms a round':>11} {'MB':>7} {'steps':>6} {'gap':>9}")
    for num_clients in options.clients:
        dataset = data(num_clients)
        for name in ("fedavg", "fedaware"):
            print(f"{num_clients:>8} {name:<10} " + line(getattr(fjs, name), dataset, options), flush=True)


def line(make: Any, dataset: fjs.FederatedDataset, options: argparse.Namespace) -> str:
    """One method at one number of clients."""
    task = fjs.classification(fjs.models.LogisticRegression(10))
    asked = Plan(
        task, fjs.cohort.uniform(options.cohort), fjs.local.epochs(1), fjs.local.shuffled(20),
        algorithm=make(client_optimizer=fjs.optim.sgd(0.05)), dataset=dataset, key=jax.random.key(0),
    )  # fmt: skip
    plan = resolve(asked, 2 + options.repeats)
    state = init_state(plan)
    if isinstance(state.server.extra, Memory):
        state = state._replace(server=state.server._replace(extra=remembering(state.server.extra)))
    program = jax.jit(run_round, donate_argnums=1).lower(plan, state, jnp.int32(0)).compile()
    times = []
    for t in range(2 + options.repeats):
        start = time.perf_counter()
        state, record = jax.block_until_ready(program(plan, state, jnp.int32(t)))
        times.append(time.perf_counter() - start)
    text = f"{1e3 * statistics.median(times[2:]):>11.1f} {program.memory_analysis().temp_size_in_bytes / 1e6:>7.1f}"
    if "min_norm" in record:
        gap = float(record["min_norm_gap"] / jnp.square(record["min_norm"]))
        text += f" {int(record['min_norm_steps']):>6} {gap:>9.1e}"
    return text


def remembering(memory: Memory) -> Memory:
    """A memory in which everybody has been seen."""
    rng = np.random.default_rng(2)

    def changes(leaf: jax.Array) -> jax.Array:
        common = 0.05 * rng.normal(size=leaf.shape[1:])
        return jnp.asarray(common + 0.05 * rng.normal(size=leaf.shape), leaf.dtype)

    momenta = jax.tree.map(changes, memory.momenta)
    return memory._replace(momenta=momenta, gram=jax.jit(full_gram)(momenta), seen=jnp.ones_like(memory.seen))


if __name__ == "__main__":
    main()
