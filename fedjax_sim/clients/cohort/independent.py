"""Bernoulli participation: every client decides for itself."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.clients.cohort.participation import Participation, Selection
from fedjax_sim.clients.cohort.per_client import at_clients, check_length, per_client
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.keys import cohort_key
from fedjax_sim.core.sampling import happens
from fedjax_sim.core.values import check_count, is_concrete
from fedjax_sim.datasets.federated import FederatedDataset

_OVERFLOW = 1e-12  # the largest probability of an overflow in one round


class Independent(Participation):
    """Client i takes part with probability q_i, independently of everything else.

    Inclusion probability q_i. With ``average="inverse"``, x + sum_S (p_i / q_i) Delta_i, E[update] = sum p_i Delta_i
    exactly; ``"plain"`` is the mean over S, as in FedDyn's published code (which redraws an empty cohort; here nothing
    happens in such a round).

    A compiled round needs a fixed number of slots. A cohort is never cut to it, which would bias 1/q_i: there are so
    many slots that more clients than that are drawn with probability below 1e-12 a round, and if it happens after all
    the round is flagged (``Selection.overflow``). The probability is bounded by the binomial tail at the mean of the
    q_i (Hoeffding 1956, Theorem 5: unequal q_i make the tail lighter).

    Args:
      probability: q in [0, 1]: a number, or one a client in the order of the ids.
      cap: number of slots; None for the smallest that is safe. Needed where ``probability`` is traced. Traced: a round
        that draws more clients than that makes the model NaN, and ``"overflow"`` of the round is true.
      average: see :data:`fedjax_sim.cohort.averaging.AVERAGES`, or None for the algorithm's own.

    Raises:
      ValueError: (also before a run) a cap that is too small, or none with a traced probability.
    """

    probability: Any
    cap: int | None = static(default=None)

    may_be_empty: ClassVar[bool] = True
    may_overflow: ClassVar[bool] = True

    @property
    def equal(self) -> bool:  # type: ignore[override]
        return np.ndim(self.probability) == 0

    def checked(self) -> Self:
        probability = per_client("independent(probability)", self.probability, high=1.0)
        if self.cap is not None:
            check_count("independent(cap=...)", self.cap)
        checked = super(Independent, self.replace(probability=probability)).checked()
        if np.ndim(probability) == 1:
            checked._check_cap(np.shape(probability)[0])
        return checked

    def size(self, num_clients: int) -> int:
        return self._least_cap(num_clients) if self.cap is None else min(self.cap, num_clients)

    def fitted(self, dataset: FederatedDataset) -> Self:
        self._check_cap(dataset.num_clients)
        return self.replace(cap=self.size(dataset.num_clients))

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        check_length("independent(probability)", self.probability, dataset.num_clients)
        self._check_cap(dataset.num_clients)
        self.size(dataset.num_clients)

    def select(self, dataset: FederatedDataset, key: jax.Array, round_: jax.Array) -> Selection:
        num_clients = dataset.num_clients
        slots = self.size(num_clients)
        words = jax.random.bits(cohort_key(key, round_), (num_clients,), jnp.uint32)
        coming = happens(words, self.inclusion(dataset))
        (indices,) = jnp.nonzero(coming, size=slots, fill_value=num_clients)
        indices = indices.astype(jnp.int32)
        overflow = jnp.sum(coming, dtype=jnp.int32) > slots
        return Selection(indices, (indices < num_clients).astype(jnp.int32), overflow)

    def inclusion(self, dataset: FederatedDataset, round_: int | jax.Array = 0) -> jax.Array:
        return at_clients(self.probability, jnp.arange(dataset.num_clients, dtype=jnp.int32))

    def _least_cap(self, num_clients: int) -> int:
        if not is_concrete(self.probability):
            raise ValueError(
                "independent(probability) is traced, so that the number of slots cannot be found from it: give "
                f"cap=..., at most the number of clients, {num_clients}"
            )
        return least_cap(num_clients, self._mean)

    def _check_cap(self, num_clients: int) -> None:
        if self.cap is None or not is_concrete(self.probability):
            return
        least = self._least_cap(num_clients)
        if self.cap < least:
            raise ValueError(
                f"independent(cap={self.cap}) is too small for {num_clients} clients of mean probability "
                f"{self._mean:g}: more would be drawn once in a while, and leaving some of them out biases every "
                f"average; give at least {least}, or cap=None for just that"
            )

    @property
    def _mean(self) -> float:
        return float(np.mean(np.asarray(self.probability, np.float64)))


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


independent = factory("cohort.independent", Independent)
