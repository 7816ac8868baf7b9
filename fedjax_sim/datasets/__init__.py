"""Federated data sets: which client holds which examples."""

from fedjax_sim.datasets import host, partition, text
from fedjax_sim.datasets.changed import flip_labels, random_labels, with_validation
from fedjax_sim.datasets.construct import from_clients, from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset, client_names
from fedjax_sim.datasets.host import HostDataset, on_host
from fedjax_sim.datasets.own import files as _  # registers what configurations name  # noqa: F401
from fedjax_sim.datasets.own.directory import from_directory
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.own.table import from_table
from fedjax_sim.datasets.own.tfds import from_tfds
from fedjax_sim.datasets.reading.images import read_cifar, read_idx
from fedjax_sim.datasets.sources.activity import hapt, wisdm
from fedjax_sim.datasets.sources.handwriting import femnist_writers, mnist_writers
from fedjax_sim.datasets.sources.images import (
    cifar10,
    cifar10_dirichlet,
    cifar100_dirichlet,
    emnist_byclass,
    emnist_letters,
    emnist_similarity,
    fashion_mnist,
    femnist,
    mnist,
)
from fedjax_sim.datasets.sources.libsvm import a9a, mushrooms, w8a
from fedjax_sim.datasets.sources.mnist_two_digits import mnist_two_digits
from fedjax_sim.datasets.sources.record import data_dir
from fedjax_sim.datasets.sources.tables import adult, digits, fed_tcga_brca, fedprox_synthetic, parkinsons
from fedjax_sim.datasets.sources.text import ag_news, sent140, shakespeare_roles, tinyshakespeare
from fedjax_sim.datasets.statistics import Statistics, read_report
from fedjax_sim.datasets.synthetic import quadratics, quadratics_from, synthetic

__all__ = [
    "FederatedDataset",
    "HostDataset",
    "Statistics",
    "a9a",
    "adult",
    "ag_news",
    "cifar10",
    "cifar100_dirichlet",
    "cifar10_dirichlet",
    "client_names",
    "data_dir",
    "digits",
    "emnist_byclass",
    "emnist_letters",
    "emnist_similarity",
    "fashion_mnist",
    "fed_tcga_brca",
    "fedprox_synthetic",
    "femnist",
    "femnist_writers",
    "flip_labels",
    "from_clients",
    "from_directory",
    "from_ids",
    "from_leaf",
    "from_partition",
    "from_table",
    "from_tfds",
    "hapt",
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
    "w8a",
    "wisdm",
    "with_validation",
]
