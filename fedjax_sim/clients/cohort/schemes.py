"""Schemes that draw: everyone, K clients equally likely or by weight, with replacement, or each for itself."""

from __future__ import annotations

import functools
from types import NoneType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.clients.cohort.participation import (
    SCHEME_I,
    Averaging,
    Participation,
    Selection,
    check_average,
    everyone,
)
from fedjax_sim.clients.scheme import EachClient, at_clients, log_of_events
from fedjax_sim.core import sampling
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import choice, count, leaf, static
from fedjax_sim.core.keys import cohort_key
from fedjax_sim.core.loops import sorted_places
from fedjax_sim.core.values import check_count, in_program, is_concrete
from fedjax_sim.datasets.federated import FederatedDataset

_OVERFLOW = 1e-12  # the largest probability of an overflow in one round
_SIMULATED = 2**14  # draws behind Weighted.inclusion: standard error of at most 0.004


class Full(Participation):
    """Everyone takes part in every round.

    Inclusion probability 1. With sample weights E[update] = sum p_i Delta_i exactly.
    """

    def size(self, num_clients: int) -> int:
        return num_clients

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        everybody = jnp.arange(dataset.num_clients, dtype=jnp.int32)
        return Selection(everybody, jnp.ones_like(everybody))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return everyone(dataset.num_clients, 1.0)


def _check_number(what: str, value: Any) -> None:
    if isinstance(value, float) and 0 < value < 1:
        raise TypeError(
            f"{what} is {value}: it must be a number of clients, an integer of at least 1; "
            f"fedjax_sim.cohort.independent({value}) draws each of them with this probability"
        )
    check_count(what, value)


class _Sampled(Participation):
    """Base of the schemes with K different clients."""

    num_sampled: int = static(_check_number)

    def size(self, num_clients: int) -> int:
        return self.num_sampled

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        super().check(dataset, rounds)
        if self.num_sampled > dataset.num_clients:
            raise ValueError(
                f"{self.factory_name()}({self.num_sampled}) draws a cohort larger than the data set's "
                f"{dataset.num_clients} clients: draw at most {dataset.num_clients}, or use with_replacement"
            )


class Uniform(_Sampled):
    """K clients uniformly without replacement; inclusion probability K/N.

    Sample weights n_i / sum_S n are what FedProx's experiments use (biased for unequal n_i); plain weights 1/K are
    SCAFFOLD's setting (unbiased for (1/N) sum Delta_i). ``original``, ``scheme_ii`` and ``transformed`` are the other
    averages of Li et al. 2020, Table 1, over the same draw; ``"inverse"`` is x + (N/K) sum_S p_i Delta_i, unbiased.

    Args:
      num_sampled: K, at most N.
      average: see :data:`fedjax_sim.cohort.AVERAGES`, or None for the algorithm's own.
    """

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        chosen = sampling.choose(cohort_key(key, round_), dataset.num_clients, self.num_sampled)
        return Selection(chosen, jnp.ones_like(chosen))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return everyone(dataset.num_clients, self.num_sampled / dataset.num_clients)


