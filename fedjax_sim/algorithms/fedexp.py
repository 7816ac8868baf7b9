"""Extrapolation by the server."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.core.trees import as_dtype, scale, square


class FedExp(FedAvg):
    """FedExP: the server steps the further, the less the clients' changes agree.

    x <- x + eta_g eta Delta,   Delta = mean_S Delta_i,   eta = max(1, mean_S |Delta_i|^2 / (2 (|Delta|^2 + epsilon)))

    with Delta_i = y_i - x. The paper's means are plain; with ``average="sample"`` both are sum_S w_i, for which its
    derivation holds, too: it asks of the weights that they sum to one, and eta (at epsilon = 0) makes
    -eta sum_S w_i |Delta_i|^2 + eta^2 |Delta|^2, its bound of how |x - x*|^2 changes, smallest.
    Recorded: ``"extrapolation"``, eta. The paper evaluates the mean of the last two models: ``last_k(fedexp(...), 2)``.

    Args:
      epsilon: >= 0, in units of |Delta|^2; the larger, the nearer to FedAvg.

    Reference: Jhunjhunwala, Wang and Joshi 2023, "FedExP: Speeding up federated averaging via extrapolation",
    Algorithm 1.
    """

    epsilon: Any = real(default=1e-3, low=0.0)

    requires = Requires(average="plain", averages=WEIGHTED_MEANS)

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=jnp.ones((), jnp.result_type(float)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta), "square": Mean(square(delta))}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        length = square(got["delta"])
        below = 2 * (length + as_dtype(self.epsilon, length))
        factor = jnp.maximum(got["square"] / jnp.where(below > 0, below, 1), 1)
        server = server._replace(extra=factor.astype(server.extra.dtype))
        return self.server_step(server, scale(factor, got["delta"]), cohort)

    def report(self, server: Any) -> dict[str, jax.Array]:
        return {"extrapolation": server.extra}


fedexp = recorded(
    "algorithm.fedexp",
    FedExp,
    step="x ← x + η_g η Δ, η = max(1, mean ‖Δ_i‖² / (2 (‖Δ‖² + ε)))",
    cite="""@inproceedings{jhunjhunwala2023fedexp,
  title = {{FedExP}: Speeding Up Federated Averaging via Extrapolation},
  author = {Jhunjhunwala, Divyansh and Wang, Shiqiang and Joshi, Gauri},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2023},
  eprint = {2301.09604},
  archiveprefix = {arXiv},
}""",
    sent="1 / 1 + a scalar",
    case={"epsilon": 0.05},
)
