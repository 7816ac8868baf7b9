"""Checksums of values, by which a run that is resumed knows its data again."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.descriptions import describe
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts
from fedjax_sim.datasets.host import HostDataset

# How the text of a data set's structure has the place of a validation part that it lacks: after the arrays of its
# clients. Left out, so that checkpoints from before there were such parts are still of the same data.
_NO_VALIDATION = "*, *, *, *, None, "
_ROWS = 4096  # examples of data on the host that are looked at: reading all of it would take as long as a round


def fingerprint(tree: Any) -> str:
    """A checksum of a pytree's structure and values, of 16 hexadecimal digits."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    heads = [f"{array.dtype}{array.shape}" for array in arrays]
    shape = str(structure).replace(_NO_VALIDATION, _NO_VALIDATION.removesuffix("None, "))
    return digest(shape.encode(), *(head.encode() for head in heads), *(a.tobytes() for a in arrays))


def dataset_fingerprint(dataset: FederatedDataset | HostDataset) -> str:
    """A checksum of a data set; of one on the host, of its clients and of 4,096 examples spread over it.

    Whose each example is, how much it weighs, and the held-out examples count there too.
    """
    if not isinstance(dataset, HostDataset):
        return fingerprint(dataset)
    leaves = jax.tree.leaves(dataset.examples)
    places = np.linspace(0, len(leaves[0]) - 1, min(_ROWS, len(leaves[0]))).astype(np.int64)
    seen = (dataset.frame, [leaf[places] for leaf in leaves], len(leaves[0]))
    held_out = [
        ("" if name == "test" else name) + dataset_fingerprint(part) for name, part in held_out_parts(dataset).items()
    ]
    # Left out where there is none, so that older checkpoints are still of the same data.
    plain = dataset.rows is None and dataset.example_weights is None
    known = fingerprint(seen if plain else (*seen, dataset.rows, dataset.example_weights))
    return digest(known.encode(), *(part.encode() for part in held_out)) if held_out else known


def described(dataset: FederatedDataset | HostDataset) -> dict[str, Any]:
    """The description of a run's data; without a recipe it tells its sizes, which cost nothing."""
    found = describe(dataset)
    return {**found, "sizes": sizes_of(dataset)} if "opaque" in found else found


def sizes_of(dataset: FederatedDataset | HostDataset) -> dict[str, Any]:
    """What is known of a data set without reading it."""
    told = {"clients": dataset.num_clients, "examples": dataset.num_examples, "max_size": dataset.max_size}
    held_out = {name: part.num_examples for name, part in held_out_parts(dataset).items()}
    return {**told, "classes": dataset.num_classes, **held_out}


def known_again(description: dict[str, Any], checksum: str) -> dict[str, Any]:
    """The description of data with their checksum, which tells more than sizes do, and older folders have no sizes."""
    return {**{key: value for key, value in description.items() if key != "sizes"}, "checksum": checksum}


def digest(*parts: bytes) -> str:
    """A checksum of some bytes, of 16 hexadecimal digits; where a part ends makes a difference."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:16]
