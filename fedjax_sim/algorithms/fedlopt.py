"""A learned server optimiser that hears how far the clients agree."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import optim
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.values import shown


class FedLOpt(FedAvg):
    """FedLOpt: FedAvg whose server steps by a learned rule that also sees the dispersion of the changes.

    x <- x + eta_g u(Delta, q, x; theta),   Delta = sum_S w_i Delta_i,   q = sum_S w_i Delta_i^2 (of every parameter)

    so q - Delta^2 is the variance of the clients' changes; the server computes q from what it gets anyway. A rule that
    sees Delta alone needs no method: ``fedavg(server_optimizer=optim.learned(...))``, the LOpt-A of the paper, whose
    LAgg-A sees each of a fixed number of changes. q has no size of the cohort in it, so this rule is for any.

    Raises:
      TypeError: a server optimiser that is no rule with ``dispersion=True``.

    Reference: Joseph et al. 2023, "Can we learn communication-efficient optimizers?" (arXiv:2312.02204), section 3.
    """

    requires = Requires(averages=WEIGHTED_MEANS)

    def checked(self) -> Self:
        rule = self.server_optimizer
        if not isinstance(rule, (optim.Learned, jax.core.Tracer)) or not getattr(rule, "dispersion", True):
            raise TypeError(
                f"fedlopt(server_optimizer={shown(rule)}): give a learned rule that sees dispersion, for instance "
                "fedjax_sim.optim.learned(dispersion=True); any other optimiser goes into fedavg"
            )
        return super().checked()

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta), "square": Mean(jax.tree.map(jnp.square, delta), nbytes=0)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return self.server_step(server, got["delta"], cohort, square=got["square"])


_RULE = optim.Learned(hidden=2, dispersion=True)  # for the tests; without JAX, which must not begin with an import
_WEIGHTS = {name: np.full(shape, 0.2, np.float32) for name, shape in _RULE.shapes().items()}
fedlopt = recorded(
    "algorithm.fedlopt",
    FedLOpt,
    step="x ← x + η_g u, u learned, from Δ, Σ w_i Δ_i², momenta and x",
    cite="joseph2023learn",
    options="a rule as `server_optimizer`",
    case={"server_optimizer": _RULE.replace(weights=_WEIGHTS)},
)
