"""Many runs as one program: spaces of hyper-parameters, :func:`fedjax_sim.sweep` and its result."""

from fedjax_sim.studies.sweeps.result import Ranked, Sweep
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import Distribution, Space, grid, log_uniform, points, random, uniform, zipped

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
