"""How many local steps a client takes in a round: tau_i(t).

An epoch is ceil(n_i / B) steps. Draws depend on (run key, round, client id) alone. A client that ends up with zero
steps is dropped from the round: its slot is void, and the weights are those of the clients left.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr, xlog1py

from fedjax_sim.clients.scheme import Scheme, check_shape, log_of_events, unparametrised
from fedjax_sim.core import sampling
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import choice, count, flag, integers, real, static
from fedjax_sim.core.keys import ClientDraws
from fedjax_sim.core.values import Found, as_int32, check_count, integer_array
from fedjax_sim.datasets.federated import FederatedDataset


class Turn(NamedTuple):
    """A cohort about to work.

    Attributes:
      draws: what each slot's client draws from this round.
      round: int32 scalar t.
      indices: int32[S], client indices; N in void slots.
      ids: int32[S], client ids.
      valid: bool[S], false in void slots.
      epoch: int32[S], steps of one epoch of each client.
      seconds_per_step: virtual seconds of one local step in this round, [S]; ``()`` in a run without a system.
    """

    draws: ClientDraws
    round: jax.Array
    indices: jax.Array
    ids: jax.Array
    valid: jax.Array
    epoch: jax.Array
    seconds_per_step: Any = ()


class Work(Scheme):
    """Base of the work schemes.

    Attributes:
      may_drop: whether tau can be 0.
      needs_system: whether it reads ``turn.seconds_per_step``.
      compares: whether a client's tau depends on who else was drawn.
      may_refuse: whether tau can be negative: numbers that are given traced and cannot be meant. The client is dropped,
        and the round's record counts it.
    """

    may_drop: ClassVar[bool] = False
    needs_system: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    may_refuse: ClassVar[bool] = False
    _in_epochs: ClassVar[bool] = False  # whether most_steps is a number times the epoch

    @property
    def varies(self) -> bool:
        """Whether a client may take fewer steps than :meth:`most_steps` says."""
        return True

    def steps(self, turn: Turn) -> jax.Array:
        """tau of each slot, int32[S]; what void slots get does not matter."""
        raise TypeError(f"{type(self).__name__} must define steps(turn)")

    def log_probability(self, turn: Turn) -> jax.Array:
        """log p of the numbers that :meth:`steps` draws, up to what no real parameter of the scheme is part of."""
        return unparametrised(self)

    def most_steps(self, epoch: int) -> int:
        """An upper bound of tau of a client whose epoch has ``epoch`` steps, static: ``self.most`` if there is one."""
        most: int | None = getattr(self, "most", None)
        if most is None:
            raise TypeError(f"{type(self).__name__} must define most_steps(epoch)")
        return most

    def most_total(self, num_slots: int, epoch_total: int, epoch: int) -> int:
        """An upper bound of sum tau over a cohort of S slots; static.

        ``epoch_total`` bounds the cohort's steps in one epoch each, ``epoch`` those of one client.
        """
        return self.most_steps(epoch_total) if self._in_epochs else num_slots * self.most_steps(epoch)


class Steps(Work):
    """The same number of steps for everyone, tau = ``num_steps`` >= 1."""

    num_steps: int = count()

    @property
    def varies(self) -> bool:
        return False

    def steps(self, turn: Turn) -> jax.Array:
        return jnp.full_like(turn.epoch, self.num_steps)

    def most_steps(self, epoch: int) -> int:
        return self.num_steps


class RandomEpochs(Work):
    """E_i(t) ~ U{low..high} epochs, low >= 1, anew for each client and round; tau_i = E_i ceil(n_i / B)."""

    low: int = count()
    high: int = count()

    _in_epochs = True

    def checked(self) -> Self:
        super().checked()
        if self.high < self.low:
            raise ValueError(f"random_epochs({self.low}, {self.high}): high must be at least low")
        return self

    @property
    def varies(self) -> bool:
        return self.low < self.high

    def steps(self, turn: Turn) -> jax.Array:
        if self.low == self.high:
            return self.low * turn.epoch
        return (self.low + sampling.below(turn.draws.work, self.high + 1 - self.low)) * turn.epoch

    def most_steps(self, epoch: int) -> int:
        return self.high * epoch


class GaussianSteps(Work):
    """tau_i(t) ~ N(mean, std^2) rounded to the nearest integer and clipped to [1, most].

    FedNova's Fig. 2b has mean 30 and most 96 and states no standard deviation; whether the second number of the
    N(20, 20) of its Fig. 4 is a standard deviation or a variance it does not say, so either can be given.

    Args:
      mean: mean of the normal before clipping.
      std: its STANDARD DEVIATION, >= 0; give this or ``variance``.
      most: largest number of steps.
      variance: std^2.
    """

    mean: Any = real()
    std: Any = real(low=0.0, default=None)
    most: int = static(check_count, default=None)
    variance: Any = real(low=0.0, default=None)

    def checked(self) -> Self:
        if self.std is None and self.variance is None:
            raise TypeError("gaussian_steps(std=...) is None, and so is variance: give exactly one of them")
        if self.std is not None and self.variance is not None:
            raise ValueError(f"gaussian_steps(std={self.std}, variance={self.variance}): give exactly one of them")
        return super().checked()

    def steps(self, turn: Turn) -> jax.Array:
        # The midpoints of (-1, 1) / 2^24.
        centred = (turn.draws.work >> 8).astype(jnp.float32) * 2**-23 + (2**-24 - 1)
        normal = 2**0.5 * lax.erf_inv(centred)
        mean, std = self._moments()
        return jnp.clip(jnp.round(mean + std * normal), 1, self.most).astype(jnp.int32)

    def log_probability(self, turn: Turn) -> jax.Array:
        """log of the normal's mass that is rounded and clipped to tau, of each client."""
        tau = self.steps(turn).astype(jnp.float32)
        mean, std = self._moments()
        low = jnp.where(tau > 1, (tau - 0.5 - mean) / std, -jnp.inf)
        high = jnp.where(tau < self.most, (tau + 0.5 - mean) / std, jnp.inf)
        # Beyond the mean by the other tail, where float32 tells masses apart.
        low, high = jnp.where(low > 0, -high, low), jnp.where(low > 0, -low, high)
        return jnp.sum(jnp.where(turn.valid, jnp.log(ndtr(high) - ndtr(low)), 0))

    def _moments(self) -> tuple[jax.Array, jax.Array]:
        spread = self.std if self.variance is None else jnp.sqrt(jnp.asarray(self.variance, jnp.float32))
        return jnp.asarray(self.mean, jnp.float32), jnp.asarray(spread, jnp.float32)


