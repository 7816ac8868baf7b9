"""Aggregation weights that can be learned."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Requires, Share, Sum
from fedjax_sim.algorithms.gathering import SENT
from fedjax_sim.algorithms.robust import Robust
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, innermost, within
from fedjax_sim.core import trees
from fedjax_sim.core.fields import real

_AVERAGED = "reweighted"  # the message that holds all those which the cohort's average is taken of


class Reweighted(Wrapper):
    """Any method that averages, with weights of one's own: lambda = softmax(logits) in the place of p_i or 1/N.

    lambda_i = exp(l_i) / sum_{j=1..N} exp(l_j);   w_i = W lambda_i / sum_S lambda_j for i in S

    with W the sum of the weights that the cohort scheme gives: 1 but for averages that do not normalise. With everybody
    in every round w = lambda. A client's share of the objective is lambda_i too (SCAFFOLD's c is sum_j lambda_j c_j),
    and what is minimised is sum_i lambda_i F_i. The logits are real leaves: the gradient of anything recorded with
    respect to them learns the weights, in every layout; its entries sum to 0. The logits stay on the server.

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

    logits: Any = real(default=None, several=True)

    in_every_phase: ClassVar[bool] = True

    @property
    def requires(self) -> Requires:
        base = self.base.requires
        chosen = "sum lambda_i F_i, lambda = softmax(logits)"
        return base.but(
            duplicates=False,
            averages=base.averages - {"transformed"},
            minimises=base.minimises if self.logits is None else lambda objective: base.minimises(chosen),
        )

    def init(self, params: Any, shares: jax.Array) -> Any:
        if self.logits is None:
            return super().init(params, shares)
        if np.shape(self.logits) != np.shape(shares):
            raise ValueError(
                f"reweighted(logits=...) has the shape {np.shape(self.logits)}: give one number for each of the data "
                f"set's {len(shares)} clients, in the order of their ids"
            )
        return super().init(params, self._shares(shares))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        if self.logits is not None:
            client = client._replace(share=self._shares(client.share).at[client.index].get(mode="clip"))
        messages, new = super().finish(delta, y, sent, c_i, client)
        averaged = {name: message for name, message in messages.items() if isinstance(message, Mean)}
        # Of what attackers agree on, cohort.weights make the average, unless something inside has others or none.
        gathered = SENT in messages and not any(isinstance(one, Robust | Reweighted) for one in within(self.base))
        if not averaged and not (gathered and messages[SENT].value.averaged):
            name = innermost(self.base).factory_name()
            raise ValueError(
                f"reweighted({name}(...)): {name} weighs its clients itself, so the cohort's average has no "
                "part in it: reweigh a method that averages, for instance fedavg, fednova or scaffold"
            )
        if self.logits is None:
            return messages, new
        # The engine knows the scheme's weights and shares alone.
        values = {name: message.value for name, message in averaged.items()}
        weighed = Sum(trees.scale(client.share, values), sum(message.size for message in averaged.values()))
        others = {name: message for name, message in messages.items() if name not in averaged}
        for name, message in others.items():
            if isinstance(message, Share):
                others[name] = Sum(trees.scale(client.share, message.value), message.size)
        return others | {_AVERAGED: weighed}, new

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        if self.logits is None:
            return super().update(server, got, cohort)
        # Clients do not know who else is there, so they weigh by lambda_i and the server normalises.
        factor, shares = _present(self._shares(cohort.weights).at[cohort.indices].get(mode="clip"), cohort)
        others = {name: message for name, message in got.items() if name != _AVERAGED}
        averaged = trees.scale(factor, got[_AVERAGED])
        return super().update(server, others | averaged, cohort._replace(weights=factor * shares))

    def weighed(self, client: Client, cohort: Cohort) -> Client:
        if self.logits is not None:
            share = self._shares(client.share).at[client.index].get(mode="clip")
            factor, there = _present(share, cohort)
            client = client._replace(weight=there * factor.astype(there.dtype), share=share)
        return super().weighed(client, cohort)

    def _shares(self, like: jax.Array) -> jax.Array:
        """lambda, [N], in the dtype of ``like``."""
        return jax.nn.softmax(trees.as_dtype(self.logits, like))


def _present(shares: jax.Array, cohort: Cohort) -> tuple[jax.Array, jax.Array]:
    """What makes the shares [S] of those who are there sum to the cohort's mass, and these shares, 0 for others."""
    shares = jnp.where(cohort.valid, shares, 0)
    total = jnp.sum(shares)
    return cohort.mass / jnp.where(total > 0, total, 1), shares


reweighted = recorded(
    "algorithm.reweighted",
    Reweighted,
    step="around a method: w_i ∝ exp(l_i) over the cohort, l_i learned by gradient",
    cite="xia2021auto",
    paper="after Xia et al. 2021",
    kept="the base's",
    case={"logits": [0.3, -0.8, 0.1, 1.2, -0.4, 0.6]},
)
