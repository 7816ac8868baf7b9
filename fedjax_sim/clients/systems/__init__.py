"""Devices in virtual time: how long clients take, which of them fail, and when the server closes a round."""

from fedjax_sim.clients.systems.base import Cost, System, Times
from fedjax_sim.clients.systems.devices import Devices, Fleet, devices
from fedjax_sim.clients.systems.distributions import (
    Distribution,
    empirical,
    exponential,
    half_normal,
    lognormal,
    pareto,
    uniform,
    zipf,
)
from fedjax_sim.clients.systems.flops import gradient_flops
from fedjax_sim.clients.systems.policies import Policy, deadline, first, wait_for_all

__all__ = [
    "Cost",
    "Devices",
    "Distribution",
    "Fleet",
    "Policy",
    "System",
    "Times",
    "deadline",
    "devices",
    "empirical",
    "exponential",
    "first",
    "gradient_flops",
    "half_normal",
    "lognormal",
    "pareto",
    "uniform",
    "wait_for_all",
    "zipf",
]
