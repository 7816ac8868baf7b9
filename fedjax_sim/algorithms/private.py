"""Averages with differential privacy for clients: bounded changes, fixed weights, Gaussian noise."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.clipping import WITHIN, Bound, Clipping, geometric, share_of
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Requires, Stack, Sum
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.core import sampling, trees
from fedjax_sim.core.fields import real
from fedjax_sim.core.values import demand, is_concrete

_NOISE, _COUNT = 0x4450, 0x4451  # branches of the server's key of a round: for the model, for the count


class Dp(Clipping):
    """Any method that averages changes, with client-level differential privacy of everything the server releases.

    Delta = (1/m) (sum_S min(1, C / |Delta_i|) Delta_i + z C n),   n ~ N(0, I), anew every round

    takes the place of the average, with m the EXPECTED number of clients of a round (K, q N), whoever comes. So one
    client changes the sum by at most C (2 C if it is replaced by another), which the noise of standard deviation z C
    hides; :mod:`fedjax_sim.privacy` says how well. The base's server step (any server optimiser) only processes what
    is released. With a ``quantile`` C is no constant but follows that quantile of the clients' lengths, privately:

    b = 1/2 + (1/m) (sum_S ([|Delta_i| <= C] - 1/2) + sigma_b n'),   C <- C exp(-eta (b - gamma))

    for which the changes get the noise z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) in the place of z: both releases
    together then cost what one with z does.

    Clients are weighted alike: n_i / sum_S n depends on who else is there and on n_i, which is private itself. Noise is
    added in rounds in which nobody took part, too. Messages other than the change (control variates, losses) would be
    released without noise, so methods that send any are refused. Clipped is the message as it arrives, after whatever a
    wrapper inside made of it. With a ``quantile`` a client sends one number more and is sent C.
    Recorded (for the experimenter; not part of what is released): ``"clipped"``, the fraction of the cohort that was
    longer than C, and with a ``quantile`` ``"clipping_norm"``.

    Args:
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

    norm: Any = real(default=1.0, above=0.0)
    noise_multiplier: Any = real(default=1.0, low=0.0)
    quantile: Any = real(default=None, low=0.0, high=1.0)
    rate: Any = real(default=0.2, low=0.0)
    count_noise: Any = real(default=None, above=0.0)

    @property
    def requires(self) -> Requires:
        return self.base.requires.but(
            acts_alone=True,
            apart=True,
            expected_size=True,
            average="plain",
            averages=frozenset({"plain"}),
            averages_why="the noise hides what one client can change, which is bounded only where all weigh alike; "
            "give average='plain'",
            duplicates=False,
        )

    def checked(self) -> Self:
        checked, base = super().checked(), self.base
        self._check_count_noise()
        self._refuse_if(base.requires.objective, "its server reads the objective over all clients' data, without noise")
        self._refuse_if(len(base.phases()) > 1, "its clients report in an exchange of their own, without noise")
        weighs = "it has no plain average, and privacy needs equal weights"
        self._refuse_if("plain" not in base.requires.averages, weighs)
        return checked

    @property
    def follows(self) -> bool:
        return self.quantile is not None

    encode = Wrapper.encode  # what is clipped is the message

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        self._check_messages(messages)
        message = messages["delta"]
        # What is not finite has no length to clip, and a sum with it would give the client away.
        finite = trees.all_finite(message.value)
        bounded = self.bounded(message.value, sent)
        change, within = trees.select(finite, bounded, trees.zeros_like(bounded))
        return {"delta": Sum(change, message.nbytes), WITHIN: within}, new

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        bound: Bound = server.extra
        expected = jnp.where(cohort.expected > 0, cohort.expected, 1)
        z = jnp.asarray(self.noise_multiplier).astype(jnp.result_type(float))
        if self.quantile is not None:  # z_Delta
            z = z / jnp.sqrt(1 - jnp.square(z / (2 * trees.as_dtype(self.count_noise, z))))
        delta = trees.wide(got["delta"])  # z C and 1 / m would be rounded to half precision
        noise = sampling.normal_tree(jax.random.fold_in(cohort.key, _NOISE), delta)
        average = trees.scale(1 / expected, trees.add_scaled(delta, z * bound.norm, noise))
        new: Wrapped = Wrapper.update(self, server, {"delta": trees.of_types(average, got["delta"])}, cohort)
        norm = bound.norm
        if self.quantile is not None:
            within = got[WITHIN]
            noise = jax.random.normal(jax.random.fold_in(cohort.key, _COUNT), (), within.dtype)
            centred = within - cohort.size.astype(within.dtype) / 2
            share = 0.5 + (centred + trees.as_dtype(self.count_noise, within) * noise) / expected.astype(within.dtype)
            norm = geometric(norm, self.rate, share, self.quantile)
        return new._replace(extra=Bound(norm, bound.norm, 1 - share_of(got[WITHIN], cohort)))

    def _check_count_noise(self) -> None:
        if self.quantile is None:
            if self.count_noise is not None:
                raise ValueError(
                    f"dp(count_noise={self.count_noise}) is the noise of the count that a quantile needs: give "
                    "quantile=0.5 too, or leave it out for a constant norm"
                )
            return
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

    def _check_messages(self, messages: dict[str, Message]) -> None:
        single = [key for key, message in messages.items() if isinstance(message, Stack)]
        self._refuse_if(single, f"its server reads single clients' messages ({', '.join(single)})")
        others = ", ".join(map(repr, sorted(messages.keys() - {"delta"})))
        self._refuse_if(others or not messages, f"its clients send {others} besides their change, without noise")
        weighs = "it weighs its clients itself, and privacy needs equal weights"
        self._refuse_if(not isinstance(messages["delta"], Mean), weighs)

    def _refuse_if(self, wrong: Any, why: str) -> None:
        if wrong:
            raise ValueError(
                f"dp({type(self.base).__name__.lower()}(...)): {why}: use a method that averages changes alone, once a "
                "round, for instance fedavg, fedprox(adaptive=False) or fedadam"
            )


dp = recorded(
    "algorithm.dp",
    Dp,
    step="around a method: clipped sum + N(0, z²C²), over the expected cohort",
    cite="mcmahan2018learning",
    kept="the base's",
    case={"norm": 0.5, "noise_multiplier": 0.1, "inert": ("rate",)},
)
