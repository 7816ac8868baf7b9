"""Control variates: what SCAFFOLD and FedNova's variance reduction share."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.trees import zeros_like


class ControlSent(NamedTuple):
    """The model x and the server's control variate c."""

    params: Any
    control: Any


class Controlled(FedAvg):
    """A control variate c_i per client and c on the server, all zero at the start; c is sent with the model."""

    def init(self, params: Any, shares: jax.Array) -> Any:
        return super().init(params, shares)._replace(extra=zeros_like(params))

    def init_client(self, params: Any) -> Any:
        return zeros_like(params)

    def send(self, server: Any) -> Any:
        return ControlSent(server.params, server.extra)
