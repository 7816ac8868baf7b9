"""Rows of csv files, one at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from fedjax_sim.core.files import open_regular


def csv_rows(path: Path, columns: int, *, encoding: str = "utf-8") -> Iterator[list[str]]:
    """The rows of a csv file, each with the same number of fields; empty lines are passed over.

    Args:
      path: the file.
      columns: fields of a row.
      encoding: of the text.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: a row with another number of fields, text in another encoding, or quotes that do not match.
    """
    with open_regular(path) as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            for row in rows:
                if row and len(row) != columns:
                    raise ValueError(
                        f"{path}, line {rows.line_num}: {len(row)} fields and not {columns}: is it the right file?"
                    )
                if row:
                    yield row
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not {encoding} text ({error}): is it the right file?") from error
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}: {error}: is the file complete?") from error