class Shuffled(_Sampled):
    """A shuffled list of all clients, consumed K a round: everyone once in a pass of ceil(N/K) rounds.

    The last cohort of a pass has what is left, N - K (ceil(N/K) - 1) clients. Inclusion probability |S_t| / N, not
    independent between the rounds of a pass.

    Args:
      num_sampled: K, at most N.
      passes: ``"reshuffled"``: every pass has a new order; ``"repeated"``: the same one (cyclic participation);
        ``"uniform"``: after the first pass K clients uniformly every round, as FedAWARE's published code does.
      average: see :data:`fedjax_sim.cohort.AVERAGES`, or None for the algorithm's own.
    """

    passes: str = choice(("reshuffled", "repeated", "uniform"), default="reshuffled")

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        num_clients, size = dataset.num_clients, self.num_sampled
        start = round_ - round_ % self._rounds(num_clients) if self.passes == "reshuffled" else jnp.zeros_like(round_)
        place = self._first(round_, num_clients) + jnp.arange(size, dtype=jnp.int32)
        order = sampling.permutation_keys(cohort_key(key, start))
        listed = sampling.permute(order, num_clients, jnp.minimum(place, num_clients - 1))
        left = place < num_clients
        if self.passes == "uniform":
            first_pass = round_ < self._rounds(num_clients)
            chosen = sampling.choose(cohort_key(key, round_), num_clients, size)
            listed, left = jnp.where(first_pass, listed, chosen), left | ~first_pass
        return Selection(jnp.where(left, listed, num_clients), left.astype(jnp.int32))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        num_clients, round_ = dataset.num_clients, jnp.asarray(round_, jnp.int32)
        size = jnp.minimum(self.num_sampled, num_clients - self._first(round_, num_clients))
        if self.passes == "uniform":
            size = jnp.where(round_ < self._rounds(num_clients), size, self.num_sampled)
        return everyone(num_clients, size) / num_clients

    def _rounds(self, num_clients: int) -> int:
        return -(-num_clients // self.num_sampled)

    def _first(self, round_: jax.Array, num_clients: int) -> jax.Array:
        return round_ % self._rounds(num_clients) * self.num_sampled


class WithReplacement(Participation):
    """Scheme I of Li et al. 2020: K draws with replacement, P(i) = p_i = n_i / n; the new model is (1/K) sum_S y_i.

    A client drawn k times trains once and counts k times; the void slots that its duplicates leave do no work.
    Inclusion probability 1 - (1 - p_i)^K; E[update] = sum p_i Delta_i exactly. Weights are not renormalised when
    stragglers are dropped: a dropped client leaves x in the average.

    Args:
      num_draws: K.
    """

    num_draws: int = count()

    replacement = True

    def checked(self) -> Self:
        if self.average is not None:
            raise ValueError(
                f"with_replacement(average={self.average!r}): scheme I averages its K draws plainly, which is what "
                "makes it unbiased; leave average=None, or use uniform(K, average=...)"
            )
        return super().checked()

    def size(self, num_clients: int) -> int:
        return self.num_draws

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        owners = jnp.cumsum(dataset.sizes[dataset.order], dtype=jnp.int32)
        words = jax.random.bits(cohort_key(key, round_), (self.num_draws,), jnp.uint32)
        example = sampling.below(words, dataset.num_examples)
        drawn = jnp.sort(sorted_places(owners, example, side="right"))
        first = jnp.concatenate([jnp.ones((1,), bool), drawn[1:] != drawn[:-1]])
        times = sorted_places(drawn, drawn, side="right") - sorted_places(drawn, drawn)
        void = jnp.int32(dataset.num_clients)
        return Selection(jnp.where(first, drawn, void), jnp.where(first, times, 0))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return -jnp.expm1(self.num_draws * jnp.log1p(-dataset.shares[dataset.order]))

    def averaging(self, average: str) -> Averaging:
        return SCHEME_I


class Weighted(_Sampled):
    """K successive draws without replacement, each with P(i) proportional to the weights of those left.

    Biased: heavy clients take part less often than K times their weight. Inclusion probabilities have no closed form;
    :meth:`inclusion` simulates them (16,384 draws with a fixed key, standard error at most 0.004).

    Args:
      num_sampled: K, at most the number of positive weights. Traced: fewer take part where fewer are positive.
      weights: one non-negative number a client, in the order of the ids; None for p_i. A client of weight 0 is never
        drawn.
      average: ``"plain"`` (default), another one of :data:`fedjax_sim.cohort.AVERAGES` but ``"inverse"``, or None for
        the algorithm's own.
    """

    weights: Any = leaf(EachClient(other=(NoneType,)), default=None)
    average: str | None = static(check_average, default="plain", kw_only=True)

    equal = False

    def checked(self) -> Self:
        if self.average == "inverse":
            raise ValueError(
                "weighted(average='inverse'): its inclusion probabilities are known by simulation only; use 'plain' or "
                "'sample', or independent(probability, average='inverse'), whose probabilities are given"
            )
        checked = super().checked()
        if checked.weights is None:
            return checked
        if np.ndim(checked.weights) != 1:
            raise ValueError(f"weighted(weights=...) is {checked.weights}: give one a client, or None for p_i = n_i/n")
        if is_concrete(checked.weights):
            positive = int(np.sum(in_program(np.asarray(checked.weights)) > 0))
            if positive < self.num_sampled:
                raise ValueError(
                    f"weighted({self.num_sampled}, weights) has {positive} positive weights: a client of weight 0 is "
                    f"never drawn, so draw at most {positive}"
                )
        return checked

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

    def log_probability(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> jax.Array:
        """Of the draws in their order: sum_k log w_(i_k) - log(sum of the weights left before draw k)."""
        weights = self._masses(dataset)
        chosen = sampling.choose_weighted(cohort_key(key, round_), weights, self.num_sampled)
        drawn = weights[chosen]
        # From the last draw on: what is left is no difference, which heavy clients would swallow.
        left = jnp.sum(weights.at[chosen].set(0)) + jnp.cumsum(drawn[::-1])[::-1]
        possible = drawn > 0  # who has no weight is drawn where nobody else is left
        return jnp.sum(jnp.log(jnp.where(possible, drawn, 1) / jnp.where(possible, left, 1)))

    def _masses(self, dataset: FederatedDataset) -> jax.Array:
        if self.weights is None:
            return dataset.shares[dataset.order]
        return at_clients(self.weights, jnp.arange(dataset.num_clients, dtype=jnp.int32))


class Independent(Participation):
    """Client i takes part with probability q_i, independently of everything else.

    Inclusion probability q_i. With ``average="inverse"``, x + sum_S (p_i / q_i) Delta_i, E[update] = sum p_i Delta_i
    exactly; ``"plain"`` is the mean over S, as in FedDyn's published code (which redraws an empty cohort; here nothing
    happens in such a round).

    A compiled round needs a fixed number of slots. A cohort is never cut to it, which would bias 1/q_i: more clients
    are drawn with probability below 1e-12 a round, by the binomial tail at the mean of the q_i (Hoeffding 1956, Theorem
    5: unequal q_i make the tail lighter), and then the round is flagged (``Selection.overflow``).

    Args:
      probability: q in [0, 1]: a number, or one a client in the order of the ids.
      cap: number of slots; None for the smallest that is safe. Needed where ``probability`` is traced. Traced: a round
        that draws more clients than that makes the model NaN, and ``"overflow"`` of the round is true.
      average: see :data:`fedjax_sim.cohort.AVERAGES`, or None for the algorithm's own.

    Raises:
      ValueError: (also before a run) a cap that is too small, or none with a traced probability.
    """

    probability: Any = leaf(EachClient(high=1.0))
    cap: int | None = count(default=None)

    may_be_empty = True
    may_overflow = True

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return np.ndim(self.probability) == 0

    def checked(self) -> Self:
        checked = super().checked()
        if not checked.equal:
            checked._check_cap(np.shape(checked.probability)[0])
        return checked

    def size(self, num_clients: int) -> int:
        return self._least_cap(num_clients) if self.cap is None else min(self.cap, num_clients)

    def fitted(self, dataset: FederatedDataset) -> Self:
        self._check_cap(dataset.num_clients)
        return self.replace(cap=self.size(dataset.num_clients))

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        super().check(dataset, rounds)
        self.fitted(dataset)

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        num_clients = dataset.num_clients
        slots = self.size(num_clients)
        words = jax.random.bits(cohort_key(key, round_), (num_clients,), jnp.uint32)
        coming = sampling.happens(words, self.inclusion(dataset))
        (indices,) = jnp.nonzero(coming, size=slots, fill_value=num_clients)
        indices = indices.astype(jnp.int32)
        overflow = jnp.sum(coming, dtype=jnp.int32) > slots
        return Selection(indices, (indices < num_clients).astype(jnp.int32), overflow)

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return at_clients(self.probability, jnp.arange(dataset.num_clients, dtype=jnp.int32))

    def log_probability(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> jax.Array:
        """sum_i log q_i of who is drawn, log(1 - q_i) of who is not."""
        indices = self.select(dataset, key, round_).indices
        drawn = jnp.zeros((dataset.num_clients,), bool).at[indices].set(True, mode="drop")
        return jnp.sum(log_of_events(drawn, self.inclusion(dataset)))

    def _least_cap(self, num_clients: int) -> int:
        if not is_concrete(self.probability):
            raise ValueError(
                "independent(probability) is traced, so that the number of slots cannot be found from it: give "
                f"cap=..., at most the number of clients, {num_clients}"
            )
        return least_cap(num_clients, float(np.mean(np.asarray(self.probability, np.float64))))

    def _check_cap(self, num_clients: int) -> None:
        if self.cap is None or not is_concrete(self.probability):
            return
        least = self._least_cap(num_clients)
        if self.cap < least:
            raise ValueError(
                f"independent(cap={self.cap}) is too small for {num_clients} clients: more would be drawn once in a "
                f"while, and leaving some of them out biases every average; give at least {least}, or cap=None for that"
            )


@functools.cache
def least_cap(num_clients: int, mean: float) -> int:
    """The smallest c >= 1 with P(Binomial(N, mean) > c) < 1e-12, from the exact tail, computed on the host."""
    if mean in (0.0, 1.0):
        return num_clients if mean else 1
    successes = np.arange(num_clients + 1)
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, num_clients + 1))))
    log_ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    log_mass = log_ways + successes * np.log(mean) + successes[::-1] * np.log1p(-mean)
    at_least = np.cumsum(np.exp(log_mass)[::-1])[::-1]
    more_than = np.append(at_least[1:], 0.0)
    return max(int(np.argmax(more_than < _OVERFLOW)), 1)


