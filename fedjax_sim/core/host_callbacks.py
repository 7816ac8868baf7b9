"""Telling the host of finished rounds from inside a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

OnRound = Callable[[int, dict[str, np.ndarray]], object]  # (rounds done, metrics)
Tell = Callable[[Any, jax.Array, dict[str, jax.Array]], tuple[Any, jax.Array]]  # (state, done, metrics) -> state, done


def silent(state: Any, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
    """The :data:`Tell` that tells nobody."""
    return state, done


def teller(on_round: OnRound) -> Tell:
    """The identity on ``(state, done)`` that calls ``on_round(done, metrics)`` on the host when the program gets there.

    One call under any number of ``vmap``, with the metrics' axes in front; none where the state is differentiated: a
    derivative passes it as if it were not there. What uses the ``done`` that is returned runs after the call.

    Args:
      on_round: the function.
    """

    def call(done: Any, metrics: dict[str, Any]) -> np.ndarray:
        on_round(int(done), {name: np.asarray(value) for name, value in metrics.items()})
        return np.asarray(done, np.int32)

    # JAX repeats a callback for every lane of a vmap, so there is a rule of its own. The state goes through it because
    # the oldest supported version drops what nobody uses, and some use the state only.
    @custom_vmap
    def fire(state: Any, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        return state, io_callback(call, jax.ShapeDtypeStruct((), jnp.int32), done, metrics)

    @fire.def_vmap
    def _(size: int, batched: Any, state: Any, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Any, Any]:
        return fire(state, done, metrics), (batched[0], False)

    @jax.custom_jvp
    def tell(state: Any, done: jax.Array, metrics: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        return fire(state, done, metrics)  # type: ignore[no-any-return]

    @tell.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return primals[:2], tangents[:2]

    return tell
