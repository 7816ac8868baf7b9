"""Fair objectives: q-FedAvg and agnostic federated learning."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from fedjax_sim import optim, trees
from fedjax_sim.algorithms.base import Algorithm, Client, Cohort, ServerState
from fedjax_sim.algorithms.contract import took_part
from fedjax_sim.descriptions import factory
from fedjax_sim.values import check_real, check_scalar

_onto_simplex = optim.lenient(optax.projections.projection_simplex)


class QFedAvg(Algorithm):
    """q-FedAvg: minimises sum_i p_i F_i^{q+1} / (q + 1), which weighs clients of high loss more.

    w_i = L (x - y_i);   u_i = F_i(x)^q w_i;   h_i = q F_i(x)^{q-1} |w_i|^2 + L F_i(x)^q
    x <- x - eta_g sum_S u_i / sum_S h_i

    q = 0 is FedAvg with the plain mean. F_i(x) must be positive where q is not 0; one more pass over the local data
    computes it. As in the paper the sums are plain: p_i enters through cohorts drawn by it, ``cohort.weighted``.
    State per client: none. One model down, one model and one scalar up.

    Args:
      q: fairness, >= 0.
      lipschitz: L; None for 1 / eta, with eta what the local solver moves in one step (the paper's choice).

    Reference: Li, Sanjabi, Beirami and Smith 2020, "Fair resource allocation in federated learning", Algorithm 2.
    """

    q: Any = 1.0
    lipschitz: Any = None

    default_average: ClassVar[str] = "plain"
    averages: ClassVar[frozenset[str]] = frozenset({"plain"})
    duplicates: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"anchor", "step_size"} if self.lipschitz is None else {"anchor"})

    def checked(self) -> Self:
        check_real("qfedavg(q=...)", self.q, low=0.0)
        check_real("qfedavg(lipschitz=...)", self.lipschitz, low=0.0, open_=True, optional=True)
        return super().checked()

    def minimises(self, objective: str) -> str:
        return objective.replace("F_i", "F_i^(q+1) / (q+1)")

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        check_scalar("qfedavg(q=...)", self.q)
        moved = trees.subtract(sent.params, y)
        # 0 in void slots, and where a layout asks idle lanes: a power of 0 has no derivative, so 1 stands in for it.
        vanishes = client.mean_loss == 0
        loss = jnp.where(vanishes, jnp.ones_like(client.mean_loss), client.mean_loss)
        if self.lipschitz is None:
            w = trees.divide(moved, client.step_size)
            eta = jnp.mean(jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(client.step_size)]))
            lipschitz = 1 / jnp.where(eta > 0, eta, 1)
        else:
            w, lipschitz = trees.scale(self.lipschitz, moved), jnp.asarray(self.lipschitz)
        q, lipschitz = trees.as_dtype(self.q, loss), trees.as_dtype(lipschitz, loss)
        power = jnp.where(vanishes & (q > 0), jnp.zeros_like(loss), loss**q)
        square = trees.inner(w, w).astype(loss.dtype)
        return {"step": trees.scale(-power, w), "scale": q * power / loss * square + lipschitz * power}, c_i

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"step": took_part(client), "scale": took_part(client)}

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        scale = jnp.where(sums["scale"] == 0, jnp.ones_like(sums["scale"]), sums["scale"])
        return self.server_step(server, trees.scale(1 / scale, sums["step"]), cohort)  # type: ignore[no-any-return]


class WeightedSent(NamedTuple):
    """The model x and every client's weight lambda, [N]."""

    params: Any
    weights: jax.Array


class Afl(Algorithm):
    """AFL: minimises the loss of the worst mixture of clients, max over the simplex of sum_i lambda_i F_i.

    x <- x + eta_g sum_S lambda_i (y_i - x) / sum_S lambda_i
    lambda <- projection onto the simplex of lambda + gamma (N/|S|) [F_i(x) for i in S, else 0],   lambda_0 = p_i

    (1/N with ``average="plain"``). With one full-gradient step each and everybody in every round this is the
    deterministic gradient descent-ascent of the paper; local steps and cohorts follow FedAvg. One more pass over the
    local data computes F_i(x).
    State per client: none (lambda lives on the server). One model and lambda (N numbers here; a client needs its own)
    down, one model and two scalars up.

    Args:
      weight_learning_rate: gamma >= 0, the step size of lambda.

    Reference: Mohri, Sivek and Suresh 2019, "Agnostic federated learning", Algorithm 1 (Stochastic-AFL).
    """

    weight_learning_rate: Any = 0.1

    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain"})
    duplicates: ClassVar[bool] = False
    stacked: ClassVar[tuple[str, ...]] = ("loss",)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"anchor"})

    def checked(self) -> Self:
        check_real("afl(weight_learning_rate=...)", self.weight_learning_rate, low=0.0)
        return super().checked()

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=jnp.full((num_clients,), 1 / num_clients, jnp.result_type(float)))

    def minimises(self, objective: str) -> str:
        return "max over the simplex of sum lambda_i F_i"

    def introduced(self, server: ServerState, shares: jax.Array) -> ServerState:
        return server._replace(extra=shares.astype(server.extra.dtype))

    def broadcast(self, server: ServerState) -> Any:
        return WeightedSent(server.params, server.extra)

    def download_bytes(self, sent: WeightedSent) -> int:
        # A client needs its own weight only.
        return super().download_bytes(sent.params) + sent.weights.dtype.itemsize

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        weight = sent.weights.at[client.index].get(mode="clip")
        delta = trees.scale(weight, trees.subtract(y, sent.params))
        return {"delta": delta, "mass": weight, "loss": client.mean_loss}, c_i

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"delta": took_part(client), "mass": took_part(client)}

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        weights = server.extra
        check_scalar("afl(weight_learning_rate=...)", self.weight_learning_rate)
        rate = trees.as_dtype(self.weight_learning_rate, weights) * cohort.num_clients
        loss = sums["loss"].astype(weights.dtype) * (rate / cohort.size.astype(weights.dtype))
        risen = weights.at[cohort.indices].add(loss, mode="drop")
        mass = jnp.where(sums["mass"] > 0, sums["mass"], jnp.ones_like(sums["mass"]))
        server = server._replace(extra=_onto_simplex(risen))
        return self.server_step(server, trees.scale(1 / mass, sums["delta"]), cohort)  # type: ignore[no-any-return]


qfedavg = factory("algorithm.qfedavg", QFedAvg)
afl = factory("algorithm.afl", Afl)
