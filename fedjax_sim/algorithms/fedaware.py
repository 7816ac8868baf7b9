"""FedAWARE, and its extension of any other method."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import ServerState
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Method, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.feddyn import FedDyn
from fedjax_sim.algorithms.hull import Hull
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, innermost
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory

_SHORT = 1e-8  # of max |m_i|: below this length d has no direction to speak of


class FedAware(Hull, FedAvg):
    """FedAWARE: steps along the shortest vector in the hull of the clients' remembered changes.

    m_i <- (1 - alpha) m_i + alpha (x - y_i) for i in S, else unchanged;   m_i = 0 before the first visit
    lambda = argmin over the simplex of |sum_i lambda_i m_i|^2;   x <- x - eta_g sum_i lambda_i m_i

    lambda ranges over the clients seen so far (the paper's eq. 2 says all N: ``candidates="all"``). Its length,
    duality gap and whether the hull contains 0 are recorded in every round as ``"min_norm..."``. Memory on the server:
    N models, and their Gram matrix (N^2 numbers). State per client: none elsewhere. One model down, one up.

    Args:
      alpha: weight of the new change, in (0, 1].
      candidates, weights, normalised, warm_up, layers, clusters, solver: see
        :class:`fedjax_sim.algorithms.hull.Hull`. ``weights="uniform"`` is the paper's "FedAWARE-NA",
        ``normalised=True`` the authors' code, ``warm_up=True`` FedAvg until everybody was seen.

    Raises:
      ValueError: an unknown option, or a scheme with replacement.

    Reference: Zeng et al. 2025, "On the power of adaptive weighted aggregation in heterogeneous federated learning and
    beyond", eqs 2-3, Algorithm 1.
    """

    @property
    def requires(self) -> Requires:
        return Requires(
            averages=frozenset({"sample", "plain"}), duplicates=False, remembers_everyone=self.clusters is None
        )

    def checked(self) -> Self:
        return FedAvg.checked(self.checked_hull("fedaware"))

    def init(self, params: Any, shares: jax.Array) -> ServerState:
        server: ServerState = super().init(params, shares)
        return server._replace(extra=self.empty(params, len(shares)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        again = {"delta": Mean(delta, nbytes=0)}  # the same vector, for its average
        return self.messages(delta, client) | (again if self.warm_up else {}), c_i

    def update(self, server: ServerState, got: dict[str, Any], cohort: Cohort) -> ServerState:
        memory, d = self.remembered(server.extra, got, cohort)
        step = trees.scale(-1.0, d)
        if self.warm_up:
            step = trees.select(jnp.all(memory.seen), step, got["delta"])
        return self.server_step(server._replace(extra=memory), step, cohort)  # type: ignore[no-any-return]

    def report(self, server: ServerState) -> dict[str, jax.Array]:
        return self.report_of(server.extra)


class Aware(Hull, Wrapper):
    """The AWARE extension: any method's step, projected on the shortest vector of the clients' changes.

    x <- x - (<d~, d> / <d, d>) d

    with d as in FedAWARE and d~ what the base method would have stepped (x less its new model, its server rate and
    optimiser included). The base method's own state is updated as if it had stepped d~. No step is made where
    |d| <= 1e-8 max |m_i|. FedDyn is refused: its server does not step along a descent direction.
    Memory on the server: N models and their Gram matrix, beside what the base method keeps.

    Args:
      base: the method.
      alpha, candidates, weights, normalised, warm_up, layers, clusters, solver: see
        :class:`fedjax_sim.algorithms.hull.Hull`; until ``warm_up`` is over the base method steps unprojected.

    Raises:
      ValueError: an unknown option, FedDyn, or a scheme with replacement.

    Reference: Zeng et al. 2025 (see FedAware), Proposition 3.1.
    """

    @property
    def requires(self) -> Requires:
        base = self.base.requires
        return base.but(duplicates=False, remembers_everyone=base.remembers_everyone or self.clusters is None)

    def checked(self) -> Self:
        if isinstance(self.base, Method) and isinstance(innermost(self.base), FedDyn):
            raise ValueError(
                "aware(feddyn(...)): FedDyn's server has no descent step to project; extend another method"
            )
        return Wrapper.checked(self.checked_hull("aware"))

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        if self.shared(params) is not params:
            raise ValueError(
                "aware(base): the base's clients report changes of a part of the model: put aware inside, "
                "keep(aware(...), ...) or freeze(aware(...), ...)"
            )
        return Wrapped(self.base.init(params, shares), self.empty(params, len(shares)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        return messages | self.messages(delta, client, nbytes=0), new  # the base's messages tell the server the change

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Wrapped:
        new: Wrapped = super().update(server, got, cohort)
        memory, d = self.remembered(server.extra, got, cohort)
        x, stepped = self.model(server), self.model(new)
        square = trees.inner(d, d)
        longest = jnp.max(jax.vmap(trees.inner)(memory.momenta, memory.momenta))
        long = square > _SHORT**2 * longest
        share = trees.inner(trees.subtract(x, stepped), d) / jnp.where(long, square, 1)
        projected = trees.add_scaled(x, jnp.where(long, -share, 0), d)
        if self.warm_up:
            projected = trees.select(jnp.all(memory.seen), projected, stepped)
        return self.with_model(new, projected)._replace(extra=memory)  # type: ignore[no-any-return]

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return self.base.report(server.base) | self.report_of(server.extra)


fedaware = factory("algorithm.fedaware", FedAware)
aware = factory("algorithm.aware", Aware)
