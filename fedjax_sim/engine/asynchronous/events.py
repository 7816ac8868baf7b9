"""The events of one round in virtual time: who reports until the buffer is full, and who is sent off meanwhile.

How long a client takes depends on its device, its number of steps and the bytes, never on what it learns. So the order
of events is known before any gradient is computed, and the clients of a buffer can be run by a layout like a cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.clients.cohort.participation import Selection
from fedjax_sim.core import sampling
from fedjax_sim.core.keys import cohort_key, random_words

# Events in a round for each message awaited. A round ends without its messages after so many, so that a fleet of which
# everybody always fails does not hang the program.
_MOST_LOST = 1000


class Trip(NamedTuple):
    """Clients sent off with a model, int32[slots] each; their draws are named by (run key, version, redraw, id)."""

    client: jax.Array  # its index; N in a free slot
    version: jax.Array  # server updates before: the number of the round whose model it got
    redraw: jax.Array  # 0 for one of the cohort scheme's own draw of that round, else the number of the further draw
    steps: jax.Array  # tau_i


class Flight(NamedTuple):
    """All clients in flight, leading axis M.

    Attributes:
      arrival: virtual seconds from the last server update until the server hears of the client; infinite in a free
        slot. Counted from there, they stay exact however long a run is.
      lost: bool, whether what the server hears is that the client failed.
      apart: by how many seconds arrivals at one instant may differ: three times 0.1 s is not 0.3 s, and what is left of
        a time is rounded in every round. The root of the precision, as a share of the time that a client takes.
      sent: what each client received.
    """

    trips: Trip
    arrival: jax.Array
    lost: jax.Array
    apart: jax.Array
    sent: Any


class Departure(NamedTuple):
    """Of clients sent off: tau_i, the seconds until the server hears of them, and whether it hears that they failed."""

    steps: jax.Array
    seconds: jax.Array
    lost: jax.Array


class Events(NamedTuple):
    """A round so far, in seconds from its start; counts are int32."""

    trips: Trip  # [M], who is in flight
    arrival: jax.Array  # [M], when the server hears of them; infinite in free slots
    lost: jax.Array  # [M]
    apart: jax.Array  # [M]
    now: jax.Array
    cursor: jax.Array  # how much of the scheme's draw is used up
    redraws: jax.Array  # further draws
    sent_off: jax.Array  # models sent
    failures: jax.Array  # messages that were lost
    refused: jax.Array  # of these, those of clients that were given a negative number of steps
    count: jax.Array  # type: ignore[assignment]  # messages that arrived
    reports: Trip  # [K], the clients they are of, in the order of arrival; client N in places without one
    slots: jax.Array  # int32[K], the slots these had

    @property
    def left(self) -> jax.Array:
        """Seconds from now until the arrivals, [M]; 0 of those that are at this instant."""
        left = self.arrival - self.now
        return left - lax.stop_gradient(jnp.where(left <= self.apart, left, jnp.zeros_like(left)))


class RunKeys(NamedTuple):
    """The run's key, and the one from which those of further draws branch off.

    ``further`` is computed once a round, since each call of the generator is paid for in compile time.
    """

    own: jax.Array
    further: jax.Array

    def of(self, redraw: jax.Array) -> jax.Array:
        """The key in the place of the run's for further draw number ``redraw``; the run's for 0, the scheme's draw."""
        return lax.select(redraw > 0, jax.random.fold_in(self.further, redraw), self.own)


