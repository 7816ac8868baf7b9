"""Methods in plain numpy whose work is at the server: optimisers, fair aggregation, averaged models."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reference import Array
from tests.reference_methods import Ends, FedAvg, Run, trajectory


class Momentum:
    """FedAvgM (Hsu et al. 2019): m <- beta m + Delta; step m, or Delta + beta m (Nesterov)."""

    def __init__(self, beta: float, nesterov: bool = False):
        self.beta, self.nesterov, self.m = beta, nesterov, 0.0

    def __call__(self, delta: Array) -> Array:
        self.m = self.beta * self.m + delta
        return delta + self.beta * self.m if self.nesterov else np.asarray(self.m)


def grown(kind: str, v: Any, square: Array, beta2: float) -> Any:
    """The second moment of Adagrad, Adam or Yogi."""
    if kind == "adagrad":
        return v + square
    if kind == "adam":
        return beta2 * v + (1 - beta2) * square
    return v - (1 - beta2) * square * np.sign(v - square)


class Adaptive:
    """Reddi et al. 2021, Algorithm 2: m / (sqrt v + tau), v_0 = tau^2, no bias correction."""

    def __init__(self, kind: str, beta1: float, beta2: float, tau: float):
        self.kind, self.beta1, self.beta2, self.tau = kind, beta1, beta2, tau
        self.m, self.v = 0.0, tau**2

    def __call__(self, delta: Array) -> Array:
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = grown(self.kind, self.v, delta**2, self.beta2)
        return np.asarray(self.m / (np.sqrt(self.v) + self.tau))


class AdaptiveOptax:
    """optax's conventions on the gradient -Delta.

    Adam and Yogi: bias correction, eps outside the root; Yogi's moments start at 1e-6 both; Adagrad: v_0 = 0.1, eps
    inside the root, no momentum.
    """

    def __init__(self, kind: str, beta1: float, beta2: float, eps: float):
        self.kind, self.beta1, self.beta2, self.eps, self.count = kind, beta1, beta2, eps, 0
        self.m, self.v = {"adagrad": (0.0, 0.1), "adam": (0.0, 0.0), "yogi": (1e-6, 1e-6)}[kind]

    def __call__(self, delta: Array) -> Array:
        g, self.count = -delta, self.count + 1
        self.v = grown(self.kind, self.v, g**2, self.beta2)
        if self.kind == "adagrad":
            return np.asarray(-g / np.sqrt(self.v + self.eps))
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        m, v = self.m / (1 - self.beta1**self.count), self.v / (1 - self.beta2**self.count)
        return np.asarray(-m / (np.sqrt(v) + self.eps))


class Ams:
    """FedAMS (Wang et al. 2022): Adam's moments, vhat <- max(vhat, v, eps), step m / sqrt vhat; all zero at first."""

    def __init__(self, beta1: float, beta2: float, eps: float):
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.m = self.v = self.vhat = 0.0

    def moments(self, delta: Array) -> None:
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2

    def __call__(self, delta: Array) -> Array:
        self.moments(delta)
        self.vhat = np.maximum(np.maximum(self.vhat, self.v), self.eps)
        return np.asarray(self.m / np.sqrt(self.vhat))


class AmsCode(Ams):
    """FedAMS's published code: [m / (1 - beta1^t)] / (sqrt vhat / sqrt(1 - beta2^t) + eps), vhat_0 given."""

    def __init__(self, beta1: float, beta2: float, eps: float, initial: float):
        super().__init__(beta1, beta2, eps)
        self.vhat, self.count = initial, 0

    def __call__(self, delta: Array) -> Array:
        self.moments(delta)
        self.count += 1
        self.vhat = np.maximum(self.vhat, self.v)
        root = np.sqrt(self.vhat) / np.sqrt(1 - self.beta2**self.count)
        return np.asarray(self.m / (1 - self.beta1**self.count) / (root + self.eps))


class FedExp(FedAvg):
    """FedExP (Jhunjhunwala et al. 2023): eta = max(1, mean |Delta_i|^2 / (2 (|mean Delta|^2 + epsilon)))."""

    def __init__(self, run: Run, epsilon: float):
        super().__init__(run)
        self.epsilon, self.factors = epsilon, [1.0]

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        mean = super().pseudo_gradient(t, S, x, ends)
        squares = self.mean(t, S, [(ends[i] - x) @ (ends[i] - x) for i in S])
        self.factors.append(max(1.0, float(squares) / (2 * (mean @ mean + self.epsilon))))
        return self.factors[-1] * mean


class QFedAvg(FedAvg):
    """q-FedAvg (Li et al. 2020, Algorithm 2), with L = 1 / eta unless given.

    Delta_i = F_i^q L (x - y_i), h_i = q F_i^(q-1) |L (x - y_i)|^2 + L F_i^q; x <- x - sum Delta_i / sum h_i.
    """

    def __init__(self, run: Run, q: float, lipschitz: float | None = None):
        super().__init__(run)
        self.q, self.lipschitz = q, lipschitz

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        top, bottom = np.zeros_like(x), 0.0
        for i in S:
            L = 1 / self.run.eta(t, i) if self.lipschitz is None else self.lipschitz
            F, w = self.run.clients[i].loss(x), L * (x - ends[i])
            top = top + F**self.q * w
            bottom += self.q * F ** (self.q - 1) * float(w @ w) + L * F**self.q
        return -top / bottom


