"""FedNova with variance reduction, and with the proximal term of the authors' published code."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Message, Parts, Share
from fedjax_sim.algorithms.control import Controlled
from fedjax_sim.algorithms.fednova import FedNova
from fedjax_sim.core.trees import add, as_dtype, inner, multiply, scale, subtract, zeros_like
from fedjax_sim.optim.described import Sgd


class FedNovaReduced(Controlled, FedNova):
    """``fednova(variance_reduction=True)``: local gradients g - c_i + c, with c = sum_j lambda_j c_j over all clients.

    c_i+ = -(c - c_i) - Delta_i / h_i is the weighted mean of the raw gradients along the local path. lambda_j is the
    client's share of the objective, so that c stays the exact average of all c_j.

    Reference: Wang et al. 2020, section 4.
    """

    _options: ClassVar[tuple[bool, str]] = (True, "inside")
    _registered_name: ClassVar[str] = "algorithm.fednova"

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        correction = subtract(sent.control, c_i)
        return super().objective(lambda y: F(y) + inner(correction, y), y, k, sent, c_i, client)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, _ = super().finish(delta, y, sent, c_i, client)
        new = subtract(subtract(c_i, sent.control), messages["normalised"].value)
        return messages | {"control": Share(subtract(new, c_i))}, new

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return super().update(server._replace(extra=add(server.extra, got["control"])), got, cohort)


class FedNovaOutside(FedNova):
    """``fednova(prox_momentum="outside")``: the authors' published code.

    y <- y - eta (b + mu (y - x)),   b <- rho b + g,   normalised by eta z,
    z <- (1 - eta mu) (z + c) + 1,   c <- rho c + 1

    z is not the sum of that solver's own weights. So -eta z is trained beside the model: driven by the gradient that
    the probe of the slope adds, and by nothing else, it moves by just that, and its slope is the normaliser.
    """

    _options: ClassVar[tuple[bool, str]] = (False, "outside")
    _registered_name: ClassVar[str] = "algorithm.fednova"

    def checked(self) -> Self:
        checked = super().checked()
        solver = checked.client_optimizer
        plain = isinstance(solver, Sgd) and not solver.nesterov and solver.decay is None
        if self.mu is None or not plain:
            raise ValueError(
                "fednova(prox_momentum='outside') is the authors' code for mu with sgd(learning_rate, momentum): give "
                "both, or use prox_momentum='inside' with any linear solver"
            )
        return checked

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(model=sent.params, normaliser=zeros_like(self._eta(sent.params, client)))

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y["model"])

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        momentum = self._sgd.momentum
        eta, rho = self._eta(sent.params, client), jnp.asarray(0.0 if momentum is None else momentum)
        moved, new = super().step(g["model"], y["model"], state["model"], k, sent, c_i, client)
        pull = multiply(scale(self.mu, subtract(y["model"], sent.params)), eta)
        c = (1 - rho ** as_dtype(k + 1, rho)) / (1 - rho)

        def counted(m: jax.Array, eta: jax.Array, unit: jax.Array) -> jax.Array:
            pulled, heavy = eta * as_dtype(self.mu, m), rho > 0
            m = jnp.where(heavy, m - eta * as_dtype(c, m) * unit, m)
            return jnp.where(heavy & (pulled == 0), m, (1 - pulled) * m - eta * unit)

        normaliser = jax.tree.map(counted, y["normaliser"], eta, g["normaliser"])
        return Parts(model=subtract(moved, pull), normaliser=normaliser), Parts(state, model=new)

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return super().change(y["model"], sent, c_i, client)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        single = None if client.step_size is None else client.step_size["model"]
        client = client._replace(slope=client.slope["normaliser"], step_size=single)
        return super().finish(delta, y, sent, c_i, client)

    @property
    def _sgd(self) -> Sgd:
        assert isinstance(self.client_optimizer, Sgd)  # as checked
        return self.client_optimizer

    def _eta(self, params: Any, client: Client) -> Any:
        """The step size, one number a leaf; an array where the rate is one."""
        rate, scalar = client.learning_rate, jax.tree.structure(0.0)  # type: Any, Any
        rates = jax.tree.map(lambda _: rate, params) if jax.tree.structure(rate) == scalar else rate
        single = self._sgd.learning_rate
        return jax.tree.map(lambda leaf, rate: as_dtype(rate, leaf) * as_dtype(single, leaf), params, rates)


class FedNovaReducedOutside(FedNovaReduced, FedNovaOutside):
    """Both."""

    _options: ClassVar[tuple[bool, str]] = (True, "outside")
    _registered_name: ClassVar[str] = "algorithm.fednova"


FedNova._variants += [FedNovaReduced, FedNovaOutside, FedNovaReducedOutside]
