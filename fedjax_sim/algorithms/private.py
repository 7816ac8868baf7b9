"""Averages with differential privacy for clients: bounded changes, fixed weights, Gaussian noise."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import trees
from fedjax_sim.algorithms.clipping import (
    WITHIN,
    Bound,
    BoundSent,
    check_only_clipping,
    check_quantile,
    clip,
    first_bound,
    geometric,
    share_of,
)
from fedjax_sim.algorithms.contract import Client, Cohort, Method, took_part
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.descriptions import factory
from fedjax_sim.values import check_real, check_scalar, demand, is_concrete

_NOISE, _COUNT = 0x4450, 0x4451  # branches of the server's key of a round: for the model, for the count


class Dp(Wrapper):
    """Any method that averages changes, with client-level differential privacy of everything the server releases.

    Delta = (1/m) (sum_S min(1, C / |Delta_i|) Delta_i + z C n),   n ~ N(0, I), anew every round

    takes the place of the average, with m the EXPECTED number of clients of a round (K, q N), whoever comes. So one
    client changes the sum by at most C (2 C if it is replaced by another), which the noise of standard deviation z C
    hides; :mod:`fedjax_sim.privacy` says how well. The base's server step (any server optimiser) only processes what
    is released. With a ``quantile`` C is no constant but follows that quantile of the clients' lengths, privately:

    b = 1/2 + (1/m) (sum_S ([|Delta_i| <= C] - 1/2) + sigma_b n'),   C <- C exp(-eta (b - gamma))

    for which the changes get the noise z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) in the place of z: both releases
    together then cost what one with z does.

    Clients are weighted alike: n_i / sum_S n depends on who else is there and on n_i, which is private itself, so one
    client could change the sum by any share of it. Noise is added in rounds in which nobody took part, too. Messages
    other than the change (control variates, losses, normalisers) would be released without noise, so methods that send
    any are refused. Clipped is the message as it arrives, after whatever a wrapper inside made of it.
    State per client, and models sent: the base's. One number more up, with a ``quantile`` one more down.
    Recorded (for the experimenter; not part of what is released): ``"clipped"``, the fraction of the cohort that was
    longer than C, and with a ``quantile`` ``"clipping_norm"``.

    Args:
      base: the method.
      norm: C > 0; with a ``quantile`` that of the first round.
      noise_multiplier: z >= 0.
      quantile: gamma in [0, 1], the fraction of clients to be left as they are; None for a constant C.
      rate: eta >= 0, of C.
      count_noise: sigma_b > z / 2, needed with a ``quantile``; Andrew et al. take m / 20.

    Raises:
      ValueError: a value out of its range, a base that clips or sends anything but its change, or (before a run) an
        average other than ``"plain"`` or a scheme with replacement.

    Reference: McMahan et al. 2018, "Learning differentially private recurrent language models", Algorithm 1 (its
    estimator with a fixed denominator); Andrew et al. 2021, "Differentially private learning with adaptive clipping",
    Algorithm 1 and Theorem 1.
    """

    norm: Any = 1.0
    noise_multiplier: Any = 1.0
    quantile: Any = None
    rate: Any = 0.2
    count_noise: Any = None

    acts_alone = True
    clients_apart = True
    averages = frozenset({"plain"})
    averages_why = (
        "the noise hides what one client can change, which is bounded only where all weigh alike; give average='plain'"
    )
    default_average = "plain"
    duplicates = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.base.needs | {"expected_size"})

    def checked(self) -> Self:
        check_real("dp(norm=...)", self.norm, low=0.0, open_=True)
        check_real("dp(noise_multiplier=...)", self.noise_multiplier, low=0.0)
        check_real("dp(count_noise=...)", self.count_noise, low=0.0, open_=True, optional=True)
        if self.quantile is not None:
            check_quantile("dp", self.quantile, self.rate)
            self._check_split()
        elif self.count_noise is not None:
            raise ValueError(
                f"dp(count_noise={self.count_noise}) is the noise of the count that a quantile needs: give "
                "quantile=0.5 too, or leave it out for a constant norm"
            )
        checked = super().checked()
        check_only_clipping("dp", self.base)
        self._check_base()
        return checked

    def init(self, params: Any, num_clients: int) -> Wrapped:
        for name in ("norm", "noise_multiplier", "quantile", "rate", "count_noise"):
            if getattr(self, name) is not None:
                check_scalar(f"dp({name}=...)", getattr(self, name))
        return Wrapped(self.base.init(params, num_clients), first_bound(self.norm))

    def broadcast(self, server: Wrapped) -> Any:
        sent = self.base.broadcast(server.base)
        return sent if self.quantile is None else BoundSent(sent.params, sent, server.extra.norm)

    def received(self, sent: Any) -> Any:
        return sent if self.quantile is None else sent.base._replace(params=sent.params)

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        messages, new = super().finish(y, sent, c_i, local, client)
        if messages.keys() != {"delta"}:
            others = sorted(messages.keys() - {"delta"})
            raise ValueError(
                f"dp({_called(self.base)}(...)): its clients send {', '.join(map(repr, others))} besides their change, "
                "which would be released without noise: use a method that averages changes alone, for instance fedavg, "
                "fedprox or fedadam"
            )
        change, within = clip(messages["delta"], self.norm if self.quantile is None else sent.norm)
        # What is not finite has no length to clip, and a sum with it would give the client away.
        finite = trees.all_finite(messages["delta"])
        change, within = trees.select(finite, change, trees.zeros_like(change)), within & finite
        return {"delta": change, WITHIN: within.astype(jnp.result_type(float))}, new

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"delta": took_part(client), WITHIN: took_part(client)}

    def download_bytes(self, sent: Any) -> int:
        return super().download_bytes(sent) + (0 if self.quantile is None else trees.size_in_bytes(sent.norm))

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        inside = super().upload_bytes({"delta": messages["delta"]}, sent)
        return inside + (0 if self.quantile is None else trees.size_in_bytes(messages[WITHIN]))

    def aggregate(self, server: Wrapped, sums: dict[str, Any], cohort: Cohort) -> Any:
        bound: Bound = server.extra
        expected = jnp.where(cohort.expected > 0, cohort.expected, 1)
        scale = self._multiplier() * bound.norm
        noisy = trees.add_scaled(sums["delta"], scale, _normal(jax.random.fold_in(cohort.key, _NOISE), sums["delta"]))
        new: Wrapped = super().aggregate(server, {"delta": trees.scale(1 / expected, noisy)}, cohort)
        norm = bound.norm
        if self.quantile is not None:
            within = sums[WITHIN]
            noise = jax.random.normal(jax.random.fold_in(cohort.key, _COUNT), (), within.dtype)
            centred = within - cohort.size.astype(within.dtype) / 2
            share = 0.5 + (centred + trees.as_dtype(self.count_noise, within) * noise) / expected.astype(within.dtype)
            norm = geometric(norm, self.rate, share, self.quantile)
        return new._replace(extra=Bound(norm, bound.norm, 1 - share_of(sums[WITHIN], cohort)))

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        record = self.base.report(server.base) | {"clipped": server.extra.clipped}
        return record if self.quantile is None else record | {"clipping_norm": server.extra.used}

    def _multiplier(self) -> jax.Array:
        """z, or z_Delta = z / sqrt(1 - (z / 2 sigma_b)^2) where the count is released too."""
        z = jnp.asarray(self.noise_multiplier).astype(jnp.result_type(float))
        if self.quantile is None:
            return z
        return z / jnp.sqrt(1 - jnp.square(z / (2 * trees.as_dtype(self.count_noise, z))))

    def _check_split(self) -> None:
        if self.count_noise is None:
            raise ValueError(
                "dp(quantile=..., count_noise=None): the fraction of clipped clients is released too and needs a noise "
                "of its own; give count_noise, for instance a twentieth of the expected cohort, as Andrew et al. do"
            )
        pair = (self.noise_multiplier, self.count_noise)
        if not is_concrete(pair):
            demand(lambda: jnp.asarray(self.count_noise) > jnp.asarray(self.noise_multiplier) / 2)
        elif np.any(np.asarray(pair[1], float) <= np.asarray(pair[0], float) / 2):
            raise ValueError(
                f"dp(count_noise={self.count_noise}) is too small for noise_multiplier={self.noise_multiplier}: the "
                "count alone would cost more than both may; give more than half the noise multiplier"
            )

    def _check_base(self) -> None:
        name = _called(self.base)
        if self.base.stacked:
            raise ValueError(
                f"dp({name}(...)): its server reads single clients' messages ({', '.join(self.base.stacked)}), and "
                "only a sum can be released with noise: use a method that averages, for instance fedavg"
            )
        if "objective" in self.base.needs:
            raise ValueError(
                f"dp({name}(...)): its server reads the objective over all clients' data, without noise: use "
                "adaptive=False, or another method"
            )
        if len(self.base.phases()) > 1:
            raise ValueError(
                f"dp({name}(...)): its clients report gradients in an exchange of their own, without noise: use a "
                "method of one exchange, for instance fedavg"
            )
        if "plain" not in self.base.averages:
            raise ValueError(f"dp({name}(...)): {name} has no plain average, and privacy needs equal weights")


def _called(method: Method) -> str:
    return type(method).__name__.lower()


def _normal(key: jax.Array, like: Any) -> Any:
    """A standard normal draw of the shapes of ``like``, a key a leaf."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [jax.random.normal(one, leaf.shape, leaf.dtype) for one, leaf in zip(keys, leaves, strict=True)]
    )


dp = factory("algorithm.dp", Dp)
