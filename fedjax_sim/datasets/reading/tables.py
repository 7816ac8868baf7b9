"""Tables of any kind as named numpy columns."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.datasets.reading.compressed import open_bounded
from fedjax_sim.files import check_regular, parsing
from fedjax_sim.values import shown

_MAX_BYTES = 2**33  # of a file's columns once they are arrays


def columns_of(table: Any) -> dict[str, np.ndarray]:
    """The columns of a table as arrays of numbers or of strings, all of one length.

    Args:
      table: a mapping of arrays, a pandas DataFrame, a pyarrow Table (no import of either is needed), or the path of
        a ``.csv`` (with a header, compressed or not) or ``.parquet`` file, which pyarrow reads.

    Raises:
      ImportError: a path, and pyarrow is not installed.
      FileNotFoundError: no such file, or something else than a file.
      TypeError: not a table; a column that is neither numbers nor strings.
      ValueError: missing values, columns of different lengths, a name used twice, a path of another kind.
    """
    if isinstance(table, (str, os.PathLike)):
        table = _read(Path(table))
    if isinstance(table, Mapping):
        pairs = list(table.items())
    elif hasattr(table, "column_names"):  # pyarrow
        pairs = list(zip(table.column_names, table.columns, strict=True))
    elif hasattr(table, "columns") and hasattr(table, "items"):  # pandas
        pairs = list(table.items())
    else:
        raise TypeError(
            f"from_table: a {type(table).__name__} is not a table: give a mapping of columns, a pandas DataFrame, a "
            "pyarrow Table, or the path of a csv or parquet file"
        )
    names = [str(name) for name, _ in pairs]
    for name, count in collections.Counter(names).most_common(1):
        if count > 1:
            raise ValueError(f"from_table: the table has {count} columns {shown(name)}: rename them")
    columns = {name: _column(name, values) for name, (_, values) in zip(names, pairs, strict=True)}
    lengths = {name: column.shape[0] for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"from_table: the columns have different lengths: {lengths}; one row for each example in all")
    return columns


def _read(path: Path) -> Any:
    kinds = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}
    kind = next((kinds[suffix] for suffix in path.suffixes if suffix in kinds), None)
    if kind is None:
        raise ValueError(f"from_table: {path} ends in neither .csv nor .parquet: read it yourself and give the table")
    check_regular(path)
    try:
        from pyarrow import PythonFile, csv, parquet
    except ImportError as error:
        raise ImportError(
            f"from_table reads {path.name} with pyarrow: install it with pip install 'fedjax_sim[tables]', or read the "
            "file yourself and give the table"
        ) from error
    with parsing(path, f"is not a readable {kind} file", "write it again"):
        if kind == "csv":
            with open_bounded(path, _MAX_BYTES) as stream:
                return _decoded(csv.read_csv(PythonFile(stream, mode="r")))
        about = parquet.read_metadata(path)
        # a run of one value is packed into a few bytes, so both what is announced and the rows count
        announced = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        if max(announced, 8 * about.num_rows * about.num_columns) > _MAX_BYTES:
            raise ValueError(
                f"{path} announces {about.num_rows} rows of {about.num_columns} columns, {announced} bytes: more than "
                f"{_MAX_BYTES} bytes are not read: read it yourself and give the table"
            )
        return _decoded(parquet.read_table(path))


def _decoded(table: Any) -> Any:
    """The table; its names and texts are looked at now, where what is no UTF-8 is an error of the file."""
    table.validate(full=True)
    _ = table.column_names
    return table


def _column(name: str, values: Any) -> np.ndarray:
    missing = values.isna() if hasattr(values, "isna") else values.is_null() if hasattr(values, "is_null") else None
    if missing is not None:
        for row in np.flatnonzero(np.asarray(missing))[:1]:
            raise _missing(name, int(row), int(np.asarray(missing).sum()))
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError as error:
        raise _ragged(name, error) from error
    if array.ndim == 0:
        raise ValueError(f"from_table: the column {name!r} is the single value {array!r}: one row for each example")
    if array.dtype.kind == "O":
        array = _plain(name, array)
    if array.dtype.kind == "f":
        for row in np.flatnonzero(~np.isfinite(array).reshape(array.shape[0], -1).all(axis=1))[:1]:
            raise _missing(name, int(row), int((~np.isfinite(array)).sum()))
    if array.dtype.kind not in "biufU":
        fix = (
            "seconds since a day, (t - t0) / np.timedelta64(1, 's')"
            if array.dtype.kind in "mM"
            else "integers or floats"
        )
        raise TypeError(f"from_table: the column {name!r} has dtype {array.dtype}: turn it into numbers, {fix}")
    return array


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """An array of Python objects as one of numbers or strings."""
    flat = array.reshape(-1).tolist()
    for row, value in enumerate(flat):
        if value is None or (isinstance(value, float) and value != value):
            raise _missing(name, row, sum(item is None for item in flat) or 1)
    if all(isinstance(value, str) for value in flat):
        longest = max(map(len, flat), default=0)
        if 4 * longest * len(flat) > _MAX_BYTES:  # numpy gives every entry the length of the longest
            raise ValueError(
                f"from_table: the column {name!r} has {len(flat)} texts and one of {longest} characters: turn them "
                "into numbers or leave the column out"
            )
        return array.astype(str)
    if all(isinstance(value, (bool, int, float, np.number)) for value in flat):
        return np.array(array.tolist())
    try:  # a column of lists, as parquet has them
        stacked = np.array([np.asarray(value) for value in array.tolist()])
    except ValueError as error:
        raise _ragged(name, error) from error
    if stacked.dtype.kind not in "biuf":
        kinds = sorted({type(value).__name__ for value in flat})
        raise TypeError(f"from_table: the column {name!r} mixes {', '.join(kinds)}: make it all numbers or all strings")
    return stacked


def _ragged(name: str, error: ValueError) -> ValueError:
    return ValueError(
        f"from_table: the column {name!r} has lists of different lengths: pad them to one length ({error})"
    )


def _missing(name: str, row: int, count: int) -> ValueError:
    return ValueError(
        f"from_table: the column {name!r} has {count} missing or infinite values, first in row {row} (counted from 0): "
        "drop these rows or fill them in"
    )
