"""Tables of any kind as named numpy columns."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import check_regular, parsing
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.array_checks import host_array, missing_values
from fedjax_sim.datasets.reading.compressed import open_bounded

_MAX_BYTES = 2**33  # of a file's columns once they are arrays


def columns_of(table: Any, written: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The columns of a table as arrays of numbers or of strings, all of one length.

    Args:
      table: a mapping of arrays, a pandas DataFrame, a pyarrow Table (no import of either is needed), or the path of
        a ``.csv`` (with a header, compressed or not) or ``.parquet`` file, which pyarrow reads.
      written: the columns whose entries name something, clients or categories: of a csv file they are integers only if
        all of them are written like ``7`` or ``-7``, and texts where one is ``007``.

    Raises:
      ImportError: a path, and pyarrow is not installed.
      FileNotFoundError: no such file, or something else than a file.
      TypeError: not a table; a column that is neither all numbers nor all strings.
      ValueError: missing values, columns of different lengths, a name used twice, a path of another kind.
    """
    if isinstance(table, (str, os.PathLike)):
        table = _read(Path(table), frozenset(written))
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


def _read(path: Path, written: frozenset[str]) -> Any:
    kinds = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}
    kind = next((kinds[suffix] for suffix in path.suffixes if suffix in kinds), None)
    if kind is None:
        raise ValueError(f"from_table: {path} ends in neither .csv nor .parquet: read it yourself and give the table")
    check_regular(path)
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"from_table reads {path.name} with pyarrow: install it with pip install 'fedjax_sim[tables]', or read the "
            "file yourself and give the table"
        ) from error
    with parsing(path, f"is not a readable {kind} file", "write it again"):
        if kind == "csv":
            table = _csv_texts(path)
        else:
            about = parquet.read_metadata(path)
            # a run of one value is packed into a few bytes, so both what is announced and the rows count
            announced = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
            if max(announced, 8 * about.num_rows * about.num_columns) > _MAX_BYTES:
                raise ValueError(
                    f"{path} announces {about.num_rows} rows of {about.num_columns} columns, {announced} bytes: more "
                    f"than {_MAX_BYTES} bytes are not read: read it yourself and give the table"
                )
            table = parquet.read_table(path)
        table.validate(full=True)
        names = table.column_names  # those and the texts are looked at here, where what is no UTF-8 is the file's error
    if kind == "parquet" or len(set(names)) < len(names):
        return table
    return {name: _of_texts(name, table[name], name in written) for name in names}


def _csv_texts(path: Path) -> Any:
    """A csv file with all cells as texts: what pyarrow guesses of them makes 7 of 007, and floats of long integers."""
    from pyarrow import PythonFile, csv, string

    with open_bounded(path, _MAX_BYTES) as stream:
        names = csv.open_csv(PythonFile(stream, mode="r")).schema.names
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    with open_bounded(path, _MAX_BYTES) as stream:
        return csv.read_csv(PythonFile(stream, mode="r"), convert_options=options)


def _of_texts(name: str, column: Any, written: bool) -> Any:
    """A column of a csv file as integers, floats, truth values or texts: what all of its cells are.

    Args:
      name: of the column.
      column: of strings.
      written: whether cells name something, a client or a category: then ``007`` is no ``7``, and integers are only
        what is written as Python writes them.
    """
    import pyarrow
    from pyarrow import compute

    empty = np.asarray(compute.fill_null(compute.equal(column, ""), True))
    if empty.any():
        raise missing_values(f"from_table: the column {name!r}", empty)
    cells = column if written else compute.utf8_trim_whitespace(column)
    if _all(cells, "^(0|-?[1-9][0-9]*)$" if written else "^[+-]?[0-9]+$"):
        unsigned = compute.replace_substring(cells, "+", "")
        for kind in (pyarrow.int64(), pyarrow.uint64()):
            with contextlib.suppress(pyarrow.ArrowInvalid):
                return compute.cast(unsigned, kind)
        if written:
            return column
        row = next(
            row for row, cell in enumerate(unsigned.to_pylist())
            if len(cell) > 4000 or not -(2**63) <= int(cell) < 2**63  # Python refuses to look at more digits
        )  # fmt: skip
        raise ValueError(
            f"from_table: the column {name!r} has integers beyond 64 bits, first {shown(cells[row].as_py())} in row "
            f"{row}: write them with a decimal point if floats will do, or leave the column out"
        )
    if written and _all(cells, "^[+-]?[0-9]+$"):
        return column
    with contextlib.suppress(pyarrow.ArrowInvalid):
        return compute.cast(cells, pyarrow.float64())
    if not written and _all(cells, "^(true|false|True|False|TRUE|FALSE)$"):
        return compute.equal(compute.utf8_lower(cells), "true")
    return column


def _all(cells: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(cells, pattern)).as_py())


def _column(name: str, values: Any) -> np.ndarray:
    what = f"from_table: the column {name!r}"
    array = host_array(what, values)
    if array.ndim == 0:
        raise ValueError(f"{what} is the single value {array!r}: one row for each example")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise missing_values(what, ~np.isfinite(array), "missing or infinite")
    if array.dtype.kind not in "biufU":
        fix = (
            "seconds since a day, (t - t0) / np.timedelta64(1, 's')"
            if array.dtype.kind in "mM"
            else "integers or floats"
        )
        raise TypeError(f"{what} has dtype {array.dtype}: turn it into numbers, {fix}")
    return array
