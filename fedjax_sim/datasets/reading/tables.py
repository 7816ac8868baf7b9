"""Tables as text, packed or not."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_sim.core.files import parsing
from fedjax_sim.core.values import INT32_MAX, shown
from fedjax_sim.datasets.reading.archives import CHUNK, BoundedStream, open_bounded

_LONGEST = 1 << 24  # characters of a line


def csv_rows(
    path: Path,
    columns: int | Sequence[str],
    *,
    encoding: str = "utf-8",
    skip_spaces: bool = False,
    comment: str | None = None,
    max_bytes: int = 2**31,
) -> Iterator[list[str]]:
    """The rows of a csv file, plain or packed, each with as many fields; empty lines are passed over.

    ``columns`` is their number, or their names, of which the first line must consist; ``skip_spaces`` drops those after
    a comma, ``comment`` begins lines that are passed over.

    Raises:
      ValueError: another encoding, number of fields or header, an incomplete file, or more than ``max_bytes``.
    """
    names = None if isinstance(columns, int) else list(columns)
    count = columns if isinstance(columns, int) else len(columns)
    with open_bounded(path, max_bytes) as stream:
        lines = _lines(stream, encoding)
        if comment is not None:
            lines = (line for line in lines if not line.startswith(comment))
        rows = csv.reader(lines, strict=True, skipinitialspace=skip_spaces)
        try:
            for number, row in enumerate(filter(None, rows)):
                if number == 0 and names is not None:
                    if row != names:
                        raise ValueError(
                            f"{path} has the columns {shown(row)}, and {', '.join(names)} are needed: is it the right "
                            "file?"
                        )
                    continue
                if len(row) != count:
                    raise ValueError(
                        f"{path}, line {rows.line_num}: {len(row)} fields and not {count}: is it the right file?"
                    )
                yield row
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not {encoding} text ({error}): is it the right file?") from error
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}: {error}: is the file complete?") from error


def numbers(path: Path, rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Fields as float64[rows, fields]; a ValueError where there are none, or one is no finite number."""
    with parsing(path, "is not a table of numbers"):
        table = np.array(rows, dtype=float)
    if not table.size or not np.isfinite(table).all():
        raise ValueError(f"{path} has no rows, or missing or infinite numbers: fetch it again")
    return table


def whole(path: Path, table: np.ndarray) -> np.ndarray:
    """The numbers as int64; a ValueError where one is not whole or beyond int32."""
    for wrong in table[(table != np.floor(table)) | (np.abs(table) > INT32_MAX)][:1]:
        raise ValueError(f"{path} has numbers that are not whole, or too large, first {wrong}: fetch it again")
    return table.astype(np.int64)


def _lines(stream: BoundedStream, encoding: str) -> Iterator[str]:
    decoder, rest = codecs.getincrementaldecoder(encoding)(), ""
    for chunk in iter(lambda: stream.read(CHUNK), b""):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from (f"{line}\n" for line in lines)
        if len(rest) > _LONGEST:
            raise ValueError(f"{stream.name} has a line of more than {_LONGEST} characters: is it the right file?")
    if rest := rest + decoder.decode(b"", final=True):
        yield rest
