"""Approximate Newton steps: FedDANE, and DANE itself."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import ALL_AVERAGES, Client, Cohort, Mean, Message, Method, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import flag, real, static
from fedjax_sim.core.trees import as_dtype, inner, select, square, subtract, zeros_like


class Gradient(NamedTuple):
    """The mean gradient that phase 1 collected, and the round in which it did (-1: never, or it has been used)."""

    mean: Any
    round: jax.Array

    @classmethod
    def none(cls, params: Any) -> Gradient:
        """Before the first one."""
        return cls(zeros_like(params), jnp.int32(-1))

    def used(self) -> Gradient:
        """Once the server has moved: a run that starts in this state counts its rounds from 0 again."""
        return self._replace(round=jnp.int32(-1))


DaneSent = namedtuple("DaneSent", ["params", "gradient"])  # the model x and the mean gradient of phase 1


class Collect(FedAvg):
    """A first exchange: the cohort S1 returns grad F_i(x); the server keeps their weighted mean in ``extra``."""

    shared: bool = static(default=False)  # the cohort, with the exchange that follows
    average: str = static(default="sample")
    averages: frozenset[str] = static(default=ALL_AVERAGES)

    @property
    def requires(self) -> Requires:
        return Requires(
            survey=True, steps=False, own_cohort=not self.shared, average=self.average, averages=self.averages
        )

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.grad(F)(sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"gradient": Mean(client.survey)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return server._replace(extra=Gradient(got["gradient"], cohort.round))


class FedDane(FedAvg):
    """FedDANE: clients correct their gradients by the mean gradient at x of another cohort.

    phase 1: g~ = sum_S1 w_i grad F_i(x)
    phase 2: y_i <- y_i - eta (g_i(y_i) + g~ - grad F_i(x) + mu (y_i - x));   x <- x + eta_g sum_S2 w_i (y_i - x)

    S1 and S2 are drawn independently; tau_i, stragglers and all draws of other methods belong to phase 2. A round whose
    S1 is empty changes nothing. Three models down, two up (the model for phase 1, the model and g~ for phase 2; a
    gradient and a model).

    Args:
      mu: strength of the proximal term, >= 0.
      same_cohort: draws S1 = S2, as the authors' published code does; the paper (default) draws twice.

    Reference: Li et al. 2019, "FedDANE: A federated Newton-type method", Algorithm 1.
    """

    mu: Any = real(default=0.0, low=0.0)
    same_cohort: bool = flag(default=False)

    requires = Requires(survey=True)

    def phases(self) -> tuple[Method, ...]:
        return Collect(client_optimizer=self.client_optimizer, shared=self.same_cohort), self

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=Gradient.none(params))

    def send(self, server: Any) -> Any:
        return DaneSent(server.params, server.extra.mean)

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return jax.grad(F)(sent.params)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        correction = inner(subtract(sent.gradient, client.survey), y)
        return F(y) + correction + self.mu / 2 * square(subtract(y, sent.params))

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        moved = select(server.extra.round == cohort.round, super().update(server, got, cohort), server)
        return moved._replace(extra=server.extra.used())


class Dane(FedDane):
    """DANE: FedDANE with everybody in both phases and each local problem solved to a tolerance.

    y_i = argmin_y F_i(y) + <grad F(x) - grad F_i(x), y> + mu/2 |y - x|^2;   x <- x + eta_g sum w_i (y_i - x)

    Solved by the local optimiser on full local gradients until the gradient of the local problem has norm at most
    ``tolerance``, or for the tau_i steps of ``work``, which bound it: give enough of them.

    Args:
      mu: strength of the proximal term, >= 0.
      same_cohort: no matter here: everybody takes part in both phases.
      tolerance: norm of the local problem's gradient at which a client stops, >= 0.

    Raises:
      ValueError: (before a run) a cohort without a slot for everybody, or batches other than ``full_batch()``.

    Reference: Shamir, Srebro and Zhang 2014, "Communication-efficient distributed optimization using an approximate
    Newton-type method", Procedure DANE.
    """

    tolerance: Any = real(default=1e-8, low=0.0)

    requires = FedDane.requires.but(everyone=True, full_gradients=True)

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        length = square(g)
        solved = length <= as_dtype(self.tolerance, length) ** 2
        return select(solved, (y, state), super().step(g, y, state, k, sent, c_i, client))


feddane = recorded(
    "algorithm.feddane",
    FedDane,
    step="local gradient + ḡ − ∇F_i(x) + μ (y − x), in two exchanges",
    cite="li2019feddane",
    sent="3 / 2",
    case={"mu": 0.5},
)
dane = recorded(
    "algorithm.dane",
    Dane,
    step="FedDANE with everybody, local problems solved",
    cite="shamir2014communication",
    sent="3 / 2",
    case={"mu": 0.5, "inert": ("tolerance",)},
)
