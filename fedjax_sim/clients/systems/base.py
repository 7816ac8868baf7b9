"""What a fleet of devices is to a run: how long clients take, which fail, when the server closes an exchange, its cost.

Time is virtual. Nothing here depends on what is learned, so a round's timing is known before its local work starts.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.scheme import Scheme
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, flag, real


class Cost(NamedTuple):
    """What one exchange with a client costs; static numbers of the method's phase.

    Attributes:
      bytes_down: bytes that a client receives.
      bytes_up: bytes that a client sends.
      flops_per_step: floating-point operations of one step, the gradient of one batch: a number, or one a client of
        the cohort, [S], where their batches differ in size; 0 where ``System.counts_flops`` is false.
    """

    bytes_down: float
    bytes_up: float
    flops_per_step: Any = 0.0


class Times(NamedTuple):
    """Virtual seconds of each client of a cohort, float[S].

    Attributes:
      download: until it has received the model, from the moment it is sent.
      compute: of its local work.
      upload: until the server has its message, from the moment the work is done.
    """

    download: jax.Array
    compute: jax.Array
    upload: jax.Array

    @property
    def total(self) -> jax.Array:
        """Seconds from the model's departure to the message's arrival, [S]."""
        return self.download + self.compute + self.upload


class Reports(NamedTuple):
    """A cohort at work, as the server will hear of it, leading axis S."""

    valid: jax.Array  # bool, false in void slots
    failed: jax.Array  # bool, whether the client fails, so that its message never comes
    ids: jax.Array  # int32, client ids
    steps: jax.Array  # int32, tau_i as the work scheme drew it
    seconds: jax.Array  # virtual seconds until the message is there, tau_i steps included
    seconds_per_step: jax.Array  # of one local step
    lots: jax.Array  # uint32, a random word of each client and round, for what time does not decide


class Closed(NamedTuple):
    """A round as the server closed it."""

    reported: jax.Array  # bool[S], clients whose message is in the average
    steps: jax.Array  # int32[S], tau_i of those; fewer than drawn where partial work is kept
    duration: jax.Array  # scalar, virtual seconds of the round


class Policy(Described):
    """When the server closes a round: what becomes of clients that are late, and how long the round takes.

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

    seconds: Any = real(above=0.0)
    keep: bool = flag(default=False)

    may_be_empty = True

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

    The round ends with the K-th message, and those still at work are dropped; of equal times a lot decides, anew every
    round. Where fewer than K are left because clients fail or are not there, the server waits for all.

    Args:
      count: K >= 1, at most the size of the cohort.

    Reference: Bonawitz et al. 2019, "Towards federated learning at scale: System design", section 9: 1.3 K are drawn.
    """

    count: int = count()

    compares = True

    def check(self, slots: int) -> None:
        if self.count > slots:
            raise ValueError(
                f"first({self.count}) waits for {self.count} clients in cohorts of {slots}: draw more than it waits "
                "for, or wait for fewer"
            )

    def close(self, reports: Reports) -> Closed:
        alive = reports.valid & ~reports.failed
        order = jnp.lexsort((reports.ids, reports.lots, reports.seconds, ~alive))
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


class System(Scheme):
    """Base of the systems: pure functions of (run key, round, client), so that every method sees the same devices.

    The arrays that its methods take have the cohort's leading axis S: ``client_index`` int32, clients' indices in the
    order of their ids, N or more in void slots; ``ids`` int32, client ids, which key the draws. ``key`` is the run's,
    or that of a phase with a cohort of its own, and ``round_`` the int32 scalar t.
    """

    @property
    def policy(self) -> Policy:
        """When the server closes a round; subclasses may have it as a field."""
        return wait_for_all()

    @property
    def counts_flops(self) -> bool:
        """Whether :meth:`times` reads ``cost.flops_per_step``; static."""
        return False

    @property
    def may_fail(self) -> bool:
        """Whether :meth:`failed` can be true; static."""
        return type(self).failed is not System.failed

    @property
    def may_be_empty(self) -> bool:
        """Whether a round may end without any of its clients; static."""
        return self.may_fail or self.policy.may_be_empty

    @property
    def repeats(self) -> bool:
        """Whether the same cohort with the same work reports in the same way in every round; static."""
        return False

    def times(
        self, client_index: jax.Array, ids: jax.Array, steps: jax.Array, key: jax.Array, round_: jax.Array, cost: Cost
    ) -> Times:
        """Virtual seconds of each client; what void slots get is finite and does not matter.

        Compute time is proportional to ``steps``, int32[S]: gradients on one batch each, those of passes over all local
        data included. ``cost`` is that of this exchange.
        """
        raise TypeError(f"{type(self).__name__} must define times(client_index, ids, steps, key, round_, cost)")

    def failed(self, client_index: jax.Array, ids: jax.Array, key: jax.Array, round_: jax.Array) -> jax.Array:
        """bool[S]: whether each client fails in this round, so that its work is lost; nobody, unless defined otherwise.

        The server learns of it when the client would have reported.
        """
        return jnp.zeros(ids.shape, bool)


class Clock(NamedTuple):
    """What an exchange took; scalars that add up over a round's exchanges."""

    duration: jax.Array  # virtual seconds
    bytes_down: jax.Array  # bytes sent to all clients, those who fail or are late included
    bytes_up: jax.Array  # bytes of the messages that the server waited for
    reported: jax.Array  # int32, clients whose message is in the average
    dropped_late: jax.Array  # int32, clients dropped because they were late
    failed: jax.Array  # int32, clients that failed


