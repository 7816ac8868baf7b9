"""The unit-gradient probe: how far a local solver moves against a constant gradient of one.

For a linear solver the local change is Delta_i = -eta G_i a_i; against the gradient 1 (plus mu y of a proximal term,
which passes through the solver like any gradient) one scalar parameter moves by -h_i with h_i = eta sum_k a_ik
= eta s_i, which is eta ||a_i||_1 where a_i >= 0 (Wang et al. 2020, section 4). Closed forms, at step size eta:

  SGD           h = eta tau
  proximal      h = eta [1 - (1 - eta mu)^tau] / (eta mu)
  momentum rho  h = eta [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)

The probe depends on the solver, the rate and tau_i alone, not on data: it runs once for the whole cohort beside the
clients' real work, as max tau_i steps on vectors of |S| numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm
from fedjax_sim.local.solver import move
from fedjax_sim.loops import bounded_loop


def slopes(algorithm: Algorithm, sent: Any, rates: Any, steps: jax.Array, bound: int) -> Any:
    """h_i of every client of a cohort.

    Args:
      algorithm: its client optimiser and proximal term are probed.
      sent: the round's broadcast.
      rates: ``client_learning_rate`` of each client, leading axis S.
      steps: int32[S], tau_i.
      bound: static upper bound of tau_i.

    Returns:
      Pytree like the parameters, leaves [S] (or [S, ...] where the rate is an array for that leaf); 0 where tau_i = 0.
    """
    scalar: Any = jax.tree.structure(0.0)
    shared = jax.tree.structure(rates) == scalar
    per_leaf = jax.tree.map(lambda _: rates, sent.params) if shared else rates
    y = jax.tree.map(lambda leaf, rate: jnp.zeros(rate.shape[1:], leaf.dtype), sent.params, per_leaf)
    mu = algorithm.proximal(sent)

    def probe_step(k: jax.Array, constants: Any, carry: Any) -> Any:
        algorithm, mu, rates, steps = constants

        def one(rate: Any, tau: jax.Array, state: Any) -> Any:
            y, optimizer = state
            g = jax.tree.map(jnp.ones_like, y)
            if mu is not None:
                g = trees.add_scaled(g, mu, y)
            updates, new = algorithm.client_optimizer.update(g, optimizer, y)
            return trees.select(k < tau, (move(y, rate, updates), new), state)

        return jax.vmap(one)(rates, steps, carry)

    def spread(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        return jnp.broadcast_to(leaf, (len(steps), *leaf.shape))

    start = jax.tree.map(spread, (y, algorithm.client_optimizer.init(y)))
    moved, _ = bounded_loop(probe_step, bound)(jnp.max(steps), (algorithm, mu, rates, steps), start)
    return jax.tree.map(jnp.negative, moved)
