"""The record of a data set by name: its files, their checksums, where to get them, their terms, whom to cite.

``@data_set(...)`` above the function that makes the set is all that there is to register: the recipe that describes
and rebuilds it, ``fedjax-sim data`` and :func:`fedjax_sim.cite` read :func:`sources`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.reading.places import check_sha256, data_dir, find, sha256_of

P = ParamSpec("P")
T = TypeVar("T")

EXTRA = "data"  # of the package, with scikit-learn


class DataFile(NamedTuple):
    """A file of a data set."""

    folder: str  # inside the data directory
    names: tuple[str, ...]  # under which it may be there, the preferred one first
    get: str  # how to come by it, a sentence without its full stop
    sha256: tuple[str, ...] = ()  # of the forms in which it is published
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
        path = find(self.folder, *self.names, get=self.get)
        if verify:
            check_sha256(path, sha256_of(path), *self.sha256)
        return path


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
