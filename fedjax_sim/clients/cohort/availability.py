"""Who is there: availability over rounds, on top of any participation scheme.

The server draws its cohort without knowing; a client that was drawn and is not available does not take part, like a
straggler that is dropped.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.cohort.participation import Averaging, Participation, Selection, Weights, storage
from fedjax_sim.clients.scheme import EachClient, Scheme, at_clients, check_shape, log_of_events, one_of, unparametrised
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count, flag, integers, leaf
from fedjax_sim.core.keys import Purpose, purpose_key, round_key
from fedjax_sim.core.sampling import happens
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset


class Availability(Scheme):
    """Base of the availabilities.

    Attributes:
      equal: whether all clients are equally likely to be available.
    """

    equal: ClassVar[bool] = False

    def present(
        self, key: jax.Array, round_: jax.Array, indices: jax.Array, ids: jax.Array, num_clients: int
    ) -> jax.Array:
        """bool[S]: whether each client is available; what void slots get does not matter.

        ``key`` is of (run, round), for this availability alone; the ``ids``, int32[S], key the draws, and ``indices``,
        int32[S], are the clients' places in their order.
        """
        raise TypeError(f"{type(self).__name__} must define present(key, round_, indices, ids, num_clients)")

    def chance(self, round_: jax.Array, num_clients: int) -> jax.Array:
        """float[N], by client index: the probability of being available in round ``round_``."""
        raise TypeError(f"{type(self).__name__} must define chance(round_, num_clients)")

    def log_probability(self, present: jax.Array, indices: jax.Array) -> jax.Array:
        """float[S]: log p of each client being there or not, as in :meth:`Participation.log_probability`."""
        return jnp.broadcast_to(unparametrised(self), present.shape)


class Bernoulli(Availability):
    """Client i is available with probability a_i, anew and independently every round.

    Args:
      probability: a in [0, 1]: a number, or one a client in the order of the ids.
    """

    probability: Any = leaf(EachClient(high=1.0))

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return np.ndim(self.probability) == 0

    def present(
        self, key: jax.Array, round_: jax.Array, indices: jax.Array, ids: jax.Array, num_clients: int
    ) -> jax.Array:
        words = jax.vmap(lambda id_: jax.random.bits(jax.random.fold_in(key, id_), (), jnp.uint32))(ids)
        return happens(words, at_clients(self.probability, indices))

    def chance(self, round_: jax.Array, num_clients: int) -> jax.Array:
        return at_clients(self.probability, jnp.arange(num_clients, dtype=jnp.int32))

    def log_probability(self, present: jax.Array, indices: jax.Array) -> jax.Array:
        return log_of_events(present, at_clients(self.probability, indices))


class _Scheduled(Availability):
    """An availability without randomness."""

    def on_at(self, round_: jax.Array, indices: jax.Array, num_clients: int) -> jax.Array:
        """bool[S]: whether each client is on in round t."""
        raise TypeError(f"{type(self).__name__} must define on_at(round_, indices, num_clients)")

    def present(
        self, key: jax.Array, round_: jax.Array, indices: jax.Array, ids: jax.Array, num_clients: int
    ) -> jax.Array:
        return self.on_at(round_, jnp.minimum(indices, num_clients - 1), num_clients)

    def chance(self, round_: jax.Array, num_clients: int) -> jax.Array:
        on = self.on_at(round_, jnp.arange(num_clients, dtype=jnp.int32), num_clients)
        return on.astype(jnp.result_type(float))


class Periodic(_Scheduled):
    """Client i is available in round t when (t + offset_i) mod period < on.

    Args:
      period: in rounds.
      on: rounds of each period in which a client is there, 1 to ``period``.
      offsets: integers, one a client in the order of the ids; None spreads them evenly, offset_i = floor(i period / N).
    """

    period: int = count(high=2**30)  # a round and an offset are added in int32
    on: int = count()
    offsets: Any = integers(default=None)

    def checked(self) -> Self:
        super().checked()
        if self.on > self.period:
            raise ValueError(f"periodic({self.period}, on={self.on}): on must be at most the period")
        if self.offsets is None:
            return self
        traced = isinstance(self.offsets, jax.core.Tracer)
        offsets = self.offsets if traced else np.asarray(self.offsets)
        if offsets.ndim != 1 or not jnp.issubdtype(offsets.dtype, jnp.integer):
            raise ValueError(
                f"periodic(offsets=...) is {offsets.dtype}{list(offsets.shape)}: give an integer a client, or None"
            )
        return self if traced else self.replace(offsets=jnp.asarray(offsets % self.period, jnp.int32))

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        check_shape("periodic(offsets=...)", self.offsets, dataset.num_clients)

    def on_at(self, round_: jax.Array, indices: jax.Array, num_clients: int) -> jax.Array:
        if self.offsets is None:
            offsets = jnp.asarray(np.arange(num_clients) * self.period // num_clients, jnp.int32)
        else:
            offsets = jnp.asarray(self.offsets)
            if offsets.dtype.itemsize < 4:  # too narrow, perhaps, for the period
                offsets = offsets.astype(jnp.int32)
            offsets = (offsets % self.period).astype(jnp.int32)
        return (round_ % self.period + offsets[indices]) % self.period < self.on


class Trace(_Scheduled):
    """Availability from an array: available[t, i] for round t and client i, in the order of the ids.

    Args:
      available: bool array [rounds, N].
      repeat: starts again at the first row after the last one; else a run may have no more rounds than rows.
    """

    available: Any = integers()
    repeat: bool = flag(default=True)

    def checked(self) -> Self:
        super().checked()
        traced = isinstance(self.available, jax.core.Tracer)
        available = self.available if traced else np.asarray(self.available)
        if available.dtype != bool or available.ndim != 2 or available.shape[0] == 0:
            raise ValueError(
                f"trace(available=...) is {available.dtype}{list(available.shape)}: it must be an array of True and "
                "False [rounds, N], a round or more"
            )
        return self if traced else self.replace(available=jnp.asarray(available))

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        check_shape("trace(available=...)", self.available, dataset.num_clients, 1 if self.repeat else rounds)

    def on_at(self, round_: jax.Array, indices: jax.Array, num_clients: int) -> jax.Array:
        available = jnp.asarray(self.available)
        return available[round_ % len(available) if self.repeat else round_][indices]


class Available(Participation):
    """A scheme whose clients take part only while they are available.

    Which clients are drawn does not depend on who is there. One who is drawn and not there counts as a dropped
    straggler: ``"sample"`` and ``"plain"`` weights are those of the clients left, the other averages keep x in its
    place. Inclusion probability: the scheme's times that of being available, which is what ``"inverse"`` divides by.
    Wraps itself too: then a client must be available in every sense, each with draws of its own. An average that a
    scheme of your own has in ``weigh`` is kept.

    Args:
      scheme: any participation scheme; its ``average`` counts.
      availability: ``bernoulli(...)``, ``periodic(...)`` or ``trace(...)``.
    """

    scheme: Participation = leaf(one_of(Participation, example="fedjax_sim.cohort.uniform(10)"))
    availability: Availability = leaf(one_of(Availability, example="fedjax_sim.cohort.bernoulli(0.9)"))

    may_be_empty = True

    @property
    def replacement(self) -> bool:  # type: ignore[override]
        return self.scheme.replacement

    @property
    def may_overflow(self) -> bool:  # type: ignore[override]
        return self.scheme.may_overflow

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return self.scheme.equal and self.availability.equal

    def checked(self) -> Self:
        super().checked()
        if self.average not in (None, self.scheme.average):
            raise ValueError(
                f"available(average={self.average!r}): the average belongs to the scheme inside, which has "
                f"{self.scheme.average!r}; give it there"
            )
        if self.scheme.average == "inverse" and self._weighs_itself:
            raise ValueError(
                f"available({shown(self.scheme)}): it has a weigh(...) of its own, which does not know how likely "
                "clients are to be available, as average='inverse' must: give another average"
            )
        return self.replace(average=self.scheme.average)

    def size(self, num_clients: int) -> int:
        return self.scheme.size(num_clients)

    def fitted(self, dataset: FederatedDataset) -> Self:
        return self.replace(scheme=self.scheme.fitted(dataset))

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        self.scheme.check(dataset, rounds)
        self.availability.check(dataset, rounds)

    def of_exchange(self, after: int) -> Participation:
        scheme = self.scheme.of_exchange(after)
        return self if scheme is self.scheme else self.replace(scheme=scheme)

    def averaging(self, average: str) -> Averaging:
        return self.scheme.averaging(average)

    def weigh(
        self,
        dataset: FederatedDataset,
        selection: Selection,
        took_part: jax.Array,
        average: str,
        round_: int | jax.Array,
    ) -> Weights:
        if self._weighs_itself:
            return self.scheme.weigh(dataset, selection, took_part, average, round_)
        return super().weigh(dataset, selection, took_part, average, round_)  # by inclusion probabilities of this

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        selection = self.scheme.select(dataset, key, round_)
        ids = dataset.client_ids[storage(dataset, selection.indices)]
        own = jax.random.fold_in(purpose_key(round_key(key, round_), Purpose.AVAILABILITY), self._depth)
        present = self.availability.present(own, round_, selection.indices, ids, dataset.num_clients)
        return selection._replace(count=jnp.where(present, selection.count, -selection.drawn))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        chance = self.availability.chance(jnp.asarray(round_, jnp.int32), dataset.num_clients)
        return self.scheme.inclusion(dataset, round_) * chance

    def log_probability(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> jax.Array:
        """That of the draw, and of each drawn client's being there."""
        selection = self.select(dataset, key, round_)
        asked = self.scheme.select(dataset, key, round_).present  # by the scheme inside; the others were not
        each = self.availability.log_probability(selection.present, selection.indices)
        inside = self.scheme.log_probability(dataset, key, round_)
        return inside + jnp.sum(jnp.where(asked, each, jnp.zeros_like(each)))

    @property
    def _weighs_itself(self) -> bool:
        """Whether the scheme inside has an average of its own."""
        if isinstance(self.scheme, Available):
            return self.scheme._weighs_itself
        return type(self.scheme).weigh is not Participation.weigh

    @property
    def _depth(self) -> int:
        return self.scheme._depth + 1 if isinstance(self.scheme, Available) else 0


bernoulli = factory("availability.bernoulli", Bernoulli)
periodic = factory("availability.periodic", Periodic)
trace = factory("availability.trace", Trace)
available = factory("cohort.available", Available)
