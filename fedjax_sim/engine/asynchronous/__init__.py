"""Asynchronous aggregation in virtual time: the server waits for messages, never for clients."""

from fedjax_sim.engine.asynchronous.schemes import (
    Asynchronous,
    Staleness,
    constant,
    fedasync,
    fedbuff,
    hinge,
    polynomial,
)

__all__ = ["Asynchronous", "Staleness", "constant", "fedasync", "fedbuff", "hinge", "polynomial"]
