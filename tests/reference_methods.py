"""The other federated methods in plain numpy, each written from the equations of its paper.

A method is made from a :class:`Run` and followed by :func:`trajectory`. One client's local work is ``local``, what the
server makes of a cohort's models is ``pseudo_gradient``; in a round in which nobody takes part nothing is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference import Array, Client, Rate, cohort_weights, members

Ends = dict[int, Array]  # client -> y_i


@dataclasses.dataclass(frozen=True)
class Run:
    """What all methods share.

    Attributes:
      clients: the N clients.
      x0: the first model.
      cohorts: by client index, -1 in void slots.
      tau: local steps [rounds, N]; 0 drops a client.
      eta: local step size of a round and client.
      eta_g: server step size of a round.
      average: an averaging scheme.
      rho: momentum of the local solver, the buffer fresh every round.
      nesterov: step along g + rho b.
      gamma: local step k uses eta gamma^k.
      rule: makes the server optimiser, which turns a pseudo-gradient into a step.
    """

    clients: Sequence[Client]
    x0: Array
    cohorts: Sequence[Sequence[int]]
    tau: Array
    eta: Rate
    eta_g: Callable[[int], float] = lambda t: 1.0
    average: str = "sample"
    rho: float = 0.0
    nesterov: bool = False
    gamma: float = 1.0
    rule: Callable[[], Callable[[Array], Array]] = lambda: lambda delta: delta

    @property
    def N(self) -> int:
        return len(self.clients)

    @property
    def p(self) -> Array:
        """p_i = n_i / n."""
        size = np.array([client.size for client in self.clients], float)
        return size / size.sum()

    @property
    def share(self) -> Array:
        """Weights of the clients in the objective."""
        return np.full(self.N, 1 / self.N) if self.average == "plain" else self.p

    def drawn(self, t: int) -> list[int]:
        """The cohort before anybody is dropped."""
        return [int(i) for i in self.cohorts[t] if i >= 0]


def descend(
    client: Client,
    x: Array,
    tau: int,
    eta: Any,
    *,
    rho: float = 0.0,
    nesterov: bool = False,
    gamma: float = 1.0,
    mu: float = 0.0,
    outside: bool = False,
    correct: Callable[[Array], Array] = lambda g: g,
) -> Array:
    """tau local steps from x.

    With g the corrected gradient plus mu (y - x): b <- rho b + g; y <- y - eta gamma^k b, or along g + rho b. Outside
    the buffer: b <- rho b + g without the proximal gradient, y <- y - eta gamma^k (b + mu (y - x)).
    """
    y, b = x.copy(), np.zeros_like(x)
    for k in range(tau):
        g, proximal = correct(client.gradient(y, k)), mu * (y - x)
        g = g if outside else g + proximal
        b = rho * b + g
        step = g + rho * b if nesterov else b
        y = y - eta * gamma**k * (step + proximal if outside else step)
    return y


@dataclasses.dataclass
class UnitGradients:
    """A client whose gradient of step k is the unit vector e_k: its path shows the solver's accumulation weights."""

    tau: int
    size: int = 1

    def gradient(self, y: Array, k: int) -> Array:
        return np.eye(self.tau)[k]


def slope(tau: int, eta: float, **solver: Any) -> float:
    """h = eta sum_k a_k: what the local change -eta G a of a linear solver is normalised by."""
    return -float(descend(UnitGradients(tau), np.zeros(tau), tau, eta, **solver).sum())


def authors_normaliser(tau: int, eta: float, mu: float, rho: float) -> float:
    """FedNova's published code: z for momentum and a proximal term outside of it."""
    z = counter = 0.0
    for _ in range(tau):
        if rho != 0:
            counter = rho * counter + 1
            z = z + counter
        if eta * mu != 0:
            z = (1 - eta * mu) * z + 1
        if rho == 0 and eta * mu == 0:
            z = z + 1
    return z


