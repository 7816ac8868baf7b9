"""Figure 2: four methods on 30 quadratic clients, with equal local steps and with steps that change every round.

All of it has a closed form (the paper's section VIII-A), which every trajectory is compared with in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.clients.local.work import Work
from fedjax_sim.core.devices import double_precision
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.reporting.recorded import first_reached
from fedjax_sim.run.history import History

CLIENTS, DIMENSION, SPREAD = 30, 10, 0.1  # e_i ~ N(0, 0.01 I)
START = 1.0  # every coordinate of x at the start
ETA, DECAYS, FACTOR, ROUNDS = 0.05, (600, 900), 1 / 5, 1200
MU = 1.0
MEAN, MOST = 30, 96
STD, OTHER_STD = 16.0, 8.0  # 36,000 draws of N(30, 16^2) reach the paper's 96, which lies 4.1 deviations away
STDS = (0.0, STD, OTHER_STD)
EVERY = 5  # rounds between records
DATA_SEED = 0

FEDAVG, FEDPROX, VRL, FEDNOVA = "FedAvg", "FedProx, mu = 1", "VRL-SGD", "FedNova"
METHODS = (FEDAVG, FEDPROX, VRL, FEDNOVA)

Runs = Mapping[str, Mapping[float, History]]  # by method and standard deviation of tau


def perform(bench: Bench) -> Outcome:
    """All methods and standard deviations: three programs."""
    with double_precision():
        data = fjs.datasets.quadratics(bench.choose(4, CLIENTS), DIMENSION, DATA_SEED, scale=SPREAD)
        runs = _runs(bench, data)
        errors = _errors(runs, data)
        variants = _vrl_variants(runs[VRL], data)
    titles = ("(a) tau = 30", *(f"(b) tau ~ N(30, {std:.0f}²) in [1, 96]" for std in STDS[1:]))
    label = "distance to the minimum"
    row = [
        Panel(
            {name: of[std] for name, of in runs.items()}, "distance", title, True, label, (1e-5 if std else 1e-17, 1e3)
        )
        for title, std in zip(titles, STDS, strict=True)
    ]
    tables = [_table_of_ends(runs, errors), variants]
    return Outcome(_settings(bench), _claims(runs, errors), {"figure2": panels([row])}, tables)


def _runs(bench: Bench, data: fjs.FederatedDataset) -> dict[str, dict[float, History]]:
    """Histories by method and standard deviation of tau."""
    solver: dict[str, Any] = {
        "client_optimizer": fjs.optim.sgd(ETA),
        "client_learning_rate": fjs.rates.piecewise(1.0, DECAYS, FACTOR),
    }
    setting: dict[str, Any] = {
        "task": fjs.quadratic(start=START),
        "rounds": bench.choose(3, ROUNDS),
        "cohort": fjs.cohort.full(),
        "work": fjs.local.gaussian_steps(MEAN, std=STD, most=MOST),
        "batches": fjs.local.full_batch(),
        "eval_every": bench.choose(1, EVERY),
        "evaluate": place,
    }
    mus = {"mu": [0.0, MU], "work.std": list(STDS)}
    runs = bench.runs("FedAvg and FedProx", fjs.fedprox(mu=MU, **solver), data, fjs.sweeps.grid(mus), **setting)
    stds, k = fjs.sweeps.grid({"work.std": list(STDS)}), len(STDS)
    runs += bench.runs(VRL, fjs.vrl_sgd(**solver), data, stds, **setting)
    runs += bench.runs(FEDNOVA, fjs.fednova(**solver), data, stds, **setting)
    return {name: dict(zip(STDS, runs[k * at : k * at + k], strict=True)) for at, name in enumerate(METHODS)}


def place(params: jax.Array, dataset: fjs.FederatedDataset) -> dict[str, jax.Array]:
    """The model and its distance to the minimum of F = (1/N) sum F_i, which is the mean of the e_i."""
    return {"x": params, "distance": jnp.linalg.norm(params - jnp.mean(dataset.examples["e"], axis=0))}


def trajectory(
    method: str,
    e: np.ndarray,
    tau: np.ndarray,
    eta: np.ndarray,
    start: np.ndarray,
    mu: float = 0.0,
    divisor: np.ndarray | None = None,
) -> np.ndarray:
    """The closed form of a run on F_i = 1/2 |x - e_i|^2 with equal weights (Wang et al. 2020, eqs 22-31, H_i = I).

    tau steps from x go to x + K (e_i + v_i - x), K = [1 - (1 - eta (1 + mu))^tau] / (1 + mu), v_i VRL-SGD's correction.
    Shapes: e [N, d], tau and divisor [rounds, N], eta [rounds]; x before and after every round is [rounds + 1, d].
    VRL-SGD divides by ``divisor`` steps, None for tau.
    """
    x, v = start, np.zeros_like(e)
    xs = [x]
    for steps, rate, divided in zip(tau, eta, tau if divisor is None else divisor, strict=True):
        moved = ((1 - (1 - rate * (1 + mu)) ** steps) / (1 + mu))[:, None] * (e + v - x)
        if method == FEDNOVA:
            x = x + steps.mean() * (moved / steps[:, None]).mean(axis=0)
        else:
            y, x = x + moved, x + moved.mean(axis=0)
            if method == VRL:
                v = v + (x - y) / (divided * rate)[:, None]
        xs.append(x)
    return np.array(xs)


def local_steps(work: Work, seeds: Sequence[int], rounds: int, data: fjs.FederatedDataset) -> np.ndarray:
    """tau_i(t) of runs with full participation, [seeds, rounds, clients]: the draws that all methods share."""
    run: dict[str, Any] = {"task": fjs.quadratic(), "cohort": fjs.cohort.full(), "batches": fjs.local.full_batch()}
    method = fjs.fedavg(client_optimizer=fjs.optim.sgd(ETA))
    drawn = [fjs.draws(method, data, seed=seed, rounds=rounds, work=work, **run) for seed in seeds]
    return np.array([one.steps for one in drawn])


def _steps_of_runs(history: History, std: float, data: fjs.FederatedDataset) -> np.ndarray:
    """tau of a run with the standard deviation ``std``, [seeds, rounds, clients]."""
    work = fjs.local.gaussian_steps(MEAN, std=std, most=MOST)
    return local_steps(work, history.seeds, int(history.evaluated[-1]), data)


def step_sizes(rounds: int) -> np.ndarray:
    """eta of every round."""
    return np.asarray(ETA * FACTOR ** np.searchsorted(DECAYS, np.arange(rounds), side="right"))


def _errors(runs: Runs, data: fjs.FederatedDataset) -> dict[str, dict[float, float]]:
    """The largest relative difference of a method's runs to the closed form, over seeds and records."""
    e, some = np.asarray(data.examples["e"]), runs[FEDNOVA][STD]
    eta, start = step_sizes(int(some.evaluated[-1])), np.full(e.shape[1], START)
    taus = {std: _steps_of_runs(some, std, data) for std in STDS}

    def error(method: str, std: float) -> float:
        worst = []
        for tau, xs in zip(taus[std], runs[method][std]["x"], strict=True):
            expected = trajectory(method, e, tau, eta, start, MU if method == FEDPROX else 0.0)
            known = expected[some.evaluated]
            size = np.maximum.accumulate(np.abs(known).max(axis=1))
            worst.append(float((np.abs(xs - known).max(axis=1) / size).max()))
        return max(worst)

    return {method: {std: error(method, std) for std in STDS} for method in METHODS}


