"""Images to clients: which training images a client gets, and which images it is tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from fedjax_sim.core.values import check_count, suggest
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.validate import checked_partition

# Labels int[n] to one array of row numbers per client.
Partitioner: TypeAlias = Callable[[np.ndarray], Sequence[Any]]
Named: TypeAlias = Literal["dirichlet", "iid", "shards"]
Test: TypeAlias = Literal["official", "local"]
# A half of a data set by its name, "train" or "test": images uint8[n, height, width, channels] and labels int[n].
Reader: TypeAlias = Callable[[str], tuple[np.ndarray, np.ndarray]]


def partitioner(
    what: str, partition: Named | Partitioner, num_clients: int, alpha: float, shards_per_client: int, seed: int
) -> Partitioner:
    """The function that a ``partition`` argument stands for.

    Args:
      what: the function that was called, for messages.
      partition: a name, or already a function.
      num_clients: number of clients, for a name.
      alpha: concentration, for "dirichlet".
      shards_per_client: for "shards".
      seed: of the partition, for a name.

    Raises:
      ValueError: an unknown name.
    """
    if callable(partition):
        return partition
    named: dict[str, Partitioner] = {
        "dirichlet": lambda labels: partitions.dirichlet(labels, num_clients, alpha, seed),
        "iid": lambda labels: partitions.iid(labels.size, num_clients, seed),
        "shards": lambda labels: partitions.shards(labels, num_clients, shards_per_client, seed),
    }
    if partition not in named:
        raise ValueError(f"{what}(partition={partition!r}): {suggest(str(partition), list(named))}")
    return named[partition]


def share_out(
    what: str,
    read: Reader,
    choose: Partitioner,
    to_features: Callable[[np.ndarray], np.ndarray],
    *,
    num_classes: int,
    test: Test,
    test_fraction: float,
    seed: int,
) -> FederatedDataset:
    """Reads, partitions and packs an image set.

    Args:
      what: the function that was called, for messages.
      read: gives the images and labels of a half; the test half is read only if it is used.
      choose: the training rows of each client.
      to_features: images to what a model gets.
      num_classes: number of classes.
      test: "official" deals the test half to the clients at random, in equal numbers; "local" holds out part of
        each client's own examples.
      test_fraction: the share held out, for "local".
      seed: of the deal and of the draw of held-out examples.

    Raises:
      ValueError: an unknown ``test``, a partition that is none.
    """
    if test not in ("official", "local"):
        raise ValueError(f"{what}(test={test!r}): {suggest(str(test), ['official', 'local'])}")
    check_count(f"{what}(seed=...)", seed, low=0)
    images, labels = read("train")
    rows = choose(labels)
    if test == "local":
        examples = (to_features(images), labels)
        return from_partition(examples, rows, test_fraction=test_fraction, seed=seed, num_classes=num_classes)
    test_images, test_labels = read("test")
    owner = deal(test_labels.size, max(1, len(rows)), seed)
    return with_test((images, labels), rows, (test_images, test_labels), owner, to_features, num_classes)


def with_test(
    train: tuple[np.ndarray, np.ndarray],
    rows: Sequence[Any],
    test: tuple[np.ndarray, np.ndarray],
    test_owner: np.ndarray,
    to_features: Callable[[np.ndarray], np.ndarray],
    num_classes: int,
) -> FederatedDataset:
    """A data set from a partition of the training half and the clients of the test half's images.

    Args:
      train: images and labels.
      rows: the training rows of each client.
      test: images and labels.
      test_owner: int[n_test], the client of each test image.
      to_features: images to what a model gets.
      num_classes: number of classes.

    Raises:
      ValueError: a partition that is none.
    """
    if len(rows) == 0:
        raise ValueError("the partition has no clients; a data set needs at least one")
    chosen, sizes = checked_partition(rows, train[1].size)
    owner = np.repeat(np.arange(sizes.size), sizes)
    # bytes are put in order, not floats: four times less to copy
    examples = (to_features(train[0][chosen]), train[1][chosen])
    return from_ids(examples, owner, test=(to_features(test[0]), test[1]), test_ids=test_owner, num_classes=num_classes)


def deal(num_examples: int, num_clients: int, seed: int) -> np.ndarray:
    """The client of each example when they are dealt out at random; numbers differ by at most one.

    Args:
      num_examples: number of examples n.
      num_clients: number of clients N; beyond n some get none.
      seed: of the deal.

    Returns:
      int64[n].
    """
    return Draws("deal", seed).shuffled(num_examples) % num_clients
