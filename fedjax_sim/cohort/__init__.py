"""Who takes part in a round and with what weight."""

from fedjax_sim.cohort.availability import Availability, available, bernoulli, periodic, trace
from fedjax_sim.cohort.averaging import AVERAGES, Averaging, Weights
from fedjax_sim.cohort.given import given
from fedjax_sim.cohort.independent import independent
from fedjax_sim.cohort.participation import Draw, Participation, Selection
from fedjax_sim.cohort.uniform import full, original, scheme_ii, shuffled, transformed, uniform
from fedjax_sim.cohort.weighted import weighted, with_replacement

__all__ = [
    "AVERAGES",
    "Availability",
    "Averaging",
    "Draw",
    "Participation",
    "Selection",
    "Weights",
    "available",
    "bernoulli",
    "full",
    "given",
    "independent",
    "original",
    "periodic",
    "scheme_ii",
    "shuffled",
    "trace",
    "transformed",
    "uniform",
    "weighted",
    "with_replacement",
]
