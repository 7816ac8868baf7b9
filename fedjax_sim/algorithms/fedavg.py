"""Federated averaging."""

from __future__ import annotations

from fedjax_sim.algorithms.base import Algorithm
from fedjax_sim.descriptions import factory


class FedAvg(Algorithm):
    """FedAvg: tau_i local steps, then a weighted average of the models.

    y_i <- y_i - eta g_i(y_i), tau_i times from y_i = x;   x <- x + eta_g sum_S w_i (y_i - x)

    with w_i from the cohort scheme (n_i / sum_S n by default). Minimises a surrogate, not F, when the tau_i differ
    (Wang et al. 2020, Theorem 1). State per client: none. One model down, one up a round and client.

    Reference: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
    Algorithm 1; with a server optimiser: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 1.
    """


fedavg = factory("algorithm.fedavg", FedAvg)
