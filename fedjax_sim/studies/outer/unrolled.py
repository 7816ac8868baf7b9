"""What outer learning differentiates: a computation in segments, each of which adds to the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import shown


class Unrolled(Described):
    """L(theta) = sum_s loss_s over segments s = 0 .. T-1; loss_s is a function of theta and of the state before it.

    A subclass is a pytree: what it holds in fields is an argument of a compiled program, not a constant in it.
    """

    @property
    def segments(self) -> int:
        """T, static."""
        raise TypeError(f"{type(self).__name__} must define segments")

    def begin(self, parameters: Any, key: jax.Array) -> Any:
        """The state before the first segment; all that is drawn on the way is named by the key."""
        raise TypeError(f"{type(self).__name__} must define begin(parameters, key)")

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        """The state after segment ``segment``, int32, and what it adds to the loss, a real number."""
        raise TypeError(f"{type(self).__name__} must define advance(parameters, state, segment)")

    def log_probability(self, parameters: Any, key: jax.Array) -> jax.Array:
        """log p(draws of this key; theta), up to what theta is no part of; for :func:`fedjax_sim.outer.score`."""
        raise TypeError(f"{type(self).__name__} must define log_probability(parameters, key): score() asks for it")

    def forwards(self) -> Self:
        """The same, for forward mode."""
        return self


class Function(Unrolled):
    """A loss in one segment, ``function(parameters, key)``; with a second value, log p of what it drew."""

    function: Callable[[Any, jax.Array], Any] = static()

    @property
    def segments(self) -> int:
        return 1

    def begin(self, parameters: Any, key: jax.Array) -> Any:
        return key

    def advance(self, parameters: Any, state: Any, segment: jax.Array) -> tuple[Any, jax.Array]:
        return state, self._called(parameters, state)[0]

    def log_probability(self, parameters: Any, key: jax.Array) -> jax.Array:
        log_probability: jax.Array | None = self._called(parameters, key)[1]
        if log_probability is None:
            raise TypeError("score(): the objective returns a loss alone; return (loss, log_probability) of its draws")
        return log_probability

    def _called(self, parameters: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        found = self.function(parameters, key)
        loss, log_probability = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
            raise TypeError(f"the objective returns {shown(loss)}: it must return one real number")
        return loss, log_probability


def as_unrolled(objective: Any) -> Unrolled:
    """The objective of an estimate: itself, or a function as one segment."""
    if isinstance(objective, Unrolled):
        return objective
    if not callable(objective):
        raise TypeError(
            f"the objective is {shown(objective)}: give fedjax_sim.outer.federated(...), an Unrolled of your own, or a "
            "function of (parameters, key) that returns one real number"
        )
    return Function(objective)