class Geometric(Work):
    """The steps until a coin falls, the same number for everyone: P(tau > k) = (1 - p)^k, anew in each round.

    The rounds of ProxSkip (Mishchenko et al. 2022), whose clients average after each step with probability p, all at
    once. The coin is that of the client of the lowest id in the cohort.

    Args:
      p: probability in [0, 1] that a step is the last one; 1 / p steps on average.
      most: the largest number of steps, at which longer rounds end; it bounds the program. None for one that no
        draw exceeds, about 23 / p; where p is traced it is that of the p that the scheme was made with.
    """

    p: Any = real(low=0.0, high=1.0)
    most: int | None = count(default=None)

    compares = True

    def checked(self) -> Self:
        super().checked()
        if np.ndim(self.p) != 0:
            raise ValueError(f"geometric(p=...) has shape {np.shape(self.p)}: the coin is one for all clients")
        if isinstance(self.p, jax.core.Tracer):
            if self.most is None:
                raise ValueError("geometric(p): a traced p needs most=..., the largest number of steps")
            return self
        if not isinstance(self.most, Found | None):
            return self
        p = float(self.p)
        if p == 0:
            raise ValueError("geometric(p=0): such a round has no end; give most=..., or p > 0")
        return self.replace(most=Found(1 if p == 1 else 2 + int(np.log(_RAREST) / np.log1p(-p))))

    def steps(self, turn: Turn) -> jax.Array:
        first = jnp.lexsort((turn.ids, ~turn.valid))[0]
        # The chance of a longer round is uniform in (0, 1); small ones are exact.
        chance = (turn.draws.work[first].astype(jnp.float32) + 0.5) * 2**-32
        tau = 1 + jnp.floor(jnp.log(chance) / jnp.log1p(-jnp.asarray(self.p, jnp.float32)))
        return jnp.full_like(turn.epoch, jnp.clip(tau, 1, self.most).astype(turn.epoch.dtype))

    def log_probability(self, turn: Turn) -> jax.Array:
        """(tau - 1) log(1 - p) + log p, the last but at ``most``."""
        assert self.most is not None
        tau, p = self.steps(turn)[0], jnp.asarray(self.p).astype(jnp.result_type(float))
        last = log_of_events(tau < self.most, p)
        return xlog1py((tau - 1).astype(p.dtype), -p) + jnp.where(tau < self.most, last, jnp.zeros_like(last))


_RAREST = 2**-33  # the smallest chance that is drawn


