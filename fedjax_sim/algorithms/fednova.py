"""Normalised averaging."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Parts, Requires, Share, affine
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.scaffold import ControlSent
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import choice, flag, leaf, real
from fedjax_sim.core.trees import add, as_dtype, divide, inner, multiply, scale, square, subtract, zeros_like
from fedjax_sim.core.values import check_choice, check_real, check_scalar
from fedjax_sim.optim.described import Sgd

_RULES = ("slope", "steps")


class EffectiveSteps(Described):
    """A rule for tau_eff.

    Args:
      of: ``"slope"``: sum_S w_i s_i; ``"steps"``: sum_S w_i tau_i.
    """

    of: str = choice(_RULES)


def _check_effective_steps(what: str, value: Any) -> None:
    if isinstance(value, str):
        check_choice(what, value, _RULES)
    elif not isinstance(value, EffectiveSteps):
        check_real(what, value, above=0.0, optional=True)


class FedNova(FedAvg):
    """FedNova: averages normalised local changes, so that unequal tau_i do not bias the objective.

    The local change of a linear solver is Delta_i = -eta G_i a_i (Wang et al. 2020, at eq. 6), G_i stacking the
    gradients; with s_i = sum_k a_ik and d_i = G_i a_i / s_i the server steps (eq. 20)

    x <- x - eta_g tau_eff eta sum_S w_i d_i

    Neither eta nor a_i is read out of the solver: the slope h_i = eta s_i is what the same solver moves by against a
    constant unit gradient, and the step is x + eta_g H sum_S w_i Delta_i / h_i, H = tau_eff eta, per parameter leaf.
    This serves momentum, Nesterov's form, decayed rates, a proximal term and whatever else is linear. Equals FedAvg
    when all tau_i are equal and tau_eff = sum w_i s_i.

    Where min_k a_ik < 0 (strong proximal terms under momentum) s_i is less than ||a_i||_1; the run then records the
    smallest a_ik eta as ``"lowest_weight"`` and ``simulate`` warns.

    Args:
      mu: strength of a proximal term mu/2 |y - x|^2 in the local solver, or None.
      tau_eff: ``"slope"``: sum_S w_i s_i; ``"steps"``: sum_S w_i tau_i, the paper's choice with a proximal term; or a
        number. Of these two eta is what the first step moves, (1 + rho) times the rate in Nesterov's form. None is
        ``"steps"`` where ``mu`` is given, else ``"slope"``.
      variance_reduction: adds c - c_i to local gradients, with c_i the raw d_i of i's last visit (0 before the first),
        c_i+ = -(c - c_i) - Delta_i / h_i, and c = sum_N p_j c_j (section VI). The server uses the whole change,
        correction included.
      prox_momentum: ``"inside"`` sends the proximal gradient through the momentum buffer, the solver's own gradient of
        its objective; ``"outside"`` is the authors' published code: y <- y - eta (b + mu (y - x)), b <- rho b + g, with
        its normaliser c <- rho c + 1, z <- (1 - eta mu) (z + c) + 1, which is not the sum of that solver's a.
      accept_nonlinear: lets a local solver pass whose steps are not linear in the gradients (Adam, clipping). It is
        normalised by its own answer to a unit gradient, which no theory covers.

    Raises:
      ValueError: a solver that is not linear in the gradients, an average whose weights do not sum to one, or
        ``prox_momentum="outside"`` with another solver than sgd with momentum.

    Reference: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", numbered as in its journal version: eqs 6 and 20; tau_eff, proximal terms and variance reduction as
    in section VI.
    """

    mu: Any = real(default=None, low=0.0)
    tau_eff: Any = leaf(_check_effective_steps, default=None)
    variance_reduction: bool = flag(default=False)
    prox_momentum: str = choice(("inside", "outside"), default="inside")
    accept_nonlinear: bool = flag(default=False)

    @property
    def requires(self) -> Requires:
        averages = frozenset({"sample", "plain", "transformed"})
        single = not self.effective("slope")
        return Requires(slope=True, step_size=single, nonlinear=self.accept_nonlinear, averages=averages)

    def effective(self, of: str) -> bool:
        """Whether the rule for tau_eff is ``of``."""
        if self.tau_eff is None:
            return of == ("slope" if self.mu is None else "steps")
        return isinstance(self.tau_eff, EffectiveSteps) and self.tau_eff.of == of

    def checked(self) -> Self:
        checked = super().checked()
        solver = checked.client_optimizer
        plain = isinstance(solver, Sgd) and not solver.nesterov and solver.decay is None
        if self._outside and (self.mu is None or not plain):
            raise ValueError(
                "fednova(prox_momentum='outside') is the authors' code for mu with sgd(learning_rate, momentum): give "
                "both, or use prox_momentum='inside' with any linear solver"
            )
        return checked.replace(tau_eff=effective_steps(self.tau_eff)) if isinstance(self.tau_eff, str) else checked

    def init(self, params: Any, shares: jax.Array) -> Any:
        server = super().init(params, shares)
        return server._replace(extra=zeros_like(params)) if self.variance_reduction else server

    def init_client(self, params: Any) -> Any:
        return zeros_like(params) if self.variance_reduction else ()

    def send(self, server: Any) -> Any:
        return ControlSent(server.params, server.extra)

    @affine
    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        if not self._outside:
            return sent.params
        # Driven by the gradient that the probe of the slope adds, and by nothing else, -eta z moves by just that, and
        # its slope is the normaliser.
        return Parts(model=sent.params, normaliser=zeros_like(self._eta(sent.params, client)))

    @affine
    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        y = y["model"] if self._outside else y
        objective = F(y)
        if self.variance_reduction:
            objective = objective + inner(subtract(sent.control, c_i), y)
        if self.mu is None or self._outside:
            return objective
        return objective + self.mu / 2 * square(subtract(y, sent.params))

    @affine
    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        if not self._outside:
            return super().step(g, y, state, k, sent, c_i, client)
        solver: Any = self.client_optimizer
        eta, rho = self._eta(sent.params, client), jnp.asarray(0.0 if solver.momentum is None else solver.momentum)
        moved, new = super().step(g["model"], y["model"], state["model"], k, sent, c_i, client)
        pull = multiply(scale(self.mu, subtract(y["model"], sent.params)), eta)
        c = (1 - rho ** as_dtype(k + 1, rho)) / (1 - rho)

        def counted(m: jax.Array, eta: jax.Array, unit: jax.Array) -> jax.Array:
            pulled, heavy = eta * as_dtype(self.mu, m), rho > 0
            m = jnp.where(heavy, m - eta * as_dtype(c, m) * unit, m)
            return jnp.where(heavy & (pulled == 0), m, (1 - pulled) * m - eta * unit)

        normaliser = jax.tree.map(counted, y["normaliser"], eta, g["normaliser"])
        return Parts(model=subtract(moved, pull), normaliser=normaliser), Parts(state, model=new)

    @affine
    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return super().change(y["model"] if self._outside else y, sent, c_i, client)

    @affine
    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        slope, single = client.slope, client.step_size
        if self._outside:
            slope, single = slope["normaliser"], None if single is None else single["model"]
        normalised = divide(delta, slope)
        if self.effective("steps"):
            slope = jax.tree.map(lambda eta: eta * client.steps.astype(eta.dtype), single)
        elif not self.effective("slope"):
            check_scalar("fednova(tau_eff=...)", self.tau_eff)
            slope = scale(self.tau_eff, single)
        messages: dict[str, Message] = {"normalised": Mean(normalised), "slope": Mean(slope)}
        if not self.variance_reduction:
            return messages, c_i
        new = subtract(subtract(c_i, sent.control), normalised)
        return messages | {"control": Share(subtract(new, c_i))}, new

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        if self.variance_reduction:
            server = server._replace(extra=add(server.extra, got["control"]))
        mass = jnp.where(cohort.mass > 0, cohort.mass, 1)  # below 1 where scheme I drops stragglers
        return self.server_step(server, multiply(got["normalised"], scale(1 / mass, got["slope"])), cohort)

    @property
    def _outside(self) -> bool:
        return self.prox_momentum == "outside"

    def _eta(self, params: Any, client: Client) -> Any:
        """The step size of sgd, one number a leaf; an array where the rate is one."""
        rate, scalar, solver = client.learning_rate, jax.tree.structure(0.0), self.client_optimizer  # type: Any, Any, Any
        rates = jax.tree.map(lambda _: rate, params) if jax.tree.structure(rate) == scalar else rate
        return jax.tree.map(lambda x, rate: as_dtype(rate, x) * as_dtype(solver.learning_rate, x), params, rates)


effective_steps = factory("tau_eff.effective_steps", EffectiveSteps)
fednova = recorded(
    "algorithm.fednova",
    FedNova,
    step="x ← x + H Σ w_i Δ_i/h_i, H = Σ w_i h_i",
    cite="wang2020tackling",
    kept="none (1 with `variance_reduction`)",
    sent="1 / 1 + a scalar a leaf (2 / 2 + a scalar a leaf with `variance_reduction`)",
    options="any linear solver; `mu`, `prox_momentum`, `tau_eff`, `variance_reduction`, `accept_nonlinear`",
)
