"""One exchange with a cohort in virtual time: who reports, with how many steps, and what it cost."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.systems.base import Cost, System
from fedjax_sim.clients.systems.policies import Reports


class Clock(NamedTuple):
    """What an exchange took; scalars that add up over a round's exchanges.

    Attributes:
      duration: virtual seconds.
      bytes_down: bytes sent to all clients, those who fail or are late included.
      bytes_up: bytes of the messages that the server waited for.
      reported: int32, clients whose message is in the average.
      dropped_late: int32, clients dropped because they were late.
      failed: int32, clients that failed.
    """

    duration: jax.Array
    bytes_down: jax.Array
    bytes_up: jax.Array
    reported: jax.Array
    dropped_late: jax.Array
    failed: jax.Array


class Visit(NamedTuple):
    """A cohort as it is drawn, leading axis S.

    Attributes:
      indices: int32, client indices; N in void slots.
      ids: int32, client ids.
      valid: bool, false in void slots.
      steps: int32, tau_i.
      pieces: int32, batches that make up one local step; 0 in an exchange without local steps.
      passes: int32, batches before the first local step (a survey's pass over all local data).
    """

    indices: jax.Array
    ids: jax.Array
    valid: jax.Array
    steps: jax.Array
    pieces: jax.Array
    passes: jax.Array


class Exchange(NamedTuple):
    """An exchange as the server closed it.

    Attributes:
      reported: bool[S].
      steps: int32[S], tau_i that they took.
      clock: what it cost.
    """

    reported: jax.Array
    steps: jax.Array
    clock: Clock


def seconds_per_step(system: System, visit: Visit, key: jax.Array, round_: jax.Array, cost: Cost) -> jax.Array:
    """Virtual seconds of one local step of each client, float[S]."""
    return system.times(visit.indices, visit.ids, visit.pieces, key, round_, cost).compute


def close_exchange(system: System, visit: Visit, key: jax.Array, round_: jax.Array, cost: Cost) -> Exchange:
    """Lets the cohort work and the system's policy close the exchange.

    Args:
      system: the devices.
      visit: the cohort.
      key: the run's key, or that of a phase with a cohort of its own.
      round_: int32 scalar t.
      cost: of the exchange.
    """
    # Zero in void slots, so that nothing that stands there can reach a sum or a derivative.
    gradients = jnp.where(visit.valid, visit.passes + visit.steps * visit.pieces, 0)
    times = system.times(visit.indices, visit.ids, gradients, key, round_, cost)
    failed = visit.valid & system.failed(visit.indices, visit.ids, key, round_)
    each = seconds_per_step(system, visit, key, round_, cost)
    closed = system.policy.close(Reports(visit.valid, failed, visit.ids, visit.steps, times.total, each))
    real = times.compute.dtype
    received, reported = jnp.sum(visit.valid, dtype=jnp.int32), jnp.sum(closed.reported, dtype=jnp.int32)
    clock = Clock(
        duration=closed.duration,
        bytes_down=received.astype(real) * float(cost.bytes_down),
        bytes_up=reported.astype(real) * float(cost.bytes_up),
        reported=reported,
        dropped_late=jnp.sum(visit.valid & ~failed & ~closed.reported, dtype=jnp.int32),
        failed=jnp.sum(failed, dtype=jnp.int32),
    )
    return Exchange(closed.reported, closed.steps, clock)