full = factory("cohort.full", Full)
uniform = factory("cohort.uniform", Uniform)
shuffled = factory("cohort.shuffled", Shuffled)
with_replacement = factory("cohort.with_replacement", WithReplacement)
weighted = factory("cohort.weighted", Weighted)
independent = factory("cohort.independent", Independent)


def original(num_sampled: int) -> Uniform:
    """K clients uniformly, x <- sum_S p_i y_i + sum_(not S) p_i x: E[update] = (K/N) sum p_i Delta_i.

    McMahan et al. 2017 as Li et al. 2020 tabulate it (Table 1). K is at most N.
    """
    return uniform(num_sampled, average="original")


def scheme_ii(num_sampled: int) -> Uniform:
    """Scheme II of Li et al. 2020: K clients uniformly, at most N, x <- (N/K) sum_S p_i y_i.

    E[x] = sum p_i y_i, but the weights need not sum to 1, so that x itself is rescaled every round: unstable where the
    p_i differ.
    """
    return uniform(num_sampled, average="scheme_ii")


def transformed(num_sampled: int) -> Uniform:
    """Transformed scheme II of Li et al. 2020, section 3.3: local objectives N p_i F_i, then x <- (1/K) sum_S y_i.

    The whole F_i with its regulariser is scaled, a proximal term is not. E[update] = sum p_i Delta_i for one local
    step only; stable only for eta N p_max L < 2. K clients uniformly, at most N.
    """
    return uniform(num_sampled, average="transformed")
