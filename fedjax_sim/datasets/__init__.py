"""Federated data sets: which client holds which examples."""

from fedjax_sim.datasets import partition
from fedjax_sim.datasets.construct import from_clients, from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.idx import read_idx
from fedjax_sim.datasets.reading.places import data_dir
from fedjax_sim.datasets.sources import digits, fashion_mnist, mnist
from fedjax_sim.datasets.statistics import Statistics
from fedjax_sim.datasets.synthetic import quadratics, quadratics_from, synthetic

__all__ = [
    "FederatedDataset",
    "Statistics",
    "data_dir",
    "digits",
    "fashion_mnist",
    "from_clients",
    "from_ids",
    "from_partition",
    "mnist",
    "partition",
    "quadratics",
    "quadratics_from",
    "read_idx",
    "synthetic",
]
