"""Local steps along gradients taken uphill."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.core.trees import add_scaled, norm


class FedSam(FedAvg):
    """FedSAM: local steps of sharpness-aware minimisation, along the gradient at the worst point nearby.

    y_i <- y_i - eta g_i(y_i + rho g_i(y_i) / |g_i(y_i)|),   both gradients on one batch;   x as FedAvg

    The norm is over all parameters; where g_i is 0 the step is FedAvg's. Two gradients a step. rho = 0 is FedAvg.

    Args:
      rho: radius of the neighbourhood, >= 0, in units of the parameters.

    Raises:
      ValueError: (before a run) batches whose gradients are taken in pieces.

    Reference: Qu et al. 2022, "Generalized federated learning via sharpness aware minimization", Algorithm 1.
    """

    rho: Any = real(default=0.05, low=0.0)

    requires = Requires(whole_batches=True, elsewhere=True, per_step=2)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        g = jax.grad(F)(client.held)
        length = norm(g)
        return F(add_scaled(y, self.rho / jnp.where(length > 0, length, 1), g))


fedsam = recorded(
    "algorithm.fedsam",
    FedSam,
    step="local gradient at y + ρ g/‖g‖, then FedAvg",
    cite="""@inproceedings{qu2022fedsam,
  title = {Generalized Federated Learning via Sharpness Aware Minimization},
  author = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022},
  eprint = {2206.02618},
  archiveprefix = {arXiv},
}""",
    case={"rho": 0.1},
)
