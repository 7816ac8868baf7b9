"""Data sets by name, read from files; one function each."""

from fedjax_sim.datasets.sources.ag_news import ag_news
from fedjax_sim.datasets.sources.cifar import cifar10, cifar10_dirichlet, cifar100_dirichlet
from fedjax_sim.datasets.sources.digits import digits
from fedjax_sim.datasets.sources.emnist import emnist_similarity, femnist
from fedjax_sim.datasets.sources.fedprox_synthetic import fedprox_synthetic
from fedjax_sim.datasets.sources.idx_images import emnist_letters, fashion_mnist, mnist
from fedjax_sim.datasets.sources.mnist_two_digits import mnist_two_digits
from fedjax_sim.datasets.sources.mnist_writers import mnist_writers
from fedjax_sim.datasets.sources.mushrooms import mushrooms
from fedjax_sim.datasets.sources.parkinsons import parkinsons
from fedjax_sim.datasets.sources.sent140 import sent140
from fedjax_sim.datasets.sources.shakespeare import shakespeare_roles, tinyshakespeare

__all__ = [
    "ag_news",
    "cifar10",
    "cifar100_dirichlet",
    "cifar10_dirichlet",
    "digits",
    "emnist_letters",
    "emnist_similarity",
    "fashion_mnist",
    "fedprox_synthetic",
    "femnist",
    "mnist",
    "mnist_two_digits",
    "mnist_writers",
    "mushrooms",
    "parkinsons",
    "sent140",
    "shakespeare_roles",
    "tinyshakespeare",
]
