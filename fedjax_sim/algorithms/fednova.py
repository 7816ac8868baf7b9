"""Normalised averaging."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.trees import divide, multiply, scale, square, subtract
from fedjax_sim.core.values import check_flag, check_real, check_scalar


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


class FedNova(FedAvg):
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

    # Variance reduction and prox_momentum="outside" are classes of their own (fednova_variants): an object is always of
    # the class of its options.
    _options: ClassVar[tuple[bool, str]] = (False, "inside")
    _variants: ClassVar[list[type[Any]]] = []

    @property
    def requires(self) -> Requires:
        return Requires(
            slope=True, step_size=not self.effective("slope"), nonlinear=self.accept_nonlinear,
            averages=frozenset({"sample", "plain", "transformed"}),
        )  # fmt: skip

    def replace(self, **changes: Any) -> Self:
        changed = super().replace(**changes)
        options = (changed.variance_reduction, changed.prox_momentum)
        variant = next((cls for cls in self._variants if cls._options == options), type(self))
        if type(self) not in self._variants or variant is type(self):
            return changed
        return variant(**{field.name: getattr(changed, field.name) for field in dataclasses.fields(changed)})

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
        if (self.variance_reduction, self.prox_momentum) != self._options:
            raise ValueError(
                f"{type(self).__name__}(variance_reduction={self.variance_reduction}, prox_momentum="
                f"{self.prox_momentum!r}): this class is for {self._options}: make the method by fednova(...), or "
                f"subclass one of {', '.join(cls.__name__ for cls in self._variants)}"
            )
        return super().checked()

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        if self.mu is None:
            return F(y)
        check_scalar("fednova(mu=...)", self.mu)
        return F(y) + self.mu / 2 * square(subtract(y, sent.params))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        if self.effective("slope"):
            slope = client.slope
        elif self.effective("steps"):
            slope = jax.tree.map(lambda eta: eta * client.steps.astype(eta.dtype), client.step_size)
        else:
            check_scalar("fednova(tau_eff=...)", self.tau_eff)
            slope = scale(self.tau_eff, client.step_size)
        return {"normalised": Mean(divide(delta, client.slope)), "slope": Mean(slope)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        mass = jnp.where(cohort.mass > 0, cohort.mass, 1)  # below 1 where scheme I drops stragglers
        return self.server_step(server, multiply(got["normalised"], scale(1 / mass, got["slope"])), cohort)


FedNova._variants.append(FedNova)
effective_steps = factory("tau_eff.effective_steps", EffectiveSteps)
fednova = factory("algorithm.fednova", FedNova)