class FedAvg:
    """FedAvg (McMahan et al. 2017) and FedProx, with the averaging schemes of Li et al. 2020."""

    def __init__(self, run: Run, mu: float = 0.0):
        self.run, self.mu, self.rule = run, mu, run.rule()
        self.ends: Ends = {}

    def taking_part(self, t: int) -> list[int]:
        return members(self.run.cohorts[t], self.run.tau[t])

    def solver(self, mu: float | None = None) -> dict[str, Any]:
        run = self.run
        return {"rho": run.rho, "nesterov": run.nesterov, "gamma": run.gamma, "mu": self.mu if mu is None else mu}

    def solve(self, t: int, i: int, x: Array, correct: Callable[[Array], Array] = lambda g: g, **more: Any) -> Array:
        """y_i, with tau_i, eta_i and the solver of the run."""
        run = self.run
        scale = run.N * run.p[i] if run.average == "transformed" else 1.0  # the local objective N p_i F_i
        solver = {**self.solver(), **more}
        return descend(run.clients[i], x, run.tau[t, i], run.eta(t, i), correct=lambda g: correct(scale * g), **solver)

    def slope(self, t: int, i: int) -> float:
        """h_i = eta s_i."""
        return slope(self.run.tau[t, i], self.run.eta(t, i), **self.solver())

    def local(self, t: int, i: int, x: Array) -> Array:
        return self.solve(t, i, x)

    def weights(self, t: int, S: list[int]) -> Array:
        run, drawn = self.run, len(self.run.drawn(t))
        if run.average == "original":  # sum over the others p_i x + sum_S p_i y_i
            return run.p[S]
        if run.average in ("scheme_ii", "inverse"):  # inclusion probability K / N
            return run.N / drawn * run.p[S]
        if run.average == "transformed":  # of those drawn: a dropped one leaves x
            return np.full(len(S), 1 / drawn)
        return cohort_weights(run.clients, S, run.average)

    def mean(self, t: int, S: list[int], values: Any) -> Array:
        """sum_S w_i values_i."""
        return np.asarray(sum(w * value for w, value in zip(self.weights(t, S), values, strict=True)))

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        delta = self.mean(t, S, [ends[i] - x for i in S])
        if self.run.average == "scheme_ii":  # (N/K) sum p_i y_i of models: x is rescaled too
            drawn = self.run.drawn(t)
            delta = delta + (self.run.N / len(drawn) * self.run.p[drawn].sum() - 1) * x
        return delta

    def round(self, t: int, S: list[int], x: Array) -> Array:
        self.ends = {i: self.local(t, i, x) for i in S}
        return x + self.run.eta_g(t) * self.rule(self.pseudo_gradient(t, S, x, self.ends))


def trajectory(method: FedAvg) -> Array:
    """x_0 .. x_T, [T + 1, d]."""
    models = [method.run.x0]
    for t in range(len(method.run.cohorts)):
        S = method.taking_part(t)
        models.append(method.round(t, S, models[-1]) if S else models[-1])
    return np.array(models)


class AdaptiveFedProx(FedAvg):
    """FedProx, section 5.3.2: mu rises with F = sum p_i F_i and falls after ``patience`` falls of F."""

    def __init__(self, run: Run, mu: float, increment: float = 0.1, patience: int = 5):
        super().__init__(run, mu)
        self.increment, self.patience, self.falls = increment, patience, 0
        self.path = [mu]

    def objective(self, x: Array) -> float:
        return float(self.run.p @ [client.loss(x) for client in self.run.clients])

    def round(self, t: int, S: list[int], x: Array) -> Array:
        new = super().round(t, S, x)
        before, after = self.objective(x), self.objective(new)
        if after > before:
            self.mu, self.falls = self.mu + self.increment, 0
        elif after < before:
            self.falls += 1
            if self.falls == self.patience:
                self.mu, self.falls = max(self.mu - self.increment, 0.0), 0
        self.path.append(self.mu)
        return new


