"""Which methods are compared, and the grid each of them is tuned by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.studies.sweeps.space import Space

RATE = "client_optimizer.learning_rate"
SERVER = "server_learning_rate"
LARGE_BATCH_FACTOR = 10.0  # one step a round in the place of several: about so many

PLAIN = (1.0, 2.0)  # server rates of methods without a parameter of their own
ADAPTIVE = (0.02, 0.1)  # server rates of methods that divide by the size of past changes
HEAVY = (0.5, 0.9)  # momenta, decays

LEFT_OUT = (
    "local_sgd is FedAvg with everybody; dane solves local problems; last_k is like ema; reweighted needs an outer "
    "gradient; privacy, compression, robust rules and attacks change the question, not the optimiser"
)


class Entry(NamedTuple):
    """A method of the comparison.

    Attributes:
      make: the algorithm, given any learning rate of the clients.
      parameter: the second axis of its grid, a path to a real leaf of the algorithm.
      values: along it, equally many for all methods.
      prefix: of the paths of the method inside a wrapper.
      everybody: whether it needs all clients in every round, whatever the problem says.
      factor: of the clients' learning rates.
    """

    make: Callable[[fjs.optim.Optimizer], Method]
    parameter: str = SERVER
    values: tuple[float, ...] = PLAIN
    prefix: str = ""
    everybody: bool = False
    factor: float = 1.0

    def algorithm(self, rate: float) -> Method:
        """The algorithm, at one rate."""
        return self.make(fjs.optim.sgd(self.factor * rate))

    def space(self, rates: tuple[float, ...]) -> Space:
        """The grid of a problem's rates by the method's own values."""
        tried = [self.factor * rate for rate in rates]
        return fjs.sweeps.grid({self.prefix + RATE: tried, self.parameter: list(self.values)})


# fmt: off
METHODS: dict[str, Entry] = {
    "FedAvg": Entry(lambda sgd: fjs.fedavg(client_optimizer=sgd)),
    "large-batch SGD": Entry(lambda sgd: fjs.large_batch_sgd(client_optimizer=sgd), factor=LARGE_BATCH_FACTOR),
    "FedProx": Entry(lambda sgd: fjs.fedprox(client_optimizer=sgd), "mu", (0.1, 1.0)),
    "FedProx, adaptive": Entry(lambda sgd: fjs.fedprox(client_optimizer=sgd, adaptive=True), "mu", (0.0, 1.0)),
    "FedNova": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd)),
    "FedNova, momentum": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd.replace(momentum=0.5)),
                               "client_optimizer.momentum", HEAVY),
    "FedNova, VR": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd, variance_reduction=True)),
    "SCAFFOLD I": Entry(lambda sgd: fjs.scaffold(client_optimizer=sgd, option="I")),
    "SCAFFOLD II": Entry(lambda sgd: fjs.scaffold(client_optimizer=sgd, option="II")),
    "VRL-SGD": Entry(lambda sgd: fjs.vrl_sgd(client_optimizer=sgd), everybody=True),
    "FedDANE": Entry(lambda sgd: fjs.feddane(client_optimizer=sgd), "mu", (0.1, 1.0)),
    "FedDyn": Entry(lambda sgd: fjs.feddyn(client_optimizer=sgd), "alpha", (0.01, 0.1)),
    "FedCM": Entry(lambda sgd: fjs.fedcm(client_optimizer=sgd), "alpha", (0.1, 0.5)),
    "FedAvgM": Entry(lambda sgd: fjs.fedavgm(client_optimizer=sgd), "momentum", HEAVY),
    "FedAdagrad": Entry(lambda sgd: fjs.fedadagrad(client_optimizer=sgd), values=ADAPTIVE),
    "FedAdam": Entry(lambda sgd: fjs.fedadam(client_optimizer=sgd), values=ADAPTIVE),
    "FedYogi": Entry(lambda sgd: fjs.fedyogi(client_optimizer=sgd), values=ADAPTIVE),
    "FedAMS": Entry(lambda sgd: fjs.fedams(client_optimizer=sgd), values=ADAPTIVE),
    "FedAvg, EMA": Entry(lambda sgd: fjs.ema(fjs.fedavg(client_optimizer=sgd)), "decay", HEAVY, "base."),
    "FedAWARE": Entry(lambda sgd: fjs.fedaware(client_optimizer=sgd)),
    "FedAvgM, AWARE": Entry(lambda sgd: fjs.aware(fjs.fedavgm(client_optimizer=sgd)), "base.momentum", HEAVY, "base."),
    "q-FedAvg": Entry(lambda sgd: fjs.qfedavg(client_optimizer=sgd), "q", (0.1, 1.0)),
    "AFL": Entry(lambda sgd: fjs.afl(client_optimizer=sgd), "weight_learning_rate", (0.01, 0.1)),
}
# fmt: on

CONTROL_VARIATES = ("FedNova, VR", "SCAFFOLD I", "SCAFFOLD II", "VRL-SGD")
ADAPTIVE_SERVERS = ("FedAdagrad", "FedAdam", "FedYogi", "FedAMS")
SMOKE = ("FedAvg",)  # at the smoke size, on all problems but the first
