"""Data sets prepared by tensorflow-datasets, read without TensorFlow, straight from the prepared folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset, named
from fedjax_sim.datasets.from_arrays import check_split
from fedjax_sim.datasets.own.tfds_columns import chosen_columns, open_builder, read_split
from fedjax_sim.datasets.sources.sharing import clients_of, deal

Partition = Sequence[Any] | Callable[[np.ndarray], Sequence[Any]]


@recipe("dataset.from_tfds")
def from_tfds(
    name: str,
    split: str = "train",
    partition: Partition | None = None,
    *,
    client: str | None = None,
    validation_split: str | None = None,
    test_split: str | None = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    features: Mapping[str, str] | None = None,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    scaled: bool = True,
    num_classes: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> FederatedDataset:
    """Any data set that tensorflow-datasets has prepared in the array_record format.

    Neither TensorFlow nor the builder's own code is imported, and nothing is downloaded. Examples come in the order in
    which they are stored, which tensorflow-datasets shuffled when it prepared them.

    Args:
      name: as in ``tfds.builder``: ``"mnist"``, ``"emnist/letters"``, ``"mnist:3.0.1"``, or a builder of your own.
      split: which examples to train on: ``"train"``, ``"train[:10%]"``, ``"train+validation"``, ...
      partition: who holds which of them, where no feature says so: the rows of each client, or a function that makes
        them from the labels "y", for instance ``functools.partial(partition.dirichlet, num_clients=100, alpha=0.1,
        seed=0)`` (:mod:`fedjax_sim.datasets.partition`).
      client: instead of ``partition``: the feature that names the client of each example, an integer or a text.
        Integers become the ``client_ids``; texts are numbered in sorted order.
      validation_split: examples to choose by, as ``test_split``.
      test_split: examples to test on. With ``partition`` they are dealt to the clients uniformly at random, in numbers
        that differ by at most one; with ``client`` everybody gets their own, and a client who has test examples only
        is an error.
      test_fraction: instead of ``test_split``: share of each client's examples to hold out.
      seed: of the held-out examples or their deal.
      features: ``{our name: the builder's feature}``, ``{"x": "image", "y": "label"}``, nested ones as
        ``"outer/inner"``; by default "x" and "y" are the builder's supervised pair. No other feature is decoded.
      transform: makes the pytree that is kept from one example's ``{our name: value}``: arrays, numbers, bytes (of
        texts, which must become numbers) and lists (of sequences, which must become equally long).
      scaled: whether images of bytes become float32 in [0, 1] and do not stay uint8; not with a ``transform``.
      num_classes: by default the builder's own, where "y" is one of its class labels.
      data_dir: the folder that holds the prepared data sets; by default that of tensorflow-datasets.

    Returns:
      The data set. It describes itself fully (:func:`fedjax_sim.describe`) where ``client`` is used without a
      ``transform``; functions are recorded as opaque.

    Raises:
      ImportError: tensorflow-datasets, array-record or pillow is missing.
      FileNotFoundError: the data set is not prepared; the message has the command that prepares it.
      ValueError: a builder, split or feature that does not exist, data in a format without random access, values
        whose shapes differ between examples, or bad values (as in :func:`fedjax_sim.datasets.from_ids`).
      TypeError: texts without a ``transform``, clients that are neither integers nor texts.

    Source: https://www.tensorflow.org/datasets/data_source.
    """
    if (partition is None) == (client is None):
        raise ValueError(
            "from_tfds: who holds the examples? Give either partition=functools.partial(partition.dirichlet, "
            "num_clients=..., alpha=..., seed=...) or client='the feature that names the client'"
        )
    check_split(test_split, test_fraction, seed)  # before anything is read
    check_flag("from_tfds(scaled=...)", scaled)
    builder = open_builder(name, data_dir)
    columns = chosen_columns(builder, features, client, transform, scaled)
    classes = columns.num_classes if num_classes is None else num_classes
    examples, ids = read_split(builder, split, columns)
    held_out: dict[str, Any] = {}
    for part, its_split in (("validation", validation_split), ("test", test_split)):
        if its_split is not None:
            held_out[part], held_out[f"{part}_ids"] = read_split(builder, its_split, columns)
    if ids is not None:
        data = from_ids(examples, ids, **held_out, test_fraction=test_fraction, seed=seed, num_classes=classes)
        return named(data, np.unique(ids).tolist()) if ids.dtype.kind == "U" else data
    if callable(partition):
        if not isinstance(examples, Mapping) or "y" not in examples:
            raise ValueError(
                "from_tfds(partition=...): a function makes the rows of each client from the labels 'y', but the "
                "examples have none: name them, features={'x': ..., 'y': ...}, or give the rows themselves"
            )
        partition = partition(examples["y"])
    assert partition is not None
    if not held_out:
        return from_partition(examples, partition, test_fraction=test_fraction, seed=seed, num_classes=classes)
    for part in ("validation", "test"):
        if part in held_out:
            held_out[f"{part}_ids"] = deal(len(jax.tree.leaves(held_out[part])[0]), len(partition), seed)
    rows, owner = clients_of(partition, examples)
    examples = jax.tree.map(lambda leaf: leaf[rows], examples)
    return from_ids(examples, owner, **held_out, test_fraction=test_fraction, seed=seed, num_classes=classes)
