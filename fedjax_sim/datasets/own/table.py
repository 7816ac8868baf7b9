"""Data sets from a table of any kind with a column that names the client."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import check_regular, parsing
from fedjax_sim.core.values import shown, suggest
from fedjax_sim.datasets.array_checks import host_array, missing_values
from fedjax_sim.datasets.calls import answers
from fedjax_sim.datasets.columns import column_of, names_of, side_by_side
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset, named
from fedjax_sim.datasets.reading.archives import CHUNK, open_bounded
from fedjax_sim.datasets.validate import check_room, checked_owner

_MAX_BYTES = 2**33  # of a file's columns once they are arrays
_LONGEST = 1 << 24  # bytes of a row of a csv file
_INDEX = re.compile("__index_level_[0-9]+__")  # what pandas calls an index without a name in parquet and Arrow


@answers({2: "from_table({0}, client={1}, y=...)", 3: "from_table({0}, client={1}, y={2})"})
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
      table: a mapping of columns (arrays of any rank), a data frame of pandas or polars, a pyarrow Table, a Hugging
        Face Dataset, or the path of a ``.csv`` or ``.parquet`` file (read with pyarrow, ``pip install
        'fedjax_sim[tables]'``). Columns that are not asked for are not read.
      client: the column of client ids, integers or strings, as in :func:`from_ids`. A csv column with ``007`` is one of
        strings, in which ``7`` is another client.
      x: the columns of features, side by side: [n, k]; one name takes that column as it is, [n] or [n, ...]; None all
        columns but ``client``, ``y`` and what pandas wrote of a data frame's index (row numbers, mostly).
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
      ValueError: an unknown column, missing values, strings that are not to be encoded, integers that would be rounded
        as floats beside others.
      TypeError: not a table; columns that are neither all numbers nor all strings; a client column of floats.

    Example:
      >>> table = {"site": ["b", "a", "b"], "age": [40, 51, 62], "dose": [0.5, 1.0, 1.5], "ill": [0, 1, 1]}
      >>> data = from_table(table, client="site", x=["age", "dose"], y="ill")
      >>> data.client(1)["x"].tolist()
      [[40.0, 0.5], [62.0, 1.5]]
    """
    encode = [encode] if isinstance(encode, str) else encode
    from_csv = isinstance(table, (str, os.PathLike)) and ".csv" in Path(table).suffixes
    table, names = _named(table)
    features = [x] if isinstance(x, str) else list(names if x is None else x)
    if x is None:
        # In an Arrow table that was made of a data frame pandas has noted what was its index.
        noted = getattr(getattr(table, "schema", None), "pandas_metadata", None) or {}
        index = noted.get("index_columns", [])
        features = [name for name in features if name not in (client, y, *index) and not _INDEX.fullmatch(name)]
        if "" in features:
            raise ValueError(
                "from_table: a column has no name, and x=None would make it a feature: pandas writes a table's row "
                "numbers like that (to_csv(index=False) does not); name the features with x=, or give it a name"
            )
    used = [client] if y is None else [client, y]
    for where, asked, known in (("", [*used, *features], [*names]), ("(encode=...)", encode, [*features, *used[1:]])):
        for column in asked:
            if column not in known:
                raise ValueError(f"from_table{where}: there is no column {shown(column)}: {suggest(column, known)}")
    if len({*used, *features}) < len(used) + len(set(features)):
        raise ValueError(
            f"from_table(client={client!r}, x={shown(features)}, y={y!r}): a column has two of these parts: a model "
            "would only read it off"
        )
    if not features:
        raise ValueError("from_table: there are no features: name one column or more with x=")
    columns = {}
    for text in [*used, *features]:
        column = column_of(table, names[text])
        columns[text] = _column(text, _of_texts(text, column, text in (client, *encode)) if from_csv else column)
    lengths = {name: column.shape[0] for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"from_table: the columns have different lengths: {lengths}; one row for each example in all")
    if not lengths[client]:
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
        parts.append((name, part))
    return side_by_side("from_table", parts)


def _feature(name: str, column: np.ndarray, encoded: bool) -> np.ndarray:
    if not encoded:
        return _numbers("x", name, column)
    codes = _codes(column)
    count = int(codes.max(initial=0)) + 1
    check_room(f"from_table(encode=...): a column for each value of {name!r}", codes.size, count)
    return (codes[:, None] == np.arange(count)).astype(np.uint8)


