"""Many runs as one program: spaces of hyper-parameters, :func:`fedjax_sim.sweep` and its result."""

from fedjax_sim.studies.sweeps.distributions import Distribution, log_uniform, uniform
from fedjax_sim.studies.sweeps.ranking import Ranked
from fedjax_sim.studies.sweeps.result import Sweep
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import Space, grid, points, random, zipped

__all__ = [
    "Distribution",
    "Ranked",
    "Space",
    "Sweep",
    "grid",
    "log_uniform",
    "points",
    "random",
    "sweep",
    "uniform",
    "zipped",
]
