"""Schemes in which all clients are equally likely: everyone, K uniformly, K from a shuffled list."""

from __future__ import annotations

from typing import Self

import jax
import jax.numpy as jnp

from fedjax_sim.clients.cohort.participation import Participation, Selection, everyone
from fedjax_sim.core import sampling
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.keys import cohort_key
from fedjax_sim.core.values import check_count, suggest
from fedjax_sim.datasets.federated import FederatedDataset


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


class Uniform(Participation):
    """K clients uniformly without replacement; inclusion probability K/N.

    Sample weights n_i / sum_S n are what FedProx's experiments use (biased for unequal n_i); plain weights 1/K are
    SCAFFOLD's setting (unbiased for (1/N) sum Delta_i). ``original``, ``scheme_ii`` and ``transformed`` are the other
    averages of Li et al. 2020, Table 1, over the same draw; ``"inverse"`` is x + (N/K) sum_S p_i Delta_i, unbiased.

    Args:
      num_sampled: K, at most N.
      average: see :data:`fedjax_sim.cohort.averaging.AVERAGES`, or None for the algorithm's own.
    """

    num_sampled: int = static()

    def checked(self) -> Self:
        check_count("uniform(num_sampled=...)", self.num_sampled)
        return super().checked()

    def size(self, num_clients: int) -> int:
        return self.num_sampled

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        self._check_fits("uniform", self.num_sampled, dataset)

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        chosen = sampling.choose(cohort_key(key, round_), dataset.num_clients, self.num_sampled)
        return Selection(chosen, jnp.ones_like(chosen))

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return everyone(dataset.num_clients, self.num_sampled / dataset.num_clients)


class Shuffled(Participation):
    """A shuffled list of all clients, consumed K a round: everyone once in a pass of ceil(N/K) rounds.

    The last cohort of a pass has what is left, N - K (ceil(N/K) - 1) clients. Inclusion probability |S_t| / N, not
    independent between the rounds of a pass.

    Args:
      num_sampled: K, at most N.
      passes: ``"reshuffled"``: every pass has a new order; ``"repeated"``: the same one (cyclic participation);
        ``"uniform"``: after the first pass K clients uniformly every round, as FedAWARE's published code does.
      average: see :data:`fedjax_sim.cohort.averaging.AVERAGES`, or None for the algorithm's own.
    """

    num_sampled: int = static()
    passes: str = static(default="reshuffled")

    def checked(self) -> Self:
        check_count("shuffled(num_sampled=...)", self.num_sampled)
        if self.passes not in _PASSES:
            raise ValueError(f"shuffled(passes={self.passes!r}): {suggest(str(self.passes), list(_PASSES))}")
        return super().checked()

    def size(self, num_clients: int) -> int:
        return self.num_sampled

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        self._check_fits("shuffled", self.num_sampled, dataset)

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


_PASSES = ("reshuffled", "repeated", "uniform")

full = factory("cohort.full", Full)
uniform = factory("cohort.uniform", Uniform)
shuffled = factory("cohort.shuffled", Shuffled)


def original(num_sampled: int) -> Uniform:
    """K clients uniformly, x <- sum_S p_i y_i + sum_(not S) p_i x: E[update] = (K/N) sum p_i Delta_i.

    McMahan et al. 2017 as Li et al. 2020 tabulate it (Table 1).

    Args:
      num_sampled: K, at most N.
    """
    return uniform(num_sampled, average="original")


def scheme_ii(num_sampled: int) -> Uniform:
    """Scheme II of Li et al. 2020: K clients uniformly, x <- (N/K) sum_S p_i y_i.

    E[x] = sum p_i y_i, but the weights need not sum to 1, so that x itself is rescaled every round: unstable where the
    p_i differ.

    Args:
      num_sampled: K, at most N.
    """
    return uniform(num_sampled, average="scheme_ii")


def transformed(num_sampled: int) -> Uniform:
    """Transformed scheme II of Li et al. 2020, section 3.3: local objectives N p_i F_i, then x <- (1/K) sum_S y_i.

    The whole F_i with its regulariser is scaled, a proximal term is not. E[update] = sum p_i Delta_i for one local
    step only; stable only for eta N p_max L < 2.

    Args:
      num_sampled: K, at most N.
    """
    return uniform(num_sampled, average="transformed")
