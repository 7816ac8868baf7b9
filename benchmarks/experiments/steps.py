"""What a local step costs in the experiments that want a GPU: time and memory at the paper's size.

    python -m benchmarks.experiments.steps [--methods]

prints of each model its parameters, processor seconds of one gradient on a batch (median), and what the traced and
compiled gradient holds beside model and batch; with ``--methods`` processor seconds of a local step of every method of
the two benchmarks, from a round of few images. The tables of docs/reproductions are from it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.benchmarks import niid, pfllib
from fedjax_sim.papers.fedaware.tasks import BATCH, PADDING, TOKENS
from fedjax_sim.papers.fednova import cifar

CLIENTS, IMAGES = 5, 100  # of a round that is timed, and of each client


class Case(NamedTuple):
    """A model as an experiment has it."""

    model: Any
    inputs: tuple[int, ...]  # of one example
    batch: int
    classes: int
    repeats: int
    words: int = 0  # of the vocabulary, where the inputs are numbers of words


CASES = {
    "fedaware, CIFAR-10": Case(fjs.models.CifarCNN(10), (32, 32, 3), BATCH, 10, 20),
    "fedaware, CIFAR-100": Case(fjs.models.ResNet18(100), (32, 32, 3), BATCH, 100, 3),
    "fedaware, AG News": Case(fjs.models.GPTNeoXClassifier(4, padding=PADDING), (TOKENS,), BATCH, 4, 2, 50_000),
    "fednova-table1": Case(fjs.models.VGG11(10), (32, 32, 3), cifar.BATCH, 10, 5),
    "pfllib": Case(fjs.models.LeNet(10, **pfllib.NETWORK), (28, 28, 1), pfllib.BATCH, 10, 50),
    "niid": Case(fjs.models.LeNet(10), (28, 28, 1), niid.BATCH, 10, 50),
}


def step_of(case: Case) -> tuple[int, float, float]:
    """Parameters, processor seconds of a gradient, MB that it holds beside its arguments."""
    rng = np.random.default_rng(0)
    shape = (case.batch, *case.inputs)
    x = rng.integers(PADDING + 1, case.words, shape) if case.words else rng.standard_normal(shape)
    batch = {"x": jnp.asarray(x, jnp.int32 if case.words else jnp.float32), "y": jnp.arange(case.batch) % case.classes}
    task = fjs.classification(case.model)
    params = jax.jit(case.model.init)(jax.random.key(0), batch["x"][:1])
    gradient = jax.grad(lambda params, held: jnp.mean(task.losses(params, held)))
    step = jax.jit(gradient).lower(params, batch).compile()
    memory: Any = step.memory_analysis()
    jax.block_until_ready(step(params, batch))
    seconds = []
    for _ in range(case.repeats):
        start = time.process_time()
        jax.block_until_ready(step(params, batch))
        seconds.append(time.process_time() - start)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return size, float(np.median(seconds)), (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e6


def of_methods() -> None:
    """A local step of each method, in a run of five clients with 100 images each; no evaluation is in it."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((CLIENTS, IMAGES, 28, 28, 1)).astype(np.float32)
    held: list[dict[str, Any]] = [{"x": x, "y": np.arange(IMAGES) % 10} for x in images]
    test = [{name: values[:1] for name, values in of.items()} for of in held]
    data = fjs.datasets.from_clients(held, test=test, num_classes=10)
    solver: dict[str, Any] = {"client_optimizer": fjs.optim.sgd(niid.RATE, niid.MOMENTUM)}
    four = {"FedAvg": fjs.fedavg(**solver), "FedProx": fjs.fedprox(**solver, mu=0.01),
            "SCAFFOLD": fjs.scaffold(**solver, option="II"), "FedNova": fjs.fednova(**solver)}  # fmt: skip
    steps = IMAGES // pfllib.BATCH
    many = {name: entry.make(pfllib.RATE, steps) for name, entry in pfllib.METHODS.items() if name != pfllib.TUNED}
    for experiment, methods, batch in (("pfllib", many, pfllib.BATCH), ("niid", four, niid.BATCH)):
        for name, method in methods.items():
            seconds = {}
            for rounds in (1, 4):
                setting: dict[str, Any] = {
                    "task": fjs.classification(CASES[experiment].model), "rounds": rounds, "cohort": fjs.cohort.full(),
                    "work": fjs.local.epochs(1), "batch_size": batch, "eval_every": rounds, "evaluate_train": False,
                }  # fmt: skip
                fjs.simulate(method, data, **setting)  # compiles
                start = time.process_time()
                fjs.simulate(method, data, **setting)
                seconds[rounds] = time.process_time() - start
            taken = (seconds[4] - seconds[1]) / (3 * CLIENTS * -(-IMAGES // batch))
            print(f"{experiment}, {name}: {taken:.3g} s a step", flush=True)


def main() -> None:
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--methods", action="store_true", help="steps of the two benchmarks' methods in its place")
    if parser.parse_args().methods:
        return of_methods()
    for name, case in CASES.items():
        size, seconds, held = step_of(case)
        print(f"{name}: {size:,} parameters, {seconds:.3g} s a step, {held:.0f} MB beside model and batch", flush=True)


if __name__ == "__main__":
    main()
