"""Many runs as one program: spaces of hyper-parameters, :func:`fedjax_sim.sweep` and its result."""

from fedjax_sim.sweeps.distributions import Distribution, log_uniform, uniform
from fedjax_sim.sweeps.ranking import Ranked
from fedjax_sim.sweeps.result import Sweep
from fedjax_sim.sweeps.running import sweep
from fedjax_sim.sweeps.space import Space, grid, points, random, zipped

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
