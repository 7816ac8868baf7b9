"""Data sets from a table with a column that names the client."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedjax_sim.core.values import shown, suggest
from fedjax_sim.datasets.array_checks import exact_floats
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.names import named
from fedjax_sim.datasets.reading.tables import columns_of
from fedjax_sim.datasets.validate import checked_owner, integers_apart


def from_table(
    table: Any,
    *,
    client: str,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    encode: str | Collection[str] = (),
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
) -> FederatedDataset:
    """A data set from a table with one row for each example and a column that names its client.

    Args:
      table: a mapping of columns (arrays of any rank), a pandas DataFrame, a pyarrow Table, or the path of a ``.csv``
        or ``.parquet`` file (read with pyarrow, ``pip install 'fedjax_sim[tables]'``).
      client: the column of client ids, integers or strings; treated as the ids of :func:`from_ids`. They are what is
        written: a csv column with ``007`` is one of strings, in which ``7`` is another client.
      x: the columns of features, side by side: [n, k]. One name instead of several takes that column as it is,
        [n] or [n, ...]. None takes all columns but ``client`` and ``y``.
      y: the column of labels (integers or booleans) or regression targets (floats); None for examples without.
      encode: column or columns of categories (strings, integers or booleans). As ``y``, the i-th category in sorted
        order becomes the class i; as a feature, it becomes one column of 0 and 1 for each category.
      test_fraction: share of each client's examples to hold out, drawn uniformly, in [0, 1).
      seed: of that draw.
      num_classes: as in :func:`from_clients`.

    Returns:
      ``{"x": ..., "y": ...}``, or ``{"x": ...}`` without ``y``; :func:`client_names` tells which client is which entry.

    Raises:
      ImportError: a path, and pyarrow is not installed.
      FileNotFoundError: no such file.
      ValueError: an unknown column (the nearest is named), missing values (the row is named), strings that are not
        to be encoded, integers that would be rounded as floats beside others.
      TypeError: not a table; columns that are neither all numbers nor all strings; a client column of floats.

    Example:
      >>> table = {"site": ["b", "a", "b"], "age": [40, 51, 62], "dose": [0.5, 1.0, 1.5], "ill": [0, 1, 1]}
      >>> data = from_table(table, client="site", x=["age", "dose"], y="ill")
      >>> data.client(1)["x"].tolist()
      [[40.0, 0.5], [62.0, 1.5]]
    """
    encode = [encode] if isinstance(encode, str) else encode
    columns = columns_of(table, [client, *encode])
    features = (
        [name for name in columns if name not in (client, y)] if x is None else [x] if isinstance(x, str) else list(x)
    )
    for what, name in [
        ("client", client),
        *((("y", y),) if y is not None else ()),
        *(("x", name) for name in features),
    ]:
        if name not in columns:
            raise ValueError(f"from_table({what}={name!r}): no such column; {suggest(str(name), list(columns))}")
    for name in encode:
        if name not in features and name != y:
            raise ValueError(f"from_table(encode=...): {name!r} is neither y nor a feature: {shown([*features, y])}")
    if y == client:
        raise ValueError(f"from_table(client={client!r}, y={y!r}): one column is both the client and what is predicted")
    for name in (client, y):
        if name in features:
            raise ValueError(
                f"from_table: the column {name!r} is among the features x too: a model would only read it off"
            )
    if not features:
        raise ValueError("from_table: there are no features: name one column or more with x=")
    if not columns[client].shape[0]:
        raise ValueError("from_table: the table has no rows: a data set needs at least one example")
    examples = {
        "x": _feature(x, columns[x], x in encode) if isinstance(x, str) else _side_by_side(columns, features, encode)
    }
    if y is not None:
        examples["y"] = _codes(columns[y]) if y in encode else _numbers("y", y, columns[y])
    ids = checked_owner(columns[client], f"from_table: the column {client!r}")
    data = from_ids(examples, ids, test_fraction=test_fraction, seed=seed, num_classes=num_classes)
    return named(data, [str(name) for name in np.unique(ids).tolist()])


def _side_by_side(columns: dict[str, np.ndarray], names: Sequence[str], encode: Collection[str]) -> np.ndarray:
    parts = []
    for name in names:
        part = _feature(name, columns[name], name in encode)
        if name not in encode and part.ndim != 1:
            raise ValueError(
                f"from_table: the column {name!r} has the shape {list(part.shape)}: only columns of single numbers "
                f"stand side by side; take it alone with x={name!r}"
            )
        parts.append(part if part.ndim == 2 else part[:, None])
    if integers_apart(part.dtype for part in parts) or any(part.dtype.kind == "f" for part in parts):
        parts = [
            exact_floats(f"from_table: the column {name!r}", part) if part.dtype.kind in "iu" else part
            for name, part in zip(names, parts, strict=True)
        ]
    return np.concatenate(parts, axis=1)


def _feature(name: str, column: np.ndarray, encoded: bool) -> np.ndarray:
    if not encoded:
        return _numbers("x", name, column)
    codes = _codes(column)
    columns: np.ndarray = np.eye(int(codes.max(initial=0)) + 1, dtype=np.uint8)[codes]
    return columns


def _numbers(what: str, name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "U":
        texts = column.reshape(-1).tolist()
        first = next((text for text in texts if not _is_number(text)), texts[0])
        meaning = "class numbers" if what == "y" else "one column of 0 and 1 for each value"
        raise ValueError(
            f"from_table: the column {name!r} ({what}) has strings, first {shown(first)}: name "
            f"it in encode=[{name!r}] to have {meaning}, or leave it out"
        )
    return column


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _codes(column: np.ndarray) -> np.ndarray:
    """The place of each value among the sorted values."""
    if column.ndim != 1 or column.dtype.kind == "f":
        raise ValueError(f"from_table(encode=...): a column {column.dtype}{list(column.shape)} has no categories")
    codes: np.ndarray = np.unique(column, return_inverse=True)[1].astype(np.int64)
    return codes
