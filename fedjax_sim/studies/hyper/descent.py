"""Gradient descent that survives divergence: a guarded optimiser as pure functions.

A point whose value or gradient is not finite is not moved to: the step that led there is halved until it ends
somewhere finite, and grows back to its full length by doublings, one after every accepted point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim import optim
from fedjax_sim.core import trees


class Descent(NamedTuple):
    """Where a descent stands; a pytree.

    Attributes:
      proposal: the point to evaluate next, ``point + scale * direction``.
      point: the last accepted point.
      direction: the step that the optimiser wants to take from there.
      solver: the optimiser's state behind that step.
      scale: scalar in (0, 1], the part of the step that is tried.
    """

    proposal: Any
    point: Any
    direction: Any
    solver: Any
    scale: jax.Array


def begin(optimizer: optim.Optimizer, point: Any, direction: Any) -> Descent:
    """A descent whose first proposal is ``point + direction``; if that fails, half the way, and so on."""
    scale = jnp.ones((), jnp.result_type(float))
    return Descent(trees.add(point, direction), point, direction, optimizer.init(point), scale)


def advance(optimizer: optim.Optimizer, descent: Descent, accepted: jax.Array, gradient: Any) -> Descent:
    """The descent after its proposal was evaluated: accepted if value and ``gradient`` there are finite."""
    updates, solver = optimizer.update(gradient, descent.solver, descent.proposal)
    moved = (descent.proposal, updates, solver, jnp.minimum(2 * descent.scale, 1))
    halted = (descent.point, descent.direction, descent.solver, descent.scale / 2)
    point, direction, solver, scale = trees.select(accepted, moved, halted)
    return Descent(trees.add_scaled(point, scale, direction), point, direction, solver, scale)
