"""Devices in virtual time: how long clients take, which of them fail, and when the server closes a round."""

from types import ModuleType as _Module

from fedjax_sim.clients.systems.base import Cost as Cost
from fedjax_sim.clients.systems.base import Policy as Policy
from fedjax_sim.clients.systems.base import System as System
from fedjax_sim.clients.systems.base import Times as Times
from fedjax_sim.clients.systems.base import deadline as deadline
from fedjax_sim.clients.systems.base import first as first
from fedjax_sim.clients.systems.base import wait_for_all as wait_for_all
from fedjax_sim.clients.systems.devices import Devices as Devices
from fedjax_sim.clients.systems.devices import Distribution as Distribution
from fedjax_sim.clients.systems.devices import Fleet as Fleet
from fedjax_sim.clients.systems.devices import devices as devices
from fedjax_sim.clients.systems.devices import empirical as empirical
from fedjax_sim.clients.systems.devices import exponential as exponential
from fedjax_sim.clients.systems.devices import half_normal as half_normal
from fedjax_sim.clients.systems.devices import lognormal as lognormal
from fedjax_sim.clients.systems.devices import pareto as pareto
from fedjax_sim.clients.systems.devices import uniform as uniform
from fedjax_sim.clients.systems.flops import gradient_flops as gradient_flops

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
