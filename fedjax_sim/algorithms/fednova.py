"""Normalised averaging."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort
from fedjax_sim.descriptions import factory


class FedNova(Algorithm):
    """FedNova: averages normalised local changes, so that unequal tau_i do not bias the objective.

    The local change of a linear solver is Delta_i = -eta G_i a_i (Wang et al. 2020, eq. 5), G_i stacking the gradients;
    with s_i = sum_k a_ik and d_i = G_i a_i / s_i the server steps (eq. 7)

    x <- x - eta_g tau_eff eta sum_S w_i d_i,   tau_eff = sum_S w_i s_i

    Neither eta nor a_i is read out of the solver: the slope h_i = eta s_i is what the same solver moves by against a
    constant unit gradient, and the step is x + eta_g H sum_S w_i Delta_i / h_i with H = sum_S w_i h_i / sum_S w_i, per
    parameter leaf. Equals FedAvg when all tau_i are equal. State per client: none. One model and one scalar up, one
    model down.

    Raises:
      ValueError: the local solver is not linear in the gradients (Adam, AdaGrad, clipping, sign).

    Reference: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", eqs 5-7; tau_eff as in section 4.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"slope"})

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        normalised = trees.divide(trees.subtract(y, sent.params), client.slope)
        return {"normalised": normalised, "slope": client.slope}, c_i

    def aggregate(self, server: Any, sums: dict[str, Any], cohort: Cohort) -> Any:
        mass = jnp.where(cohort.mass > 0, cohort.mass, 1)  # below 1 where scheme I drops stragglers
        slope = trees.scale(1 / mass, sums["slope"])
        return self.server_step(server, trees.multiply(sums["normalised"], slope), cohort)


fednova = factory("algorithm.fednova", FedNova)
