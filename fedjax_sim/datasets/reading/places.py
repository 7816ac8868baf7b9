"""Where data is looked for, and whether a file is the published one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fedjax_sim.core.files import open_regular

DATA_VARIABLE = "FEDJAX_SIM_DATA"

_CHUNK = 1 << 20


def data_dir() -> Path:
    """Where data sets are read from: the environment variable FEDJAX_SIM_DATA, or ``~/.cache/fedjax_sim``."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedjax_sim"


def find(data_set: str, *names: str, get: str) -> Path:
    """The first of the files or folders ``<data>/<data_set>/<name>`` that exists.

    Args:
      data_set: the data set's folder, also its name in messages.
      *names: acceptable names inside the folder, the preferred one first.
      get: how to come by the file, a sentence without its full stop: "Get the four files from https://...".

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


def check_sha256(path: Path, *published: str) -> Path:
    """``path``, if its SHA-256 is one of the published ones.

    Args:
      path: the file.
      *published: lower-case hexadecimal digests, one for each form in which the file is published.

    Raises:
      FileNotFoundError: something else than a file.
      ValueError: another content.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() not in published:
        raise ValueError(
            f"{path} is not the published file: its SHA-256 is {digest.hexdigest()}, not {' or '.join(published)}; "
            "fetch it again"
        )
    return path
