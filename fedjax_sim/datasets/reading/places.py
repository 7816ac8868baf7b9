"""Where data is looked for, whether a file is the published one, and the rows of csv files."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from fedjax_sim.core.files import open_regular

DATA_VARIABLE = "FEDJAX_SIM_DATA"


def data_dir() -> Path:
    """Where data sets are read from: the environment variable FEDJAX_SIM_DATA, or ``~/.cache/fedjax_sim``."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedjax_sim"


def find(data_set: str, *names: str, get: str) -> Path:
    """The first of the files or folders ``<data>/<data_set>/<name>`` that exists.

    ``get`` says how to come by it, without a full stop: "Get the four files from https://...".

    Raises:
      FileNotFoundError: none is there; the message says where it was looked for and what to do.
    """
    folder = data_dir() / data_set
    for name in names:
        if (folder / name).exists():
            return folder / name
    wanted = names[0] if len(names) == 1 else f"{names[0]} (or {', '.join(names[1:])})"
    origin = f"now {os.environ[DATA_VARIABLE]}" if os.environ.get(DATA_VARIABLE) else "now not set"
    raise FileNotFoundError(
        f"{data_set}: {wanted} is not in {folder}. {get}; put it there, or in a folder {data_set} of another directory "
        f"and name that directory in the environment variable {DATA_VARIABLE} ({origin})."
    )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check_sha256(where: object, found: str, *published: str) -> None:
    """Refuses a content whose SHA-256 ``found`` is none of those published."""
    if found not in published:
        raise ValueError(
            f"{where} is not the published file: its SHA-256 is {found}, not {' or '.join(published)}; fetch it again, "
            "or give verify=False for a file of your own"
        )


def csv_rows(path: Path, columns: int, *, encoding: str = "utf-8") -> Iterator[list[str]]:
    """The rows of a csv file, each with as many fields; empty lines are passed over.

    Raises:
      FileNotFoundError: no such file, or something else than a file.
      ValueError: a row with another number of fields, text in another encoding, or quotes that do not match.
    """
    with open_regular(path) as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            for row in filter(None, rows):
                if len(row) != columns:
                    raise ValueError(
                        f"{path}, line {rows.line_num}: {len(row)} fields and not {columns}: is it the right file?"
                    )
                yield row
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not {encoding} text ({error}): is it the right file?") from error
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}: {error}: is the file complete?") from error
