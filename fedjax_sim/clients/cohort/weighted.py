"""Schemes that prefer some clients to others: K draws with or without replacement."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.clients.cohort.averaging import SCHEME_I, Averaging
from fedjax_sim.clients.cohort.participation import Participation, Selection, everyone, shares_by_index
from fedjax_sim.clients.cohort.per_client import at_clients, check_length, per_client
from fedjax_sim.core import sampling
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.keys import cohort_key
from fedjax_sim.core.values import check_count, in_program, is_concrete
from fedjax_sim.datasets.federated import FederatedDataset

_SIMULATED = 2**14  # draws behind Weighted.inclusion: standard error of at most 0.004


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

    def checked(self) -> Self:
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
        words = jax.random.bits(cohort_key(key, round_), (self.num_draws,), jnp.uint32)
        example = sampling.below(words, dataset.num_examples)
        drawn = jnp.sort(jnp.searchsorted(owners, example, side="right").astype(jnp.int32))
        first = jnp.concatenate([jnp.ones((1,), bool), drawn[1:] != drawn[:-1]])
        count = jnp.searchsorted(drawn, drawn, side="right") - jnp.searchsorted(drawn, drawn, side="left")
        void = jnp.int32(dataset.num_clients)
        return Selection(jnp.where(first, drawn, void), jnp.where(first, count.astype(jnp.int32), 0))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return -jnp.expm1(self.num_draws * jnp.log1p(-shares_by_index(dataset)))

    def averaging(self, average: str) -> Averaging:
        return SCHEME_I


class Weighted(Participation):
    """K successive draws without replacement, each with P(i) proportional to the weights of those left.

    Biased: heavy clients take part less often than K times their weight. Inclusion probabilities have no closed form;
    :meth:`inclusion` simulates them (16,384 draws with a fixed key, standard error at most 0.004).

    Args:
      num_sampled: K, at most the number of positive weights. Traced: fewer take part where fewer are positive.
      weights: one non-negative number a client, in the order of the ids; None for p_i. A client of weight 0 is never
        drawn.
      average: ``"plain"`` (default), another one of :data:`fedjax_sim.cohort.averaging.AVERAGES` but ``"inverse"``,
        or None for the algorithm's own.
    """

    num_sampled: int = static()
    weights: Any = None
    average: str | None = static(default="plain", kw_only=True)

    equal: ClassVar[bool] = False

    def checked(self) -> Self:
        check_count("weighted(num_sampled=...)", self.num_sampled)
        if self.average == "inverse":
            raise ValueError(
                "weighted(average='inverse'): its inclusion probabilities are known by simulation only; use 'plain' or "
                "'sample', or independent(probability, average='inverse'), whose probabilities are given"
            )
        if self.weights is None:
            return super().checked()
        weights = per_client("weighted(weights)", self.weights)
        if np.ndim(weights) != 1:
            raise ValueError(f"weighted(weights) is {weights}: give one weight a client, or None for p_i = n_i / n")
        if is_concrete(weights):
            positive = int(np.sum(in_program(np.asarray(weights)) > 0))
            if positive < self.num_sampled:
                raise ValueError(
                    f"weighted({self.num_sampled}, weights) has {positive} positive weights: a client of weight 0 is "
                    f"never drawn, so draw at most {positive}"
                )
        return super(Weighted, self.replace(weights=weights)).checked()

    def size(self, num_clients: int) -> int:
        return self.num_sampled

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        self._check_fits("weighted", self.num_sampled, dataset)
        if self.weights is not None:
            check_length("weighted(weights)", self.weights, dataset.num_clients)

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        weights = self._masses(dataset)
        chosen = sampling.choose_weighted(cohort_key(key, round_), weights, self.num_sampled)
        possible = weights[chosen] > 0
        return Selection(jnp.where(possible, chosen, dataset.num_clients), possible.astype(jnp.int32))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        weights = self._masses(dataset)

        def again(t: jax.Array, visits: jax.Array) -> jax.Array:
            chosen = sampling.choose_weighted(jax.random.fold_in(jax.random.key(0), t), weights, self.num_sampled)
            return visits.at[chosen].add((weights[chosen] > 0).astype(visits.dtype))

        visits: jax.Array = lax.fori_loop(0, _SIMULATED, again, everyone(dataset.num_clients, 0.0))
        return visits / _SIMULATED

    def _masses(self, dataset: FederatedDataset) -> jax.Array:
        if self.weights is None:
            return shares_by_index(dataset)
        return at_clients(self.weights, jnp.arange(dataset.num_clients, dtype=jnp.int32))


with_replacement = factory("cohort.with_replacement", WithReplacement)
weighted = factory("cohort.weighted", Weighted)
