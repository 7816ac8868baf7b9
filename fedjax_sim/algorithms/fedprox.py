"""FedAvg with a proximal term and partial work."""

from __future__ import annotations

from typing import Any, Self

from fedjax_sim.algorithms.base import Algorithm
from fedjax_sim.descriptions import factory
from fedjax_sim.values import check_real, check_scalar


class FedProx(Algorithm):
    """FedProx: each client approximately minimises h_i(y) = F_i(y) + mu/2 |y - x|^2 (Li et al. 2020, eq. 2).

    y_i <- y_i - eta (g_i(y_i) + mu (y_i - x));   x <- x + eta_g sum_S w_i (y_i - x)

    The proximal gradient passes through the local optimiser like the loss's. mu = 0 is FedAvg. The other half of the
    method, keeping the partial work of stragglers, is the ``work`` argument's: ``stragglers(..., keep=True)``.
    State per client: none. One model down, one up a round and client.

    Args:
      mu: strength of the proximal term, >= 0.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2.
    """

    mu: Any = 1.0

    def checked(self) -> Self:
        check_real("fedprox(mu=...)", self.mu, low=0.0)
        return super().checked()

    def proximal(self, sent: Any) -> Any:
        check_scalar("fedprox(mu=...)", self.mu)
        return self.mu


fedprox = factory("algorithm.fedprox", FedProx)
