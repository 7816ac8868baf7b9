"""Estimators of outer gradients: what a run's outcome owes to its hyper-parameters, also where truncation lies."""

from fedjax_sim.studies.outer.estimators import (
    ES,
    PES,
    Estimate,
    Estimator,
    Exact,
    ForwardGradient,
    Score,
    Truncated,
    es,
    estimate,
    exact,
    forward_gradient,
    pes,
    score,
    truncated,
)
from fedjax_sim.studies.outer.problems import FederatedRun, Unrolled, federated

__all__ = [
    "ES",
    "PES",
    "Estimate",
    "Estimator",
    "Exact",
    "FederatedRun",
    "ForwardGradient",
    "Score",
    "Truncated",
    "Unrolled",
    "es",
    "estimate",
    "exact",
    "federated",
    "forward_gradient",
    "pes",
    "score",
    "truncated",
]
