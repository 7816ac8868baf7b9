"""Which files the data sets are read from, as their sources say it; nothing is read here."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

from fedjax_sim.datasets.reading.places import data_dir

EXTRA = "data"  # of the package, with scikit-learn
_PACKED = ("", ".xz", ".gz")


class Wanted(NamedTuple):
    """A file of a data set.

    Attributes:
      folder: inside the data directory.
      names: under which it may be there, the preferred one first.
      get: how to come by it.
      instead: an archive that holds it too; "" for none.
    """

    folder: str
    names: tuple[str, ...]
    get: str
    instead: str = ""

    def found(self) -> Path | None:
        """Where it is, or None."""
        folder = data_dir() / self.folder
        names = (*self.names, self.instead) if self.instead else self.names
        return next((folder / name for name in names if (folder / name).exists()), None)


class Source(NamedTuple):
    """Where a data set comes from.

    Attributes:
      files: those it needs; none for a set that is drawn, or that comes with a package.
      module: a package it needs.
    """

    files: tuple[Wanted, ...] = ()
    module: str = ""

    def missing(self) -> list[Wanted]:
        """The files that are not there."""
        return [wanted for wanted in self.files if wanted.found() is None]

    def lacks_module(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.module) and importlib.util.find_spec(self.module) is None

    def ready(self) -> bool:
        """Whether it can be read."""
        return not self.missing() and not self.lacks_module()


def sources() -> dict[str, Source]:
    """All data sets that are read or drawn, by name; those made of other data sets are left out."""
    from fedjax_sim.datasets.sources.cifar_files import CIFAR10, CIFAR100, CifarSet
    from fedjax_sim.datasets.sources.idx_files import EMNIST_LETTERS, FASHION_MNIST, MNIST, IdxSet

    # Each is a module and, in the package, a function of the same name.
    modules = ("ag_news", "fedprox_synthetic", "mnist_writers", "mushrooms", "parkinsons", "sent140", "shakespeare")
    ag_news, fedprox_synthetic, mnist_writers, mushrooms, parkinsons, sent140, plays = (
        importlib.import_module(f"fedjax_sim.datasets.sources.{name}") for name in modules
    )

    def idx(of: IdxSet) -> tuple[Wanted, ...]:
        stems = [stem for half in of.halves.values() for stem in half]
        return tuple(Wanted(of.folder, (f"{stem}.gz", stem), of.get) for stem in stems)

    def cifar(of: CifarSet) -> tuple[Wanted, ...]:
        forms = {
            name: [f"{place}{name}{packed}" for place in ("", f"{of.inner}/") for packed in _PACKED]
            for name in of.published
        }
        get = f"Get https://www.cs.toronto.edu/~kriz/{of.archive} and put it there as it is"
        return tuple(Wanted(of.folder, tuple(names), get, of.archive) for names in forms.values())

    def one(folder: str, names: tuple[str, ...], get: str) -> Wanted:
        return Wanted(folder, names, get)

    writers = tuple(
        one("qmnist_writers", (f"{stem}.gz", stem), mnist_writers._GET) for stem in mnist_writers._FILES.values()
    )
    mnist, letters, cifar10 = idx(MNIST), idx(EMNIST_LETTERS), cifar(CIFAR10)
    return {
        "synthetic": Source(),
        "quadratics": Source(),
        "digits": Source(module="sklearn"),
        "mnist": Source(mnist),
        "mnist_two_digits": Source(mnist),
        "mnist_writers": Source((*mnist, *writers)),
        "fashion_mnist": Source(idx(FASHION_MNIST)),
        "emnist_letters": Source(letters),
        "emnist_similarity": Source(letters),
        "femnist": Source(letters),
        "cifar10": Source(cifar10),
        "cifar10_dirichlet": Source(cifar10),
        "cifar100_dirichlet": Source(cifar(CIFAR100)),
        "shakespeare_roles": Source((one("shakespeare", ("moby_speeches.jsonl.gz",), plays._ROLES_GET),)),
        "tinyshakespeare": Source((one("shakespeare", ("tinyshakespeare_input.txt",), plays._TINY_GET),)),
        "ag_news": Source((
            one("ag_news", ("test.csv",), ag_news._GET),
            one("ag_news", ("train.csv", ag_news._SUBSET), ag_news._SUBSET_GET),
        )),
        "sent140": Source((one("sent140", (sent140._FILE,), sent140._GET),)),
        "fedprox_synthetic": Source((
            one("fedprox_synthetic", tuple(fedprox_synthetic._places("1_1", "test")),
                fedprox_synthetic._GET.format("1_1", "")),
        )),
        "parkinsons": Source((one("parkinsons_telemonitoring", ("parkinsons_updrs.data",), parkinsons._GET),)),
        "mushrooms": Source((one("mushrooms", ("mushrooms_train", "mushrooms"), mushrooms._GET),), module="sklearn"),
    }  # fmt: skip
