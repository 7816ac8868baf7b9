"""Studies of hyper-parameters and data by gradients through whole runs."""

from fedjax_sim.studies.hyper.objectives import Final, Influence, Mean, Objective, final, influence, mean
from fedjax_sim.studies.hyper.transforms import (
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
from fedjax_sim.studies.hyper.tuned import Tuned
from fedjax_sim.studies.hyper.tuning import tune

__all__ = [
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
