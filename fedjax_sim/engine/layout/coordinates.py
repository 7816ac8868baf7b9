"""What layouts share in which clients train coordinates of something, not the thing itself.

They are for clients that form sums and multiples only, of the model they began with and of gradients. Such a client
need not hold what it trains: it trains its coordinates, an array of another shape in its place, with the method's own
hooks. What it reports of it are coordinates too, which the layout turns into the sum over the cohort when all are done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.affine import is_affine
from fedjax_sim.core.values import shown
from fedjax_sim.engine.layout.base import LocalResult
from fedjax_sim.engine.solver import Left, Slot, Solver
from fedjax_sim.optim.described import Sgd

_COORDINATES = "coordinates"  # the stack of what clients report


def not_linear(solver: Solver, sent: Any, states: Any, *, surveying: bool = False) -> str | None:
    """Why clients cannot train coordinates; None where they can. What is ``sent`` and the ``states`` may be shapes.

    ``surveying`` says whether methods can whose clients survey their data and take no step.
    """
    method, watch = solver.algorithm, solver.watch
    name, optimizer = type(method).__name__, method.client_optimizer
    if not (is_affine(method) or (surveying and is_affine(method, surveying=True))):
        return f"{name} does more with what clients train than sums and multiples of it"
    if not isinstance(optimizer, Sgd):
        return f"its local solver is {shown(optimizer)}, not fedjax_sim.optim.sgd"
    if jax.tree.leaves(states):
        return f"{name} keeps a state for every client"
    if not hasattr(sent, "params") or any(jnp.ndim(one) for one in jax.tree.leaves(sent._replace(params=()))):
        return f"{name} sends more than a model and numbers"
    if watch.updates or watch.drift:
        return "a diagnostic looks at the change of every client"
    if watch.mixing:
        return "clients of an asynchronous run begin with models of different rounds"
    return None


class CoordinateSolver(Solver):
    """The solver of clients in coordinates: what they report of them is stacked, not summed.

    Its task has ``coordinates(params)``, where in what a client begins with they are.
    """

    def finish(self, sent: Any, c_i: Any, slot: Slot, progress: Any) -> Left:
        left = super().finish(sent, c_i, slot, progress)
        task: Any = self.task
        shape = task.coordinates(sent.params).shape
        if any(leaf.shape == shape for leaf in jax.tree.leaves(left.stacks)):
            raise ValueError(
                f"{type(self.algorithm).__name__}.finish stacks what clients train, which is more than sums and "
                "multiples of it: leave out its mark fedjax_sim.algorithms.affine"
            )
        stacked, values = {}, {}
        for name, value in left.sums.items():
            leaves, structure = jax.tree.flatten(value)
            stacked[name] = [one for one in leaves if one.shape == shape]
            values[name] = jax.tree.unflatten(structure, [None if one.shape == shape else one for one in leaves])
        return Left(values, dict.fromkeys(values, jnp.ones(())), {**left.stacks, _COORDINATES: stacked}, left.kept)


def in_their_place(result: LocalResult, total: Callable[[jax.Array], Any]) -> LocalResult:
    """What clients in coordinates leave, with ``total`` of all coordinates, [S, ...], where a message has some."""
    stacks = dict(result.stacks)
    reported = stacks.pop(_COORDINATES)

    def whole(name: str) -> Any:
        totals = map(total, reported[name])
        return jax.tree.map(
            lambda leaf: next(totals) if leaf is None else leaf, result.sums[name], is_leaf=lambda leaf: leaf is None
        )

    return result._replace(sums={name: whole(name) for name in result.sums}, stacks=stacks)
