"""The methods of the comparison, each with the whole space from which its points are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedjax_sim import algorithms, optim
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.wrapper import keeps_personal
from fedjax_sim.core.paths import real_leaves
from fedjax_sim.studies.sweeps.space import Distribution, log_uniform, uniform

RATE, SERVER = "client_optimizer.learning_rate", "server_learning_rate"
BASE = "FedAvg"  # what all others are compared with

PLAIN = {SERVER: log_uniform(0.2, 5.0)}
_MOMENTUM = {SERVER: log_uniform(0.02, 2.0), "momentum": uniform(0.3, 0.97)}
_ADAPTIVE = {SERVER: log_uniform(1e-3, 1.0), "beta1": uniform(0.0, 0.95), "tau": log_uniform(1e-4, 1e-1)}


class Entry(NamedTuple):
    """A method and its space."""

    make: Callable[..., Method]  # of ``client_optimizer=``
    space: Mapping[str, Distribution]  # beside the clients' rate, whose range is the problem's
    everyone: bool = False  # whether it needs all clients in every round, whatever the problem says
    rates: tuple[str, ...] = (RATE,)  # the clients' rate, and what is drawn over the same range
    problems: tuple[str, ...] | None = None  # those that it is for; None for all

    @property
    def personal(self) -> bool:
        """Whether clients have models of their own: then these are judged, on the clients' own held-out examples."""
        return keeps_personal(self.method())

    def method(self) -> Method:
        """The algorithm, at a rate that the points replace."""
        return self.make(client_optimizer=optim.sgd(0.01))


def entered(make: Callable[..., Method], space: Mapping[str, Distribution] | None = None) -> Entry:
    """An entry of one's own: without a range for the server's rate, a method that has one gets FedAvg's."""
    entry = Entry(make, dict(space or {}))
    known = real_leaves(entry.method())
    rates = tuple(name for name in known if plain(name) == RATE)
    if not rates:
        raise ValueError(f"the method has no {RATE!r}: its factory must use the client_optimizer that it is given")
    server = {name: PLAIN[SERVER] for name in known if plain(name) == SERVER}
    return entry._replace(space=server | dict(entry.space), rates=rates)


def plain(name: str) -> str:
    """The name of a parameter in the method itself, of which wrappers have it as ``"base.<name>"``."""
    return plain(name[5:]) if name.startswith("base.") else name


# fmt: off
METHODS: dict[str, Entry] = {
    BASE: Entry(algorithms.fedavg, PLAIN),
    "FedProx": Entry(algorithms.fedprox, PLAIN | {"mu": log_uniform(1e-3, 3.0)}),
    "FedNova": Entry(algorithms.fednova, PLAIN),
    "SCAFFOLD": Entry(algorithms.scaffold, PLAIN),
    "FedDyn": Entry(algorithms.feddyn, PLAIN | {"alpha": log_uniform(1e-3, 1.0)}),
    "FedAvgM": Entry(algorithms.fedavgm, _MOMENTUM),
    "FedAdam": Entry(algorithms.fedadam, _ADAPTIVE),
    "FedAWARE": Entry(lambda **given: algorithms.fedaware(**given, normalised=True, warm_up=True),
                      {SERVER: log_uniform(0.02, 5.0), "alpha": uniform(0.05, 1.0)}),
    "FedAdagrad": Entry(algorithms.fedadagrad, _ADAPTIVE),
    "FedYogi": Entry(algorithms.fedyogi, _ADAPTIVE),
    "FedCM": Entry(algorithms.fedcm, PLAIN | {"alpha": uniform(0.02, 1.0)}),
    "FedExP": Entry(algorithms.fedexp, PLAIN | {"epsilon": log_uniform(1e-4, 1.0)}),
    "FedVARP": Entry(algorithms.fedvarp, PLAIN),
    "FedNova, VR": Entry(lambda **given: algorithms.fednova(**given, variance_reduction=True), PLAIN),
    "VRL-SGD": Entry(algorithms.vrl_sgd, PLAIN, True),
    "FedDANE": Entry(algorithms.feddane, PLAIN | {"mu": log_uniform(1e-3, 3.0)}),
}
# fmt: on
"""The methods by name: :class:`Entry` each."""

DEEP = tuple(METHODS)[:8]
"""Those that are run on the deep problems, which are dear."""