class Stragglers(Work):
    """Exactly round(fraction * |S|) of each cohort do fewer than the ``num_epochs`` epochs of the others.

    The systems heterogeneity of Li et al. 2020 (FedProx), section 5.2: FedAvg drops the stragglers, FedProx keeps
    their partial work. Which clients straggle, and how much they manage, is the same for both.

    Args:
      fraction: share of stragglers in [0, 1].
      num_epochs: E >= 1, what the others do.
      keep: keep partial work (True) or drop stragglers, even those whose draw is E (False).
      draw: how far a straggler gets: ``"paper"`` U{1..E} epochs; ``"code"`` U{1..E-1} as in the authors' published
        code, for E >= 2; ``"steps"`` U{1..E ceil(n_i / B)} steps, which leaves part of the work undone at E = 1 too.
    """

    fraction: Any = real(low=0.0, high=1.0)
    num_epochs: int = count()
    keep: bool = flag(default=True)
    draw: str = choice(("paper", "code", "steps"), default="paper")

    may_drop = True
    compares = True
    _in_epochs = True

    def checked(self) -> Self:
        super().checked()
        if self.draw == "code" and self.num_epochs == 1:
            raise ValueError(
                "stragglers(num_epochs=1, draw='code') has no number of epochs from 1 to E - 1 = 0 to draw: give 2 "
                "epochs or more, or draw='paper'"
            )
        return self

    def steps(self, turn: Turn) -> jax.Array:
        # Ranks among the valid clients by (lot, id): a total order that no storage or slot order enters.
        order = jnp.lexsort((turn.ids, turn.draws.lot, ~turn.valid))
        rank = jnp.zeros_like(turn.ids).at[order].set(jnp.arange(len(turn.ids), dtype=turn.ids.dtype))
        size = jnp.sum(turn.valid)
        stragglers = jnp.round(jnp.asarray(self.fraction, jnp.float32) * size.astype(jnp.float32))
        if self.draw == "steps":
            most = self.num_epochs * turn.epoch
            partial = jnp.minimum(1 + sampling.below(turn.draws.work, most), most)
        else:
            epochs = self.num_epochs if self.draw == "paper" else self.num_epochs - 1
            partial = (1 + sampling.below(turn.draws.work, epochs)) * turn.epoch
        left = partial if self.keep else jnp.zeros_like(partial)
        return jnp.where(rank < stragglers.astype(rank.dtype), left, self.num_epochs * turn.epoch)

    def most_steps(self, epoch: int) -> int:
        return self.num_epochs * epoch


class GivenSteps(Work):
    """Steps from an array: tau[t, client]; 0 drops the client from that round.

    Clients are numbered in the order of their ids (the id itself where ids are 0..N-1). Traced: a client with a
    negative entry, or one above ``most``, is dropped from the round, and ``"refused_slots"`` of the round counts it.

    Args:
      tau: integer array [rounds, N], or one number for everybody: with a ``most`` it is data of the program, so that
        another number compiles nothing, where ``steps(tau)`` has it in its structure.
      most: upper bound of its entries; read from ``tau`` where that is concrete.
    """

    tau: Any = integers()
    most: int = count(low=0, default=0)

    may_drop = True
    may_refuse = True

    def checked(self) -> Self:
        super().checked()
        one = isinstance(self.tau, (int, np.integer)) or (isinstance(self.tau, jax.Array) and self.tau.ndim == 0)
        array = np if isinstance(self.tau, int) else jnp  # of JAX, a number beyond int32 would be an OverflowError
        tau = integer_array("given_steps(tau)", array.reshape(self.tau, (1, 1)) if one else self.tau, "[rounds, N]")
        if isinstance(tau, jax.core.Tracer):
            if self.most < 1:
                raise ValueError("given_steps(tau): a traced tau needs most=..., an upper bound of its entries")
            return self
        if tau.size and tau.min() < 0:
            raise ValueError(f"given_steps(tau) has the entry {tau.min()}: steps must be at least 0")
        most = max(int(tau.max(initial=1)), 1)
        given = self.most and not isinstance(self.most, Found)
        if given and self.most < most:
            raise ValueError(f"given_steps(most={self.most}) is below the largest entry {most} of tau")
        tau = jnp.asarray(tau[0, 0] if one else tau, jnp.int32)
        return self.replace(tau=tau, most=self.most if given else Found(most))

    def steps(self, turn: Turn) -> jax.Array:
        if jnp.ndim(self.tau) == 0:
            tau = jnp.broadcast_to(as_int32(self.tau, _REFUSED), turn.indices.shape)
        else:
            tau = as_int32(self.tau[turn.round].at[turn.indices].get(mode="clip"), _REFUSED)
        return jnp.where(tau <= self.most, tau, _REFUSED)

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        check_shape("given_steps(tau)", self.tau, dataset.num_clients, rounds)


_REFUSED = -1

steps = factory("work.steps", Steps)
random_epochs = factory("work.random_epochs", RandomEpochs)
gaussian_steps = factory("work.gaussian_steps", GaussianSteps)
geometric = factory("work.geometric", Geometric)
stragglers = factory("work.stragglers", Stragglers)
given_steps = factory("work.given_steps", GivenSteps)


def epochs(num_epochs: int) -> RandomEpochs:
    """The same number of epochs E >= 1 for everyone: tau_i = E ceil(n_i / B)."""
    check_count("epochs(num_epochs)", num_epochs)
    return random_epochs(num_epochs, num_epochs)
