"""Stochastic controlled averaging."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, ServerState
from fedjax_sim.descriptions import factory, static


class ScaffoldSent(NamedTuple):
    """The model x and the server's control variate c."""

    params: Any
    control: Any


class Scaffold(Algorithm):
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
    duplicates: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"slope"} if self.option == "II" else {"anchor"})

    def checked(self) -> Self:
        if self.option not in ("I", "II"):
            raise ValueError(f"scaffold(option={self.option!r}): it must be 'I' or 'II'")
        return super().checked()

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=trees.zeros_like(params))

    def init_client(self, params: Any) -> Any:
        return trees.zeros_like(params)

    def broadcast(self, server: ServerState) -> ScaffoldSent:
        return ScaffoldSent(server.params, server.extra)

    def start(self, sent: ScaffoldSent, c_i: Any, client: Client) -> tuple[Any, Any]:
        return sent.params, trees.subtract(sent.control, c_i)

    def direction(self, g: Any, y: Any, sent: ScaffoldSent, local: Any, client: Client) -> Any:
        return trees.add(g, local)

    def finish(self, y: Any, sent: ScaffoldSent, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        new = client.anchor
        if self.option == "II":
            new = jax.tree.map(lambda corrected, moved: -corrected - moved, local, trees.divide(delta, client.slope))
        return {"delta": delta, "control": trees.subtract(new, c_i)}, new

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"control": client.share}

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        control = trees.add(server.extra, sums["control"])
        return self.server_step(server._replace(extra=control), sums["delta"], cohort)  # type: ignore[no-any-return]


scaffold = factory("algorithm.scaffold", Scaffold)
