"""``fjs.benchmark``: a fair comparison of methods as a protocol with a version; one's own is entered by ``run``."""

from fedjax_sim.studies.benchmark.evidence import BUDGETS, Difference, differences, smallest_effect, within
from fedjax_sim.studies.benchmark.methods import DEEP, METHODS, Entry
from fedjax_sim.studies.benchmark.personal import PERSONAL, OwnModels, own_models
from fedjax_sim.studies.benchmark.problems import PROBLEMS, ByClients, Problem, by_clients
from fedjax_sim.studies.benchmark.result import Cost, Result, cost, run
from fedjax_sim.studies.benchmark.running import PROTOCOL, SMOKE, Choice, Protocol, Row

__all__ = [
    "BUDGETS",
    "DEEP",
    "METHODS",
    "PERSONAL",
    "PROBLEMS",
    "PROTOCOL",
    "SMOKE",
    "ByClients",
    "Choice",
    "Cost",
    "Difference",
    "Entry",
    "OwnModels",
    "Problem",
    "Protocol",
    "Result",
    "Row",
    "by_clients",
    "cost",
    "differences",
    "own_models",
    "run",
    "smallest_effect",
    "within",
]