def onto_simplex(v: Array) -> Array:
    """The nearest point of the probability simplex: max(v - theta, 0) with theta by bisection."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if np.maximum(v - theta, 0).sum() > 1 else (low, theta)
    return np.maximum(v - (low + high) / 2, 0)


class Afl(FedAvg):
    """Agnostic federated learning (Mohri et al. 2019): ascent in lambda on the clients' losses at the round's x."""

    def __init__(self, run: Run, rate: float):
        super().__init__(run)
        self.rate, self.weight = rate, run.share
        self.path = [self.weight]

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        mass = self.weight[S]
        delta = sum(w * (ends[i] - x) for w, i in zip(mass, S, strict=True))
        delta = delta / mass.sum() if mass.sum() > 0 else np.zeros_like(x)  # a cohort that has no weight
        losses = np.zeros(self.run.N)
        losses[S] = [self.run.clients[i].loss(x) for i in S]
        self.weight = onto_simplex(self.weight + self.rate * self.run.N / len(S) * losses)
        self.path.append(self.weight)
        return np.asarray(delta)


def ema(method: FedAvg, decay: float) -> Array:
    """xbar <- decay xbar + (1 - decay) x after every round that moved, from x_0."""
    models = trajectory(method)
    averaged = [models[0]]
    for t, x in enumerate(models[1:]):
        moved = decay * averaged[-1] + (1 - decay) * x
        averaged.append(moved if method.taking_part(t) else averaged[-1])
    return np.array(averaged)


def last_k(method: FedAvg, k: int) -> Array:
    """The mean of the last k models, x_0 included, of the rounds that moved."""
    models = trajectory(method)
    window, averaged = [models[0]], [models[0]]
    for t, x in enumerate(models[1:]):
        window = [*window, x][-k:] if method.taking_part(t) else window
        averaged.append(np.mean(window, axis=0))
    return np.array(averaged)


class LearnedRule:
    """A learned rule on one vector: a network of every parameter's features and the tensor's, or of the tensor's alone.

    Moments m_k (0.5, 0.9, 0.99) and v (0.99) of g = -Delta, bias-corrected;
    u = -exp(o_0) [g + sum_j o_j (d_j - g)], d = m_1, m_2, m_3, rms(g) m_2 / sqrt(v).
    """

    decays = (0.5, 0.9, 0.99)

    def __init__(self, weights: dict[str, Array], each: bool):
        self.weights, self.each, self.t = weights, each, 0
        self.m, self.v = [0.0] * 3, 0.0

    def of_tensor(self, g: Array, m: list[Array], q: Array | None) -> list[float]:
        found = [np.tanh((self.t - 1) / T - 1) for T in (1, 3, 10, 30, 100, 300, 1000)]
        found += [(one * g).sum() / np.sqrt((one**2).sum() * (g**2).sum()) for one in m]
        found += [np.log(np.linalg.norm(one) / np.linalg.norm(g)) for one in m]
        return found if q is None else [*found, (g**2).sum() / q.sum()]

    def of_parameters(self, g: Array, x: Array, m: list[Array], v: Array, q: Array | None) -> list[Array]:
        def over_rms(a: Array) -> Array:
            return np.asarray(a / np.sqrt((a**2).mean()))

        found = [over_rms(a) for a in (g, x, *m)] + [one / np.sqrt(v) for one in m]
        found.append(over_rms((v / v.mean() + 1e-4) ** -0.5))
        return found if q is None else [*found, over_rms(q - g**2), g / np.sqrt(q)]

    def __call__(self, delta: Array, x: Array, q: Array | None = None) -> Array:
        g, self.t = -delta, self.t + 1
        self.m = [beta * m + (1 - beta) * g for beta, m in zip(self.decays, self.m, strict=True)]
        self.v = 0.99 * self.v + 0.01 * g**2
        m = [one / (1 - beta**self.t) for beta, one in zip(self.decays, self.m, strict=True)]
        v = self.v / (1 - 0.99**self.t)
        whole, u = self.of_tensor(g, m, q), np.zeros_like(g)
        own = np.array(self.of_parameters(g, x, m, v, q) if self.each else np.zeros((0, g.size)))
        for j in range(g.size):
            h = np.array([*own[:, j], *whole])
            for layer in range(3):
                h = h @ self.weights[f"kernel_{layer}"] + self.weights[f"bias_{layer}"]
                h = np.tanh(h) if layer < 2 else h
            directions = [one[j] for one in m] + [np.sqrt((g**2).mean()) * m[1][j] / np.sqrt(v[j])]
            u[j] = -np.exp(h[0]) * (g[j] + sum(o * (d - g[j]) for o, d in zip(h[1:], directions, strict=True)))
        return u


class FedLOpt(FedAvg):
    """FedAvg with a learned rule that gets Delta, x and q = sum_S w_i Delta_i^2."""

    def __init__(self, run: Run, learned: LearnedRule):
        super().__init__(run)
        self.learned = learned

    def round(self, t: int, S: list[int], x: Array) -> Array:
        changes = [self.local(t, i, x) - x for i in S]
        delta, q = self.mean(t, S, changes), self.mean(t, S, [change**2 for change in changes])
        return x + self.run.eta_g(t) * self.learned(delta, x, q)
