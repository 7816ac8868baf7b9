"""Studies of hyper-parameters and data by gradients through whole runs."""

from fedjax_sim.studies.coalitions import Coalitions, coalitions
from fedjax_sim.studies.hyper.tuned import Tuned
from fedjax_sim.studies.hyper.tuning import tune
from fedjax_sim.studies.objectives import Final, Influence, Mean, Objective, final, influence, mean
from fedjax_sim.studies.transforms import (
    Identity,
    Interval,
    Positive,
    Simplex,
    Softplus,
    Transform,
    identity,
    interval,
    positive,
    simplex,
    softplus,
    unit_interval,
)

__all__ = [
    "Coalitions",
    "Final",
    "Identity",
    "Influence",
    "Interval",
    "Mean",
    "Objective",
    "Positive",
    "Simplex",
    "Softplus",
    "Transform",
    "Tuned",
    "coalitions",
    "final",
    "identity",
    "influence",
    "interval",
    "mean",
    "positive",
    "simplex",
    "softplus",
    "tune",
    "unit_interval",
]
