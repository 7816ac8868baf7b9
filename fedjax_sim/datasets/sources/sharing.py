"""Examples to clients: what a ``partition`` argument means, and how official test examples are dealt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from fedjax_sim.core.values import check_choice, check_count
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.draws import Draws
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.validate import checked_partition

# Labels int[n] to one array of row numbers per client.
Partitioner: TypeAlias = Callable[[np.ndarray], Sequence[Any]]
Named: TypeAlias = Literal["dirichlet", "iid", "shards"]
Test: TypeAlias = Literal["official", "local"]


def partitioner(
    what: str, partition: Named | Partitioner, num_clients: int, alpha: float, shards_per_client: int, seed: int
) -> Partitioner:
    """The function that a ``partition`` argument of the function ``what`` stands for."""
    check_count(f"{what}(seed=...)", seed, low=0)
    if callable(partition):
        return partition
    known: dict[str, Partitioner] = {
        "dirichlet": lambda labels: partitions.dirichlet(labels, num_clients, alpha, seed),
        "iid": lambda labels: partitions.iid(labels.size, num_clients, seed),
        "shards": lambda labels: partitions.shards(labels, num_clients, shards_per_client, seed),
    }
    check_choice(f"{what}(partition=...)", partition, known)
    return known[partition]


def from_halves(
    what: str,
    read: Callable[[str], tuple[Any, np.ndarray]],
    classes: int,
    prepare: Callable[[Any], Any] = lambda examples: examples,
    *,
    partition: Named | Partitioner = "iid",
    num_clients: int = 1,
    alpha: float = 1.0,
    shards_per_client: int = 1,
    seed: int,
    test: Test = "official",
    test_fraction: float = 0.0,
) -> FederatedDataset:
    """The set ``what`` by a ``partition`` of its training half, (x, labels); ``read`` has "train" and "test".

    ``test="local"`` reads no other half: part of each client's own examples is held out.
    """
    choose = partitioner(what, partition, num_clients, alpha, shards_per_client, seed)
    check_choice(f"{what}(test=...)", test, ("official", "local"))
    train = read("train")
    rows = choose(train[1])
    if test == "local":
        return from_partition(prepare(train), rows, test_fraction=test_fraction, seed=seed, num_classes=classes)
    held = read("test")
    return by_rows(rows, train, held, deal(held[1].size, len(rows), seed), classes, prepare)


def by_rows(
    rows: Sequence[Any],
    train: Any,
    test: Any,
    owner: np.ndarray,
    classes: int | None,
    prepare: Callable[[Any], Any] = lambda examples: examples,
) -> FederatedDataset:
    """A data set from the training rows of each client and test examples, whose clients ``owner`` names, int[n_test].

    Examples are put in order before they are prepared: bytes that become floats are four times less to copy.
    """
    chosen, ids = clients_of(rows, train)
    examples = prepare(jax.tree.map(lambda leaf: leaf[chosen], train))
    return from_ids(examples, ids, test=prepare(test), test_ids=owner, num_classes=classes)


def clients_of(rows: Sequence[Any], examples: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all clients of a partition of the examples end to end, and the client of each."""
    if len(rows) == 0:
        raise ValueError("the partition has no clients; a data set needs at least one")
    chosen, sizes = checked_partition(rows, len(jax.tree.leaves(examples)[0]))
    return chosen, np.repeat(np.arange(sizes.size), sizes)


def deal(num_examples: int, num_clients: int, seed: int) -> np.ndarray:
    """The client of each example, int64[n], when they are dealt out at random; numbers differ by at most one."""
    return Draws("deal", seed).shuffled(num_examples) % max(1, num_clients)


def standardised(x: np.ndarray, trained: np.ndarray, axis: int | tuple[int, ...] = 0) -> np.ndarray:
    """``x`` less the mean over the ``trained`` rows, divided by their standard deviation where that is not 0."""
    spread = trained.std(axis=axis)
    return np.asarray((x - trained.mean(axis=axis)) / np.where(spread > 0, spread, 1.0))


def drawn_names(
    what: str, argument: str, count: int | None, known: list[str], stream: str, seed: int, which: str
) -> list[str]:
    """``count`` of the ``known`` names drawn without replacement, in their order; None takes all.

    Too few are an error of the function ``what`` and its ``argument``; ``which`` follows their number there.
    """
    if count is not None:
        check_count(f"{what}({argument}=...)", count)
    if not known or (count is not None and count > len(known)):
        raise ValueError(f"{what}({argument}={count}): {len(known) or 'none'} {which}")
    if count is None:
        return known
    return [known[number] for number in np.sort(Draws(stream, seed).shuffled(len(known))[:count])]
