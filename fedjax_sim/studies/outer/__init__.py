"""Estimators of outer gradients: what a run's outcome owes to its hyper-parameters, also where truncation lies."""

from types import ModuleType as _Module

from fedjax_sim.studies.outer.estimators import ES as ES
from fedjax_sim.studies.outer.estimators import PES as PES
from fedjax_sim.studies.outer.estimators import Estimate as Estimate
from fedjax_sim.studies.outer.estimators import Estimator as Estimator
from fedjax_sim.studies.outer.estimators import Exact as Exact
from fedjax_sim.studies.outer.estimators import ForwardGradient as ForwardGradient
from fedjax_sim.studies.outer.estimators import Score as Score
from fedjax_sim.studies.outer.estimators import Truncated as Truncated
from fedjax_sim.studies.outer.estimators import es as es
from fedjax_sim.studies.outer.estimators import estimate as estimate
from fedjax_sim.studies.outer.estimators import exact as exact
from fedjax_sim.studies.outer.estimators import forward_gradient as forward_gradient
from fedjax_sim.studies.outer.estimators import pes as pes
from fedjax_sim.studies.outer.estimators import score as score
from fedjax_sim.studies.outer.estimators import truncated as truncated
from fedjax_sim.studies.outer.problems import FederatedRun as FederatedRun
from fedjax_sim.studies.outer.problems import Unrolled as Unrolled
from fedjax_sim.studies.outer.problems import federated as federated

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
