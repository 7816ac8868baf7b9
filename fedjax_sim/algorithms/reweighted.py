"""Aggregation weights that can be learned."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import trees
from fedjax_sim.algorithms.contract import Client, Cohort, Method, took_part
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.descriptions import factory
from fedjax_sim.values import check_real

_AVERAGED = "reweighted"  # the message that holds all those which the cohort's average is taken of


class Reweighted(Wrapper):
    """Any method that averages, with weights of one's own: lambda = softmax(logits) in the place of p_i or 1/N.

    lambda_i = exp(l_i) / sum_{j=1..N} exp(l_j);   w_i = W lambda_i / sum_S lambda_j for i in S

    with W the sum of the weights that the cohort scheme gives: 1 but for averages that do not normalise. With everybody
    in every round w = lambda. A client's share of the objective is lambda_i too, so SCAFFOLD's c is sum_j lambda_j c_j
    (FedDyn's and FedNova's with variance reduction likewise), and what is minimised is sum_i lambda_i F_i. The logits
    are real leaves: the gradient of anything recorded with respect to them learns the weights, in every layout. A
    constant added to all of them changes nothing, so the gradient's entries sum to 0.
    State per client, and what is sent: the base's; the logits stay on the server.

    Args:
      base: the method. Methods that weigh clients themselves are refused (q-FedAvg, AFL, FedAWARE).
      logits: l, float[N] by client index (clients are numbered in the order of their ids); None leaves the scheme's
        weights as they are. ``jnp.log(dataset.shares[dataset.order])`` makes lambda_i = p_i, zeros 1/N.

    Raises:
      ValueError: logits that are not finite or (before a run) not one a client, a method in which the cohort's average
        has no part, a scheme with replacement, or ``average="transformed"``, which weighs the objectives instead.

    Reference: the idea of learned weights: Xia et al. 2021, "Auto-FedAvg: Learnable federated averaging for
    multi-institutional medical image segmentation" (learned there while the model trains).
    """

    logits: Any = None

    duplicates = False

    @property
    def averages(self) -> frozenset[str]:  # type: ignore[override]
        return self.base.averages - {"transformed"}

    def checked(self) -> Self:
        check_real("reweighted(logits=...)", self.logits, optional=True)
        listed = isinstance(self.logits, (list, tuple))
        return Wrapper.checked(self.replace(logits=jnp.asarray(self.logits)) if listed else self)

    def minimises(self, objective: str) -> str:
        chosen = "sum lambda_i F_i, lambda = softmax(logits)"
        return self.base.minimises(objective if self.logits is None else chosen)

    def phases(self) -> tuple[Method, ...]:
        return tuple(self.replace(base=phase) for phase in self.base.phases())

    def init(self, params: Any, num_clients: int) -> Any:
        if self.logits is not None and np.shape(self.logits) != (num_clients,):
            raise ValueError(
                f"reweighted(logits=...) has the shape {np.shape(self.logits)}: give one number for each of the data "
                f"set's {num_clients} clients, in the order of their ids"
            )
        return super().init(params, num_clients)

    def introduced(self, server: Wrapped, shares: jax.Array) -> Any:
        return super().introduced(server, shares if self.logits is None else self._shares(shares))

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        messages, new = self.base.finish(y, sent, c_i, local, client)
        own = {*self.base.weigh(client), *self.base.stacked}
        averaged = {name: message for name, message in messages.items() if name not in own}
        if not averaged:
            name = type(self.base).__name__
            raise ValueError(
                f"reweighted({name.lower()}(...)): {name} weighs its clients itself, so the cohort's average has no "
                "part in it: reweigh a method that averages, for instance fedavg, fednova or scaffold"
            )
        return {name: message for name, message in messages.items() if name in own} | {_AVERAGED: averaged}, new

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        if self.logits is None:
            return self.base.weigh(client) | {_AVERAGED: client.weight}
        share = self._shares(client.share).at[client.index].get(mode="clip")
        return self.base.weigh(client._replace(share=share)) | {_AVERAGED: share * took_part(client)}

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        others = {name: message for name, message in messages.items() if name != _AVERAGED}
        return super().upload_bytes(others | messages[_AVERAGED], sent)

    def aggregate(self, server: Wrapped, sums: dict[str, Any], cohort: Cohort) -> Any:
        averaged = sums[_AVERAGED]
        if self.logits is not None:
            shares = self._shares(cohort.weights).at[cohort.indices].get(mode="clip")
            shares = jnp.where(cohort.valid, shares, 0)
            total = jnp.sum(shares)
            # Clients do not know who else is there, so they weigh by lambda_i and the server normalises.
            factor = cohort.mass / jnp.where(total > 0, total, 1)
            averaged = trees.scale(factor, averaged)
            cohort = cohort._replace(weights=factor * shares)
        others = {name: message for name, message in sums.items() if name != _AVERAGED}
        return super().aggregate(server, others | averaged, cohort)

    def _shares(self, like: jax.Array) -> jax.Array:
        """lambda, [N], in the dtype of ``like``."""
        shares: jax.Array = jax.nn.softmax(trees.as_dtype(self.logits, like))
        return shares


reweighted = factory("algorithm.reweighted", Reweighted)