class FedDane(FedAvg):
    """FedDANE (Li et al. 2019, Algorithm 2): steps along g + (mean of S1's gradients at x - grad F_i(x)) + mu (y - x).

    Nobody is dropped from phase 1: tau belongs to phase 2.
    """

    def __init__(self, run: Run, mu: float, first: Sequence[Sequence[int]] | None = None):
        super().__init__(run, mu)
        self.first = run.cohorts if first is None else first

    def round(self, t: int, S: list[int], x: Array) -> Array:
        S1 = [int(i) for i in self.first[t] if i >= 0]
        gradients = np.array([self.run.clients[i].full_gradient(x) for i in S1])
        self.gradient = cohort_weights(self.run.clients, S1, self.run.average) @ gradients
        return super().round(t, S, x)

    def local(self, t: int, i: int, x: Array) -> Array:
        return self.solve(t, i, x, lambda g: g + self.gradient - self.run.clients[i].full_gradient(x))


class Dane(FedDane):
    """DANE (Shamir et al. 2014): the local problem solved by gradient steps, until its gradient is small."""

    def __init__(self, run: Run, mu: float, tolerance: float):
        super().__init__(run, mu)
        self.tolerance = tolerance
        self.steps: list[int] = []

    def local(self, t: int, i: int, x: Array) -> Array:
        client, y, k = self.run.clients[i], x.copy(), 0
        for k in range(self.run.tau[t, i] + 1):
            g = client.full_gradient(y) + self.gradient - client.full_gradient(x) + self.mu * (y - x)
            if k == self.run.tau[t, i] or np.linalg.norm(g) <= self.tolerance:
                break
            y = y - self.run.eta(t, i) * g
        self.steps.append(k)
        return y


class FedNova(FedAvg):
    """FedNova (Wang et al. 2020, eq. 20): x <- x - tau_eff eta sum w_i d_i, d_i = (x - y_i) / (eta s_i).

    With variance reduction local steps use g + c - c_i, c_i the raw d_i of i's last visit and c = sum p_i c_i.
    """

    def __init__(
        self, run: Run, mu: float = 0.0, tau_eff: Any = None, variance_reduction: bool = False, outside: bool = False
    ):
        super().__init__(run, mu)
        self.outside, self.variance_reduction = outside, variance_reduction
        self.tau_eff = ("steps" if mu else "slope") if tau_eff is None else tau_eff
        self.c_i = np.zeros((run.N, len(run.x0)))

    def correction(self, i: int) -> Array:
        return self.run.share @ self.c_i - self.c_i[i]

    def local(self, t: int, i: int, x: Array) -> Array:
        correction = self.correction(i)
        return self.solve(t, i, x, lambda g: g + correction, outside=self.outside)

    def normaliser(self, t: int, i: int) -> float:
        if self.outside:
            eta = self.run.eta(t, i)
            return eta * authors_normaliser(self.run.tau[t, i], eta, self.mu, self.run.rho)
        return self.slope(t, i)

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        run = self.run
        h = {i: self.normaliser(t, i) for i in S}
        d = {i: (x - ends[i]) / h[i] for i in S}
        if self.tau_eff == "slope":
            scale = self.mean(t, S, [h[i] for i in S])
        elif self.tau_eff == "steps":
            scale = self.mean(t, S, [run.eta(t, i) * run.tau[t, i] for i in S])
        else:
            scale = self.tau_eff * self.mean(t, S, [run.eta(t, i) for i in S])
        if self.variance_reduction:
            corrections = {i: self.correction(i) for i in S}
            for i in S:
                self.c_i[i] = d[i] - corrections[i]
        return -scale * self.mean(t, S, [d[i] for i in S])


class LargeBatchSgd(FedAvg):
    """One step with the full local gradient of everybody who was drawn; tau has no meaning."""

    def taking_part(self, t: int) -> list[int]:
        return self.run.drawn(t)

    def local(self, t: int, i: int, x: Array) -> Array:
        return x - self.run.eta(t, i) * self.run.clients[i].full_gradient(x)
