"""Methods in plain numpy that remember something of every client or of the last round: drift corrections, FedAWARE."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.reference import Array
from tests.reference_methods import Ends, FedAvg, Run


class VrlSgd(FedAvg):
    """VRL-SGD (Liang et al. 2019): y <- y - eta (g - v_i), then v_i <- v_i + (xhat - y_i) / (tau_i eta)."""

    def __init__(self, run: Run):
        super().__init__(run)
        self.v = np.zeros((run.N, len(run.x0)))

    def local(self, t: int, i: int, x: Array) -> Array:
        return self.solve(t, i, x, lambda g: g - self.v[i])

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        delta = super().pseudo_gradient(t, S, x, ends)
        for i in S:
            self.v[i] = self.v[i] + (x + delta - ends[i]) / self.slope(t, i)
        return delta


class FedCm(FedAvg):
    """FedCM (Xu et al. 2021): local steps along alpha g + (1 - alpha) D; D <- mean_S (x - y_i) / (eta tau_i)."""

    def __init__(self, run: Run, alpha: float, scaling: str = "mean"):
        super().__init__(run)
        self.alpha, self.scaling, self.D = alpha, scaling, np.zeros_like(run.x0)

    def local(self, t: int, i: int, x: Array) -> Array:
        return self.solve(t, i, x, lambda g: self.alpha * g + (1 - self.alpha) * self.D)

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        h = {i: self.slope(t, i) for i in S}
        self.D = self.mean(t, S, [(x - ends[i]) / h[i] for i in S])
        if self.scaling == "direction":
            return -self.mean(t, S, [h[i] for i in S]) * self.D
        return super().pseudo_gradient(t, S, x, ends)


class FedDyn(FedAvg):
    """FedDyn (Acar et al. 2021, Algorithm 1): the local gradient is g - h_i + alpha (y - x)."""

    def __init__(self, run: Run, alpha: float):
        super().__init__(run)
        self.alpha = np.full(run.N, alpha)
        self.h_i, self.h = np.zeros((run.N, len(run.x0))), np.zeros_like(run.x0)

    def local(self, t: int, i: int, x: Array) -> Array:
        return self.solve(t, i, x, lambda g: g - self.h_i[i], mu=self.alpha[i])

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        for i in S:
            self.h_i[i] -= self.alpha[i] * (ends[i] - x)
        self.h = self.h - self.alpha[0] / self.run.N * sum(ends[i] - x for i in S)
        return self.mean(t, S, [ends[i] - x for i in S]) - self.h / self.alpha[0]


class FedDynCode(FedDyn):
    """FedDyn's published code: alpha_i = alpha n / (n_i N), x <- mean_S y_i + (1/N) sum_j b_j, b_j = sum (y_j - x)."""

    def __init__(self, run: Run, alpha: float):
        super().__init__(run, alpha)
        self.alpha = alpha / (run.N * run.p)
        self.b = np.zeros_like(self.h_i)

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        for i in S:
            self.b[i] += ends[i] - x
            self.h_i[i] = -self.alpha[i] * self.b[i]
        return self.mean(t, S, [ends[i] - x for i in S]) + self.b.mean(axis=0)


def shortest_weights(vectors: Array) -> Array:
    """argmin over the simplex of |sum lambda_i v_i|, exactly: the affine minimum of every face that lies inside it."""
    best, best_norm = None, np.inf
    for count in range(1, len(vectors) + 1):
        for face in itertools.combinations(range(len(vectors)), count):
            chosen = vectors[list(face)]
            # stationary on the face: gram lambda + nu 1 = 0, 1^T lambda = 1
            system = np.block([[chosen @ chosen.T, np.ones((count, 1))], [np.ones((1, count)), np.zeros((1, 1))]])
            weights = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)[0][:count]
            norm = np.linalg.norm(weights @ chosen)
            if (weights >= -1e-13).all() and abs(weights.sum() - 1) < 1e-9 and norm < best_norm - 1e-15:
                best, best_norm = np.zeros(len(vectors)), norm
                best[list(face)] = weights
    assert best is not None
    return best


class Memory:
    """FedAWARE's server (Zeng et al., Algorithm 1): m_i <- (1 - alpha) m_i + alpha (x - y_i), d = sum lambda_i m_i.

    Args:
      run: for N and p_i.
      alpha: weight of the newest update.
      candidates: the clients seen so far, or all.
      weights: ``"shortest"`` (eq. 2), ``"uniform"`` or ``"sample"`` (p_i, of the candidates).
      normalised: lambda and d both of m_i / |m_i|.
      coordinates: which coordinates the Gram matrix is of.
      clusters: cluster of each client; a cluster's m takes the plain mean of its members' updates.
    """

    def __init__(
        self, run: Run, *, alpha: float = 0.5, candidates: str = "seen", weights: str = "shortest",
        normalised: bool = False, coordinates: Any = slice(None), clusters: Sequence[int] | None = None,
    ):  # fmt: skip
        self.alpha, self.candidates, self.weights = alpha, candidates, weights
        self.normalised, self.coordinates = normalised, coordinates
        self.cluster = np.arange(run.N) if clusters is None else np.asarray(clusters)
        self.mass = np.bincount(self.cluster, weights=run.p)
        self.m = np.zeros((len(self.mass), len(run.x0)))
        self.seen = np.zeros(len(self.mass), bool)

    def update(self, x: Array, ends: Ends) -> None:
        for c in {int(self.cluster[i]) for i in ends}:
            g = np.mean([x - y for i, y in ends.items() if self.cluster[i] == c], axis=0)
            self.m[c] = (1 - self.alpha) * self.m[c] + self.alpha * g
            self.seen[c] = True

    def direction(self) -> Array:
        rows = np.flatnonzero(self.seen) if self.candidates == "seen" else np.arange(len(self.m))
        m, mass = self.m[rows], self.mass[rows]
        if self.normalised:
            norm = np.linalg.norm(m, axis=1, keepdims=True)
            m = m / np.where(norm > 0, norm, 1)
        if self.weights == "uniform":
            return m.mean(axis=0)
        if self.weights == "sample":
            return mass @ m / mass.sum()
        return shortest_weights(m[:, self.coordinates]) @ m


class FedAware(FedAvg):
    """FedAWARE: x <- x - eta_g d; with a warm-up FedAvg's step until everybody was seen."""

    def __init__(self, run: Run, warm_up: bool = False, **options: Any):
        super().__init__(run)
        self.warm_up, self.memory = warm_up, Memory(run, **options)

    def pseudo_gradient(self, t: int, S: list[int], x: Array, ends: Ends) -> Array:
        self.memory.update(x, ends)
        if self.warm_up and not self.memory.seen.all():
            return super().pseudo_gradient(t, S, x, ends)
        return -self.memory.direction()


class Aware(FedAvg):
    """Proposition 3.1: the base method's step projected on d, its own state as if it had not been."""

    def __init__(self, base: FedAvg, **options: Any):
        super().__init__(base.run)
        self.base, self.memory = base, Memory(base.run, **options)

    def taking_part(self, t: int) -> list[int]:
        return self.base.taking_part(t)

    def round(self, t: int, S: list[int], x: Array) -> Array:
        step = self.base.round(t, S, x) - x
        self.memory.update(x, self.base.ends)
        d = self.memory.direction()
        if np.linalg.norm(d) <= 1e-8 * np.linalg.norm(self.memory.m, axis=1).max():
            return x
        return x + (step @ d) / (d @ d) * d
