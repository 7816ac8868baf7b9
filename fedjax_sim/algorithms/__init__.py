"""Federated algorithms: one short file each, against the contract of :mod:`fedjax_sim.algorithms.base`."""

from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, Sent, ServerState
from fedjax_sim.algorithms.fedavg import FedAvg, fedavg
from fedjax_sim.algorithms.fednova import FedNova, fednova
from fedjax_sim.algorithms.fedprox import FedProx, fedprox
from fedjax_sim.algorithms.scaffold import Scaffold, scaffold

__all__ = [
    "Algorithm",
    "Client",
    "Cohort",
    "FedAvg",
    "FedNova",
    "FedProx",
    "Scaffold",
    "Sent",
    "ServerState",
    "fedavg",
    "fednova",
    "fedprox",
    "scaffold",
]
