"""Cohorts that are given."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.cohort.participation import SCHEME_I, Averaging, Participation, Selection, everyone
from fedjax_sim.clients.scheme import EachClient, at_clients
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import integers, leaf
from fedjax_sim.core.loops import sorted_places
from fedjax_sim.core.values import INT32_MAX, as_int32, check_count, in_program, integer_array, is_concrete, shown
from fedjax_sim.datasets.federated import FederatedDataset


class Given(Participation):
    """Cohorts from an array: cohorts[t] are the client ids of round t; -1 leaves a slot void.

    For golden tests and for replaying the cohorts of another program, or of another scheme: where ``d`` is what
    ``fjs.draws`` returned, ``given(d.ids, average=d.average, repeats=d.repeats, probability=d.inclusion)`` replays it.
    Without ``probability`` the inclusion probability is 1 or 0: nothing is drawn. Traced: a slot whose id no client
    has, or (without ``repeats``) an earlier slot of the round has too, is void, and ``"refused_slots"`` of the round
    counts it.

    Args:
      cohorts: integer array [rounds, S] of client ids, no id twice in a round but with ``repeats``.
      average: see :data:`fedjax_sim.cohort.AVERAGES` (``"inverse"`` with ``probability`` alone), or None for
        the algorithm's own, with ``repeats`` for the plain mean over all draws, scheme I's.
      repeats: how often the client of each slot was drawn: integers [rounds, S], or one for all. An id that is in
        several slots trains once, in the first, and their numbers add up: ``given(ids, repeats=1)`` takes a list of
        draws with replacement. 0 leaves a slot void; a negative number says that the client was drawn so often and was
        not available. None for once each.
      probability: pi_i in [0, 1] that ``"inverse"`` divides by, of everybody: one number, [N] by client index or
        [rounds, N]. Of clients in the cohort more than 0.
      earlier: the cohorts of the exchange before, of methods that draw one for each of several in a round (FedDANE's
        S1): ``given(...)`` of as many slots. None for the same cohorts.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, sizes=[1, 2, 1])
      >>> drawn = fjs.cohort.given([[2, 0, 2, 2]], repeats=1).draw(data, jax.random.key(0), 0)
      >>> drawn.ids.tolist(), drawn.weights.tolist()
      ([2, 0, -1, -1], [0.75, 0.25, 0.0, 0.0])
    """

    cohorts: Any = integers()
    repeats: Any = integers(default=None, kw_only=True)
    probability: Any = leaf(EachClient(high=1.0, other=(NoneType,), rounds=True), default=None, kw_only=True)
    earlier: Any = dataclasses.field(default=None, kw_only=True)

    may_be_empty = True
    equal = False

    @property
    def replacement(self) -> bool:  # type: ignore[override]
        if self.earlier is not None and self.earlier.replacement:
            return True
        if self.repeats is None or not is_concrete((self.cohorts, self.repeats)):
            return self.repeats is not None
        members = np.where(np.asarray(self.repeats) == 0, _VOID, np.asarray(self.cohorts))
        return bool((np.abs(self.repeats) > 1).any() or _named_twice(members).any())

    def checked(self) -> Self:
        checked = super().checked()
        if self.average == "inverse" and self.probability is None:
            raise ValueError(
                "given(average='inverse'): given cohorts are not drawn, so that there is no inclusion probability to "
                "divide by; give probability=..., or use 'sample', 'plain' or another average"
            )
        cohorts = integer_array("given(cohorts)", self.cohorts, "[rounds, S] of client ids")
        if cohorts.shape[1] == 0:
            raise ValueError(f"given(cohorts) is {cohorts.dtype}{list(cohorts.shape)}: a round needs a slot or more")
        repeats = self._checked_repeats(cohorts.shape)
        self._check_earlier(cohorts.shape[1])
        changed = checked.replace(repeats=repeats)
        if isinstance(cohorts, jax.core.Tracer):
            return changed
        if cohorts.size and cohorts.min() < -1:
            raise ValueError(f"given(cohorts) has the entry {cohorts.min()}: give client ids, or -1 for a void slot")
        for t in np.flatnonzero(_named_twice(cohorts))[:1] if repeats is None else ():
            raise ValueError(
                f"given(cohorts): round {t} names a client twice ({cohorts[t].tolist()}): give each id "
                "once a round, the weights would be wrong; if it was drawn several times say so, repeats=1"
            )
        return changed.replace(cohorts=jnp.asarray(cohorts, jnp.int32))

    def size(self, num_clients: int) -> int:
        return int(jnp.shape(self.cohorts)[1])

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        super().check(dataset, rounds)
        if self.cohorts.shape[0] < rounds:
            raise ValueError(
                f"given(cohorts) has {self.cohorts.shape[0]} rounds, the run {rounds}: give one row a round"
            )
        if self.earlier is not None:
            self.earlier.check(dataset, rounds)
        if not is_concrete((self.cohorts, dataset.client_ids)):
            return
        cohorts, ids = np.asarray(self.cohorts), np.sort(np.asarray(dataset.client_ids))
        unknown = np.setdiff1d(cohorts[cohorts >= 0], ids)
        if len(unknown):
            raise ValueError(
                f"given(cohorts) names the client id {unknown[0]}, which the data set does not have: give ids of "
                "dataset.client_ids"
            )
        if self.average == "inverse" and is_concrete((self.probability, self.repeats)):
            every, cohorts = in_program(np.asarray(self.probability)), cohorts[:rounds]
            every = np.broadcast_to(every[:rounds] if every.ndim == 2 else every, (rounds, len(ids)))
            there = cohorts >= 0 if self.repeats is None else (cohorts >= 0) & (np.asarray(self.repeats)[:rounds] > 0)
            never = np.take_along_axis(every, np.searchsorted(ids, np.maximum(cohorts, ids[0])), axis=1) == 0
            for t, slot in np.argwhere(there & never)[:1]:
                raise ValueError(
                    f"given(probability) is 0 for client id {cohorts[t, slot]}, which takes part in round {t}: "
                    "average='inverse' divides by it, so give more than 0"
                )

    def averaging(self, average: str) -> Averaging:
        return SCHEME_I if self.repeats is not None and self.average is None else super().averaging(average)

    def of_exchange(self, after: int) -> Participation:
        if after == 0 or self.earlier is None:
            return self
        return self.earlier.of_exchange(after - 1)

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        if self.probability is not None:
            of_round = jnp.asarray(self.probability)
            everybody = jnp.arange(dataset.num_clients, dtype=jnp.int32)
            return at_clients(of_round[round_] if of_round.ndim == 2 else of_round, everybody)
        selection = self.select(dataset, None, round_)
        nobody = everyone(dataset.num_clients, 0.0)
        return nobody.at[selection.indices].add(selection.present.astype(nobody.dtype), mode="drop")

    def select(self, dataset: FederatedDataset, key: jax.Array | None, round_: int | jax.Array) -> Selection:
        ids = as_int32(jnp.asarray(self.cohorts)[round_], _NO_ID)
        known = dataset.client_ids[dataset.order]
        indices = sorted_places(known, ids)
        found = known.at[indices].get(mode="clip") == ids
        indices = jnp.where(found, indices, dataset.num_clients)
        once = self.repeats is None
        times = jnp.ones_like(ids) if once else as_int32(jnp.asarray(self.repeats)[round_], 0)
        again, total = _together(indices, times)
        count = jnp.where(found & ~again, jnp.ones_like(ids) if once else total, 0)
        indices = jnp.where(count != 0, indices, dataset.num_clients)
        refused = (ids != _VOID) & ~(found & ~again if once else found)
        return Selection(indices, count, refused=jnp.sum(refused, dtype=jnp.int32))

    def _checked_repeats(self, shape: tuple[int, int]) -> Any:
        """The repeats as int32[rounds, S]; traced as they are."""
        repeats = self.repeats
        if repeats is None:
            return None
        if np.ndim(repeats) == 0 and not isinstance(repeats, jax.core.Tracer):
            check_count("given(repeats)", repeats, high=INT32_MAX)
            repeats = np.full(shape, repeats)
        repeats = integer_array("given(repeats)", repeats, "[rounds, S], or one integer")
        if repeats.shape != shape:
            raise ValueError(
                f"given(repeats) is {list(repeats.shape)}: it must have the shape of cohorts, {list(shape)}"
            )
        if isinstance(repeats, jax.core.Tracer):
            return repeats
        if repeats.size and repeats.min() < -INT32_MAX:
            raise ValueError(f"given(repeats) has the entry {repeats.min()}: entries must be at least {-INT32_MAX}")
        return jnp.asarray(repeats, jnp.int32)

    def _check_earlier(self, slots: int) -> None:
        earlier = self.earlier
        if earlier is None:
            return
        if not isinstance(earlier, Given):
            raise TypeError(f"given(earlier) is {shown(earlier)}: give fedjax_sim.cohort.given(...), or None")
        if earlier.size(0) != slots:
            wrong = f"given(earlier) has {earlier.size(0)} slots a round, the cohorts have {slots}"
            raise ValueError(f"{wrong}: fill up with -1")
        if earlier.average != self.average:
            raise ValueError(
                f"given(average={self.average!r}, earlier=given(average={earlier.average!r}, ...)): a run has one "
                "average, so give both the same"
            )


_VOID, _NO_ID = -1, -2


def _named_twice(cohorts: np.ndarray) -> np.ndarray:
    """bool[rounds], whether an id is in several slots."""
    ordered = np.sort(cohorts, axis=1)
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)


def _together(indices: jax.Array, times: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each slot whether an earlier one has the same index, and the sum of ``times`` over all that have it."""
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    again = jnp.concatenate([jnp.zeros((1,), bool), ordered[1:] == ordered[:-1]])
    group = jnp.cumsum(~again, dtype=jnp.int32) - 1
    total = jnp.zeros_like(times).at[group].add(times[order])[group]
    return jnp.zeros_like(again).at[order].set(again), jnp.zeros_like(times).at[order].set(total)


given = factory("cohort.given", Given)
