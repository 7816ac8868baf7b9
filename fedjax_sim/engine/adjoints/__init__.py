"""How the derivative of a whole run is computed: what it stores, computes again or leaves out."""

from fedjax_sim.engine.adjoints.base import Adjoint
from fedjax_sim.engine.adjoints.forward import forward
from fedjax_sim.engine.adjoints.gradients import Gradient, checked_gradient
from fedjax_sim.engine.adjoints.implicit import FixedPoint, fixed_point, implicit
from fedjax_sim.engine.adjoints.scans import direct, nested, per_round, truncated
from fedjax_sim.engine.adjoints.schedule import ReverseBound, bounded, reverse_bound
from fedjax_sim.engine.adjoints.solvers import cg_normal, gmres, neumann

__all__ = [
    "Adjoint",
    "FixedPoint",
    "Gradient",
    "ReverseBound",
    "bounded",
    "cg_normal",
    "checked_gradient",
    "direct",
    "fixed_point",
    "forward",
    "gmres",
    "implicit",
    "nested",
    "neumann",
    "per_round",
    "reverse_bound",
    "truncated",
]
