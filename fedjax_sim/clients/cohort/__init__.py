"""Who takes part in a round and with what weight."""

from fedjax_sim.clients.cohort.availability import Availability, available, bernoulli, periodic, trace
from fedjax_sim.clients.cohort.averaging import AVERAGES, Averaging, Weights
from fedjax_sim.clients.cohort.fixed import given
from fedjax_sim.clients.cohort.independent import independent
from fedjax_sim.clients.cohort.participation import Draw, Participation, Selection
from fedjax_sim.clients.cohort.uniform import full, original, scheme_ii, shuffled, transformed, uniform
from fedjax_sim.clients.cohort.weighted import weighted, with_replacement

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
