"""Participation schemes: how a round's cohort is drawn and what is averaged.

A scheme is a pure function of (run key, round): it can be called inside the compiled program or ahead of it on the
host, with the same result. Clients are *indexed* 0..N-1 in the order of their fixed ids, so the order in which a data
set stores them changes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import sampling
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import Described, factory, integers, static
from fedjax_sim.keys import Purpose, purpose_key, round_key
from fedjax_sim.values import check_count, integer_array, is_concrete


class Selection(NamedTuple):
    """The clients of one round.

    Attributes:
      indices: int32[S], client indices; N in void slots (masked, or a duplicate beyond the first).
      count: int32[S], how often the client was drawn; 0 in void slots.
    """

    indices: jax.Array
    count: jax.Array  # type: ignore[assignment]


class Draw(NamedTuple):
    """What :meth:`Participation.draw` returns.

    Attributes:
      ids: int32[S], client ids; -1 in void slots.
      mask: bool[S], false in void slots.
      weights: [S], weights of the average, 0 in void slots.
    """

    ids: jax.Array
    mask: jax.Array
    weights: jax.Array


class Participation(Described, kw_only=True):
    """Base of the schemes.

    Attributes:
      average: ``"sample"`` (weights n_i / sum_S n), ``"plain"`` (1/|S|) or None for the algorithm's own.
    """

    average: str | None = static(default=None)

    replacement: ClassVar[bool] = False
    may_be_empty: ClassVar[bool] = False

    def size(self, num_clients: int) -> int:
        """Number of slots S, static."""
        raise TypeError(f"{type(self).__name__} must define size(num_clients)")

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        """The cohort of a round; ``key`` is the scheme's own (see :meth:`draw`)."""
        raise TypeError(f"{type(self).__name__} must define select(dataset, key, round_)")

    def weights(self, count: jax.Array, sizes: jax.Array, average: str) -> jax.Array:
        """Weights of the average, 0 in void slots.

        Args:
          count: int32[S], multiplicities; 0 in void slots (dropped stragglers included).
          sizes: int32[S], n_i.
          average: ``"sample"`` or ``"plain"``.
        """
        mass = (count * sizes if average == "sample" else count).astype(jnp.result_type(float))
        return mass / jnp.maximum(jnp.sum(mass), 1)

    def objective(self, average: str) -> str:
        """Which F the scheme's average minimises: ``"sample"`` sum p_i F_i, ``"plain"`` (1/N) sum F_i."""
        return average

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        """Raises ``ValueError`` where the scheme cannot serve this data set or number of rounds."""

    def checked(self) -> Participation:
        if self.average not in (None, "sample", "plain"):
            raise ValueError(f"average={self.average!r}: it must be 'sample', 'plain' or None (the algorithm's own)")
        return self

    def draw(self, dataset: FederatedDataset, key: jax.Array, round_: int | jax.Array, average: str = "sample") -> Draw:
        """Ids, mask and weights of a round's cohort, as the compiled run with this key draws them.

        Stragglers that the ``work`` scheme drops later are still in it.

        Args:
          dataset: who there is.
          key: the run's key.
          round_: t, counted from 0.
          average: the algorithm's own average, which counts where the scheme's is None.
        """
        round_ = jnp.asarray(round_, jnp.int32)
        indices, count = self.select(dataset, purpose_key(round_key(key, round_), Purpose.COHORT), round_)
        mask = count > 0
        storage = dataset.order.at[indices].get(mode="clip")
        weights = self.weights(count, dataset.sizes[storage], self.average or average)
        return Draw(jnp.where(mask, dataset.client_ids[storage], -1), mask, weights)


class Full(Participation):
    """Everyone takes part in every round.

    Inclusion probability 1. With sample weights E[update] = sum p_i Delta_i exactly.
    """

    def size(self, num_clients: int) -> int:
        return num_clients

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        everyone = jnp.arange(dataset.num_clients, dtype=jnp.int32)
        return Selection(everyone, jnp.ones_like(everyone))


