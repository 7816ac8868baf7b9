"""Several things trained side by side: each part has an optimiser state of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.optim.described import Optimizer, move


class Parts(dict[str, Any]):
    """What a client trains, by name, where that is more than one model: ``Parts(shared=x, own=v)``.

    A pytree. The local optimiser treats every part by itself, so that nothing couples them (a clip by the norm, say).
    """


jax.tree_util.register_pytree_with_keys(
    Parts,
    lambda parts: (tuple((jax.tree_util.DictKey(name), parts[name]) for name in sorted(parts)), tuple(sorted(parts))),
    lambda names, values: Parts(zip(names, values, strict=True)),
    lambda parts: (tuple(parts[name] for name in sorted(parts)), tuple(sorted(parts))),
)


def begin(optimizer: Optimizer, y: Any) -> Any:
    """The optimiser's state before the first step."""
    if isinstance(y, Parts):
        return Parts({name: begin(optimizer, part) for name, part in y.items()})
    return optimizer.init(y)


def gradient(objective: Callable[[Any], tuple[Any, Any]], y: Any, moving: dict[str, jax.Array] | None) -> Any:
    """``(gradient, what the objective returns beside)``; zero in the parts that do not move, as in :func:`in_turn`.

    The gradient in those is not computed. One part moves at a time.
    """
    if moving is None:
        return jax.grad(objective, has_aux=True)(y)

    def of(name: str) -> Callable[[], Any]:
        def one() -> Any:
            g, beside = jax.grad(lambda part: objective(Parts({**y, name: part})), has_aux=True)(y[name])
            return Parts({**trees.zeros_like(y), name: g}), beside

        return one

    return lax.switch(jnp.argmax(jnp.stack(list(moving.values()))), [of(name) for name in moving])


def in_turn(moving: dict[str, jax.Array], new: tuple[Any, Any], old: tuple[Any, Any]) -> tuple[Parts, Parts]:
    """``(y, optimiser state)`` after a step in which a part moves where its scalar in ``moving`` holds, and stays else.

    Parts that are not in ``moving`` are the new ones.
    """

    def chosen(new: Any, old: Any) -> Parts:
        moved = {name: trees.select(moves, new[name], old[name]) for name, moves in moving.items()}
        return Parts({**new, **moved})

    return chosen(new[0], old[0]), chosen(new[1], old[1])


def descend(optimizer: Optimizer, g: Any, y: Any, state: Any, rate: Any) -> tuple[Any, Any]:
    """``(y + l u, optimiser state)``: a step of the optimiser along the gradient ``g``, of every part by itself.

    The rate l is a scalar, or a pytree like a part: parts of another structure move by u.
    """
    if not isinstance(y, Parts):
        updates, state = optimizer.update(g, state, y)
        return move(y, rate, updates), state
    moved, states = {}, {}
    for name, part in y.items():
        updates, states[name] = optimizer.update(g[name], state[name], part)
        fits = jax.tree.structure(rate) in (jax.tree.structure(0.0), jax.tree.structure(part))
        moved[name] = move(part, rate, updates) if fits else trees.add(part, updates)
    return Parts(moved), Parts(states)
