"""Anyone's own data: LEAF json, a table with a client column, a directory with a file for each client."""

from fedjax_sim.datasets.own import files  # registers what configurations may name
from fedjax_sim.datasets.own.directory import from_directory
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.own.table import from_table

__all__ = ["files", "from_directory", "from_leaf", "from_table"]
