"""``fjs.benchmark``: a fair comparison of methods as a protocol with a version; one's own is entered by ``run``."""

from fedjax_sim.studies.benchmark.methods import DEEP, METHODS, Entry
from fedjax_sim.studies.benchmark.problems import PROBLEMS, ByClients, Problem, by_clients
from fedjax_sim.studies.benchmark.running import PROTOCOL, SMOKE, Protocol, Row

__all__ = [
    "DEEP",
    "METHODS",
    "PROBLEMS",
    "PROTOCOL",
    "SMOKE",
    "ByClients",
    "Entry",
    "Problem",
    "Protocol",
    "Row",
    "by_clients",
]
