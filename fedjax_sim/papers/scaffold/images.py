"""EMNIST among 100 clients of given similarity, and what Tables 3, 4 and 5 have in common.

Each image is divided by its Euclidean norm. The paper says neither how it scales the pixels nor which step sizes it
tries. Its numbers suggest that all methods took the same one, the largest of their grid: with IID clients SGD needs 416
rounds, FedAvg 83 with 5 local steps and 4 with 100, so rounds x steps hardly change. The scale and the grid are chosen
so that SGD's rounds are near the paper's, which images of norm one and 1 as the largest step size make; with pixels in
[0, 1] and the same grid it needs 12 to 40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets import partition
from fedjax_sim.papers.bench import Bench, Setting, mapped

CLIENTS, SAMPLED = 100, 20
BATCH, STEPS = 0.2, 5  # of a client's images, and so steps an epoch
MU = 1.0  # of FedProx
SIMILARITIES = (0.0, 10.0, 100.0)  # per cent
DATA_SEED = 0
IMAGES, TEST_IMAGES = 60, 20  # of each client, at the CPU size
SMOKE_CLIENTS, SMOKE_SAMPLED = 8, 4


def clients_of(bench: Bench, percent: float, *, norm: bool = True) -> fjs.FederatedDataset:
    """The data set of a similarity; images have norm one, or pixels in [0, 1]."""
    scaled = unit_norm if norm else unit_range

    def real() -> fjs.FederatedDataset:
        full = fjs.datasets.emnist_similarity(percent, CLIENTS, seed=DATA_SEED, scaled=False)
        return scaled(full if bench.size == "paper" else fewer(full, IMAGES, TEST_IMAGES))

    return bench.load("EMNIST letters", real, lambda: scaled(_digits(bench, percent)), "scikit-learn's digits")


def _digits(bench: Bench, percent: float) -> fjs.FederatedDataset:
    everything = fjs.datasets.digits(num_clients=1, test_fraction=0.0).client(0)
    if bench.size == "smoke":
        everything = {name: values[:320] for name, values in everything.items()}
    clients = bench.choose(SMOKE_CLIENTS, CLIENTS)
    rows = partition.similarity(everything["y"], clients, percent, seed=DATA_SEED)
    return fjs.datasets.from_partition(everything, rows, test_fraction=0.25, seed=DATA_SEED, num_classes=10)


def fewer(full: fjs.FederatedDataset, images: int, test_images: int) -> fjs.FederatedDataset:
    """A random part of each client's images, 28 x 28 pixels averaged to 14 x 14, as vectors; of vectors of 784."""
    rng = np.random.default_rng(DATA_SEED)

    def some(of: fjs.FederatedDataset, count: int) -> Iterator[dict[str, Any]]:
        for position in range(of.num_clients):
            examples = of.client(position)
            rows = np.sort(rng.permutation(len(examples["y"]))[:count])
            pixels = examples["x"][rows].astype(np.float32).reshape(-1, 14, 2, 14, 2)
            yield {"x": pixels.mean(axis=(2, 4)).reshape(len(rows), 196), "y": examples["y"][rows]}

    assert full.test is not None  # the official test images
    return fjs.datasets.from_clients(
        list(some(full, images)), test=list(some(full.test, test_images)), num_classes=full.num_classes
    )


def unit_norm(dataset: fjs.FederatedDataset) -> fjs.FederatedDataset:
    """The same images, each divided by its Euclidean norm."""

    def scaled(x: jax.Array) -> jax.Array:
        images = x.astype(jnp.float32)
        return images / jnp.maximum(jnp.linalg.norm(images, axis=1, keepdims=True), 1e-9)

    return mapped(dataset, "x", scaled)


def unit_range(dataset: fjs.FederatedDataset) -> fjs.FederatedDataset:
    """The same images, divided by the largest pixel of all."""
    largest = float(dataset.examples["x"].max())
    return mapped(dataset, "x", lambda x: x.astype(jnp.float32) / largest)


def work(epochs: int, most: int, rounds: int, dataset: fjs.FederatedDataset) -> fjs.local.Work:
    """5 steps an epoch for everybody, given as an array: other numbers of epochs up to ``most`` compile nothing."""
    steps = jnp.full((rounds, dataset.num_clients), epochs * STEPS, jnp.int32)
    return fjs.local.given_steps(steps, most=most * STEPS)


METHODS: dict[str, Callable[[float], Method]] = {  # of a local step size; the global one is 1
    "SGD": lambda rate: fjs.large_batch_sgd(client_optimizer=fjs.optim.sgd(rate)),
    "SCAFFOLD": lambda rate: fjs.scaffold(client_optimizer=fjs.optim.sgd(rate)),
    "FedAvg": lambda rate: fjs.fedavg(client_optimizer=fjs.optim.sgd(rate)),
    "FedProx": lambda rate: fjs.fedprox(client_optimizer=fjs.optim.sgd(rate), mu=MU),
}


def settings(bench: Bench) -> list[Setting]:
    """The paper's setting beside ours, as far as all tables share it."""
    few = f"letters, {IMAGES} images a client, 14 x 14 pixels; {CLIENTS * TEST_IMAGES} test images"
    row = bench.setting
    return [
        row("data", "EMNIST, split not given", "letters (26 classes), all 124,800 images", smoke="digits", cpu=few),
        row("scale of the images", "not given", "norm 1; a variant of Table 3 has pixels in [0, 1]"),
        row("clients", "100", smoke=SMOKE_CLIENTS),
        row("local batches", "0.2 of the local data: 5 steps an epoch"),
        row("global step size, FedProx's mu, SCAFFOLD", "1, 1, option II"),
        row("seeds", "not given", len(bench.seeds)),
    ]
