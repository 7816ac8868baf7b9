"""What can be measured in every round of a run, and what can be computed from the records afterwards.

The functions here make diagnostics, for ``simulate(..., diagnostics=[...])``; the measures themselves, pure functions
of arrays, are in :mod:`fedjax_sim.diagnostics.measures`.
"""

from types import ModuleType as _Module

from fedjax_sim.diagnostics import measures as measures
from fedjax_sim.diagnostics.base import Diagnostic as Diagnostic
from fedjax_sim.diagnostics.base import Requested as Requested
from fedjax_sim.diagnostics.base import RoundView as RoundView
from fedjax_sim.diagnostics.base import as_diagnostics as as_diagnostics
from fedjax_sim.diagnostics.base import by_name as by_name
from fedjax_sim.diagnostics.catalogue import client_losses as client_losses
from fedjax_sim.diagnostics.catalogue import coherence as coherence
from fedjax_sim.diagnostics.catalogue import communication as communication
from fedjax_sim.diagnostics.catalogue import consensus as consensus
from fedjax_sim.diagnostics.catalogue import cosine_matrix as cosine_matrix
from fedjax_sim.diagnostics.catalogue import dissimilarity as dissimilarity
from fedjax_sim.diagnostics.catalogue import drift as drift
from fedjax_sim.diagnostics.catalogue import e_lud as e_lud
from fedjax_sim.diagnostics.catalogue import efficiency as efficiency
from fedjax_sim.diagnostics.catalogue import gradient_moments as gradient_moments
from fedjax_sim.diagnostics.catalogue import gradient_variance as gradient_variance
from fedjax_sim.diagnostics.catalogue import hessian_dissimilarity as hessian_dissimilarity
from fedjax_sim.diagnostics.catalogue import inexactness as inexactness
from fedjax_sim.diagnostics.catalogue import lud as lud
from fedjax_sim.diagnostics.catalogue import surrogate as surrogate
from fedjax_sim.diagnostics.catalogue import update_norms as update_norms
from fedjax_sim.diagnostics.catalogue import virtual_time as virtual_time
from fedjax_sim.diagnostics.offline import Fit as Fit
from fedjax_sim.diagnostics.offline import Gamma as Gamma
from fedjax_sim.diagnostics.offline import fit_dissimilarity as fit_dissimilarity
from fedjax_sim.diagnostics.offline import gamma as gamma
from fedjax_sim.diagnostics.offline import running_mean as running_mean
from fedjax_sim.diagnostics.streams import client_gradient_moments as client_gradient_moments
from fedjax_sim.models.evaluation import client_values as client_values

__all__ = ["measures", *(name for name, value in vars().items() if not (name[0] == "_" or isinstance(value, _Module)))]
