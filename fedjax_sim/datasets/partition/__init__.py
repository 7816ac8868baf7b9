"""Ways to deal the rows of one array out to clients.

Every function returns a :class:`Partition`: one sorted int64 array of row numbers per client. The arrays are disjoint
and none is empty; together they hold every row, except where a function says that some belong to nobody. Feed the
result to :func:`fedjax_sim.datasets.from_partition`.

``labels`` are integers [n], the class of each row; C classes, N = ``num_clients`` clients. ``min_size``, the fewest
examples of a client, is kept by moving examples of others to it where need be.

All raise a ValueError for too few examples for ``min_size`` at each client and for counts and parameters out of their
range, and a TypeError for labels, sizes or ids that are not integers (ids may be strings).

A seed means the same partition on every platform and with every version of numpy: only the raw words of PCG64 are
taken from it, whose stream numpy guarantees (see :mod:`fedjax_sim.datasets.draws`).
"""

from types import ModuleType as _Module

from fedjax_sim.datasets.partition.class_sets import classes as classes
from fedjax_sim.datasets.partition.class_sets import consecutive_classes as consecutive_classes
from fedjax_sim.datasets.partition.class_sets import even_classes as even_classes
from fedjax_sim.datasets.partition.sizes import dirichlet_sizes as dirichlet_sizes
from fedjax_sim.datasets.partition.sizes import iid as iid
from fedjax_sim.datasets.partition.sizes import lognormal_counts as lognormal_counts
from fedjax_sim.datasets.partition.sizes import lognormal_sizes as lognormal_sizes
from fedjax_sim.datasets.partition.sizes import natural as natural
from fedjax_sim.datasets.partition.sizes import power_law_sizes as power_law_sizes
from fedjax_sim.datasets.partition.sizes import sized as sized
from fedjax_sim.datasets.partition.skew import dirichlet as dirichlet
from fedjax_sim.datasets.partition.skew import dirichlet_per_client as dirichlet_per_client
from fedjax_sim.datasets.partition.skew import shards as shards
from fedjax_sim.datasets.partition.skew import similarity as similarity
from fedjax_sim.datasets.parts import Partition as Partition

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
