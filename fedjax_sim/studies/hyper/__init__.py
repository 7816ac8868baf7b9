"""Studies of hyper-parameters and data: by gradients through whole runs, by populations of runs."""

from fedjax_sim.studies.coalitions import Coalitions, coalitions
from fedjax_sim.studies.hyper.tuned import Tuned
from fedjax_sim.studies.hyper.tuning import tune
from fedjax_sim.studies.objectives import Final, Influence, Mean, Objective, final, influence, mean
from fedjax_sim.studies.search.asking import ask_evosax, ask_optuna, evaluator
from fedjax_sim.studies.search.result import Searched
from fedjax_sim.studies.search.running import search
from fedjax_sim.studies.search.strategies import Halving, Population, Strategy, halving, population
from fedjax_sim.studies.subject import (
    Identity,
    Interval,
    Positive,
    Simplex,
    Transform,
    identity,
    interval,
    positive,
    simplex,
    unit_interval,
)

__all__ = [
    "Coalitions",
    "Final",
    "Halving",
    "Identity",
    "Influence",
    "Interval",
    "Mean",
    "Objective",
    "Population",
    "Positive",
    "Searched",
    "Simplex",
    "Strategy",
    "Transform",
    "Tuned",
    "ask_evosax",
    "ask_optuna",
    "coalitions",
    "evaluator",
    "final",
    "halving",
    "identity",
    "influence",
    "interval",
    "mean",
    "population",
    "positive",
    "search",
    "simplex",
    "tune",
    "unit_interval",
]
