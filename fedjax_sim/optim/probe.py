"""The unit-gradient probe: how far a local solver moves against a constant gradient of one.

For a linear solver the local change is Delta_i = -eta G_i a_i; against the gradient 1 (plus mu y of a proximal term,
which passes through the solver like any gradient) one scalar parameter moves by -h_i with h_i = eta sum_k a_ik
= eta s_i, which is eta ||a_i||_1 where a_i >= 0 (Wang et al. 2020, section 4). Closed forms, at step size eta:

  SGD           h = eta tau
  proximal      h = eta [1 - (1 - eta mu)^tau] / (eta mu)
  decay gamma   h = eta (1 - gamma^tau) / (1 - gamma)
  momentum rho  h = eta [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)

The probe depends on the solver, the rate and tau_i alone, not on data: it runs once for the whole cohort beside the
clients' real work, as max tau_i steps on vectors of |S| numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import trees
from fedjax_sim.loops import bounded_loop
from fedjax_sim.optim.described import Optimizer, move


class Probed(NamedTuple):
    """What the probe saw of every client of a cohort.

    Attributes:
      slope: h_i; pytree like the parameters, leaves [S] (or [S, ...] where the rate is an array for that leaf), 0
        where tau_i = 0.
      lowest: [S], the smallest increment of h_i from one step to the next over all leaves: min_k eta a_ik for solvers
        whose steps are all alike (momentum, proximal terms); negative where a gradient is counted backwards.
    """

    slope: Any
    lowest: jax.Array


def probe(optimizer: Optimizer, mu: Any, params: Any, rates: Any, steps: jax.Array, bound: int) -> Probed:
    """Runs every client's solver against a gradient of one.

    Args:
      optimizer: the local solver.
      mu: strength of its proximal term, or None.
      params: the parameters, or their shapes.
      rates: ``client_learning_rate`` of each client, leading axis S.
      steps: int32[S], tau_i.
      bound: static upper bound of tau_i.
    """
    rates = _per_leaf(rates, params)
    y = _start(params, rates)

    def probe_step(k: jax.Array, constants: Any, carry: Any) -> Any:
        optimizer, mu, rates, steps = constants

        def one(rate: Any, tau: jax.Array, state: Any) -> Any:
            y, optimizer_state, lowest = state
            moved, new = _step(optimizer, mu, rate, jax.tree.map(jnp.ones_like, y), optimizer_state, y)
            gains = jax.tree.map(lambda a, b: jnp.min(b - a).astype(lowest.dtype), moved, y)
            least = jax.tree.reduce(jnp.minimum, gains, lowest)
            return trees.select(k < tau, (moved, new, least), state)

        return jax.vmap(one)(rates, steps, carry)

    infinite = jnp.full((len(steps),), jnp.inf, jnp.result_type(float))
    start = (*_spread((y, optimizer.init(y)), len(steps)), infinite)
    moved, _, lowest = bounded_loop(probe_step, bound)(jnp.max(steps), (optimizer, mu, rates, steps), start)
    return Probed(jax.tree.map(jnp.negative, moved), lowest)


def accumulation(optimizer: Optimizer, mu: Any, params: Any, rates: Any, steps: jax.Array, bound: int) -> jax.Array:
    """a_ik of every client: how often its step-k gradient is counted in its local change (Wang et al. 2020, eq. 5).

    The transpose of the solver, which is exact for every linear one: d y / d g_k over the move of a single step, for
    the first leaf of the parameters.

    Args:
      optimizer: the local solver, linear in the gradients.
      mu: strength of its proximal term, or None.
      params: the parameters, or their shapes.
      rates: ``client_learning_rate`` of each client, leading axis S.
      steps: int32[S], tau_i.
      bound: static upper bound of tau_i.

    Returns:
      [S, bound], 0 beyond tau_i.
    """
    rates = _per_leaf(rates, params)
    first = jax.tree.leaves(_start(params, rates))[0]
    rate = jax.tree.leaves(rates)[0].reshape(len(steps), -1)[:, 0]
    y = jnp.zeros((), first.dtype)

    def one(rate: jax.Array, tau: jax.Array) -> jax.Array:
        def moved(gradients: jax.Array) -> jax.Array:
            def step(state: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
                g, k = x
                return trees.select(k < tau, _step(optimizer, mu, rate, g, state[1], state[0]), state), None

            numbers = jnp.arange(bound, dtype=jnp.int32)
            end: jax.Array = lax.scan(step, (y, optimizer.init(y)), (gradients, numbers))[0][0]
            return end

        single = _step(optimizer, mu, rate, jnp.ones_like(y), optimizer.init(y), y)[0]
        weights: jax.Array = jax.grad(moved)(jnp.zeros((bound,), y.dtype)) / single
        return weights

    counted: jax.Array = jax.vmap(one)(rate, steps)
    return counted


def _step(optimizer: Optimizer, mu: Any, rate: Any, g: Any, state: Any, y: Any) -> tuple[Any, Any]:
    """One step of the solver from the origin of its proximal term: ``(y, optimiser state)``."""
    if mu is not None:
        g = trees.add_scaled(g, mu, y)
    updates, new = optimizer.update(g, state, y)
    return move(y, rate, updates), new


def _per_leaf(rates: Any, params: Any) -> Any:
    scalar: Any = jax.tree.structure(0.0)
    return jax.tree.map(lambda _: rates, params) if jax.tree.structure(rates) == scalar else rates


def _start(params: Any, rates: Any) -> Any:
    return jax.tree.map(lambda leaf, rate: jnp.zeros(rate.shape[1:], leaf.dtype), params, rates)


def _spread(tree: Any, count: int) -> Any:
    def spread(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        return jnp.broadcast_to(leaf, (count, *leaf.shape))

    return jax.tree.map(spread, tree)
