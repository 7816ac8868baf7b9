"""What clients keep from round to round: a cohort's rows taken from all clients' states, and put back."""

from __future__ import annotations

from typing import Any

import jax


def take(clients: Any, indices: jax.Array) -> Any:
    """The states of a cohort, leaves [S, ...].

    Args:
      clients: all clients' states, leaves [N, ...].
      indices: int32[S], client indices; N in void slots, which get any row.
    """
    return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="clip"), clients)


def put(clients: Any, indices: jax.Array, new: Any) -> Any:
    """All clients' states after the cohort's are ``new``.

    Args:
      clients: all clients' states, leaves [N, ...].
      indices: int32[S], client indices; N in void slots, whose rows are dropped.
      new: leaves [S, ...].
    """
    return jax.tree.map(lambda all_, rows: all_.at[indices].set(rows, mode="drop"), clients, new)
