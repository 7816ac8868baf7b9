"""The record of a data set by name: its files, their checksums, where to get them, their terms, whom to cite.

``@data_set(...)`` above the function that makes the set is all that there is to register: the recipe that describes
and rebuilds it, ``fedjax-sim data`` and :func:`fedjax_sim.cite` read :func:`sources`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.reading.archives import read_bounded

P = ParamSpec("P")
T = TypeVar("T")

DATA_VARIABLE = "FEDJAX_SIM_DATA"
EXTRA = "data"  # of the package, with scikit-learn
_MAX_BYTES = 2**31  # of a file that is verified


def data_dir() -> Path:
    """Where data sets are read from: the environment variable FEDJAX_SIM_DATA, or ``~/.cache/fedjax_sim``."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedjax_sim"


class DataFile(NamedTuple):
    """A file of a data set."""

    folder: str  # inside the data directory
    names: tuple[str, ...]  # under which it may be there, the preferred one first
    get: str  # how to come by it, a sentence without its full stop
    sha256: str = ""  # of its content, unpacked
    instead: str = ""  # an archive in the folder that holds it too

    def found(self) -> Path | None:
        """Where it is, or None."""
        places = [data_dir() / self.folder / name for name in (*self.names, self.instead) if name]
        return next((place for place in places if place.exists()), None)

    def path(self, *, verify: bool = False) -> Path:
        """Where it is, once it is known to be the published one if ``verify``.

        Raises:
          FileNotFoundError: it is missing; the message says where it was looked for and how to come by it.
          ValueError: another file.
        """
        check_flag(f"{self.folder}(verify=...)", verify)
        path = self.found()
        if path is None:
            first, *others = self.names
            wanted = f"{first} (or {', '.join(others)})" if others else first
            origin = f"now {os.environ[DATA_VARIABLE]}" if os.environ.get(DATA_VARIABLE) else "now not set"
            raise FileNotFoundError(
                f"{self.folder}: {wanted} is not in {data_dir() / self.folder}. {self.get}; put it there, or in a "
                f"folder {self.folder} of another directory and name that directory in the environment variable "
                f"{DATA_VARIABLE} ({origin})."
            )
        if verify:
            self.check(path, read_bounded(path, _MAX_BYTES))
        return path

    def check(self, where: object, content: bytes) -> None:
        """Refuses a content that is not the published one."""
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{where} is not the published file: its SHA-256 is {found}, not {self.sha256} (unpacked); fetch it "
                "again, or give verify=False for a file of your own"
            )


class Source(NamedTuple):
    """Where a data set comes from."""

    files: tuple[DataFile, ...] = ()  # none for a set that is drawn, or that comes with a package
    module: str = ""  # a package it needs
    size: str = ""  # of the files as they are published
    terms: str = ""  # under which they may be used
    papers: tuple[str, ...] = ()  # keys of citations.bib

    def missing(self) -> list[DataFile]:
        """The files that are not there."""
        return [wanted for wanted in self.files if wanted.found() is None]

    def lacks_module(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None

    def ready(self) -> bool:
        """Whether it can be read."""
        return not self.missing() and not self.lacks_module()


_SOURCES: dict[str, Source] = {}


def sources() -> dict[str, Source]:
    """The records of all data sets that are read or drawn, by name; those made of other data sets have none."""
    importlib.import_module("fedjax_sim.datasets")  # which imports every module that writes one
    return _SOURCES


def data_set(name: str, source: Source = Source()) -> Callable[[Callable[P, T]], Callable[P, T]]:  # noqa: B008
    """Registers the function below as the recipe ``name``, ``"dataset.name"``, and writes its record down."""
    _SOURCES[name.rpartition(".")[2]] = source
    return recipe(name)


def scikit_learn(what: str) -> Any:
    """``sklearn.datasets``, which the function ``what`` reads with."""
    try:
        return importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise ImportError(f"{what}() reads with scikit-learn: pip install 'fedjax_sim[{EXTRA}]'") from error
