"""Variance-reduced local SGD."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, ServerState
from fedjax_sim.descriptions import factory


class Correction(NamedTuple):
    """A client's v_i, between its steps and the end of the round less its own half of the update, and its h_i."""

    v: Any
    slope: Any


class VrlSgd(Algorithm):
    """VRL-SGD: each client corrects its gradients by how far it moved apart from the average.

    y_i <- y_i - eta (g_i(y_i) - v_i);   v_i <- v_i + (x^ - y_i) / (tau_i eta),   x^ = sum w_i y_i the new average

    with everybody in every round; tau_i eta is the solver's slope h_i (see FedNova). The plain average is the
    paper's, ``average="sample"`` takes w_i = p_i. Sum_i v_i = 0 holds only while all tau_i are equal; with constant
    unequal tau_i it is sum_i tau_i v_i = 0; with tau_i that change from round to round nothing is conserved and the
    method may diverge (Wang et al. 2020, Fig. 2b). So with constant unequal tau_i the limit minimises
    sum_i w_i tau_i F_i, not sum_i w_i F_i. A client dropped from a round keeps its v_i.
    State per client: one model and a scalar a leaf. Two models down (x and the average's change), one up.

    Raises:
      ValueError: a local solver that is not linear, or a cohort without a slot for every client.

    Reference: Liang et al. 2019, "Variance reduced local SGD with lower communication complexity", Algorithm 1.
    """

    default_average: ClassVar[str] = "plain"
    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})
    duplicates: ClassVar[bool] = False
    needs_everyone: ClassVar[bool] = True
    settles: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"slope"})

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=trees.zeros_like(params))

    def init_client(self, params: Any) -> Correction:
        return Correction(trees.zeros_like(params), self._no_slope(params))

    def start(self, sent: Any, c_i: Correction, client: Client) -> tuple[Any, Any]:
        return sent.params, c_i.v

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        return trees.subtract(g, local)

    def finish(self, y: Any, sent: Any, c_i: Correction, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        # x^ is not known yet: (x^ - y_i) / h_i = (x^ - x) / h_i - (y_i - x) / h_i, the second half now.
        return {"delta": delta}, Correction(trees.subtract(c_i.v, trees.divide(delta, client.slope)), client.slope)

    def download_bytes(self, sent: Any) -> int:
        return 2 * super().download_bytes(sent)  # and the average's change, to settle

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        return self.server_step(server._replace(extra=sums["delta"]), sums["delta"], cohort)  # type: ignore[no-any-return]

    def settle(self, server: ServerState, c_i: Correction) -> Correction:
        return c_i._replace(v=trees.add(c_i.v, trees.divide(server.extra, c_i.slope)))

    def _no_slope(self, params: Any) -> Any:
        """Zeros of the shapes of the slopes: scalars, or arrays where a leaf's rate is one."""
        rate = self.client_learning_rate
        structure: Any = jax.tree.structure(params)
        if jax.tree.structure(rate) != structure:
            return jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), params)
        return jax.tree.map(lambda leaf, one: jnp.zeros(jnp.shape(one), leaf.dtype), params, rate)


vrl_sgd = factory("algorithm.vrl_sgd", VrlSgd)
