"""Stochastic controlled averaging."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fedjax_sim.algorithms.base import Client, Cohort, ServerState
from fedjax_sim.algorithms.control import Controlled
from fedjax_sim.descriptions import factory, static


class Scaffold(Controlled):
    """SCAFFOLD: control variates c_i, c correct the drift of every local step (Karimireddy et al. 2020).

    y_i <- y_i - eta (g_i(y_i) - c_i + c)                                                       (eq. 3)
    c_i+ = gradient of F_i at x  (option I)   or   c_i - c + (x - y_i) / (tau_i eta)  (option II)  (eq. 4)
    x <- x + eta_g mean_S (y_i - x);   c <- c + (1/N) sum_S (c_i+ - c_i)                        (eq. 5)

    All control variates start at zero, so that c = mean_i c_i at all times. Option II's c_i+ is the mean of the raw
    gradients along the local path; tau_i eta is the solver's slope h_i (see FedNova), so momentum is allowed too.
    With ``average="sample"`` in the cohort scheme x moves by sum_S (n_i / sum_S n) (y_i - x) and
    c <- c + sum_S p_i (c_i+ - c_i), which keeps c = sum p_i c_i; weighting BOTH by the cohort's mean has a wrong limit.
    State per client: one model. Two models down, two up a round and client.

    Args:
      option: ``"II"`` (default, as in the paper's experiments) or ``"I"`` (one more pass over the local data).

    Raises:
      ValueError: another option, a non-linear local solver with option II, or a scheme with replacement.

    Reference: Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning",
    Algorithm 1, eqs 3-5.
    """

    option: str = static(default="II")

    default_average: ClassVar[str] = "plain"
    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"slope"} if self.option == "II" else {"anchor"})

    def checked(self) -> Self:
        if self.option not in ("I", "II"):
            raise ValueError(f"scaffold(option={self.option!r}): it must be 'I' or 'II'")
        return super().checked()

    def raw_gradient(self, delta: Any, local: Any, client: Client) -> Any:
        return client.anchor if self.option == "I" else super().raw_gradient(delta, local, client)

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        return self.server_step(self.control(server, sums), sums["delta"], cohort)  # type: ignore[no-any-return]


scaffold = factory("algorithm.scaffold", Scaffold)
