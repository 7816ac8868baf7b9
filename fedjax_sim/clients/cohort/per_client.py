"""Values that are one number for everybody or one number a client, by client index."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.values import check_real


def per_client(what: str, value: Any, *, low: float | None = 0.0, high: float | None = None) -> Any:
    """``value`` checked: one number, or an array (list) of one a client.

    Args:
      what: how the message names the value.
      value: concrete or traced.
      low: smallest allowed value.
      high: largest allowed value.

    Raises:
      TypeError: not numbers.
      ValueError: out of range or of more than one axis.
    """
    check_real(what, value, low=low, high=high)
    if isinstance(value, (list, tuple)):
        value = jnp.asarray(value)
    if np.ndim(value) > 1 or 0 in np.shape(value):
        raise ValueError(f"{what} has shape {np.shape(value)}: give one number, or one a client")
    return value


def check_length(what: str, value: Any, num_clients: int) -> None:
    """Checks, once the data set is known, that there is one number or one a client.

    Raises:
      ValueError: naming both lengths.
    """
    if np.ndim(value) == 1 and np.shape(value)[0] != num_clients:
        raise ValueError(f"{what} has {np.shape(value)[0]} values for {num_clients} clients: give one a client")


def at_clients(value: Any, indices: jax.Array) -> jax.Array:
    """The values of the clients ``indices``, in the default float type; of indices out of range, anything."""
    array = jnp.asarray(value).astype(jnp.result_type(float))
    return array.at[indices].get(mode="clip") if array.ndim else jnp.full(indices.shape, array)