def _numbers(what: str, name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "U":
        texts = column.reshape(-1).tolist()
        first = min(texts, key=_is_number)  # the first that is none, if there is one
        meaning = "class numbers" if what == "y" else "one column of 0 and 1 for each value"
        raise ValueError(
            f"from_table: the column {name!r} ({what}) has strings, first {shown(first)}: name "
            f"it in encode=[{name!r}] to have {meaning}, or leave it out"
        )
    return column


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(np.isfinite(float(text)))
    return False


def _codes(column: np.ndarray) -> np.ndarray:
    """The place of each value among the sorted values."""
    if column.ndim != 1 or column.dtype.kind == "f":
        raise ValueError(f"from_table(encode=...): a column {column.dtype}{list(column.shape)} has no categories")
    return np.unique(column, return_inverse=True)[1].astype(np.int64)


def _named(table: Any) -> tuple[Any, dict[str, Any]]:
    """A table, read if it is a file, and the names of its columns."""
    if isinstance(table, (str, os.PathLike)):
        table = _read(Path(table))
    names = names_of("from_table", table)
    if names is None:
        first = ": .collect() it first, or" if hasattr(table, "collect") else ":"
        raise TypeError(
            f"from_table: a {type(table).__name__} is not a table{first} give a mapping of columns, a data frame of "
            "pandas or polars, a pyarrow Table, a Hugging Face Dataset, or the path of a csv or parquet file"
        )
    return table, names


def _read(path: Path) -> Any:
    csv = ".csv" in path.suffixes
    if not csv and not {".parquet", ".pq"} & set(path.suffixes):
        raise ValueError(f"from_table: {path} ends in neither .csv nor .parquet: read it yourself and give the table")
    check_regular(path)
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"from_table reads {path.name} with pyarrow: install it with pip install 'fedjax_sim[tables]', or read the "
            "file yourself and give the table"
        ) from error
    with parsing(path, f"is not a readable {'csv' if csv else 'parquet'} file", "write it again"):
        if csv:
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
        table.column_names  # noqa: B018  # looked at here, as texts are, where what is no UTF-8 is the file's error
    return table


def _csv_texts(path: Path) -> Any:
    """A csv file with all cells as texts: what pyarrow guesses of them makes 7 of 007, and floats of long integers.

    Arrow is given memory of its own. Its threads read ahead, and one that asks a stream of Python for more at the wrong
    moment (the interpreter ends, tracemalloc stops) takes the process with it.
    """
    from pyarrow import BufferOutputStream, BufferReader, csv, string

    unpacked = BufferOutputStream()
    with open_bounded(path, _MAX_BYTES) as stream:
        while block := stream.read(CHUNK):
            unpacked.write(block)
    content = unpacked.getvalue()
    # A text may go over several lines. Without this Arrow begins a block of the file in the middle of one.
    given = {
        "read_options": csv.ReadOptions(block_size=_LONGEST),
        "parse_options": csv.ParseOptions(newlines_in_values=True),
    }
    names = csv.open_csv(BufferReader(content), **given).schema.names
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, string()), strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    table = csv.read_csv(BufferReader(content), **given, convert_options=options)
    last = table[-1][-1].as_py() if table.num_rows else None
    if last is not None:
        opened = (',"' + last.replace('"', '""')).encode()  # Arrow takes all that follows
        if content[max(content.size - len(opened), 0) :].to_pybytes() == opened:
            raise ValueError("a quote is opened and never closed")
    return table


def _of_texts(name: str, column: Any, written: bool) -> Any:
    """A column of strings as integers, floats, truth values or texts: what all of its cells are.

    Where cells name something (``written``) ``007`` is no ``7``, and integers are only what Python writes like that.
    """
    import pyarrow
    from pyarrow import compute

    empty = np.asarray(compute.fill_null(compute.equal(column, ""), True))
    if empty.any():
        raise missing_values(f"from_table: the column {name!r}", empty)
    cells = column if written else compute.utf8_trim_whitespace(column)

    def all_are(pattern: str) -> bool:
        return bool(compute.all(compute.match_substring_regex(cells, pattern)).as_py())

    integers = all_are("^[+-]?[0-9]+$")
    if integers and (not written or all_are("^(0|-?[1-9][0-9]*)$")):
        unsigned = compute.replace_substring(cells, "+", "")
        for kind in (pyarrow.int64(), pyarrow.uint64()):
            with contextlib.suppress(pyarrow.ArrowInvalid):
                return compute.cast(unsigned, kind)
    if integers and written:
        return column
    if integers:
        raise ValueError(
            f"from_table: the column {name!r} has integers beyond 64 bits: write them with a decimal point if floats "
            "will do, or leave the column out"
        )
    with contextlib.suppress(pyarrow.ArrowInvalid):
        return compute.cast(cells, pyarrow.float64())
    if not written and all_are("^(true|false|True|False|TRUE|FALSE)$"):
        return compute.equal(compute.utf8_lower(cells), "true")
    return column


def _column(name: str, values: Any) -> np.ndarray:
    what = f"from_table: the column {name!r}"
    array = host_array(what, values)
    if array.ndim == 0:
        raise ValueError(f"{what} is the single value {array!r}: one row for each example")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise missing_values(what, ~np.isfinite(array), "missing or infinite")
    if array.dtype.kind not in "biufU":
        times = ", seconds since a day: (t - t0) / np.timedelta64(1, 's')" if array.dtype.kind in "mM" else ""
        raise TypeError(f"{what} has dtype {array.dtype}: turn it into numbers{times}")
    return array
