"""When the server closes a round: what becomes of clients that are late, and how long the round takes."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_count, check_flag, check_real


class Reports(NamedTuple):
    """A cohort at work, as the server will hear of it, leading axis S.

    Attributes:
      valid: bool, false in void slots.
      failed: bool, whether the client fails, so that its message never comes.
      ids: int32, client ids.
      steps: int32, tau_i as the work scheme drew it.
      seconds: virtual seconds until the message is there, tau_i steps included.
      seconds_per_step: of one local step.
    """

    valid: jax.Array
    failed: jax.Array
    ids: jax.Array
    steps: jax.Array
    seconds: jax.Array
    seconds_per_step: jax.Array


class Closed(NamedTuple):
    """A round as the server closed it.

    Attributes:
      reported: bool[S], clients whose message is in the average.
      steps: int32[S], tau_i of those; fewer than drawn where partial work is kept.
      duration: scalar, virtual seconds of the round.
    """

    reported: jax.Array
    steps: jax.Array
    duration: jax.Array


class Policy(Described):
    """Base of the policies.

    Attributes:
      may_be_empty: whether every client of a cohort may be dropped though none fails.
      compares: whether what becomes of a client depends on who else was drawn.
    """

    may_be_empty: ClassVar[bool] = False
    compares: ClassVar[bool] = False

    def close(self, reports: Reports) -> Closed:
        """Who is in the average and when it is made."""
        raise TypeError(f"{type(self).__name__} must define close(reports)")

    def check(self, slots: int) -> None:
        """Raises ``ValueError`` where the policy has no meaning for cohorts of ``slots`` clients."""


class WaitForAll(Policy):
    """The server waits for every client, and for one that fails until it would have reported.

    The round takes the time of its slowest client, 0 without any.
    """

    def close(self, reports: Reports) -> Closed:
        return Closed(reports.valid & ~reports.failed, reports.steps, _latest(reports.seconds, reports.valid))


class Deadline(Policy):
    """The server closes the round after ``seconds``, or when all have reported.

    A client that would be late is dropped like a straggler without steps, or, with ``keep``, does as many of its local
    steps as let its message arrive in time and is dropped if there is none. A message or a step that fits up to one
    part in a million is in time. A round in which a client is missing, late or failed, takes ``seconds``.

    Args:
      seconds: virtual seconds from sending the model, > 0.
      keep: keep partial work (True) or drop all who are late (False).
    """

    seconds: Any
    keep: bool = static(default=False)

    may_be_empty: ClassVar[bool] = True

    def checked(self) -> Deadline:
        check_real("deadline(seconds)", self.seconds, low=0.0, open_=True)
        check_flag("deadline(keep=...)", self.keep)
        return self

    def close(self, reports: Reports) -> Closed:
        seconds = jnp.asarray(self.seconds).astype(reports.seconds.dtype)
        each, arrival, steps = reports.seconds_per_step, reports.seconds, reports.steps
        over = arrival - seconds * (1 + 1e-6)
        in_time = over <= 0
        if self.keep:
            # Leaving out steps that take no time would not help.
            excess = jnp.ceil(over / jnp.where(each > 0, each, jnp.ones_like(each)))
            left = steps - jnp.clip(excess, 0, steps.astype(each.dtype)).astype(steps.dtype)
            steps = jnp.where(in_time, steps, jnp.where(each > 0, left, jnp.zeros_like(left)))
            arrival = arrival - (reports.steps - steps).astype(each.dtype) * each
            in_time = steps > 0
        reported = reports.valid & ~reports.failed & in_time
        missing = jnp.any(reports.valid & ~reported)
        duration = jnp.where(missing, seconds, jnp.minimum(_latest(arrival, reported), seconds))
        return Closed(reported, steps, duration)


class First(Policy):
    """Over-commitment: the cohort scheme draws more clients than needed, and the first K to report make the round.

    The round ends with the K-th message, and those still at work are dropped; of equal times the smaller id comes
    first. Where fewer than K are left because clients fail or are not there, the server waits for all.

    Args:
      count: K >= 1, at most the size of the cohort.

    Reference: Bonawitz et al. 2019, "Towards federated learning at scale: System design", section 9: 1.3 K are drawn.
    """

    count: int = static()

    compares: ClassVar[bool] = True

    def checked(self) -> First:
        check_count("first(count)", self.count)
        return self

    def check(self, slots: int) -> None:
        if self.count > slots:
            raise ValueError(
                f"first({self.count}) waits for {self.count} clients in cohorts of {slots}: draw more than it waits "
                "for, or wait for fewer"
            )

    def close(self, reports: Reports) -> Closed:
        alive = reports.valid & ~reports.failed
        order = jnp.lexsort((reports.ids, reports.seconds, ~alive))
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        reported = alive & (rank < self.count)
        enough = jnp.sum(reported, dtype=jnp.int32) == self.count
        duration = jnp.where(enough, _latest(reports.seconds, reported), _latest(reports.seconds, reports.valid))
        return Closed(reported, reports.steps, duration)


def _latest(seconds: jax.Array, among: jax.Array) -> jax.Array:
    return jnp.max(jnp.where(among, seconds, jnp.zeros_like(seconds)))


wait_for_all = factory("policy.wait_for_all", WaitForAll)
deadline = factory("policy.deadline", Deadline)
first = factory("policy.first", First)
