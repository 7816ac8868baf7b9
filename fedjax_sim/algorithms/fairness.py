"""Fair objectives: q-FedAvg and agnostic federated learning."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_sim import optim
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Each, Message, Requires, Stack, Sum
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.core.trees import as_dtype, divide, scale, square

_onto_simplex = optim.lenient(optax.projections.projection_simplex)


class QFedAvg(FedAvg):
    """q-FedAvg: minimises (1/N) sum_i F_i^{q+1} / (q + 1), which weighs clients of high loss more.

    w_i = L (x - y_i);   u_i = F_i(x)^q w_i;   h_i = q F_i(x)^{q-1} |w_i|^2 + L F_i(x)^q
    x <- x - eta_g sum_S u_i / sum_S h_i

    q = 0 is FedAvg with the plain mean. F_i(x) must be positive where q is not 0; one more pass over the local data
    computes it. As in the paper the sums are plain, and its p_i in the place of 1/N is that by which cohorts are drawn,
    ``cohort.weighted``.

    Args:
      q: fairness, >= 0.
      lipschitz: L; None for 1 / eta, with eta what the local solver moves in one step (the paper's choice).

    Reference: Li, Sanjabi, Beirami and Smith 2020, "Fair resource allocation in federated learning", Algorithm 2.
    """

    q: Any = real(default=1.0, low=0.0)
    lipschitz: Any = real(default=None, above=0.0)

    @property
    def requires(self) -> Requires:
        return Requires(
            step_size=self.lipschitz is None, survey=True, average="plain", averages=frozenset({"plain"}),
            duplicates=False, minimises=lambda objective: objective.replace("F_i", "F_i^(q+1) / (q+1)"),
        )  # fmt: skip

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return F(sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        # 0 in void slots, and where a layout asks idle lanes: a power of 0 has no derivative, so 1 stands in for it.
        vanishes = client.survey == 0
        loss = jnp.where(vanishes, jnp.ones_like(client.survey), client.survey)
        if self.lipschitz is None:
            minus_w = divide(delta, client.step_size)
            eta = jnp.mean(ravel_pytree(client.step_size)[0])
            lipschitz = 1 / jnp.where(eta > 0, eta, 1)
        else:
            minus_w, lipschitz = scale(self.lipschitz, delta), jnp.asarray(self.lipschitz)
        q, lipschitz = as_dtype(self.q, loss), as_dtype(lipschitz, loss)
        power = jnp.where(vanishes & (q > 0), jnp.zeros_like(loss), loss**q)
        h = q * power / loss * square(minus_w).astype(loss.dtype) + lipschitz * power
        return {"step": Sum(scale(power, minus_w)), "scale": Sum(h)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        h = jnp.where(got["scale"] == 0, jnp.ones_like(got["scale"]), got["scale"])
        return self.server_step(server, scale(1 / h, got["step"]), cohort)


WeightedSent = namedtuple("WeightedSent", ["params", "weight"])  # the model x and, for each client, its weight lambda_i


class Afl(FedAvg):
    """AFL: minimises the loss of the worst mixture of clients, max over the simplex of sum_i lambda_i F_i.

    x <- x + eta_g sum_S lambda_i (y_i - x) / sum_S lambda_i
    lambda <- projection onto the simplex of lambda + gamma (N/|S|) [F_i(x) for i in S, else 0],   lambda_0 = p_i

    (1/N with ``average="plain"``). With one full-gradient step each and everybody in every round this is the
    deterministic gradient descent-ascent of the paper; local steps and cohorts follow FedAvg. One more pass over the
    local data computes F_i(x).
    lambda lives on the server; a client is sent its own lambda_i.

    Args:
      weight_learning_rate: gamma >= 0, the step size of lambda.

    Reference: Mohri, Sivek and Suresh 2019, "Agnostic federated learning", Algorithm 1 (Stochastic-AFL).
    """

    weight_learning_rate: Any = real(default=0.1, low=0.0)

    requires = Requires(
        survey=True, averages=WEIGHTED_MEANS, duplicates=False,
        minimises=lambda objective: "max over the simplex of sum lambda_i F_i",
    )  # fmt: skip

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=shares.astype(jnp.result_type(float)))

    def send(self, server: Any) -> Any:
        return WeightedSent(server.params, Each(server.extra))

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return F(sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        weighted = Sum(scale(sent.weight, delta))
        return {"delta": weighted, "mass": Sum(sent.weight), "loss": Stack(client.survey)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        weights = server.extra
        rate = as_dtype(self.weight_learning_rate, weights) * cohort.num_clients
        loss = got["loss"].astype(weights.dtype) * (rate / cohort.size.astype(weights.dtype))
        risen = weights.at[cohort.indices].add(loss, mode="drop")
        mass = jnp.where(got["mass"] > 0, got["mass"], jnp.ones_like(got["mass"]))
        return self.server_step(server._replace(extra=_onto_simplex(risen)), scale(1 / mass, got["delta"]), cohort)


qfedavg = recorded(
    "algorithm.qfedavg",
    QFedAvg,
    step="x ← x + Σ F_i^q LΔ_i / Σ h_i",
    cite="li2020fair",
    paper="Li et al. 2020 (q-FFL)",
    sent="1 / 1 + a scalar",
    case={"q": 0.7},
)
afl = recorded(
    "algorithm.afl",
    Afl,
    step="FedAvg with weights λ; λ ascends on the losses",
    cite="mohri2019agnostic",
    sent="1 + a scalar / 1 + two scalars",
    case={"weight_learning_rate": 0.005},
)
