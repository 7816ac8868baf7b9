"""Data sets from LEAF's json files."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.datasets.array_checks import exact_floats
from fedjax_sim.datasets.construct import from_clients
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.names import named
from fedjax_sim.datasets.reading.leaf import Encode, Source, read_leaf

Users = dict[str, tuple[np.ndarray, np.ndarray]]


def from_leaf(
    train: Source,
    test: Source | None = None,
    *,
    encode: Encode | None = None,
    encode_label: Encode | None = None,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from LEAF's json files (FEMNIST, Shakespeare, Sent140, synthetic, your own).

    The file's ``num_samples`` is not used, the lengths of the lists are: in the test halves of LEAF's Shakespeare it
    is 79 too large for every user, because LEAF drops the windows that overlap the training part and keeps the count.

    Args:
      train: a file, several files, or a folder whose ``*.json`` files are read (LEAF writes one file per some
        hundred users).
      test: the same for the held-out examples, as LEAF splits them with ``-t sample``. A user without test examples
        is not tested; one without training examples is refused.
      encode: makes an array with one row per example of one user's list ``x``. Needed where x is text:
        ``Characters().encode`` for Shakespeare, a function of your own for Sent140.
      encode_label: the same for the list ``y``. Shakespeare's labels are characters, Sent140's the texts "0" and "4".
      num_classes: as in :func:`from_clients`. When it is given, labels written as whole floats become integers;
        when it is not, they are regression targets.

    Returns:
      ``{"x": ..., "y": ...}``, users in sorted order and numbered 0 .. N-1; :func:`client_names` tells who is who.

    Raises:
      FileNotFoundError: no such file or folder, or a folder without json files.
      ValueError: not LEAF's format, a user who is there twice or has no training examples, ragged or unencoded
        values; the message names the file and the user where there is one.

    Source: Caldas et al. 2018, arXiv:1812.01097, https://leaf.cmu.edu.

    Example:
      >>> import json, pathlib, tempfile
      >>> users = {"ann": {"x": [[0.5], [1.5]], "y": [0, 1]}, "rob": {"x": [[2.5]], "y": [1]}}
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "all_data_0.json"
      >>> _ = path.write_text(json.dumps({"users": list(users), "num_samples": [2, 1], "user_data": users}))
      >>> from_leaf(path)
      FederatedDataset(2 clients, 3 examples, 2 classes)
    """
    own = read_leaf(train, encode, encode_label)
    held = {} if test is None else read_leaf(test, encode, encode_label)
    own_nothing = [name for name, (x, _) in own.items() if len(x) == 0]
    if own_nothing:
        raise ValueError(
            f"{len(own_nothing)} users have no training examples (first: {own_nothing[0]!r}): remove them from the "
            "file, as LEAF's preprocess.sh does with -k 1"
        )
    strangers = [name for name, (x, _) in held.items() if len(x) and name not in own]
    if strangers:
        raise ValueError(
            f"{len(strangers)} users of the test files have no training examples (first: {strangers[0]!r}): split with "
            "LEAF's -t sample, or read the test files as a data set of their own, from_leaf(test)"
        )
    parts = [pair for part in (own, held) for pair in part.values() if len(pair[0])]
    as_float = [_mixed([pair[position] for pair in parts]) for position in (0, 1)]

    def prepared(name: str, pair: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
        x, y = (
            exact_floats(f"{what} of the user {name!r}", array) if f else array
            for what, array, f in zip("xy", pair, as_float, strict=True)
        )
        whole = num_classes is not None and y.dtype.kind == "f" and bool(np.all(y == np.rint(y)))
        return {"x": x, "y": y.astype(np.int64) if whole else y}

    data = from_clients(
        [prepared(name, pair) for name, pair in own.items()],
        test=[_tested(held, name, prepared) for name in own] if held else None,
        num_classes=num_classes,
    )
    return named(data, list(own))


def _tested(held: Users, name: str, prepared: Any) -> Any:
    pair = held.get(name)
    return None if pair is None or len(pair[0]) == 0 else prepared(name, pair)


def _mixed(arrays: list[np.ndarray]) -> bool:
    """Whether json wrote the numbers of some users as integers and of others as floats."""
    kinds = {"f" if array.dtype.kind == "f" else "i" for array in arrays}
    return len(kinds) == 2
