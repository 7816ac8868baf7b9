"""Stochastic controlled averaging."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires, Share
from fedjax_sim.algorithms.fedavg import Controlled
from fedjax_sim.core.fields import choice
from fedjax_sim.core.trees import add, divide, inner, subtract

ControlSent = namedtuple("ControlSent", ["params", "control"])  # the model x and the server's control variate c


class Scaffold(Controlled):
    """SCAFFOLD: control variates c_i, c correct the drift of every local step (Karimireddy et al. 2020).

    y_i <- y_i - eta (g_i(y_i) - c_i + c)                                                       (eq. 3)
    c_i+ = gradient of F_i at x  (option I)   or   c_i - c + (x - y_i) / (tau_i eta)  (option II)  (eq. 4)
    x <- x + eta_g mean_S (y_i - x);   c <- c + (1/N) sum_S (c_i+ - c_i)                        (eq. 5)

    All control variates start at zero, so that c = mean_i c_i at all times. Option II's c_i+ is the mean of the raw
    gradients along the local path; tau_i eta is the solver's slope h_i (see FedNova), so momentum is allowed too.
    With ``average="sample"`` in the cohort scheme x moves by sum_S (n_i / sum_S n) (y_i - x) and
    c <- c + sum_S p_i (c_i+ - c_i), which keeps c = sum p_i c_i; weighting BOTH by the cohort's mean has a wrong limit.

    Args:
      option: ``"II"`` (default, as in the paper's experiments) or ``"I"`` (one more pass over the local data).

    Raises:
      ValueError: another option, a non-linear local solver with option II, or a scheme with replacement.

    Reference: Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning",
    Algorithm 1, eqs 3-5.
    """

    option: str = choice(("I", "II"), default="II")

    @property
    def requires(self) -> Requires:
        first = self.option == "I"
        averages = WEIGHTED_MEANS
        return Requires(slope=not first, survey=first, average="plain", averages=averages, duplicates=False)

    def send(self, server: Any) -> Any:
        return ControlSent(server.params, server.extra)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.grad(F)(sent.params)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y) + inner(subtract(sent.control, c_i), y)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        if self.option == "I":
            new = client.survey
        else:
            new = subtract(subtract(c_i, sent.control), divide(delta, client.slope))
        return {"delta": Mean(delta), "control": Share(subtract(new, c_i))}, new

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return super().update(server._replace(extra=add(server.extra, got["control"])), got, cohort)


scaffold = recorded(
    "algorithm.scaffold",
    Scaffold,
    step="local gradient − c_i + c; c_i, c updated",
    cite="karimireddy2020scaffold",
    kept="1",
    sent="2 / 2",
    options="`option` I or II",
)
