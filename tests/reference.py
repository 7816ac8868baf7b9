"""Federated methods in plain numpy, written from the equations of their papers: what the package is compared with.

Nothing here is fast, masked or shared with the package. Parameters are flat float64 vectors. A client is anything with
``size`` (n_i), ``loss(y)`` (F_i), ``gradient(y, k)`` (of the batch of its local step k in this round) and
``full_gradient(y)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray
Rate = Callable[[int, int], Any]  # (round, client) -> step size, a number or a vector of one number a coordinate


class Client(Protocol):
    size: int

    def loss(self, y: Array) -> float: ...

    def gradient(self, y: Array, k: int) -> Array: ...

    def full_gradient(self, y: Array) -> Array: ...


@dataclasses.dataclass
class QuadraticClient:
    """F_i(x) = 1/2 x^T H x - e^T x."""

    H: Array
    e: Array
    size: int = 1

    def loss(self, y: Array) -> float:
        return float(y @ self.H @ y / 2 - self.e @ y)

    def full_gradient(self, y: Array) -> Array:
        return self.H @ y - self.e

    def gradient(self, y: Array, k: int) -> Array:
        return self.full_gradient(y)


@dataclasses.dataclass
class LogisticClient:
    """F_i(w) = (1/n_i) sum_j -v_j log softmax(x_j W + b)_{y_j} + weight_decay |w|^2, w = (b, W) flattened.

    Local step k sees ``batches[k]``, rows of this client; or else batches in the stored order, the last one of an epoch
    partial; or else all rows. A batch of m rows has the gradient of its mean, (1/m) sum.
    """

    x: Array
    y: Array
    num_classes: int
    weight_decay: float = 0.0
    batch_size: int | None = None
    batches: Sequence[Array] | None = None
    v: Array | None = None

    @property
    def size(self) -> int:
        return len(self.y)

    def loss(self, y: Array) -> float:
        logits = self._logits(y, slice(None))
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        v = np.ones(self.size) if self.v is None else self.v
        return float(np.mean(-v * log_p[np.arange(self.size), self.y]) + self.weight_decay * y @ y)

    def gradient(self, y: Array, k: int) -> Array:
        if self.batches is not None:
            return self._gradient(y, self.batches[k])
        if self.batch_size is None:
            return self.full_gradient(y)
        first = k % -(-self.size // self.batch_size) * self.batch_size
        return self._gradient(y, slice(first, first + self.batch_size))

    def full_gradient(self, y: Array) -> Array:
        return self._gradient(y, slice(None))

    def _logits(self, w: Array, rows: Any) -> Array:
        return self.x[rows] @ w[self.num_classes :].reshape(-1, self.num_classes) + w[: self.num_classes]

    def _gradient(self, w: Array, rows: Any) -> Array:
        x, labels = self.x[rows], self.y[rows]
        p = np.exp(self._logits(w, rows))
        p /= p.sum(axis=1, keepdims=True)
        residual = (p - np.eye(self.num_classes)[labels]) / len(labels)
        if self.v is not None:
            residual *= self.v[rows][:, None]
        return np.concatenate([residual.sum(axis=0), (x.T @ residual).ravel()]) + 2 * self.weight_decay * w


def solve(
    client: Client, x: Array, tau: int, eta: Any, *, mu: float = 0.0, rho: float = 0.0, correction: Any = 0.0
) -> tuple[Array, Array]:
    """tau local steps from x: b <- rho b + g + correction + mu (y - x); y <- y - eta b, b = 0 at the start.

    Returns:
      y and the raw gradients g on the path, [tau, d].
    """
    y, b, path = x.copy(), np.zeros_like(x), []
    for k in range(tau):
        g = client.gradient(y, k)
        path.append(g)
        b = rho * b + g + correction + mu * (y - x)
        y = y - eta * b
    return y, np.array(path)


def accumulation(tau: int, eta: Any, mu: float = 0.0, rho: float = 0.0) -> Array:
    """a of the local change -eta G a (FedNova, at eq. 6), [tau] or [tau, d]: the solver unrolled on unit vectors."""
    unit = np.eye(tau) if np.ndim(eta) == 0 else np.eye(tau)[:, :, None] * np.ones(len(eta))
    moved, b = np.zeros_like(unit[0]), np.zeros_like(unit[0])  # y - x and the buffer as multiples of -eta g_k and g_k
    for k in range(tau):
        b = rho * b + unit[k] - eta * mu * moved
        moved = moved + b
    return moved


def norm_sgd(tau: int) -> float:
    """||a||_1 of plain SGD."""
    return float(tau)


def norm_proximal(tau: int, alpha: float) -> float:
    """||a||_1 with a proximal term, alpha = eta mu."""
    return (1 - (1 - alpha) ** tau) / alpha


def norm_momentum(tau: int, rho: float) -> float:
    """||a||_1 of momentum rho, buffer reset every round."""
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def members(cohort: Sequence[int], tau: Array) -> list[int]:
    """Who is left: no void slots (-1), nobody who does no step."""
    return [int(i) for i in cohort if i >= 0 and tau[i] > 0]


def cohort_weights(clients: Sequence[Client], S: Sequence[int], average: str) -> Array:
    """w_i over the cohort: n_i / sum_S n, or 1 / |S|."""
    mass = np.array([clients[i].size if average == "sample" else 1.0 for i in S], float)
    return mass / mass.sum()


def fedavg(
    clients: Sequence[Client],
    x0: Array,
    cohorts: Sequence[Sequence[int]],
    tau: Array,
    eta: Rate,
    *,
    eta_g: Callable[[int], float] = lambda t: 1.0,
    average: str = "sample",
    mu: float = 0.0,
    rho: float = 0.0,
    beta: float = 0.0,
) -> Array:
    """FedAvg; FedProx with mu; momentum rho on the clients, beta on the server (FedAvgM). Returns x_0 .. x_T."""
    x, m, trajectory = x0.copy(), np.zeros_like(x0), [x0]
    for t, cohort in enumerate(cohorts):
        S = members(cohort, tau[t])
        if S:
            w = cohort_weights(clients, S, average)
            ends = [solve(clients[i], x, tau[t, i], eta(t, i), mu=mu, rho=rho)[0] for i in S]
            m = beta * m + sum(w_i * (y - x) for w_i, y in zip(w, ends, strict=True))
            x = x + eta_g(t) * m
        trajectory.append(x)
    return np.array(trajectory)


def scheme_one(clients: Sequence[Client], x0: Array, draws: Sequence[Sequence[int]], tau: Array, eta: Rate) -> Array:
    """Scheme I of Li et al.: draws with repetition, x <- (1/K) sum over the K draws of y_i (a draw of nobody: x)."""
    x, trajectory = x0.copy(), [x0]
    for t, draw in enumerate(draws):
        x = np.mean([solve(clients[i], x, tau[t, i], eta(t, i))[0] for i in draw], axis=0)
        trajectory.append(x)
    return np.array(trajectory)


def fednova(
    clients: Sequence[Client],
    x0: Array,
    cohorts: Sequence[Sequence[int]],
    tau: Array,
    eta: Rate,
    *,
    eta_g: Callable[[int], float] = lambda t: 1.0,
    average: str = "sample",
    mu: float = 0.0,
    rho: float = 0.0,
) -> Array:
    """FedNova, eqs 6 and 20: d_i = G_i a_i / s_i, s_i = sum_k a_ik; x <- x - eta_g tau_eff eta sum w_i d_i.

    tau_eff = sum w_i s_i. For step sizes that differ between clients, eta d_i is what client i moves per unit of
    eta_i s_i and tau_eff eta is sum w_i eta_i s_i.
    """
    x, trajectory = x0.copy(), [x0]
    for t, cohort in enumerate(cohorts):
        S = members(cohort, tau[t])
        if S:
            w, step, scale = cohort_weights(clients, S, average), 0.0, 0.0
            for w_i, i in zip(w, S, strict=True):
                y, G = solve(clients[i], x, tau[t, i], eta(t, i), mu=mu, rho=rho)
                a = accumulation(tau[t, i], eta(t, i), mu, rho)
                a = a if a.ndim == 2 else a[:, None]
                moved = -eta(t, i) * (a * G).sum(axis=0)
                np.testing.assert_allclose(moved, y - x, rtol=1e-10, atol=1e-13)  # so it is on this path
                d = (a * G).sum(axis=0) / a.sum(axis=0)
                step, scale = step + w_i * d, scale + w_i * eta(t, i) * a.sum(axis=0)
            x = x - eta_g(t) * scale * step
        trajectory.append(x)
    return np.array(trajectory)


@dataclasses.dataclass
class ScaffoldRun:
    """x_0 .. x_T [T + 1, d], c_0 .. c_T [T + 1, d] and c_i after every round, [T + 1, N, d]."""

    x: Array
    c: Array
    c_i: Array


def scaffold(
    clients: Sequence[Client],
    x0: Array,
    cohorts: Sequence[Sequence[int]],
    tau: Array,
    eta: Rate,
    *,
    option: str,
    eta_g: Callable[[int], float] = lambda t: 1.0,
    average: str = "plain",
    rho: float = 0.0,
) -> ScaffoldRun:
    """SCAFFOLD, Algorithm 1; ``average="sample"``: x by n_i / sum_S n, c by p_i = n_i / n.

    Option II is eq. 4 with tau_i eta (for momentum: eta s_i).
    """
    N, n = len(clients), sum(client.size for client in clients)
    x, c, c_i = x0.copy(), np.zeros_like(x0), np.zeros((N, len(x0)))
    xs, cs, cis = [x], [c], [c_i.copy()]
    for t, cohort in enumerate(cohorts):
        S = members(cohort, tau[t])
        if S:
            w, moved, change = cohort_weights(clients, S, average), 0.0, 0.0
            for w_i, i in zip(w, S, strict=True):
                y, _ = solve(clients[i], x, tau[t, i], eta(t, i), rho=rho, correction=c - c_i[i])
                if option == "I":
                    new = clients[i].full_gradient(x)
                else:
                    new = c_i[i] - c + (x - y) / (eta(t, i) * accumulation(tau[t, i], 0.0, 0.0, rho).sum())
                share = clients[i].size / n if average == "sample" else 1 / N
                moved, change = moved + w_i * (y - x), change + share * (new - c_i[i])
                c_i[i] = new
            x, c = x + eta_g(t) * moved, c + change
        xs.append(x)
        cs.append(c)
        cis.append(c_i.copy())
    return ScaffoldRun(np.array(xs), np.array(cs), np.array(cis))
