"""What an asynchronous server does with the messages that arrive: how many it waits for and what each is worth."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.scheme import check_kind, one_of
from fedjax_sim.clients.systems.base import WaitForAll
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf, real
from fedjax_sim.core.trees import as_dtype
from fedjax_sim.core.values import INT32_MAX, shown


class Staleness(Described):
    """Base of the functions of the staleness: what a message is worth that began with an old model.

    tau counts the server updates between the dispatch of the model to the client and the update that uses what came
    back: 0 where there was none. The three functions are those of Xie et al. 2019, "Asynchronous federated
    optimization".
    """

    def weight(self, staleness: jax.Array) -> jax.Array:
        """s(tau) of each tau, elementwise; 1 for a fresh message.

        Args:
          staleness: tau >= 0 as real numbers.
        """
        raise TypeError(f"{type(self).__name__} must define weight(staleness)")


class Constant(Staleness):
    """s(tau) = 1: old messages count as much as fresh ones."""

    def weight(self, staleness: jax.Array) -> jax.Array:
        return jnp.ones_like(staleness)


class Polynomial(Staleness):
    """s(tau) = (1 + tau)^-a.

    Args:
      a: >= 0; 1/2 is what FedBuff uses (Nguyen et al. 2022).
    """

    a: Any = real(default=0.5, low=0.0)

    def weight(self, staleness: jax.Array) -> jax.Array:
        return (1 + staleness) ** -as_dtype(self.a, staleness)


class Hinge(Staleness):
    """s(tau) = 1 for tau <= b, and 1 / (a (tau - b) + 1) beyond.

    Args:
      a: how fast it falls, >= 0.
      b: up to which staleness nothing is lost, >= 0.
    """

    a: Any = real(default=10.0, low=0.0)
    b: Any = real(default=4.0, low=0.0)

    def weight(self, staleness: jax.Array) -> jax.Array:
        a, b = as_dtype(self.a, staleness), as_dtype(self.b, staleness)
        return 1 / (a * jnp.maximum(staleness - b, 0) + 1)


def _staleness() -> Any:
    example = "fedjax_sim.asynchronous.polynomial(0.5) or constant()"
    return leaf(one_of(Staleness, example=example), default=Polynomial())


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

    buffer: int = count(default=10, high=INT32_MAX)
    staleness: Staleness = _staleness()

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

    alpha: Any = real(default=0.6, above=0.0, high=1.0)
    staleness: Staleness = _staleness()

    mixes_models: ClassVar[bool] = True

    @property
    def messages(self) -> int:
        return 1

    def factor(self, staleness: jax.Array) -> jax.Array:
        return as_dtype(self.alpha, staleness) * self.staleness.weight(staleness)


def check_scheme(asynchronous: Any, system: Any, cohort: Participation, work: Work) -> None:
    """Checks what ``make_train`` is given beside ``asynchronous``."""
    check_kind(
        "asynchronous", asynchronous, Asynchronous, example="fedjax_sim.asynchronous.fedbuff(buffer=10), or None"
    )
    if system is None:
        raise ValueError(
            "asynchronous=... without system=...: the order in which clients report depends on how fast they are, so "
            "give the run devices, for instance system=fedjax_sim.systems.devices(seconds_per_step=1.0)"
        )
    if not isinstance(system.policy, WaitForAll):
        raise ValueError(
            f"asynchronous=... with system=...(policy={shown(system.policy)}): a policy says when a synchronous round "
            "is closed, and here the server waits for no client: leave the policy out"
        )
    if not cohort.equal or cohort.replacement or cohort.may_be_empty or cohort.may_overflow:
        raise ValueError(
            f"asynchronous=... with cohort={shown(cohort)}: free slots are filled uniformly among the clients that are "
            "not in flight, so the scheme must draw a fixed number of clients, all equally likely and none twice: use "
            "cohort.uniform(M), cohort.shuffled(M) or cohort.full()"
        )
    if work.compares:
        raise ValueError(
            f"asynchronous=... with work={shown(work)}: a share of a cohort, or one draw for all of it, has no meaning "
            "where clients start one by one: use another work scheme, or give the system slow devices"
        )


constant = factory("staleness.constant", Constant)
polynomial = factory("staleness.polynomial", Polynomial)
hinge = factory("staleness.hinge", Hinge)
fedbuff = factory("asynchronous.fedbuff", FedBuff)
fedasync = factory("asynchronous.fedasync", FedAsync)
