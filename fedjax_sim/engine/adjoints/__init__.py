"""How the derivative of a whole run is computed: what it stores, computes again or leaves out."""

from fedjax_sim.engine.adjoints.gradients import Gradient, checked_gradient
from fedjax_sim.engine.adjoints.implicit import FixedPoint, cg_normal, fixed_point, gmres, implicit, neumann
from fedjax_sim.engine.adjoints.scans import Adjoint, direct, forward, nested, per_round, truncated
from fedjax_sim.engine.adjoints.schedule import ReverseBound, bounded, reverse_bound

__all__ = [
    "Adjoint", "FixedPoint", "Gradient", "ReverseBound", "bounded", "cg_normal", "checked_gradient", "direct",
    "fixed_point", "forward", "gmres", "implicit", "nested", "neumann", "per_round", "reverse_bound", "truncated",
]  # fmt: skip
