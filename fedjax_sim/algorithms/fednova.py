"""Normalised averaging."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim import trees
from fedjax_sim.algorithms.base import Client, Cohort, ServerState
from fedjax_sim.algorithms.control import Controlled
from fedjax_sim.descriptions import Described, factory, static
from fedjax_sim.loops import bounded_loop
from fedjax_sim.optim.described import Sgd, move
from fedjax_sim.optim.probe import Probed, probe
from fedjax_sim.values import check_flag, check_real, check_scalar


class EffectiveSteps(Described):
    """A rule for tau_eff.

    Args:
      of: ``"slope"``: sum_S w_i s_i; ``"steps"``: sum_S w_i tau_i.
    """

    of: str = static()

    def checked(self) -> Self:
        if self.of not in ("slope", "steps"):
            raise ValueError(f"fednova(tau_eff={self.of!r}): it must be 'slope', 'steps', a number or None")
        return self


class FedNova(Controlled):
    """FedNova: averages normalised local changes, so that unequal tau_i do not bias the objective.

    The local change of a linear solver is Delta_i = -eta G_i a_i (Wang et al. 2020, eq. 5), G_i stacking the gradients;
    with s_i = sum_k a_ik and d_i = G_i a_i / s_i the server steps (eq. 7)

    x <- x - eta_g tau_eff eta sum_S w_i d_i

    Neither eta nor a_i is read out of the solver: the slope h_i = eta s_i is what the same solver moves by against a
    constant unit gradient, and the step is x + eta_g H sum_S w_i Delta_i / h_i, H = tau_eff eta, per parameter leaf.
    This serves momentum, Nesterov's form, decayed rates, a proximal term and whatever else is linear, from client to
    client and round to round. Equals FedAvg when all tau_i are equal and tau_eff = sum w_i s_i. The aggregated change
    may go through a ``server_optimizer`` (momentum, fedyogi, ...) like any pseudo-gradient.
    State per client: none (one model with ``variance_reduction``). One model and one scalar up, one model down (two and
    two with ``variance_reduction``).

    Where min_k a_ik < 0 (strong proximal terms under momentum) s_i is less than ||a_i||_1; the run then records the
    smallest a_ik eta as ``"lowest_weight"`` and ``simulate`` warns.

    Args:
      mu: strength of a proximal term mu/2 |y - x|^2 in the local solver, or None.
      tau_eff: ``"slope"``: sum_S w_i s_i; ``"steps"``: sum_S w_i tau_i, the paper's choice with a proximal term; or a
        number. None is ``"steps"`` where ``mu`` is given, else ``"slope"``.
      variance_reduction: adds c - c_i to local gradients, with c_i the raw d_i of i's last visit (0 before the first),
        c = sum_N p_j c_j (section 4). The server uses the whole change, correction included.
      prox_momentum: ``"inside"`` sends the proximal gradient through the momentum buffer, the solver's own gradient of
        its objective; ``"outside"`` is the authors' published code: y <- y - eta (b + mu (y - x)), b <- rho b + g, with
        its normaliser z <- (1 - eta mu) (z + c) + 1, c <- rho c + 1, which is not the sum of that solver's a.
      accept_nonlinear: lets a local solver pass whose steps are not linear in the gradients (Adam, clipping). It is
        normalised by its own answer to a unit gradient, which no theory covers.

    Raises:
      ValueError: a solver that is not linear in the gradients, an average whose weights do not sum to one, or
        ``prox_momentum="outside"`` with another solver than sgd with momentum.

    Reference: Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", eqs 5-7; tau_eff, proximal terms and variance reduction as in section 4.
    """

    mu: Any = None
    tau_eff: Any = None
    variance_reduction: bool = static(default=False)
    prox_momentum: str = static(default="inside")
    accept_nonlinear: bool = static(default=False)

    averages: ClassVar[frozenset[str]] = frozenset({"sample", "plain", "transformed"})
    default_average: ClassVar[str] = "sample"
    duplicates: ClassVar[bool] = True

    @property
    def controlled(self) -> bool:
        return self.variance_reduction

    @property
    def accepts_nonlinear(self) -> bool:
        return self.accept_nonlinear

    @property
    def needs(self) -> frozenset[str]:
        single = self.prox_momentum == "outside" or not self.effective("slope")
        return frozenset({"slope", "step_size"} if single else {"slope"})

    def effective(self, of: str) -> bool:
        """Whether the rule for tau_eff is ``of``."""
        if self.tau_eff is None:
            return of == ("slope" if self.mu is None else "steps")
        return isinstance(self.tau_eff, EffectiveSteps) and self.tau_eff.of == of

    def checked(self) -> Self:
        check_real("fednova(mu=...)", self.mu, low=0.0, optional=True)
        check_flag("fednova(variance_reduction=...)", self.variance_reduction)
        check_flag("fednova(accept_nonlinear=...)", self.accept_nonlinear)
        if not isinstance(self.tau_eff, (str, EffectiveSteps)):
            check_real("fednova(tau_eff=...)", self.tau_eff, low=0.0, open_=True, optional=True)
        if self.prox_momentum not in ("inside", "outside"):
            raise ValueError(f"fednova(prox_momentum={self.prox_momentum!r}): it must be 'inside' or 'outside'")
        if isinstance(self.tau_eff, str):
            return self.replace(tau_eff=effective_steps(self.tau_eff)).checked()
        checked = super().checked()
        solver = checked.client_optimizer
        plain = isinstance(solver, Sgd) and not solver.nesterov and solver.decay is None
        if self.prox_momentum == "outside" and (self.mu is None or not plain):
            raise ValueError(
                "fednova(prox_momentum='outside') is the authors' code for mu with sgd(learning_rate, momentum): give "
                "both, or use prox_momentum='inside' with any linear solver"
            )
        return checked

    def proximal(self, sent: Any) -> Any:
        if self.mu is not None:
            check_scalar("fednova(mu=...)", self.mu)
        return self.mu

    def local_step(self, g: Any, y: Any, state: Any, sent: Any, client: Client) -> tuple[Any, Any]:
        if self.prox_momentum == "inside":
            return super().local_step(g, y, state, sent, client)
        updates, state = self.client_optimizer.update(g, state, y)
        pull = trees.multiply(trees.scale(self.mu, trees.subtract(y, sent.params)), client.step_size)
        return trees.subtract(move(y, client.learning_rate, updates), pull), state

    def slopes(self, sent: Any, rates: Any, steps: jax.Array, bound: int) -> Probed:
        if self.prox_momentum == "inside" or bound == 1:
            return super().slopes(sent, rates, steps, bound)
        single = probe(self.client_optimizer, None, sent.params, rates, jnp.minimum(steps, 1), 1)
        assert isinstance(self.client_optimizer, Sgd)  # as checked
        momentum = self.client_optimizer.momentum
        momentum = 0.0 if momentum is None else momentum
        return Probed(_code_normaliser(single.slope, self.mu, momentum, steps, bound), single.lowest)

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        messages, c_i = super().finish(y, sent, c_i, local, client)
        messages["normalised"] = trees.divide(messages.pop("delta"), client.slope)
        if self.effective("slope"):
            messages["slope"] = client.slope
        elif self.effective("steps"):
            messages["slope"] = jax.tree.map(lambda eta: eta * client.steps.astype(eta.dtype), client.step_size)
        else:
            check_scalar("fednova(tau_eff=...)", self.tau_eff)
            messages["slope"] = trees.scale(self.tau_eff, client.step_size)
        return messages, c_i

    def aggregate(self, server: ServerState, sums: dict[str, Any], cohort: Cohort) -> ServerState:
        mass = jnp.where(cohort.mass > 0, cohort.mass, 1)  # below 1 where scheme I drops stragglers
        slope = trees.scale(1 / mass, sums["slope"])
        server = self.control(server, sums)
        return self.server_step(server, trees.multiply(sums["normalised"], slope), cohort)  # type: ignore[no-any-return]


def _code_normaliser(step_size: Any, mu: Any, momentum: Any, steps: jax.Array, bound: int) -> Any:
    """eta z of the authors' code, in which momentum and the proximal term count one after the other."""

    def step(k: jax.Array, constants: Any, carry: Any) -> Any:
        step_size, mu, momentum, steps = constants
        counter = jax.tree.map(lambda c: trees.as_dtype(momentum, c) * c + 1, carry[1])

        def counted(eta: jax.Array, z: jax.Array, c: jax.Array) -> jax.Array:
            alpha, heavy = eta * trees.as_dtype(mu, z), trees.as_dtype(momentum, z) > 0
            z = jnp.where(heavy, z + c, z)
            return jnp.where(heavy & (alpha == 0), z, (1 - alpha) * z + 1)

        def hold(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where((k < steps).reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return jax.tree.map(hold, (jax.tree.map(counted, step_size, carry[0], counter), counter), carry)

    start = (trees.zeros_like(step_size), trees.zeros_like(step_size))
    z, _ = bounded_loop(step, bound)(jnp.max(steps), (step_size, mu, momentum, steps), start)
    return trees.multiply(z, step_size)


effective_steps = factory("tau_eff.effective_steps", EffectiveSteps)
fednova = factory("algorithm.fednova", FedNova)
