"""Control variates: what SCAFFOLD and FedNova's variance reduction share."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Algorithm, Client, Sent, ServerState


class ControlSent(NamedTuple):
    """The model x and the server's control variate c."""

    params: Any
    control: Any


class Controlled(Algorithm):
    """Local gradients g - c_i + c, with c = sum_j lambda_j c_j over all clients; all zero at the start.

    c_i+ = -(c - c_i) - (y_i - x) / h_i is the weighted mean of the raw gradients along the local path, h_i the local
    solver's slope. lambda_j is the client's share of the objective, so that c stays the exact average of all c_j:
    c <- c + sum_S lambda_i (c_i+ - c_i).
    """

    duplicates: ClassVar[bool] = False

    @property
    def controlled(self) -> bool:
        """Whether there are control variates at all."""
        return True

    def init(self, params: Any, num_clients: int) -> ServerState:
        server: ServerState = super().init(params, num_clients)
        return server._replace(extra=trees.zeros_like(params)) if self.controlled else server

    def init_client(self, params: Any) -> Any:
        return trees.zeros_like(params) if self.controlled else ()

    def broadcast(self, server: ServerState) -> Any:
        return ControlSent(server.params, server.extra) if self.controlled else Sent(server.params)

    def start(self, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        return sent.params, trees.subtract(sent.control, c_i) if self.controlled else ()

    def direction(self, g: Any, y: Any, sent: Any, local: Any, client: Client) -> Any:
        return trees.add(g, local) if self.controlled else g

    def raw_gradient(self, delta: Any, local: Any, client: Client) -> Any:
        """c_i+, the mean of the raw gradients along the path that moved by ``delta``."""
        moved = trees.divide(delta, client.slope)
        return jax.tree.map(lambda correction, step: -correction - step, local, moved)

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        delta = trees.subtract(y, sent.params)
        if not self.controlled:
            return {"delta": delta}, c_i
        new = self.raw_gradient(delta, local, client)
        return {"delta": delta, "control": trees.subtract(new, c_i)}, new

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {"control": client.share} if self.controlled else {}

    def control(self, server: ServerState, sums: dict[str, Any]) -> ServerState:
        """The server with its new control variate."""
        return server._replace(extra=trees.add(server.extra, sums["control"])) if self.controlled else server
