"""EMNIST among 100 clients of given similarity, and what Tables 3, 4 and 5 have in common.

The paper does not say which split of EMNIST it uses. There are two here: letters, 26 classes of equal size, and by
class, 62 of unequal size, of which half of the test files is at hand.

Each image is divided by its Euclidean norm. The paper says neither how it scales the pixels nor which step sizes it
tries. Its numbers suggest that all methods took the same one, the largest of their grid: with IID clients SGD needs 416
rounds, FedAvg 83 with 5 local steps and 4 with 100, so rounds x steps hardly change. The scale and the grid of Tables 3
and 4 are chosen so that SGD's rounds are near the paper's: with images of norm one, 1 is the largest step size for the
letters and 3 by class. With pixels in [0, 1] and the same grids SGD needs 12 to 40 rounds, of the letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets import partition
from fedjax_sim.papers.bench import Bench, Claim, Scale, Setting, mapped

CLIENTS, SAMPLED = 100, 20
BATCH, STEPS = 0.2, 5  # of a client's images, and so steps an epoch
MU = 1.0  # of FedProx
SIMILARITIES = (0.0, 10.0, 100.0)  # per cent
DATA_SEED = 0
IMAGES, TEST_IMAGES = 60, 20  # of each client, at the CPU size
SMOKE_CLIENTS, SMOKE_SAMPLED = 8, 4


class Split(NamedTuple):
    """One of EMNIST's splits."""

    name: str
    file: str  # added to the names of its figures
    read: Callable[[float], fjs.FederatedDataset]  # of a similarity in per cent: bytes
    published: int  # training images of the split as it is published
    rates: tuple[float, ...]  # step sizes of Tables 3 and 4


def _letters(percent: float) -> fjs.FederatedDataset:
    return fjs.datasets.emnist_similarity(percent, CLIENTS, seed=DATA_SEED, scaled=False)


def _by_class(percent: float) -> fjs.FederatedDataset:
    def choose(labels: np.ndarray) -> partition.Partition:
        return partition.similarity(labels, CLIENTS, percent, seed=DATA_SEED)

    return fjs.datasets.emnist_byclass(partition=choose, seed=DATA_SEED, scaled=False)


SPLITS = (
    Split("letters", "", _letters, 124_800, (1.0, 0.3, 0.1)),
    Split("by class", "-by-class", _by_class, 697_932, (3.0, 1.0, 0.3)),
)


def clients_of(bench: Bench, split: Split, percent: float, *, norm: bool = True) -> fjs.FederatedDataset:
    """The data set of a split and similarity; images have norm one, or pixels in [0, 1]."""
    scaled = unit_norm if norm else unit_range

    def real() -> fjs.FederatedDataset:
        full = split.read(percent)
        return scaled(full if bench.size == "paper" else fewer(full, IMAGES, TEST_IMAGES))

    return bench.load(f"EMNIST {split.name}", real, lambda: scaled(_digits(bench, percent)), "scikit-learn's digits")


def of_split(bench: Bench, split: Split, data: fjs.FederatedDataset, claims: Iterable[Claim]) -> list[Claim]:
    """Claims as those of a split: each says so, and which share of the published images was used."""
    pixels = bench.choose("8 x 8", "14 x 14", "")
    scale = Scale(round(data.num_examples / split.published, 6), model=f"inputs of {pixels} pixels" if pixels else "")
    return [claim._replace(statement=f"{split.name}: {claim.statement}", scale=scale) for claim in claims]


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
    test = CLIENTS * TEST_IMAGES
    few = f"letters and by class, {IMAGES} images a client, 14 x 14 pixels; {test} test images"
    full = "letters (26 classes), all 124,800 images; by class (62), 46,462 images: half of its test files, less 20 %"
    row = bench.setting
    return [
        row("data", "EMNIST, split not given", full, smoke="digits", cpu=few),
        row("scale of the images", "not given", "norm 1; a variant of Table 3 has pixels in [0, 1]"),
        row("clients", "100", smoke=SMOKE_CLIENTS),
        row("local batches", "0.2 of the local data: 5 steps an epoch"),
        row("global step size, FedProx's mu, SCAFFOLD", "1, 1, option II"),
        row("seeds", "not given", len(bench.seeds)),
    ]