class Visit(NamedTuple):
    """A cohort as it is drawn, leading axis S."""

    indices: jax.Array  # int32, client indices; N in void slots
    ids: jax.Array  # int32, client ids
    valid: jax.Array  # bool, false in void slots
    steps: jax.Array  # int32, tau_i
    pieces: jax.Array  # int32, gradients that make up one local step; 0 in an exchange without local steps
    passes: jax.Array  # int32, gradients besides (a survey's pass over all local data, steps of the method's own)
    lots: jax.Array  # uint32, a random word of each client and round


def seconds_per_step(system: System, visit: Visit, key: jax.Array, round_: jax.Array, cost: Cost) -> jax.Array:
    """Virtual seconds of one local step of each client, float[S]."""
    return system.times(visit.indices, visit.ids, visit.pieces, key, round_, cost).compute


def close_exchange(system: System, visit: Visit, key: jax.Array, round_: jax.Array, cost: Cost) -> tuple[Closed, Clock]:
    """Lets a cohort work in an exchange of that cost, and the system's policy close it; with what that took."""
    # Zero in void slots, so that nothing that stands there can reach a sum or a derivative.
    gradients = jnp.where(visit.valid, visit.passes + visit.steps * visit.pieces, 0)
    times = system.times(visit.indices, visit.ids, gradients, key, round_, cost)
    failed = visit.valid & system.failed(visit.indices, visit.ids, key, round_)
    each = seconds_per_step(system, visit, key, round_, cost)
    closed = system.policy.close(Reports(visit.valid, failed, visit.ids, visit.steps, times.total, each, visit.lots))
    dtype = times.compute.dtype
    received, reported = jnp.sum(visit.valid, dtype=jnp.int32), jnp.sum(closed.reported, dtype=jnp.int32)
    clock = Clock(
        duration=closed.duration,
        bytes_down=received.astype(dtype) * float(cost.bytes_down),
        bytes_up=reported.astype(dtype) * float(cost.bytes_up),
        reported=reported,
        dropped_late=jnp.sum(visit.valid & ~failed & ~closed.reported, dtype=jnp.int32),
        failed=jnp.sum(failed, dtype=jnp.int32),
    )
    return closed, clock