def fill_buffer(
    flight: Flight,
    *,
    messages: int,
    num_clients: int,
    drawn: Selection,
    keys: RunKeys,
    round_: jax.Array,
    depart: Callable[[Trip], Departure],
    may_fail: bool,
) -> Events:
    """Runs the clock until ``messages`` have arrived.

    At one instant arrivals go before departures: a server update that an arrival completes is made before the free
    slots are filled, so that these clients get the new model. The first clients sent off in a round are those that the
    cohort scheme drew for it, in a random order, but for those still in flight; after them each is drawn uniformly
    among the clients not in flight.

    Of what ``depart`` says of the steps and times of M clients, only those of clients sent off in this round are used.
    Where no message can be lost (``may_fail``, static), the times have a derivative.
    """
    slots = len(flight.arrival)
    # A scheme's order is none that may decide: of those that uniform draws the first has never one of the last ids.
    order = jnp.argsort(random_words(cohort_key(keys.further, round_), slots))
    drawn = drawn._replace(indices=drawn.indices[order], count=drawn.count[order])
    listed = jnp.arange(len(drawn.indices), dtype=jnp.int32)
    nobody = jnp.zeros((messages,), jnp.int32)

    def send_off(at: Events) -> Events:
        """Fills all free slots."""
        free = at.trips.client == num_clients
        busy = jnp.zeros((num_clients,), bool).at[at.trips.client].set(True, mode="drop")
        usable = drawn.present & (listed >= at.cursor) & ~busy.at[drawn.indices].get(mode="clip")
        # The r-th free slot takes the r-th usable client of the list.
        rank = jnp.where(usable, jnp.cumsum(usable, dtype=jnp.int32) - 1, slots)
        places = jnp.full((slots,), len(listed), jnp.int32).at[rank].set(listed, mode="drop")
        place = places.at[jnp.cumsum(free, dtype=jnp.int32) - 1].get(mode="clip")
        found = free & (place < len(listed))
        client = jnp.where(found, drawn.indices.at[place].get(mode="clip"), at.trips.client)
        used = jnp.max(jnp.where(found, place + 1, at.cursor))
        cursor = jnp.where(jnp.any(free & ~found), len(listed), used).astype(jnp.int32)
        client, redraw, redraws = lax.while_loop(
            lambda carry: jnp.any(carry[0] == num_clients),
            draw_another,
            (client, jnp.where(free, 0, at.trips.redraw), at.redraws),
        )
        version = jnp.where(free, round_, at.trips.version)
        left = depart(Trip(client, version, redraw, at.trips.steps))
        return at._replace(
            trips=Trip(client, version, redraw, jnp.where(free, left.steps, at.trips.steps)),
            arrival=jnp.where(free, at.now + left.seconds, at.arrival),
            lost=jnp.where(free, left.lost, at.lost),
            apart=jnp.where(free, _instant(left.seconds), at.apart),
            cursor=cursor,
            redraws=redraws,
            sent_off=at.sent_off + jnp.sum(free, dtype=jnp.int32),
        )

    def draw_another(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The first free slot gets one of the clients not in flight, each with the same probability."""
        client, redraw, redraws = carry
        slot = jnp.argmax(client == num_clients)
        busy = jnp.sum(client < num_clients, dtype=jnp.int32)
        word = jax.random.bits(cohort_key(keys.of(redraws + 1), round_), (), jnp.uint32)
        rank = sampling.below(word, num_clients - busy)
        # As many of those not in flight as the rank says are before the client; so are the busy ones passed on the way.
        place = jnp.arange(slots, dtype=jnp.int32)
        passed = (place < busy) & (jnp.sort(client) - place <= rank)
        index = rank + jnp.sum(passed, dtype=jnp.int32)
        return client.at[slot].set(index), redraw.at[slot].set(redraws + 1), redraws + 1

    def next_event(at: Events) -> Events:
        waiting = jnp.any(at.trips.client == num_clients) & (jnp.min(at.arrival - at.apart) > at.now)
        at = lax.cond(waiting, send_off, lambda at: at, at)
        slot = jnp.argmax(at.arrival - at.apart <= jnp.min(at.arrival))  # of one instant the first
        failed = at.lost[slot]
        place = jnp.where(failed, messages, at.count)
        return at._replace(
            trips=at.trips._replace(client=at.trips.client.at[slot].set(num_clients)),
            arrival=at.arrival.at[slot].set(jnp.inf),
            now=at.arrival[slot],
            failures=at.failures + failed.astype(jnp.int32),
            refused=at.refused + (failed & (at.trips.steps[slot] < 0)).astype(jnp.int32),
            count=at.count + (~failed).astype(jnp.int32),
            reports=jax.tree.map(
                lambda all_, of_slot: all_.at[place].set(of_slot[slot], mode="drop"), at.reports, at.trips
            ),
            slots=at.slots.at[place].set(slot.astype(jnp.int32), mode="drop"),
        )

    none = jnp.int32(0)
    unheard = Trip(jnp.full_like(nobody, num_clients), nobody, nobody, nobody)
    now = jnp.zeros((), flight.arrival.dtype)
    start = Events(*flight[:4], now, none, none, none, none, none, none, unheard, nobody)
    if not may_fail:
        at, _ = lax.scan(lambda at, _: (next_event(at), None), start, None, length=messages)
        return at

    def unfilled(at: Events) -> jax.Array:
        return (at.count < messages) & (at.failures < messages * _MOST_LOST)

    # Reverse mode cannot pass a loop whose length is not known.
    return lax.while_loop(unfilled, next_event, lax.stop_gradient(start))


def _instant(seconds: jax.Array) -> jax.Array:
    """By how much arrivals of one instant may differ, of clients who take so long; 0 of who never comes back."""
    share = float(jnp.finfo(seconds.dtype).eps) ** 0.5
    return lax.stop_gradient(jnp.where(jnp.isfinite(seconds), share * seconds, jnp.zeros_like(seconds)))
