"""Federated data sets: which client holds which examples."""

from fedjax_sim.datasets import partition, text
from fedjax_sim.datasets.construct import from_clients, from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset, on_host
from fedjax_sim.datasets.names import client_names
from fedjax_sim.datasets.own import from_directory, from_leaf, from_table
from fedjax_sim.datasets.poisoned import flip_labels, random_labels
from fedjax_sim.datasets.reading.cifar import read_cifar
from fedjax_sim.datasets.reading.idx import read_idx
from fedjax_sim.datasets.reading.places import data_dir
from fedjax_sim.datasets.sources import (
    ag_news,
    cifar10,
    cifar10_dirichlet,
    cifar100_dirichlet,
    digits,
    emnist_letters,
    emnist_similarity,
    fashion_mnist,
    fedprox_synthetic,
    femnist,
    mnist,
    mnist_two_digits,
    mnist_writers,
    mushrooms,
    parkinsons,
    sent140,
    shakespeare_roles,
    tinyshakespeare,
)
from fedjax_sim.datasets.statistics import Statistics, read_report
from fedjax_sim.datasets.synthetic import quadratics, quadratics_from, synthetic
from fedjax_sim.datasets.tfds import from_tfds

__all__ = [
    "FederatedDataset",
    "HostDataset",
    "Statistics",
    "ag_news",
    "cifar10",
    "cifar100_dirichlet",
    "cifar10_dirichlet",
    "client_names",
    "data_dir",
    "digits",
    "emnist_letters",
    "emnist_similarity",
    "fashion_mnist",
    "fedprox_synthetic",
    "femnist",
    "flip_labels",
    "from_clients",
    "from_directory",
    "from_ids",
    "from_leaf",
    "from_partition",
    "from_table",
    "from_tfds",
    "mnist",
    "mnist_two_digits",
    "mnist_writers",
    "mushrooms",
    "host",
    "on_host",
    "parkinsons",
    "partition",
    "quadratics",
    "quadratics_from",
    "random_labels",
    "read_cifar",
    "read_idx",
    "read_report",
    "sent140",
    "shakespeare_roles",
    "synthetic",
    "text",
    "tinyshakespeare",
]