def _table_of_ends(runs: Runs, errors: Mapping[str, Mapping[float, float]]) -> Table:
    """Distances at the end of each step size."""
    last = int(runs[FEDNOVA][STD].evaluated[-1])
    at = [before for before in (*DECAYS, ROUNDS) if before <= last] or [last]
    rows: list[tuple[str | float, ...]] = [
        (name, f"(a) tau = {MEAN}" if std == 0 else f"(b) std {std:.0f}",
         *(_around(history, before) for before in at), errors[name][std])
        for std in STDS for name, history in ((name, runs[name][std]) for name in METHODS)
    ]  # fmt: skip
    return Table(
        "Distance to the minimum before each change of the step size and at the end",
        ("method", "local steps", *(f"round {before}" for before in at), "largest error of the trajectory"),
        rows,
        "Distances: means of the last 50 rounds and of the seeds. Error: the largest difference between a trajectory "
        "and its closed form, relative to the trajectory's largest entry so far. The paper gives figures only.",
    )


def _around(history: History, before: int) -> float:
    """The mean distance in the 50 rounds up to ``before``, over seeds."""
    chosen = (history.evaluated > before - 50) & (history.evaluated <= before)
    return float(history["distance"][:, chosen].mean())


def _vrl_variants(of: Mapping[float, History], data: fjs.FederatedDataset) -> Table:
    """VRL-SGD's closed form with other numbers of steps to divide by, which the paper leaves open for unequal tau."""
    e = np.asarray(data.examples["e"])
    rows: list[tuple[str, ...]] = []
    for std in STDS[1:]:
        taus = _steps_of_runs(of[std], std, data)
        variants = {
            "the client's tau of the round (ours)": taus,
            f"{MEAN}, the mean of all": np.full_like(taus, MEAN),
            "the client's tau of the next round": np.concatenate([taus[:, 1:], taus[:, -1:]], axis=1),
        }
        for name, divisors in variants.items():
            pairs = zip(taus, divisors, strict=True)
            start, eta = np.full(e.shape[1], START), step_sizes(taus.shape[1])
            xs = np.array([trajectory(VRL, e, tau, eta, start, divisor=divisor) for tau, divisor in pairs])
            distances = np.linalg.norm(xs - e.mean(axis=0), axis=-1)
            rows.append((name, f"std {std:.0f}", f"{distances[:, -1].mean():.2g}", f"{distances.max():.2g}"))
    return Table(
        "VRL-SGD by what its correction divides by",
        ("v_i moves by (x - y_i) / eta over", "local steps", "distance at the end", "largest distance"),
        rows,
        "Once all y_i agree, v_i = x - e_i and nothing moves any more, whatever x is: with changing tau nothing keeps "
        "sum v_i at zero on the way, so it stops at a point that the first rounds decide.",
    )


