"""Clients in flight: what a run keeps of those that were sent a model and have not reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Trip(NamedTuple):
    """A client sent off with a model, leading axis slots.

    Attributes:
      client: int32, its index; N in a free slot.
      version: int32, server updates before: the number of the round whose model it got.
      redraw: int32, 0 for a client of the cohort scheme's own draw of that round, else the number of the further draw
        that chose it. Its draws are named by (run key, version, redraw, client id).
      steps: int32, tau_i.
    """

    client: jax.Array
    version: jax.Array
    redraw: jax.Array
    steps: jax.Array


class Flight(NamedTuple):
    """All clients in flight, leading axis M.

    Attributes:
      trips: who.
      arrival: virtual seconds, counted from the last server update, until the server hears of the client; infinite in a
        free slot. Counted from there, they stay exact however long a run is.
      lost: bool, whether what the server hears is that the client failed.
      sent: what each client received, leaves [M, ...].
    """

    trips: Trip
    arrival: jax.Array
    lost: jax.Array
    sent: Any


def empty_flight(slots: int, num_clients: int, sent: Any) -> Flight:
    """Nobody in flight.

    Args:
      slots: M.
      num_clients: N.
      sent: shapes of a broadcast, ``jax.ShapeDtypeStruct``.
    """
    nothing = jnp.zeros((slots,), jnp.int32)
    trips = Trip(jnp.full((slots,), num_clients, jnp.int32), nothing, nothing, nothing)

    arrival = jnp.full((slots,), jnp.inf, jnp.result_type(float))
    models = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape), leaf.dtype), sent)
    return Flight(trips, arrival, jnp.zeros((slots,), bool), models)


def received(flight: Flight, sent: Any, fresh: jax.Array, slots: jax.Array) -> Any:
    """What some clients began with, leaves [K, ...].

    Args:
      flight: before the round, with what earlier rounds sent.
      sent: the round's broadcast.
      fresh: bool[K], whether the client was sent off in this round.
      slots: int32[K], its slot.
    """
    return jax.tree.map(lambda old, new: _where(fresh, new, old[slots]), flight.sent, sent)


def stored(flight: Flight, sent: Any, fresh: jax.Array) -> Any:
    """``flight.sent`` with the round's broadcast in the slots that are ``fresh``, bool[M]."""
    return jax.tree.map(lambda old, new: _where(fresh, new, old), flight.sent, sent)


def _where(fresh: jax.Array, new: Any, old: jax.Array) -> jax.Array:
    one = jnp.asarray(new).astype(old.dtype)
    return jnp.where(fresh.reshape(-1, *[1] * (old.ndim - 1)), jnp.broadcast_to(one, old.shape), old)
