"""Who takes part in a round and with what weight."""

from fedjax_sim.cohort.participation import (
    Draw,
    Participation,
    Selection,
    full,
    given,
    uniform,
    with_replacement,
)

__all__ = ["Draw", "Participation", "Selection", "full", "given", "uniform", "with_replacement"]
