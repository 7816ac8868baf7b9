"""A fleet of devices: how fast each computes and communicates, how often it fails, and how devices differ.

Each draw of a distribution is a function of one random word, so its parameters are real hyper-parameters: a device
keeps its place in the fleet while they change, and derivatives pass them.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.clients.scheme import EachClient, at_clients, one_of
from fedjax_sim.clients.systems.base import Cost, Policy, System, Times, WaitForAll
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf, real
from fedjax_sim.core.keys import Purpose, fold_in, purpose_key, random_words, round_key
from fedjax_sim.core.sampling import below, happens
from fedjax_sim.core.trees import as_dtype
from fedjax_sim.core.values import LARGEST_SEED, demand, is_concrete, shown
from fedjax_sim.datasets.federated import FederatedDataset


class Distribution(Described):
    """Base of the distributions of one positive number; subclasses define :meth:`quantile`."""

    def quantile(self, u: jax.Array) -> jax.Array:
        """The inverse of the distribution function at ``u`` in (0, 1), of its shape and dtype."""
        raise TypeError(f"{type(self).__name__} must define quantile(u)")

    def draw(self, words: jax.Array) -> jax.Array:
        """One draw a random word: float[S] in the default float type for uint32[S]."""
        # The midpoints of (0, 1) in 2^23 parts: never 0 or 1, and exact in float32.
        u = ((words >> 9).astype(jnp.float32) + 0.5) * 2**-23
        return self.quantile(u.astype(jnp.result_type(float)))


class LogNormal(Distribution):
    """x = median exp(sigma z), z ~ N(0, 1): mean median exp(sigma^2 / 2).

    Args:
      median: > 0.
      sigma: standard deviation of log x, >= 0.
    """

    median: Any = real(above=0.0)
    sigma: Any = real(low=0.0)

    def quantile(self, u: jax.Array) -> jax.Array:
        normal = 2**0.5 * lax.erf_inv(2 * u - 1)
        return as_dtype(self.median, u) * jnp.exp(as_dtype(self.sigma, u) * normal)


class Uniform(Distribution):
    """x ~ U(low, high), 0 <= low <= high."""

    low: Any = real(low=0.0)
    high: Any = real(low=0.0)

    def checked(self) -> Self:
        if not is_concrete((self.low, self.high)):
            demand(lambda: jnp.asarray(self.high) >= jnp.asarray(self.low))
        elif np.any(np.asarray(self.high) < np.asarray(self.low)):
            raise ValueError(f"uniform({self.low}, {self.high}): high must be at least low")
        return super().checked()

    def quantile(self, u: jax.Array) -> jax.Array:
        low = as_dtype(self.low, u)
        return low + (as_dtype(self.high, u) - low) * u


class Exponential(Distribution):
    """P(x > t) = exp(-t / mean), mean > 0."""

    mean: Any = real(above=0.0)

    def quantile(self, u: jax.Array) -> jax.Array:
        return -as_dtype(self.mean, u) * jnp.log1p(-u)


class HalfNormal(Distribution):
    """x = scale |z|, z ~ N(0, 1), scale > 0: mean scale sqrt(2 / pi).

    The training times that Nguyen et al. 2022 (FedBuff) find in production are close to it.
    """

    scale: Any = real(above=0.0)

    def quantile(self, u: jax.Array) -> jax.Array:
        return as_dtype(self.scale, u) * 2**0.5 * lax.erf_inv(u)


class Pareto(Distribution):
    """P(x > t) = (scale / t)^shape for t >= scale: a few devices that are very slow.

    Args:
      scale: the smallest value, > 0.
      shape: > 0; the mean, scale shape / (shape - 1), is finite for shape > 1 alone.
    """

    scale: Any = real(above=0.0)
    shape: Any = real(above=0.0)

    def quantile(self, u: jax.Array) -> jax.Array:
        return as_dtype(self.scale, u) * jnp.exp(-jnp.log1p(-u) / as_dtype(self.shape, u))


class Empirical(Distribution):
    """One of the ``values`` given, at least one and >= 0, all equally likely: a published table of measured devices."""

    values: Any = real(low=0.0, several=True)

    def checked(self) -> Self:
        checked = super().checked()
        shape = np.shape(checked.values)
        if len(shape) != 1 or 0 in shape:
            raise ValueError(f"empirical(values) has shape {shape}: give a list of at least one number")
        return checked

    def quantile(self, u: jax.Array) -> jax.Array:
        values = jnp.asarray(self.values).astype(u.dtype)
        return values[jnp.minimum((u * len(values)).astype(jnp.int32), len(values) - 1)]

    def draw(self, words: jax.Array) -> jax.Array:
        """By all bits of a word: of a million values 23 bits would draw some 8 times where others are drawn 9 times."""
        values = jnp.asarray(self.values).astype(jnp.result_type(float))
        return values[below(words, len(values))]


lognormal = factory("quantity.lognormal", LogNormal)
uniform = factory("quantity.uniform", Uniform)
exponential = factory("quantity.exponential", Exponential)
half_normal = factory("quantity.half_normal", HalfNormal)
pareto = factory("quantity.pareto", Pareto)
empirical = factory("quantity.empirical", Empirical)

_COMPUTE, _NETWORK, _FAILURE = 0, 1, 2  # the words of a client and round


def _quantity(high: float | None = None, *, above: float | None = None) -> Any:
    """A field of a number, one a client, a distribution or None."""
    return leaf(EachClient(high=high, above=above, other=(Distribution, NoneType)), default=None)


def _factor() -> Any:
    """A field of a distribution or None."""
    return leaf(one_of(Distribution, NoneType, example="fedjax_sim.systems.lognormal(1.0, 0.2)"), default=None)


class Fleet(NamedTuple):
    """What devices have for good, float[S] each, as :class:`Devices` explains it; ``()`` for what the system has not.

    They are in the order of the words that they are drawn from, never to be changed.
    """

    seconds_per_step: Any = ()
    flops_per_second: Any = ()
    download: Any = ()
    upload: Any = ()
    latency: Any = ()
    dropout: Any = ()


class Devices(System):
    """Devices of unequal speed.

    What client i takes, in virtual seconds, in a round with tau_i steps::

        download   (latency_i + bytes_down / download_i) * network jitter
        compute    tau_i * seconds_per_step_i * jitter     or   tau_i * flops_per_step / flops_per_second_i * jitter
        upload     (latency_i + bytes_up / upload_i) * network jitter

    tau_i counts gradients on one batch: passes over all local data (surveys), the batches of a full gradient and, where
    a step takes several, each of these count too. ``flops_per_step`` is counted from the task's own gradient
    (:func:`fedjax_sim.systems.gradient_flops`), so a larger model or batch takes longer; the clock is that of FedScale,
    with measured FLOPs in the place of its milliseconds an example.

    Every quantity is a number for all clients, an array of one a client in the order of the ids, or a distribution
    (``fjs.systems.lognormal(...)``) that is drawn once for each client id, from ``seed`` and not from the run's key:
    runs with other seeds have the same devices. Jitter and failures are drawn from (run key, round, client id).

    Args:
      seconds_per_step: of one local step, >= 0; give this or ``flops_per_second``.
      flops_per_second: > 0.
      download: bytes a second, > 0; None for infinitely many.
      upload: likewise.
      latency: seconds each way, >= 0; None for 0.
      jitter: distribution of a factor on the compute time, drawn anew every round; None for 1.
      network_jitter: likewise on download and upload time (one factor a client and round).
      dropout: probability that a client fails during a round, in [0, 1]; its work is lost. None for never.
      policy: when the server closes a round: ``wait_for_all()``, ``deadline(seconds)`` or ``first(K)``.
      seed: of the fleet.

    Reference: Lai et al. 2022, "FedScale: Benchmarking model and system performance of federated learning at scale"
    (the clock: computation plus communication over bandwidth).
    """

    seconds_per_step: Any = _quantity()
    flops_per_second: Any = _quantity(above=0.0)
    download: Any = _quantity(above=0.0)
    upload: Any = _quantity(above=0.0)
    latency: Any = _quantity()
    jitter: Any = _factor()
    network_jitter: Any = _factor()
    dropout: Any = _quantity(1.0)
    policy: Policy = leaf(one_of(Policy, example="fedjax_sim.systems.wait_for_all()"), default=WaitForAll())
    seed: int = count(low=0, high=LARGEST_SEED, default=0)

    def checked(self) -> Self:
        if (self.seconds_per_step is None) == (self.flops_per_second is None):
            raise ValueError(
                f"devices(seconds_per_step={shown(self.seconds_per_step)}, "
                f"flops_per_second={shown(self.flops_per_second)}): give exactly one of them"
            )
        return super().checked()

    @property
    def counts_flops(self) -> bool:
        return self.flops_per_second is not None

    @property
    def may_fail(self) -> bool:
        return self.dropout is not None

    @property
    def repeats(self) -> bool:
        alike = self.jitter is None and self.network_jitter is None and not self.policy.compares  # by lot, if need be
        return self.dropout is None and (alike or isinstance(self.policy, WaitForAll))

    def fleet(self, dataset: FederatedDataset) -> Fleet:
        """Every client's device, leaves float[N] in the order of the client ids."""
        return self.drawn(jnp.arange(dataset.num_clients, dtype=jnp.int32), dataset.client_ids[dataset.order])

    def times(
        self, client_index: jax.Array, ids: jax.Array, steps: jax.Array, key: jax.Array, round_: jax.Array, cost: Cost
    ) -> Times:
        fleet = self.drawn(client_index, ids, Fleet._fields[:-1])
        jitters = (self.jitter, self.network_jitter)
        words = _words(round_key(key, round_), ids, 3) if any(one is not None for one in jitters) else None

        each = fleet.seconds_per_step
        if self.counts_flops:
            each = jnp.asarray(cost.flops_per_step).astype(fleet.flops_per_second.dtype) / fleet.flops_per_second
        compute = _varied(self.jitter, words, _COMPUTE, steps.astype(each.dtype) * each)

        def transfer(bytes_: float, rate: Any) -> jax.Array:
            seconds = jnp.zeros_like(compute) if isinstance(rate, tuple) else jnp.asarray(bytes_, rate.dtype) / rate
            if not isinstance(fleet.latency, tuple):
                seconds = seconds + fleet.latency
            return _varied(self.network_jitter, words, _NETWORK, seconds)

        return Times(transfer(cost.bytes_down, fleet.download), compute, transfer(cost.bytes_up, fleet.upload))

    def failed(self, client_index: jax.Array, ids: jax.Array, key: jax.Array, round_: jax.Array) -> jax.Array:
        if self.dropout is None:
            return super().failed(client_index, ids, key, round_)
        words = _words(round_key(key, round_), ids, 3)[:, _FAILURE]
        return happens(words, self.drawn(client_index, ids, ("dropout",)).dropout)

    def drawn(self, client_index: jax.Array, ids: jax.Array, names: tuple[str, ...] = Fleet._fields) -> Fleet:
        """What some clients' devices have, by their indices and ids, int32[S]."""
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        words = None
        found = {}
        for name, value in given.items():
            if not isinstance(value, Distribution):
                found[name] = at_clients(value, client_index)
                continue
            if words is None:
                words = _words(jax.random.key(self.seed), ids, len(Fleet._fields))
            found[name] = value.draw(words[:, Fleet._fields.index(name)])
        return Fleet(**found)


def _words(key: jax.Array, ids: jax.Array, number: int) -> jax.Array:
    """uint32[S, number], of (key, client id)."""
    return random_words(fold_in(purpose_key(key, Purpose.SYSTEM), ids), number)


def _varied(jitter: Any, words: Any, column: int, seconds: jax.Array) -> jax.Array:
    if jitter is None:
        return seconds
    return seconds * jitter.draw(words[:, column])


devices = factory("system.devices", Devices)
