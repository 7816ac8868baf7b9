"""Local steps that fit into the time of a round."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.clients.local.work import Turn, Work
from fedjax_sim.clients.scheme import EachClient, at_clients
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count, flag, leaf, real


class Deadline(Work):
    """The local steps that fit into a round's time: tau_i = min(E ceil(n_i / B), floor(seconds * speed_i)).

    A step that fits up to one part in a million counts as done. Clients who do not finish a single step are dropped.

    Args:
      seconds: virtual time that the server waits, >= 0.
      speeds: local steps a second, >= 0: a number, or one a client in the order of the ids.
      num_epochs: E >= 1, after which a client stops.
      keep: keep partial work (True) or drop all who do not finish their E epochs (False).
    """

    seconds: Any = real(low=0.0)
    speeds: Any = leaf(EachClient())
    num_epochs: int = count()
    keep: bool = flag(default=True)

    may_drop = True
    _in_epochs = True

    def steps(self, turn: Turn) -> jax.Array:
        speeds = at_clients(self.speeds, turn.indices)
        wanted = self.num_epochs * turn.epoch
        # One part in a million more: 0.1 s at 30 steps a second are 3 steps, whatever the round-off.
        fits = jnp.floor(jnp.asarray(self.seconds).astype(speeds.dtype) * speeds * (1 + 1e-6))
        done = jnp.minimum(fits, wanted.astype(fits.dtype)).astype(jnp.int32)
        return done if self.keep else jnp.where(done < wanted, 0, done)

    def most_steps(self, epoch: int) -> int:
        return self.num_epochs * epoch


class Window(Work):
    """The local steps that fit into a window of time: tau_i = min(most, floor(seconds / seconds per step of client i)).

    Rounds of a fixed length in wall-clock time, one of FedNova's reasons for unequal tau_i. How long a step takes in
    this round, its jitter included, says the run's system; transfers and passes over all local data (surveys) are not
    part of the window. A step that fits up to one part in a million counts as done. Clients who do not finish a single
    step are dropped.

    Args:
      seconds: virtual seconds of local work, >= 0.
      most: the largest number of steps, >= 1; it bounds the program.

    Reference: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization".
    """

    seconds: Any = real(low=0.0)
    most: int = count()

    may_drop = True
    needs_system = True

    def steps(self, turn: Turn) -> jax.Array:
        each = turn.seconds_per_step
        seconds = jnp.asarray(self.seconds).astype(each.dtype) * (1 + 1e-6)
        # In floats until it is bounded: a step of no seconds fits infinitely often.
        fits = jnp.where(each > 0, jnp.floor(seconds / jnp.where(each > 0, each, jnp.ones_like(each))), self.most)
        return jnp.minimum(fits, self.most).astype(jnp.int32)


deadline = factory("work.deadline", Deadline)
window = factory("work.window", Window)