def _claims(runs: Runs, errors: Mapping[str, Mapping[float, float]]) -> list[Claim]:
    near = 1e-3  # a distance that FedAvg and FedProx both reach where all tau are equal
    equal = {name: runs[name][0.0] for name in (FEDAVG, FEDPROX)}
    rounds = {
        name: float(first_reached(run["distance"], run.evaluated, near, falling=True).mean())
        for name, run in equal.items()
    }
    gap = float(np.abs(runs[FEDAVG][0.0]["x"] - runs[FEDNOVA][0.0]["x"]).max())
    last = int(runs[FEDNOVA][STD].evaluated[-1])
    ends = {std: {name: _around(runs[name][std], last) for name in METHODS} for std in STDS}
    start = float(runs[VRL][STD]["distance"][:, 0].mean())
    claims = [
        Claim("every trajectory is its closed form (within 1e-9)",
              all(error < 1e-9 for of in errors.values() for error in of.values()), {"largest relative error": errors},
              own=True),
        Claim("(a) with equal tau FedNova is FedAvg (within 1e-12)", gap < 1e-12, {"largest difference": gap}),
        Claim("(a) FedProx converges more slowly than FedAvg", rounds[FEDPROX] > rounds[FEDAVG],
              {f"rounds to a distance of {near:g}": rounds}),
    ]  # fmt: skip
    for std in STDS[1:]:
        of, own = ends[std], std != STD  # the other standard deviation is our question
        ratios = {name: of[name] / of[FEDNOVA] for name in METHODS if name != FEDNOVA}
        claims += [
            Claim(f"(b) std {std:.0f}: FedNova ends at least ten times closer to the minimum than every other method",
                  all(ratio >= 10 for ratio in ratios.values()), {"distance at the end": of, "over FedNova's": ratios},
                  own=own),
            Claim(f"(b) std {std:.0f}: FedProx slightly improves on FedAvg's distance", of[FEDPROX] < of[FEDAVG],
                  {"distance at the end": [of[FEDPROX], of[FEDAVG]]}, own=own),
            Claim(f"(b) std {std:.0f}: FedAvg keeps a gap to the minimum that equal tau do not have",
                  of[FEDAVG] > 100 * ends[0.0][FEDAVG],
                  {"changing and equal tau": [of[FEDAVG], ends[0.0][FEDAVG]]}, own=own),
            Claim(f"(b) std {std:.0f}: VRL-SGD, which converges with equal tau, ends farther away than FedAvg",
                  ends[0.0][VRL] < near and of[VRL] > of[FEDAVG],
                  {"equal tau": ends[0.0][VRL], "changing tau": of[VRL], "FedAvg": of[FEDAVG]}, own=own),
            Claim(f"(b) std {std:.0f}: VRL-SGD diverges: it ends farther away than it started", of[VRL] > start,
                  {"distance at the start and at the end": [start, of[VRL]]},
                  "it moves away and then stops; it does not grow without bound", own),
        ]  # fmt: skip
    return claims


def _settings(bench: Bench) -> list[Setting]:
    row, spreads = bench.setting, f"standard deviation {STD:.0f} and {OTHER_STD:.0f}"
    return [
        row("clients, e_i", "30, N(0, 0.01 I)", smoke="4, N(0, 0.01 I)"),
        row("dimension, start, seeds", "not given", f"{DIMENSION}, all ones, {len(bench.seeds)}"),
        row("rounds", "not given (beyond 900)", ROUNDS, smoke="3"),
        row("step size", "0.05, a fifth from round 600, again from 900", smoke="0.05"),
        row("local steps", "(a) 30; (b) N(30, not given) in [1, 96]", f"(a) 30; (b) {spreads}"),
        row("precision", "not given", "float64"),
    ]
