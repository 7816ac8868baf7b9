"""Federated averaging and the two special cases that have names."""

from __future__ import annotations

from typing import Any, ClassVar

from fedjax_sim.algorithms.base import Algorithm, Client
from fedjax_sim.descriptions import factory


class FedAvg(Algorithm):
    """FedAvg: tau_i local steps, then a weighted average of the models.

    y_i <- y_i - eta g_i(y_i), tau_i times from y_i = x;   x <- x + eta_g sum_S w_i (y_i - x)

    with w_i from the cohort scheme (n_i / sum_S n by default). Minimises a surrogate, not F, when the tau_i differ
    (Wang et al. 2020, Theorem 1). State per client: none. One model down, one up a round and client.

    Reference: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
    Algorithm 1; with a server optimiser: Reddi et al. 2021, "Adaptive federated optimization", Algorithm 1.
    """


class LocalSgd(FedAvg):
    """Local SGD: FedAvg with everybody in every round; any other cohort is refused.

    Raises:
      ValueError: (before a run) a cohort scheme that has no slot for every client.

    Reference: Stich 2019, "Local SGD converges fast and communicates little", Algorithm 1.
    """

    needs_everyone: ClassVar[bool] = True


class LargeBatchSgd(Algorithm):
    """Large-batch SGD: each client of the cohort takes ONE step along its full local gradient.

    x <- x + eta_g sum_S w_i u_i,   u_i = -eta grad F_i(x)

    What ``work`` and the batches say about local steps does not matter here: nobody takes more than one and nobody
    straggles; the batch size only sets the pieces in which a gradient is accumulated. State per client: none. One
    model down, one up a round and client.

    Reference: the baseline "SGD" of Karimireddy et al. 2020 (SCAFFOLD), section 7; FedSGD of McMahan et al. 2017.
    """

    takes_steps: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"anchor"})

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        state = self.client_optimizer.init(y)
        y, _ = self.local_step(client.anchor, y, state, sent, client)
        return super().finish(y, sent, c_i, local, client)


fedavg = factory("algorithm.fedavg", FedAvg)
local_sgd = factory("algorithm.local_sgd", LocalSgd)
large_batch_sgd = factory("algorithm.large_batch_sgd", LargeBatchSgd)
