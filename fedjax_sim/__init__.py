"""fedjax_sim: federated learning simulated in JAX, one XLA program a run.

Names are loaded when they are first used: ``import fedjax_sim`` itself imports nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedjax_sim import algorithms as algorithms
    from fedjax_sim import cohort as cohort
    from fedjax_sim import datasets as datasets
    from fedjax_sim import layout as layout
    from fedjax_sim import local as local
    from fedjax_sim import models as models
    from fedjax_sim import optim as optim
    from fedjax_sim import rates as rates
    from fedjax_sim import reporting as reporting
    from fedjax_sim.algorithms.base import Algorithm as Algorithm
    from fedjax_sim.algorithms.fedavg import fedavg as fedavg
    from fedjax_sim.algorithms.fednova import fednova as fednova
    from fedjax_sim.algorithms.fedprox import fedprox as fedprox
    from fedjax_sim.algorithms.scaffold import scaffold as scaffold
    from fedjax_sim.datasets.federated import FederatedDataset as FederatedDataset
    from fedjax_sim.descriptions import build as build
    from fedjax_sim.descriptions import describe as describe
    from fedjax_sim.descriptions import factory as factory
    from fedjax_sim.descriptions import register as register
    from fedjax_sim.history import History as History
    from fedjax_sim.simulation import simulate as simulate
    from fedjax_sim.task import Task as Task
    from fedjax_sim.task import classification as classification
    from fedjax_sim.task import functions as functions
    from fedjax_sim.task import quadratic as quadratic
    from fedjax_sim.training import make_train as make_train

_MODULES = (
    "algorithms", "cohort", "datasets", "layout", "local", "models", "optim", "rates", "reporting",
)  # fmt: skip
_HOME = {
    "Algorithm": "algorithms.base",
    "FederatedDataset": "datasets.federated",
    "History": "history",
    "Task": "task",
    "build": "descriptions",
    "classification": "task",
    "describe": "descriptions",
    "factory": "descriptions",
    "fedavg": "algorithms.fedavg",
    "fednova": "algorithms.fednova",
    "fedprox": "algorithms.fedprox",
    "functions": "task",
    "make_train": "training",
    "quadratic": "task",
    "register": "descriptions",
    "scaffold": "algorithms.scaffold",
    "simulate": "simulation",
}

__all__ = [*_MODULES, *_HOME]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fedjax_sim.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"fedjax_sim.{_HOME[name]}"), name)
    import difflib

    near = difflib.get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"module 'fedjax_sim' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