class Uniform(Participation):
    """K clients uniformly without replacement; inclusion probability K/N.

    Sample weights n_i / sum_S n are what FedProx's experiments use (biased for unequal n_i); plain weights 1/K are
    SCAFFOLD's setting (unbiased for (1/N) sum Delta_i).

    Args:
      num_sampled: K, at most N.
      average: ``"sample"``, ``"plain"`` or None for the algorithm's own.
    """

    num_sampled: int = static()

    def checked(self) -> Uniform:
        check_count("uniform(num_sampled=...)", self.num_sampled)
        super().checked()
        return self

    def size(self, num_clients: int) -> int:
        return self.num_sampled

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        if self.num_sampled > dataset.num_clients:
            raise ValueError(
                f"uniform({self.num_sampled}) draws a cohort larger than the data set's {dataset.num_clients} clients: "
                f"draw at most {dataset.num_clients}, or use with_replacement"
            )

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        chosen = sampling.choose(key, dataset.num_clients, self.num_sampled)
        return Selection(chosen, jnp.ones_like(chosen))


class WithReplacement(Participation):
    """Scheme I of Li et al. 2020: K draws with replacement, P(i) = p_i = n_i / n; the new model is (1/K) sum_S y_i.

    A client drawn k times trains once and counts k times; the void slots that its duplicates leave do no work.
    Inclusion probability 1 - (1 - p_i)^K; E[update] = sum p_i Delta_i exactly. Weights are not renormalised when
    stragglers are dropped: a dropped client leaves x in the average.

    Args:
      num_draws: K.
    """

    num_draws: int = static()

    replacement: ClassVar[bool] = True

    def checked(self) -> WithReplacement:
        check_count("with_replacement(num_draws=...)", self.num_draws)
        if self.average is not None:
            raise ValueError(
                f"with_replacement(average={self.average!r}): scheme I averages its K draws plainly, which is what "
                "makes it unbiased; leave average=None, or use uniform(K, average=...)"
            )
        return self

    def size(self, num_clients: int) -> int:
        return self.num_draws

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        owners = jnp.cumsum(dataset.sizes[dataset.order], dtype=jnp.int32)
        example = sampling.below(jax.random.bits(key, (self.num_draws,), jnp.uint32), dataset.num_examples)
        drawn = jnp.sort(jnp.searchsorted(owners, example, side="right").astype(jnp.int32))
        first = jnp.concatenate([jnp.ones((1,), bool), drawn[1:] != drawn[:-1]])
        count = jnp.searchsorted(drawn, drawn, side="right") - jnp.searchsorted(drawn, drawn, side="left")
        void = jnp.int32(dataset.num_clients)
        return Selection(jnp.where(first, drawn, void), jnp.where(first, count.astype(jnp.int32), 0))

    def weights(self, count: jax.Array, sizes: jax.Array, average: str) -> jax.Array:
        return count.astype(jnp.result_type(float)) / self.num_draws

    def objective(self, average: str) -> str:
        return "sample"


class Given(Participation):
    """Cohorts from an array: cohorts[t] are the client ids of round t; -1 leaves a slot void.

    For golden tests and for replaying the cohorts of another program.

    Args:
      cohorts: integer array [rounds, S] of client ids, no id twice in a round.
    """

    cohorts: Any = integers()

    may_be_empty: ClassVar[bool] = True

    def checked(self) -> Given:
        super().checked()
        if isinstance(self.cohorts, jax.core.Tracer):
            return self
        cohorts = integer_array("given(cohorts)", self.cohorts, "[rounds, S] of client ids")
        if cohorts.shape[1] == 0:
            raise ValueError(f"given(cohorts) is {cohorts.dtype}{list(cohorts.shape)}: a round needs a slot or more")
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
        ids = jnp.asarray(self.cohorts)[round_].astype(jnp.int32)
        indices = jnp.searchsorted(dataset.client_ids[dataset.order], ids).astype(jnp.int32)
        valid = ids >= 0
        return Selection(jnp.where(valid, indices, dataset.num_clients), valid.astype(jnp.int32))


full = factory("cohort.full", Full)
uniform = factory("cohort.uniform", Uniform)
with_replacement = factory("cohort.with_replacement", WithReplacement)
given = factory("cohort.given", Given)
