"""A fleet of devices: how fast each computes and communicates, and how often it fails."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.clients.cohort.per_client import at_clients, check_length, per_client
from fedjax_sim.clients.systems.base import Cost, System, Times
from fedjax_sim.clients.systems.distributions import Distribution
from fedjax_sim.clients.systems.policies import Policy, WaitForAll
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.keys import Purpose, purpose_key, round_key
from fedjax_sim.core.values import LARGEST_SEED, check_count, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset

# What a device has for good, in the order of the words it is drawn from, never to be changed.
_FIXED = ("seconds_per_step", "flops_per_second", "download", "upload", "latency", "dropout")
_COMPUTE, _NETWORK, _FAILURE = 0, 1, 2  # the words of a client and round
_RATES = ("flops_per_second", "download", "upload")


class Fleet(NamedTuple):
    """What devices have for good, float[S] each; ``()`` for what the system does not have.

    Attributes:
      seconds_per_step: of one local step.
      flops_per_second: in the place of it.
      download: bytes a second.
      upload: bytes a second.
      latency: seconds, once each way.
      dropout: probability of failing in a round.
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

    tau_i counts gradients on one batch: passes over all local data (surveys) and the batches of a full gradient count
    too. ``flops_per_step`` is counted from the task's own gradient (:mod:`fedjax_sim.systems.flops`), so a larger
    model or batch takes longer; the clock is that of FedScale, with measured FLOPs in the place of its milliseconds an
    example.

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

    seconds_per_step: Any = None
    flops_per_second: Any = None
    download: Any = None
    upload: Any = None
    latency: Any = None
    jitter: Any = None
    network_jitter: Any = None
    dropout: Any = None
    policy: Policy = WaitForAll()
    seed: int = static(default=0)

    def checked(self) -> Devices:
        if (self.seconds_per_step is None) == (self.flops_per_second is None):
            raise ValueError(
                f"devices(seconds_per_step={shown(self.seconds_per_step)}, "
                f"flops_per_second={shown(self.flops_per_second)}): give exactly one of them"
            )
        changed = {name: _quantity(name, getattr(self, name)) for name in _FIXED}
        for name in ("jitter", "network_jitter"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Distribution):
                raise TypeError(
                    f"devices({name}={shown(value)}): it must be a distribution of a factor, "
                    "fedjax_sim.systems.lognormal(1.0, 0.2), or None"
                )
        if not isinstance(self.policy, Policy):
            raise TypeError(
                f"devices(policy={shown(self.policy)}): it must be fedjax_sim.systems.wait_for_all(), "
                "deadline(seconds) or first(K)"
            )
        check_count("devices(seed=...)", self.seed, low=0, high=LARGEST_SEED)
        return self.replace(**changed)

    def check(self, dataset: FederatedDataset, rounds: int) -> None:
        for name in _FIXED:
            value = getattr(self, name)
            if not isinstance(value, Distribution):
                check_length(f"devices({name}=...)", value, dataset.num_clients)

    @property
    def counts_flops(self) -> bool:
        return self.flops_per_second is not None

    @property
    def may_fail(self) -> bool:
        return self.dropout is not None

    @property
    def repeats(self) -> bool:
        alike = self.jitter is None and self.network_jitter is None
        return self.dropout is None and (alike or isinstance(self.policy, WaitForAll))

    def fleet(self, dataset: FederatedDataset) -> Fleet:
        """Every client's device, leaves float[N] in the order of the client ids."""
        return self.drawn(jnp.arange(dataset.num_clients, dtype=jnp.int32), dataset.client_ids[dataset.order])

    def drawn(self, client_index: jax.Array, ids: jax.Array) -> Fleet:
        """The devices of some clients.

        Args:
          client_index: int32[S], clients' indices.
          ids: int32[S], their ids.
        """
        return self._drawn(client_index, ids, _FIXED)

    def times(
        self,
        client_index: jax.Array,
        ids: jax.Array,
        steps: jax.Array,
        key: jax.Array,
        round_: jax.Array,
        cost: Cost,
    ) -> Times:
        timed = tuple(name for name in _FIXED if name != "dropout")
        fleet = self._drawn(client_index, ids, timed)
        jitters = (self.jitter, self.network_jitter)
        words = _round_words(key, round_, ids) if any(one is not None for one in jitters) else None

        if self.counts_flops:
            each = jnp.asarray(cost.flops_per_step).astype(fleet.flops_per_second.dtype) / fleet.flops_per_second
        else:
            each = fleet.seconds_per_step
        compute = _varied(self.jitter, words, _COMPUTE, steps.astype(each.dtype) * each)

        def transfer(bytes_: float, rate: Any) -> jax.Array:
            seconds = jnp.zeros_like(compute) if isinstance(rate, tuple) else jnp.asarray(bytes_, rate.dtype) / rate
            if not isinstance(fleet.latency, tuple):
                seconds = seconds + fleet.latency
            return _varied(self.network_jitter, words, _NETWORK, seconds)

        return Times(transfer(cost.bytes_down, fleet.download), compute, transfer(cost.bytes_up, fleet.upload))

    def failed(self, client_index: jax.Array, ids: jax.Array, key: jax.Array, round_: jax.Array) -> jax.Array:
        if self.dropout is None:
            return jnp.zeros(ids.shape, bool)
        probability = self._drawn(client_index, ids, ("dropout",)).dropout.astype(jnp.float32)
        words = _round_words(key, round_, ids)[:, _FAILURE]
        fails: jax.Array = (words >> 8).astype(jnp.float32) * 2**-24 < probability
        return fails

    def _drawn(self, client_index: jax.Array, ids: jax.Array, names: tuple[str, ...]) -> Fleet:
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        words = None
        if any(isinstance(value, Distribution) for value in given.values()):
            words = _words(purpose_key(jax.random.key(self.seed), Purpose.SYSTEM), ids, len(_FIXED))
        found = {}
        for name, value in given.items():
            if isinstance(value, Distribution):
                assert words is not None
                found[name] = value.draw(words[:, _FIXED.index(name)])
            else:
                found[name] = at_clients(value, client_index)
        return Fleet(**found)


def _quantity(name: str, value: Any) -> Any:
    """A field checked; lists become arrays."""
    if value is None or isinstance(value, Distribution):
        return value
    if isinstance(value, Policy) or callable(value):
        raise TypeError(f"devices({name}={shown(value)}): it must be a number, one a client, or a distribution")
    what = f"devices({name}=...)"
    value = per_client(what, value, high=1.0 if name == "dropout" else None)
    if name in _RATES:
        check_real(what, value, low=0.0, open_=True)
    return value


def _round_words(key: jax.Array, round_: jax.Array, ids: jax.Array) -> jax.Array:
    return _words(purpose_key(round_key(key, round_), Purpose.SYSTEM), ids, 3)


def _words(key: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """uint32[S, count], of (key, client id)."""

    def of_client(id_: jax.Array) -> jax.Array:
        return jax.random.bits(jax.random.fold_in(key, id_), (count,), jnp.uint32)

    words: jax.Array = jax.vmap(of_client)(ids)
    return words


def _varied(jitter: Any, words: Any, column: int, seconds: jax.Array) -> jax.Array:
    if jitter is None:
        return seconds
    factor: jax.Array = jitter.draw(words[:, column])
    return seconds * factor


devices = factory("system.devices", Devices)
