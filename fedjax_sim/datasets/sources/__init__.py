"""Data sets by name, read from files; one function each."""

from fedjax_sim.datasets.sources.digits import digits
from fedjax_sim.datasets.sources.idx_images import fashion_mnist, mnist

__all__ = ["digits", "fashion_mnist", "mnist"]
