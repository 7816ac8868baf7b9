"""Federated data sets: which client holds which examples."""

from types import ModuleType as _Module
from typing import TYPE_CHECKING as _CHECKED

from fedjax_sim.datasets import host as host
from fedjax_sim.datasets import partition as partition
from fedjax_sim.datasets import text as text
from fedjax_sim.datasets.changed import flip_labels as flip_labels
from fedjax_sim.datasets.changed import random_labels as random_labels
from fedjax_sim.datasets.changed import with_validation as with_validation
from fedjax_sim.datasets.construct import from_clients as from_clients
from fedjax_sim.datasets.construct import from_ids as from_ids
from fedjax_sim.datasets.construct import from_partition as from_partition
from fedjax_sim.datasets.federated import FederatedDataset as FederatedDataset
from fedjax_sim.datasets.federated import client_names as client_names
from fedjax_sim.datasets.host import HostDataset as HostDataset
from fedjax_sim.datasets.host import on_host as on_host
from fedjax_sim.datasets.own import files as _  # registers what configurations name  # noqa: F401
from fedjax_sim.datasets.own.directory import from_directory as from_directory
from fedjax_sim.datasets.own.leaf import from_leaf as from_leaf
from fedjax_sim.datasets.own.table import from_table as from_table
from fedjax_sim.datasets.own.tfds import from_tfds as from_tfds
from fedjax_sim.datasets.sources.activity import hapt as hapt
from fedjax_sim.datasets.sources.activity import wisdm as wisdm
from fedjax_sim.datasets.sources.handwriting import femnist_writers as femnist_writers
from fedjax_sim.datasets.sources.handwriting import mnist_two_digits as mnist_two_digits
from fedjax_sim.datasets.sources.handwriting import mnist_writers as mnist_writers
from fedjax_sim.datasets.sources.image_files import read_cifar as read_cifar
from fedjax_sim.datasets.sources.image_files import read_idx as read_idx
from fedjax_sim.datasets.sources.images import cifar10 as cifar10
from fedjax_sim.datasets.sources.images import cifar10_dirichlet as cifar10_dirichlet
from fedjax_sim.datasets.sources.images import cifar100_dirichlet as cifar100_dirichlet
from fedjax_sim.datasets.sources.images import emnist_byclass as emnist_byclass
from fedjax_sim.datasets.sources.images import emnist_letters as emnist_letters
from fedjax_sim.datasets.sources.images import emnist_similarity as emnist_similarity
from fedjax_sim.datasets.sources.images import fashion_mnist as fashion_mnist
from fedjax_sim.datasets.sources.images import femnist as femnist
from fedjax_sim.datasets.sources.images import mnist as mnist
from fedjax_sim.datasets.sources.libsvm import a9a as a9a
from fedjax_sim.datasets.sources.libsvm import mushrooms as mushrooms
from fedjax_sim.datasets.sources.libsvm import w8a as w8a
from fedjax_sim.datasets.sources.record import data_dir as data_dir
from fedjax_sim.datasets.sources.tables import adult as adult
from fedjax_sim.datasets.sources.tables import digits as digits
from fedjax_sim.datasets.sources.tables import fed_tcga_brca as fed_tcga_brca
from fedjax_sim.datasets.sources.tables import fedprox_synthetic as fedprox_synthetic
from fedjax_sim.datasets.sources.tables import parkinsons as parkinsons
from fedjax_sim.datasets.sources.text import ag_news as ag_news
from fedjax_sim.datasets.sources.text import sent140 as sent140
from fedjax_sim.datasets.sources.text import shakespeare_roles as shakespeare_roles
from fedjax_sim.datasets.sources.text import tinyshakespeare as tinyshakespeare
from fedjax_sim.datasets.statistics import Statistics as Statistics
from fedjax_sim.datasets.statistics import read_report as read_report
from fedjax_sim.datasets.synthetic import quadratics as quadratics
from fedjax_sim.datasets.synthetic import quadratics_from as quadratics_from
from fedjax_sim.datasets.synthetic import synthetic as synthetic

__all__ = ["host", "partition", "text"]
__all__ += [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]

if not _CHECKED:  # for who checks types there is no name but these

    def __getattr__(name: str) -> object:
        from fedjax_sim.core.values import suggest

        known = [*__all__, *(f"partition.{one}" for one in partition.__all__)]
        table = name in ("from_csv", "from_dataframe", "from_pandas", "from_parquet")
        hint = suggest("from_table" if table else name, known)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}")
