"""Runs as TOML files: what ``fedjax-sim run`` reads, and what it writes beside every result.

A file is the description of a run (``core/descriptions.py``) in the spelling that people like to type: one table
for each part, ``name`` and arguments beside each other. docs/command-line.md shows it.

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "run.toml"
>>> _ = file.write_text('''
... [algorithm]
... name = "fedprox"
... mu = 0.1
... client_optimizer = { name = "optim.sgd", learning_rate = 0.05 }
... [dataset]
... name = "quadratics"
... num_clients = 4
... [task]
... name = "quadratic"
... [cohort]
... name = "full"
... [work]
... name = "steps"
... num_steps = 3
... [run]
... rounds = 5
... batch_size = 1
... ''')
>>> run = read(file, changes=["algorithm.mu = 0.2"])
>>> run["algorithm"].mu, run["rounds"]
(0.2, 5)
"""

from fedjax_sim.run.configuration.building import read
from fedjax_sim.run.configuration.tables import ConfigurationError
from fedjax_sim.run.configuration.writing import written

__all__ = ["ConfigurationError", "read", "written"]
