"""Phase diagrams: :func:`fedjax_sim.phase`, which method wins where over two axes, and its result."""

from fedjax_sim.studies.phases.result import PhaseDiagram
from fedjax_sim.studies.phases.running import phase

__all__ = ["PhaseDiagram", "phase"]
