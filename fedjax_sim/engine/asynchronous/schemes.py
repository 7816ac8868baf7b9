"""What an asynchronous server does with the messages that arrive: how many it waits for and what each is worth."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, check_scalar, shown
from fedjax_sim.engine.asynchronous.staleness import Polynomial, Staleness


class Asynchronous(Described):
    """Base of the schemes.

    The server sends its model to M clients, M the slots of the cohort scheme. Whenever a client's message arrives (or
    is known to be lost), its slot is free and the server at once sends its present model to another client. After
    every K messages it updates the model; that is one round of the record.

    Attributes:
      mixes_models: whether the server takes y_i - x with x its present model, not the one the client began with.
    """

    mixes_models: ClassVar[bool] = False

    @property
    def messages(self) -> int:
        """K, messages of one server update; static."""
        raise TypeError(f"{type(self).__name__} must define messages")

    def factor(self, staleness: jax.Array) -> jax.Array:
        """What multiplies each client's weight in the average.

        Args:
          staleness: tau_i as real numbers, [K].
        """
        raise TypeError(f"{type(self).__name__} must define factor(staleness)")


class FedBuff(Asynchronous):
    """FedBuff: the server updates the model after every K messages (Nguyen et al. 2022, Algorithm 1).

    x <- x + eta_g sum_k w_k s(tau_k) (y_k - x_k),   k = 1..K in the buffer

    x_k is the model that client k began with, tau_k the updates since. w_k is the cohort scheme's average over the
    buffer: ``average="plain"`` is the paper's w_k = 1 / K, ``"sample"`` n_k over their sum. The products w_k s(tau_k)
    are not normalised again: the paper divides by K, so a stale buffer makes a shorter step. A server optimiser acts on
    the sum as it does on a cohort's average. A client that reports twice before an update counts twice.

    With equally fast clients and K = M every tau is 0 and this is synchronous federated averaging.

    Args:
      buffer: K >= 1.
      staleness: s, an object of ``fedjax_sim.asynchronous``; the default is the paper's 1 / sqrt(1 + tau).

    Reference: Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", Algorithm 1.
    """

    buffer: int = static(default=10)
    staleness: Staleness = Polynomial()

    def checked(self) -> Self:
        check_count("fedbuff(buffer=...)", self.buffer, high=INT32_MAX)
        _check_staleness("fedbuff", self.staleness)
        return self

    @property
    def messages(self) -> int:
        return self.buffer

    def factor(self, staleness: jax.Array) -> jax.Array:
        return self.staleness.weight(staleness)


class FedAsync(Asynchronous):
    """FedAsync: every message moves the model, by a share that falls with its staleness (Xie et al. 2019).

    x <- (1 - a) x + a y_i,   a = alpha s(tau_i)

    The paper's clients minimise F_i(y) + (rho/2) |y - x_i|^2 with x_i the model they began with: that is
    ``fedprox(mu=rho)``. The method's server learning rate and optimiser act on a (y_i - x); with the plain ones (1.0,
    None) the formula is exact. The paper counts tau from 1 in its Algorithm 1 and asks for s = 1 where nothing was
    missed; here that is tau = 0.

    Args:
      alpha: in (0, 1].
      staleness: s, an object of ``fedjax_sim.asynchronous``; the default (1 + tau)^-1/2 is the paper's "Poly".

    Reference: Xie et al. 2019, "Asynchronous federated optimization", Algorithm 1.
    """

    alpha: Any = 0.6
    staleness: Staleness = Polynomial()

    mixes_models: ClassVar[bool] = True

    def checked(self) -> Self:
        check_real("fedasync(alpha=...)", self.alpha, low=0.0, high=1.0)
        _check_staleness("fedasync", self.staleness)
        return self

    @property
    def messages(self) -> int:
        return 1

    def factor(self, staleness: jax.Array) -> jax.Array:
        check_scalar("fedasync(alpha=...)", self.alpha)
        return jnp.asarray(self.alpha).astype(staleness.dtype) * self.staleness.weight(staleness)


def _check_staleness(name: str, staleness: Any) -> None:
    if not isinstance(staleness, Staleness):
        raise TypeError(
            f"{name}(staleness={shown(staleness)}): it must be a Staleness, for instance "
            "fedjax_sim.asynchronous.polynomial(0.5) or constant()"
        )


fedbuff = factory("asynchronous.fedbuff", FedBuff)
fedasync = factory("asynchronous.fedasync", FedAsync)
