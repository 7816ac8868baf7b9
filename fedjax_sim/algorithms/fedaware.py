"""FedAWARE, and its extension of any other method."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, Method, ServerState
from fedjax_sim.algorithms.feddyn import FedDyn
from fedjax_sim.algorithms.hull import Hull
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.descriptions import factory

_SHORT = 1e-8  # of max |m_i|: below this length d has no direction to speak of


class FedAware(Hull, Algorithm):
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

    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})
    duplicates: ClassVar[bool] = False

    @property
    def stacked(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.hull_stacked

    def checked(self) -> Self:
        return Algorithm.checked(self.checked_hull("fedaware"))

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=self.empty(params, num_clients))

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        return self.messages(delta, client) | ({"delta": delta} if self.warm_up else {}), c_i

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        # "delta" is the same message, and the server knows the clients' sizes.
        sent_up = {name: message for name, message in messages.items() if name not in ("delta", "relative_size")}
        return super().upload_bytes(sent_up, sent)

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        memory, d = self.remembered(server.extra, sums, cohort)
        step = trees.scale(-1.0, d)
        if self.warm_up:
            step = trees.select(jnp.all(memory.seen), step, sums["delta"])
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

    duplicates = False

    @property
    def stacked(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.base.stacked, *self.hull_stacked)

    def checked(self) -> Self:
        if isinstance(self.base, Method) and isinstance(self.base.innermost, FedDyn):
            raise ValueError(
                "aware(feddyn(...)): FedDyn's server has no descent step to project; extend another method"
            )
        return Wrapper.checked(self.checked_hull("aware"))

    def init(self, params: Any, num_clients: int) -> Wrapped:
        return Wrapped(self.base.init(params, num_clients), self.empty(params, num_clients))

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        messages, new = self.base.finish(y, sent, c_i, local, client)
        return messages | self.messages(trees.subtract(y, sent.params), client), new

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        # The base's messages tell the server the change.
        sent_up = {name: message for name, message in messages.items() if name not in self.hull_stacked}
        return super().upload_bytes(sent_up, sent)

    def aggregate(self, server: Wrapped, sums: dict[str, Any], cohort: Cohort) -> Wrapped:
        new: Wrapped = super().aggregate(server, sums, cohort)
        memory, d = self.remembered(server.extra, sums, cohort)
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
