"""Asynchronous aggregation in virtual time: the server waits for messages, never for clients."""

from fedjax_sim.engine.asynchronous.schemes import Asynchronous as Asynchronous
from fedjax_sim.engine.asynchronous.schemes import fedasync as fedasync
from fedjax_sim.engine.asynchronous.schemes import fedbuff as fedbuff
from fedjax_sim.engine.asynchronous.staleness import Staleness as Staleness
from fedjax_sim.engine.asynchronous.staleness import constant as constant
from fedjax_sim.engine.asynchronous.staleness import hinge as hinge
from fedjax_sim.engine.asynchronous.staleness import polynomial as polynomial

__all__ = ["Asynchronous", "Staleness", "constant", "fedasync", "fedbuff", "hinge", "polynomial"]
