"""Theorem 4 and Figure 2: with E > 1 a constant step size stops at a distance ~ (E - 1) eta of the optimum."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.core.devices import double_precision
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.measuring import largest
from fedjax_sim.reporting.plots import LEGEND, line_style, plain

CLIENTS, BLOCK, MU = 5, 4, 2e-4  # N, p and mu of appendix C.2
FIRST, OFFSET = 0.2, 5.0  # eta_t = (1/5) / (5 + a t); constant where a = 0, t counts local steps
DECAYS = (0.0, 1e-6, 1e-4, 1e-2)  # a; the paper takes the best of the last three
LOCAL_STEPS = (1, 5, 10, 50, 100)  # E; the legend of the published plot, not in the text

LONG_DECAY, HORIZONS = 1e-4, (8_000, 16_000, 32_000, 64_000)  # rounds of the recursion, beyond those that are run

RATES, FEW_STEPS = (0.01, 0.1), (1, 2, 5, 10)  # where the distance is held against its closed form
EXACT = 1e-9


class Problem(NamedTuple):
    """F_k(w) = 1/2 w^T H_k w - b_k^T w, all of one weight."""

    H: np.ndarray  # [N, d, d], A_k + mu I
    b: np.ndarray  # [N, d]

    def optimum(self) -> np.ndarray:
        """w*."""
        return np.linalg.solve(self.H.mean(axis=0), self.b.mean(axis=0))

    def loss(self, w: np.ndarray) -> np.ndarray:
        """F, over the last axis of w."""
        bowl = np.einsum("...j,jk,...k->...", w, self.H.mean(axis=0) / 2, w)
        return np.asarray(bowl - w @ self.b.mean(axis=0))

    def fixed_point(self, eta: float, steps: int) -> np.ndarray:
        """Where FedAvg with a constant step ends: (sum_i K_i H_i)^-1 sum_i K_i b_i."""
        moved = self.moved(np.asarray(eta), steps)
        matrix, right = np.einsum("ijk,ikl->jl", moved, self.H), np.einsum("ijk,ik->j", moved, self.b)
        return np.linalg.solve(matrix, right)

    def moved(self, eta: np.ndarray, steps: int) -> np.ndarray:
        """K_i = eta sum_{k < E} (I - eta H_i)^k: E steps from w move by K_i (b_i - H_i w); [..., N, d, d]."""
        values, vectors = self._spectrum
        powers = -np.expm1(steps * np.log1p(-eta[..., None, None] * values)) / values
        return np.asarray(np.einsum("iaj,...ij,ibj->...iab", vectors, powers, vectors))

    def limit(self) -> float:
        """lim of distance / ((E - 1) eta) for eta to 0: 1/2 |Hbar^-1 mean_i H_i (H_i w* - b_i)|."""
        residual = np.einsum("ijk,k->ij", self.H, self.optimum()) - self.b
        drift = np.einsum("ijk,ik->j", self.H, residual) / len(self.H)
        return float(np.linalg.norm(np.linalg.solve(self.H.mean(axis=0), drift))) / 2

    def printed_bound(self) -> float:
        """The lower bound of Theorem 5 on the same ratio: |A_1 A_2 w*| / 16."""
        unit = MU * np.eye(self.H.shape[-1])
        return float(np.linalg.norm((self.H[0] - unit) @ (self.H[1] - unit) @ self.optimum())) / 16

    def trajectories(self, rates: np.ndarray, steps: int) -> np.ndarray:
        """w_0 = 0, w_1, ... by the recursion w <- w + mean_i K_i (b_i - H_i w).

        Args:
          rates: step sizes, [P, R].
          steps: E.

        Returns:
          [P, R + 1, d].
        """
        values, vectors = self._spectrum
        turned = np.einsum("iaj,ia->ij", vectors, self.b)  # in each client's own eigenbasis everything is a product
        points = [np.zeros((len(rates), self.H.shape[-1]))]
        for eta in rates.T:
            powers = -np.expm1(steps * np.log1p(-eta[:, None, None] * values)) / values
            residual = turned - values * np.einsum("iaj,pa->pij", vectors, points[-1])
            points.append(points[-1] + np.einsum("iaj,pij->pa", vectors, powers * residual) / len(self.H))
        return np.stack(points, axis=1)

    @property
    def _spectrum(self) -> Any:
        return np.linalg.eigh(self.H)


def problem() -> Problem:
    """Equations 24 to 26: a path of N p + 1 coordinates cut into N pieces that overlap in one coordinate."""
    size = CLIENTS * BLOCK + 1
    A = np.zeros((CLIENTS, size, size))
    for k in range(CLIENTS):
        for j in range(k * BLOCK, (k + 1) * BLOCK):
            A[k, j : j + 2, j : j + 2] += [[1, -1], [-1, 1]]
    A[0, 0, 0] += 1
    A[-1, -1, -1] += 1
    b = np.zeros((CLIENTS, size))
    b[0, 0] = 1
    return Problem(A + MU * np.eye(size), b)


def perform(bench: Bench) -> Outcome:
    """Everything in float64: trajectories of the figure, fixed points of small step sizes."""
    made = problem()
    with double_precision():
        data = fjs.datasets.quadratics_from(made.H, made.b)
        ratios, apart = _fixed_points(bench, made, data)
        curves, distances, off = _decays(bench, made, data)
    limit, bound = made.limit(), made.printed_bound()
    told = bench.size != "smoke"  # three rounds converge to nothing
    at = RATES[0]
    stalled = {E: distances[E][0] for E in LOCAL_STEPS[1:]}
    best = {E: min(distances[E][1:]) for E in LOCAL_STEPS[1:]}
    predicted = {E: _distance(made, made.fixed_point(FIRST / OFFSET, E)) for E in LOCAL_STEPS}
    horizons = bench.choose((1, 2), HORIZONS)
    listed = ", ".join(f"{number:,}" for number in horizons)
    lasting: dict[int, list[float]] = {}  # by the recursion
    for E in LOCAL_STEPS[1:]:
        path = made.trajectories(FIRST / (OFFSET + LONG_DECAY * E * np.arange(max(horizons)))[None], E)[0]
        lasting[E] = [_distance(made, path[rounds]) for rounds in horizons]
    falling = [bool((np.diff(of) < 0).all()) and of[-1] < predicted[E] for E, of in lasting.items()]
    claims = [
        Claim("every trajectory of the figure is the closed-form recursion", off < EXACT,
              {"largest difference of the loss, relative": off}, own=True, seeds=0),
        Claim("with a constant step FedAvg ends at its closed-form fixed point",
              apart < 1e-7 if told else None, {"largest distance": apart}, own=True, seeds=0),
        Claim("E = 1 reaches the optimum with a constant step",
              largest(ratios[eta][0] for eta in RATES) < 1e-5 if told else None,
              {"distance / eta": {str(eta): ratios[eta][0] for eta in RATES}},
              quote="FedAvg with E = 1 (i.e., gradient descent) converges to the optimum", place="Appendix C.1",
              seeds=0, identity=True),
        Claim("E > 1 and a constant step stop at a distance of at least the printed bound",
              all(ratio > bound for of in ratios.values() for ratio in of[1:]) if told else None,
              {"distance / ((E - 1) eta)": {str(eta): ratios[eta][1:] for eta in RATES}, "printed bound": bound},
              "the bound is true and loose",
              quote="With full batch size, E > 1, and any fixed step size, FedAvg will converge to sub-optimal points",
              place="Theorem 4", central=True, seeds=0),
        Claim("the distance grows as (E - 1) eta: its ratio to that is the predicted constant (within 2 % at the "
              "smaller eta)",
              bool(np.allclose(ratios[at][1:], limit, rtol=0.02)) if told else None,
              {"constant": limit, f"ratios at eta = {at}, E = {FEW_STEPS[1:]}": ratios[at][1:]},
              "the paper has a lower bound of this order; that it is the order itself, and the constant, are ours",
              own=True, seeds=0),
        Claim("with a decaying step size FedAvg of every E > 1 comes nearer to the optimum than with the constant one",
              all(best[E] < stalled[E] for E in stalled) if told else None,
              {"distance at the end, constant": stalled, "best a": best},
              quote="Once we decay the learning rate, FedAvg can converge to the optimal even if E > 1",
              place="Figure 2", central=True, seeds=0),
        Claim(f"with a = {LONG_DECAY:g} it goes on falling, below the distance at which the constant step stops",
              all(falling) if told else None,
              {f"E = {E}: constant step; after {listed} rounds": [predicted[E], *lasting[E]]
               for E in lasting},
              "by the recursion, beyond the rounds that are run", own=True, seeds=0),
    ]  # fmt: skip
    tables = [
        Table(
            f"Distance to the optimum over (E - 1) eta; predicted for small eta: {limit:.4f}; printed lower bound: "
            f"{bound:.4f}",
            ("eta", "E", "measured", "closed form", "difference", "measured - predicted"),
            [
                (str(eta), str(E), f"{ratios[eta][k]:.5f}", f"{_ratio(made, eta, E):.5f}",
                 float(ratios[eta][k] - _ratio(made, eta, E)), float(ratios[eta][k] - limit) if E > 1 else None)
                for eta in RATES for k, E in enumerate(FEW_STEPS)
            ],
            "For E = 1 the distance over eta. The paper prints the bound and no measured distance.",
        ),
        Table(
            f"Distance to the optimum after {_rounds(bench):,} rounds",
            ("E", "constant step", *(f"a = {a:g}" for a in DECAYS[1:])),
            [(str(E), *(f"{distance:.5f}" for distance in distances[E])) for E in LOCAL_STEPS],
            "The step size is constant within a round: eta_t with t the local steps done before it.",
        ),
        Table(
            f"Distance by the recursion, a = {LONG_DECAY:g}",
            ("E", "constant step, for ever", *(f"{rounds:,} rounds" for rounds in horizons)),
            [(str(E), f"{predicted[E]:.5f}", *(f"{distance:.5f}" for distance in lasting[E])) for E in lasting],
        ),
    ]  # fmt: skip
    numbers = {"limit": limit, "printed bound": bound, "ratios": {str(eta): ratios[eta] for eta in RATES}}
    return Outcome(_settings(bench), claims, {"figure2": _figure(made, curves, _every(bench))}, tables, numbers)


def _fixed_points(bench: Bench, made: Problem, data: fjs.FederatedDataset) -> tuple[dict[float, list[float]], float]:
    """Distances over (E - 1) eta by eta, and the largest distance of a run's end to the closed form."""
    # The fixed point does not depend on the server's step size, which only hastens the way to it.
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(RATES[0]), server_learning_rate=1.0)
    ratios: dict[float, list[float]] = {eta: [] for eta in RATES}
    apart = []
    for E in FEW_STEPS:
        space = fjs.sweeps.points(
            [{"client_optimizer.learning_rate": eta, "server_learning_rate": 1 / (E * eta)} for eta in RATES]
        )
        rounds = bench.choose(3, 6000)
        setting = _run(rounds, E, max(FEW_STEPS)) | {"eval_every": rounds, "keep_params": True}
        ends = np.asarray(bench.sweep(f"constant, E={E}", algorithm, data, space, **setting).params)[:, 0]
        for eta, end in zip(RATES, ends, strict=True):
            ratios[eta].append(_distance(made, end) / (max(E - 1, 1) * eta))
            apart.append(float(np.linalg.norm(end - made.fixed_point(eta, E))))
    return ratios, largest(apart)


