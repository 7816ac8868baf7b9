"""What the derivative of a long run costs: time and memory of every adjoint beside the forward run.

    python benchmarks/speed/adjoints.py [--rounds 1000] [--timed 200] [--repeats 1]

Logistic regression 60 -> 10 in float32, 100 clients who all take part in every round, 20 local steps each on batches of
20 in the stored order; the final training loss by the client learning rate, mu and the weight decay. Ratios are to the
run without a derivative. Memory is what XLA reserves
for a program of --rounds rounds beyond its arguments (its memory analysis, without running it); times are those of
--timed rounds, the best of --repeats without compilation. A program of more than --most GB is not run.

The second table is implicit differentiation on a run that has a fixed point (full batches), beside the unrolled
gradient there; the third is the length of the reverse schedule where the numbers of local steps differ.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("FEDJAX_SIM_CACHE", "off")  # what is compiled is measured

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim import adjoints

CLIENTS, EXAMPLES, STEPS, BATCH = 100, 40, 20, 20
KEY = jax.random.key(0)
TURNS = fjs.layout.turns()


def data(sizes: Any = EXAMPLES) -> fjs.FederatedDataset:
    """Clients with centres of their own; labels from one linear model."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(CLIENTS), sizes)
    x = rng.normal(size=(len(owners), 60)).astype(np.float32)
    x += rng.normal(size=(CLIENTS, 60)).astype(np.float32)[owners]
    y = np.argmax(x @ rng.normal(size=(60, 10)), axis=1)
    return fjs.datasets.from_ids({"x": x, "y": y}, owners, num_classes=10)


def objective(rounds: int, adjoint: adjoints.Adjoint | None, **changes: Any) -> Callable[..., jax.Array]:
    """The final loss by three hyper-parameters."""
    run = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(STEPS), "batches": fjs.local.in_order(BATCH), **changes}

    def loss(theta: jax.Array, dataset: fjs.FederatedDataset) -> jax.Array:
        rate, mu, weight_decay = theta
        task = fjs.classification(fjs.models.LogisticRegression(10), weight_decay=weight_decay)
        train = fjs.make_train(task=task, rounds=rounds, eval_every=rounds, adjoint=adjoint, **run)
        algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(rate), mu=mu)
        return train(algorithm, dataset, KEY).metrics["loss"][-1]

    return loss


Differentiate = Callable[..., Any]
HEAD = f"{'':<34} {'seconds':>8} {'x forward':>10} {'MB':>10} {'compile s':>10}  gradient (rate, mu, weight decay)"


class Table:
    """Prints a line for each program.

    Args:
      options: of the command line.
      rounds: for which the memory is looked up.
      timed: which are run.
      dataset: the data.
      theta: where.
    """

    def __init__(
        self, options: argparse.Namespace, rounds: int, timed: int, dataset: fjs.FederatedDataset, theta: list[float]
    ) -> None:
        self.options, self.rounds, self.timed = options, rounds, timed
        self.arguments = jnp.array(theta, jnp.float32), dataset
        self.base: float | None = None

    def line(self, name: str, differentiate: Differentiate, adjoint: adjoints.Adjoint | None, **run: Any) -> float:
        """Compiles, runs and prints one program; its seconds (NaN where it is not run)."""
        start = time.perf_counter()
        megabytes, program = self.compiled(differentiate, adjoint, self.rounds, run)
        cells = f"{megabytes:>10.1f} {time.perf_counter() - start:>10.1f}"
        if megabytes > 1e3 * self.options.most:
            print(f"{name:<34} {'-':>8} {'-':>10} {cells}  not run", flush=True)
            return float("nan")
        if self.timed != self.rounds:
            _, program = self.compiled(differentiate, adjoint, self.timed, run)
        seconds, found = float("inf"), None
        for _ in range(self.options.repeats):
            start = time.perf_counter()
            found = jax.block_until_ready(program(*self.arguments))
            seconds = min(seconds, time.perf_counter() - start)
        ratio = "" if self.base is None else f"{seconds / self.base:.2f}"
        numbers = np.asarray(found).ravel()
        shown = "" if numbers.size == 1 else ", ".join(f"{number:.5g}" for number in numbers)
        print(f"{name:<34} {seconds:>8.2f} {ratio:>10} {cells}  {shown}", flush=True)
        return seconds

    def compiled(
        self, differentiate: Differentiate, adjoint: adjoints.Adjoint | None, rounds: int, run: dict[str, Any]
    ) -> tuple[float, Any]:
        """``(MB beyond the arguments, program)``."""
        program = jax.jit(differentiate(objective(rounds, adjoint, **run))).lower(*self.arguments).compile()
        return program.memory_analysis().temp_size_in_bytes / 1e6, program


def itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """No derivative."""
    return function


def long_run(options: argparse.Namespace) -> None:
    """The first table."""
    timed = min(options.timed, options.rounds)
    table = Table(options, options.rounds, timed, data(), [0.02, 0.1, 1e-3])
    print(f"{CLIENTS} clients, {STEPS} steps each; MB of {options.rounds} rounds, seconds of {timed}\n{HEAD}")
    table.base = table.line("forward", itself, None, layout=TURNS)
    last = max(timed // 10, 1)
    for name, adjoint in (
        ("reverse, per_round()", adjoints.per_round()),
        ("reverse, nested()", adjoints.nested()),
        ("reverse, nested(levels=3)", adjoints.nested(levels=3)),
        (f"reverse, truncated({last})", adjoints.truncated(last)),
        ("reverse, direct()", adjoints.direct()),
    ):
        table.line(name, jax.grad, adjoint, layout=TURNS)
    table.line("forward mode of 3, forward()", jax.jacfwd, adjoints.forward(), layout=TURNS)


def fixed_point(options: argparse.Namespace) -> None:
    """The second table: full batches and a stronger penalty, so that the rounds settle."""
    rounds = max(min(options.timed, options.rounds), 20)
    table = Table(options, rounds, rounds, data(), [0.1, 0.1, 0.1])
    full = {"batches": fjs.local.full_batch(EXAMPLES)}
    print(f"\nfull batches, {rounds} rounds: a fixed point\n{HEAD}")
    table.base = table.line("forward", itself, None, **full, layout=TURNS)
    for name, adjoint in (
        ("reverse, nested()", adjoints.nested()),
        ("implicit(neumann())", adjoints.implicit()),
        ("implicit(gmres())", adjoints.implicit(adjoints.gmres())),
    ):
        table.line(name, jax.grad, adjoint, **full, layout=TURNS)


def schedules() -> None:
    """The third table."""
    rng = np.random.default_rng(1)
    uneven = data(np.minimum((20 + rng.pareto(1.5, CLIENTS) * 20).astype(int), 2000))
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))
    task = fjs.classification(fjs.models.LogisticRegression(10))
    print("\nthe reverse schedule's iterations over useful steps, 100 rounds, cohorts of 10")
    print(f"{'':<44} {'useful':>8} {'any key':>8} {'this key':>9} {'ratio':>6} {'ratio':>6}")
    for name, dataset, work in (
        ("equal sizes, 20 steps", data(), fjs.local.steps(20)),
        ("equal sizes, U{1..5} epochs", data(), fjs.local.random_epochs(1, 5)),
        ("equal sizes, N(20, 10) steps, at most 50", data(), fjs.local.gaussian_steps(20, 10, 50)),
        ("power-law sizes, 1 epoch", uneven, fjs.local.epochs(1)),
        ("power-law sizes, U{1..5} epochs", uneven, fjs.local.random_epochs(1, 5)),
    ):
        bound = adjoints.reverse_bound(
            algorithm, dataset, KEY, task=task, rounds=100, cohort=fjs.cohort.uniform(10), work=work, batch_size=BATCH
        )
        print(
            f"{name:<44} {bound.useful:>8.1f} {bound.static_per_cohort:>8} {bound.per_cohort:>9} "
            f"{bound.static_ratio:>6.2f} {bound.ratio:>6.2f}",
            flush=True,
        )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--timed", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--most", type=float, default=2.0, help="GB beyond which a program is not run")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0]}, {os.cpu_count()} cores, float32")
    long_run(options)
    fixed_point(options)
    schedules()


if __name__ == "__main__":
    main()
