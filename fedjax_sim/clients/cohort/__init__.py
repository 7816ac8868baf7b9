"""Who takes part in a round and with what weight."""

from types import ModuleType as _Module

from fedjax_sim.clients.cohort.availability import Availability as Availability
from fedjax_sim.clients.cohort.availability import available as available
from fedjax_sim.clients.cohort.availability import bernoulli as bernoulli
from fedjax_sim.clients.cohort.availability import periodic as periodic
from fedjax_sim.clients.cohort.availability import trace as trace
from fedjax_sim.clients.cohort.fixed import given as given
from fedjax_sim.clients.cohort.participation import AVERAGES as AVERAGES
from fedjax_sim.clients.cohort.participation import Averaging as Averaging
from fedjax_sim.clients.cohort.participation import Draw as Draw
from fedjax_sim.clients.cohort.participation import Participation as Participation
from fedjax_sim.clients.cohort.participation import Selection as Selection
from fedjax_sim.clients.cohort.participation import Weights as Weights
from fedjax_sim.clients.cohort.schemes import full as full
from fedjax_sim.clients.cohort.schemes import independent as independent
from fedjax_sim.clients.cohort.schemes import original as original
from fedjax_sim.clients.cohort.schemes import scheme_ii as scheme_ii
from fedjax_sim.clients.cohort.schemes import shuffled as shuffled
from fedjax_sim.clients.cohort.schemes import transformed as transformed
from fedjax_sim.clients.cohort.schemes import uniform as uniform
from fedjax_sim.clients.cohort.schemes import weighted as weighted
from fedjax_sim.clients.cohort.schemes import with_replacement as with_replacement

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