def _decays(
    bench: Bench, made: Problem, data: fjs.FederatedDataset
) -> tuple[dict[int, np.ndarray], dict[int, list[float]], float]:
    """By E: losses [a, evaluation], distances at the end by a; and how far the losses are from the closed form."""
    rounds, every = _rounds(bench), _every(bench)
    curves, distances, off = {}, {}, []
    for E in LOCAL_STEPS:
        decays = [a * E / OFFSET for a in DECAYS]
        rate = fjs.rates.inverse_time(FIRST / OFFSET, decays[0])
        algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(1.0), client_learning_rate=rate)
        space = fjs.sweeps.grid({"client_learning_rate.decay": decays})
        setting = _run(rounds, E, max(LOCAL_STEPS)) | {"eval_every": every, "keep_params": True}
        result = bench.sweep(f"decaying, E={E}", algorithm, data, space, **setting)
        curves[E] = result["loss"][:, 0]
        distances[E] = [_distance(made, end) for end in np.asarray(result.params)[:, 0]]
        rates = FIRST / OFFSET / (1 + np.array(decays)[:, None] * np.arange(rounds))
        expected = made.loss(made.trajectories(rates, E))[:, ::every]
        off.append(float(np.abs(curves[E] - expected).max() / abs(made.loss(made.optimum()))))
    return curves, distances, largest(off)


