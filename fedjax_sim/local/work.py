"""How many local steps a client takes in a round: tau_i(t).

An epoch is ceil(n_i / B) steps. Draws depend on (run key, round, client id) alone. A client that ends up with zero
steps is dropped from the round: its slot is void, and the weights are those of the clients left.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import sampling
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.descriptions import Described, factory, integers, static
from fedjax_sim.keys import ClientDraws
from fedjax_sim.values import check_count, check_flag, check_real, integer_array


class Work(Described):
    """Base of the work schemes."""

    may_drop: ClassVar[bool] = False

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        """tau of each slot, int32[S]; what void slots get does not matter.

        Args:
          draws: what each slot's client draws from this round.
          round_: int32 scalar t.
          indices: int32[S], client indices.
          ids: int32[S], client ids.
          valid: bool[S], false in void slots.
          epoch: int32[S], steps of one epoch of each client.
        """
        raise TypeError(f"{type(self).__name__} must define steps(...)")

    def most_steps(self, epoch: int) -> int:
        """An upper bound of tau for a client whose epoch has ``epoch`` steps; static."""
        raise TypeError(f"{type(self).__name__} must define most_steps(epoch)")

    def most_total(self, num_slots: int, epoch_total: int, epoch: int) -> int:
        """An upper bound of sum tau over a cohort; static.

        Args:
          num_slots: S.
          epoch_total: upper bound of the cohort's steps in one epoch each.
          epoch: upper bound of one client's steps in one epoch.
        """
        return num_slots * self.most_steps(epoch)

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        """Raises ``ValueError`` where the scheme cannot serve this data set or number of rounds."""


class Steps(Work):
    """The same number of steps for everyone.

    Args:
      num_steps: tau >= 1.
    """

    num_steps: int = static()

    def checked(self) -> Steps:
        check_count("steps(num_steps)", self.num_steps)
        return self

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        return jnp.full_like(epoch, self.num_steps)

    def most_steps(self, epoch: int) -> int:
        return self.num_steps


class RandomEpochs(Work):
    """E_i(t) ~ U{low..high} epochs, anew for each client and round; tau_i = E_i ceil(n_i / B).

    Args:
      low: smallest number of epochs, >= 1.
      high: largest number of epochs.
    """

    low: int = static()
    high: int = static()

    def checked(self) -> RandomEpochs:
        check_count("random_epochs(low, ...)", self.low)
        check_count("random_epochs(..., high)", self.high)
        if self.high < self.low:
            raise ValueError(f"random_epochs({self.low}, {self.high}): high must be at least low")
        return self

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        if self.low == self.high:
            return self.low * epoch
        return (self.low + sampling.below(draws.work, self.high + 1 - self.low)) * epoch

    def most_steps(self, epoch: int) -> int:
        return self.high * epoch

    def most_total(self, num_slots: int, epoch_total: int, epoch: int) -> int:
        return self.high * epoch_total


class GaussianSteps(Work):
    """tau_i(t) ~ N(mean, std^2) rounded to the nearest integer and clipped to [1, most].

    FedNova's Fig. 2b has mean 30 and most 96 and states no standard deviation.

    Args:
      mean: mean of the normal before clipping.
      std: its STANDARD DEVIATION, >= 0.
      most: largest number of steps.
    """

    mean: Any
    std: Any
    most: int = static()

    def checked(self) -> GaussianSteps:
        check_real("gaussian_steps(mean)", self.mean)
        check_real("gaussian_steps(std)", self.std, low=0.0)
        check_count("gaussian_steps(most)", self.most)
        return self

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        centred = (draws.work >> 8).astype(jnp.float32) * 2**-23 + (2**-24 - 1)  # the midpoints of (-1, 1) / 2^24
        normal = 2**0.5 * lax.erf_inv(centred)
        mean, std = jnp.asarray(self.mean, jnp.float32), jnp.asarray(self.std, jnp.float32)
        return jnp.clip(jnp.round(mean + std * normal), 1, self.most).astype(jnp.int32)

    def most_steps(self, epoch: int) -> int:
        return self.most


class Stragglers(Work):
    """Exactly round(fraction * |S|) of each cohort do U{1..num_epochs} epochs, the others ``num_epochs``.

    The systems heterogeneity of Li et al. 2020 (FedProx), section 5.2: FedAvg drops the stragglers, FedProx keeps
    their partial work. Which clients straggle, and how much they manage, is the same for both.

    Args:
      fraction: share of stragglers in [0, 1].
      num_epochs: E >= 1, what the others do.
      keep: keep partial work (True) or drop stragglers, even those whose draw is E (False).
    """

    fraction: Any
    num_epochs: int = static()
    keep: bool = static(default=True)

    may_drop: ClassVar[bool] = True

    def checked(self) -> Stragglers:
        check_real("stragglers(fraction)", self.fraction, low=0.0, high=1.0)
        check_count("stragglers(num_epochs)", self.num_epochs)
        check_flag("stragglers(keep=...)", self.keep)
        return self

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        # Ranks among the valid clients by (lot, id): a total order that no storage or slot order enters.
        order = jnp.lexsort((ids, draws.lot, ~valid))
        rank = jnp.zeros_like(ids).at[order].set(jnp.arange(len(ids), dtype=ids.dtype))
        size = jnp.sum(valid)
        late = rank < jnp.round(jnp.asarray(self.fraction, jnp.float32) * size.astype(jnp.float32)).astype(ids.dtype)
        partial = 1 + sampling.below(draws.work, self.num_epochs)
        left = partial if self.keep else jnp.zeros_like(partial)
        return jnp.where(late, left, self.num_epochs) * epoch

    def most_steps(self, epoch: int) -> int:
        return self.num_epochs * epoch

    def most_total(self, num_slots: int, epoch_total: int, epoch: int) -> int:
        return self.num_epochs * epoch_total


class GivenSteps(Work):
    """Steps from an array: tau[t, client]; 0 drops the client from that round.

    Clients are numbered in the order of their ids (the id itself where ids are 0..N-1).

    Args:
      tau: integer array [rounds, N].
      most: upper bound of its entries; read from ``tau`` where that is concrete. A traced ``tau`` cannot be checked:
        its larger entries are cut to it.
    """

    tau: Any = integers()
    most: int = static(default=0)

    may_drop: ClassVar[bool] = True

    def checked(self) -> GivenSteps:
        check_count("given_steps(most=...)", self.most, low=0)
        if isinstance(self.tau, jax.core.Tracer):
            if self.most < 1:
                raise ValueError("given_steps(tau): a traced tau needs most=..., an upper bound of its entries")
            return self
        tau = integer_array("given_steps(tau)", self.tau, "[rounds, N]")
        if tau.size and tau.min() < 0:
            raise ValueError(f"given_steps(tau) has the entry {tau.min()}: steps must be at least 0")
        most = max(int(tau.max(initial=1)), 1)
        if self.most and self.most < most:
            raise ValueError(f"given_steps(most={self.most}) is below the largest entry {most} of tau")
        return self.replace(tau=jnp.asarray(tau, jnp.int32), most=self.most or most)

    def steps(
        self,
        draws: ClientDraws,
        round_: jax.Array,
        indices: jax.Array,
        ids: jax.Array,
        valid: jax.Array,
        epoch: jax.Array,
    ) -> jax.Array:
        tau: jax.Array = self.tau[round_].at[indices].get(mode="clip")
        return jnp.minimum(tau, self.most).astype(jnp.int32)

    def most_steps(self, epoch: int) -> int:
        return self.most

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        shape = self.tau.shape
        if shape[0] < rounds or shape[1] != dataset.num_clients:
            raise ValueError(
                f"given_steps(tau) is {list(shape)}: the run needs [{rounds} rounds, {dataset.num_clients} clients]"
            )


steps = factory("work.steps", Steps)
random_epochs = factory("work.random_epochs", RandomEpochs)
gaussian_steps = factory("work.gaussian_steps", GaussianSteps)
stragglers = factory("work.stragglers", Stragglers)
given_steps = factory("work.given_steps", GivenSteps)


def epochs(num_epochs: int) -> RandomEpochs:
    """The same number of epochs for everyone: tau_i = E ceil(n_i / B).

    Args:
      num_epochs: E >= 1.
    """
    check_count("epochs(num_epochs)", num_epochs)
    return random_epochs(num_epochs, num_epochs)
