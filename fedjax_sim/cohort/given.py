"""Cohorts that are given."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.cohort.participation import Participation, Selection, everyone
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import factory, integers
from fedjax_sim.values import as_int32, integer_array, is_concrete


class Given(Participation):
    """Cohorts from an array: cohorts[t] are the client ids of round t; -1 leaves a slot void.

    For golden tests and for replaying the cohorts of another program. Inclusion probability 1 or 0: nothing is drawn.
    Traced: a slot whose id no client has, or an earlier slot of the round has too, is void, and ``"refused_slots"`` of
    the round counts it.

    Args:
      cohorts: integer array [rounds, S] of client ids, no id twice in a round.
      average: see :data:`fedjax_sim.cohort.averaging.AVERAGES` (all but ``"inverse"``), or None for the algorithm's
        own.
    """

    cohorts: Any = integers()

    may_be_empty: ClassVar[bool] = True
    equal: ClassVar[bool] = False

    def checked(self) -> Self:
        super().checked()
        if self.average == "inverse":
            raise ValueError(
                "given(average='inverse'): given cohorts are not drawn, so that there is no inclusion probability to "
                "divide by; use 'sample', 'plain' or another average"
            )
        cohorts = integer_array("given(cohorts)", self.cohorts, "[rounds, S] of client ids")
        if cohorts.shape[1] == 0:
            raise ValueError(f"given(cohorts) is {cohorts.dtype}{list(cohorts.shape)}: a round needs a slot or more")
        if isinstance(cohorts, jax.core.Tracer):
            return self
        if cohorts.size and cohorts.min() < -1:
            raise ValueError(f"given(cohorts) has the entry {cohorts.min()}: give client ids, or -1 for a void slot")
        for t, row in enumerate(cohorts):
            members = row[row >= 0]
            if len(np.unique(members)) < len(members):
                raise ValueError(
                    f"given(cohorts): round {t} names a client twice ({row.tolist()}): give each id "
                    "once a round, the weights would be wrong"
                )
        return self.replace(cohorts=jnp.asarray(cohorts, jnp.int32))

    def size(self, num_clients: int) -> int:
        return int(jnp.shape(self.cohorts)[1])

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        if self.cohorts.shape[0] < rounds:
            raise ValueError(
                f"given(cohorts) has {self.cohorts.shape[0]} rounds, the run {rounds}: give one row a round"
            )
        if is_concrete((self.cohorts, dataset.client_ids)):
            cohorts = np.asarray(self.cohorts)
            unknown = np.setdiff1d(cohorts[cohorts >= 0], np.asarray(dataset.client_ids))
            if len(unknown):
                raise ValueError(
                    f"given(cohorts) names the client id {unknown[0]}, which the data set does not have: give ids of "
                    "dataset.client_ids"
                )

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        return self._cohort(dataset, round_)

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        selection = self._cohort(dataset, round_)
        nobody = everyone(dataset.num_clients, 0.0)
        return nobody.at[selection.indices].add(selection.count.astype(nobody.dtype), mode="drop")

    def _cohort(self, dataset: FederatedDataset, round_: int | jax.Array) -> Selection:
        ids = as_int32(jnp.asarray(self.cohorts)[round_], _NO_ID)
        known = dataset.client_ids[dataset.order]
        indices = jnp.searchsorted(known, ids).astype(jnp.int32)
        found = known.at[indices].get(mode="clip") == ids
        valid = found & ~_repeats(jnp.where(found, indices, dataset.num_clients))
        refused = jnp.sum((ids != _VOID) & ~valid, dtype=jnp.int32)
        return Selection(jnp.where(valid, indices, dataset.num_clients), valid.astype(jnp.int32), refused=refused)


_VOID, _NO_ID = -1, -2


def _repeats(indices: jax.Array) -> jax.Array:
    """bool[S], whether an earlier slot has the same index."""
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    again = jnp.concatenate([jnp.zeros((1,), bool), ordered[1:] == ordered[:-1]])
    return jnp.zeros_like(again).at[order].set(again)


given = factory("cohort.given", Given)