def _run(rounds: int, steps: int, most: int) -> dict[str, Any]:
    """Keywords of a run of E steps; the steps are an array, so that all E share one program."""
    return {
        "task": fjs.quadratic(),
        "rounds": rounds,
        "cohort": fjs.cohort.full(),
        "work": fjs.local.given_steps(np.full((rounds, CLIENTS), steps, np.int32), most=most),
        "batches": fjs.local.full_batch(),
        "initial_params": jnp.zeros(CLIENTS * BLOCK + 1),
        "seeds": range(1),  # nothing is drawn
    }


def _rounds(bench: Bench) -> int:
    return bench.choose(smoke=3, cpu=8000, paper=100_000)


def _every(bench: Bench) -> int:
    return bench.choose(smoke=1, cpu=20, paper=100)


def _ratio(made: Problem, eta: float, steps: int) -> float:
    return _distance(made, made.fixed_point(eta, steps)) / (max(steps - 1, 1) * eta)


def _distance(made: Problem, w: np.ndarray) -> float:
    return float(np.linalg.norm(w - made.optimum()))


def _settings(bench: Bench) -> list[Setting]:
    rounds = f"{_rounds(bench):,}"
    return [
        Setting("problem", "N = 5, p = 4, mu = 2e-4, w0 not given", "the same, w0 = 0, float64"),
        Setting(
            "constant step size", "not given", "eta = 1/25, where the decay begins; 0.01 and 0.1 for the distances"
        ),
        Setting("decaying step size", "(1/5) / (5 + a t), the best a of 1e-2, 1e-4, 1e-6", "all three"),
        Setting("local steps E", "1 and more; published code: 1, 5, 10, 50, 100", "1, 5, 10, 50, 100"),
        Setting("rounds", "not given", rounds),
    ]


def _figure(made: Problem, curves: dict[int, np.ndarray], every: int) -> Any:
    figure, [[left, right]] = canvas(8.6, 3.6, 1, 2, sharey=True)
    optimum = float(made.loss(made.optimum()))
    best = {E: 1 + int(np.argmin(losses[1:, -1])) for E, losses in curves.items()}
    for ax, title in ((left, "(a) fixed learning rate, 1/25"), (right, "(b) decayed, the best a of three")):
        for number, (E, losses) in enumerate(curves.items()):
            row = losses[0] if ax is left else losses[best[E]]
            label = f"E = {E}" if ax is left else f"E = {E}, a = {DECAYS[best[E]]:g}"
            ax.plot(every * np.arange(1, len(row)), row[1:], label=label, **line_style(number))
        ax.axhline(optimum, color="0.3", linewidth=1.0, linestyle="-.", label="optimal")
        ax.set(xscale="log", xlabel="round")
        ax.set_title(title, fontsize="medium")
        ax.legend(**LEGEND)
        plain(ax)
    left.set_ylabel("global loss")
    return figure
