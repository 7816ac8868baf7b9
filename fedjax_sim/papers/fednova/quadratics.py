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
from fedjax_sim.papers.measuring import difference, largest
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
SETTLED = 150  # rounds before the end, half of those with the last step size
DATA_SEED = 0

FEDAVG, FEDPROX, VRL, FEDNOVA = "FedAvg", "FedProx, mu = 1", "VRL-SGD", "FedNova"
METHODS = (FEDAVG, FEDPROX, VRL, FEDNOVA)

# What VRL-SGD's correction divides by
OF_ROUND, OF_MEAN = "the client's tau of the round (ours)", f"{MEAN}, the mean of all"
OF_NEXT = "the client's tau of the next round"

Runs = Mapping[str, Mapping[float, History]]  # by method and standard deviation of tau
Ends = Mapping[str, np.ndarray]  # distances [seeds] by name


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
    claims = _claims(runs, errors, {std: ends for std, (ends, _) in variants.items()})
    tables = [_table_of_ends(runs, errors), _table_of_variants(variants)]
    return Outcome(_settings(bench), claims, {"figure2": panels([row])}, tables)


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
        return largest(worst)

    return {method: {std: error(method, std) for std in STDS} for method in METHODS}


def _table_of_ends(runs: Runs, errors: Mapping[str, Mapping[float, float]]) -> Table:
    """Distances at the end of each step size."""
    last = int(runs[FEDNOVA][STD].evaluated[-1])
    at = [before for before in (*DECAYS, ROUNDS) if before <= last] or [last]
    rows: list[tuple[str | float, ...]] = [
        (name, f"(a) tau = {MEAN}" if std == 0 else f"(b) std {std:.0f}",
         *(float(_around(history, before).mean()) for before in at), errors[name][std])
        for std in STDS for name, history in ((name, runs[name][std]) for name in METHODS)
    ]  # fmt: skip
    return Table(
        "Distance to the minimum before each change of the step size and at the end",
        ("method", "local steps", *(f"round {before}" for before in at), "largest error of the trajectory"),
        rows,
        "Distances: means of the last 50 rounds and of the seeds. Error: the largest difference between a trajectory "
        "and its closed form, relative to the trajectory's largest entry so far. The paper gives figures only.",
    )


def _around(history: History, before: int) -> np.ndarray:
    """The mean distance in the 50 rounds up to ``before``, [seeds]; up to the first record where none is so early."""
    before = max(before, int(history.evaluated[1]))
    chosen = (history.evaluated > before - 50) & (history.evaluated <= before)
    return np.asarray(history["distance"][:, chosen].mean(axis=1))


def _vrl_variants(of: Mapping[float, History], data: fjs.FederatedDataset) -> Mapping[float, tuple[Ends, Ends]]:
    """VRL-SGD's closed form with other numbers of steps to divide by, which the paper leaves open for unequal tau.

    By standard deviation and number: the distances at the end, and the largest, [seeds].
    """
    e = np.asarray(data.examples["e"])
    found: dict[float, tuple[Ends, Ends]] = {}
    for std in STDS[1:]:
        taus = _steps_of_runs(of[std], std, data)
        variants = {
            OF_ROUND: taus,
            OF_MEAN: np.full_like(taus, MEAN),
            OF_NEXT: np.concatenate([taus[:, 1:], taus[:, -1:]], axis=1),
        }
        start, eta = np.full(e.shape[1], START), step_sizes(taus.shape[1])
        distances: dict[str, np.ndarray] = {}
        for name, divisors in variants.items():
            pairs = zip(taus, divisors, strict=True)
            xs = np.array([trajectory(VRL, e, tau, eta, start, divisor=divisor) for tau, divisor in pairs])
            distances[name] = np.linalg.norm(xs - e.mean(axis=0), axis=-1)
        found[std] = (
            {name: values[:, -1] for name, values in distances.items()},
            {name: values.max(axis=1) for name, values in distances.items()},
        )
    return found


def _table_of_variants(variants: Mapping[float, tuple[Ends, Ends]]) -> Table:
    rows = [
        (name, f"std {std:.0f}", f"{ends[name].mean():.2g}", f"{largest[name].max():.2g}")
        for std, (ends, largest) in variants.items()
        for name in ends
    ]
    return Table(
        "VRL-SGD by what its correction divides by",
        ("v_i moves by (x - y_i) / eta over", "local steps", "distance at the end", "largest distance"),
        rows,
        "Once all y_i agree, v_i = x - e_i and nothing moves any more, whatever x is: with changing tau nothing keeps "
        "sum v_i at zero on the way, so it stops at a point that the first rounds decide.",
    )


def _claims(runs: Runs, errors: Mapping[str, Mapping[float, float]], variants: Mapping[float, Ends]) -> list[Claim]:
    claims = [
        Claim("every trajectory is its closed form (within 1e-9)",
              all(error < 1e-9 for of in errors.values() for error in of.values()), {"largest relative error": errors},
              own=True),
        *_claims_with_equal_steps(runs),
    ]  # fmt: skip
    for std in STDS[1:]:
        # The other standard deviation is our question
        claims += [claim._replace(own=std != STD) for claim in _claims_with_changing_steps(runs, std, variants[std])]
    return claims


def _claims_with_equal_steps(runs: Runs) -> list[Claim]:
    near = 1e-3  # a distance that FedAvg and FedProx both reach where all tau are equal
    equal = {name: runs[name][0.0] for name in (FEDAVG, FEDPROX)}
    rounds = {
        name: float(first_reached(run["distance"], run.evaluated, near, falling=True).mean())
        for name, run in equal.items()
    }
    gap = float(np.abs(runs[FEDAVG][0.0]["x"] - runs[FEDNOVA][0.0]["x"]).max())
    return [
        Claim("(a) with equal tau FedNova is FedAvg", gap < 1e-12, {"largest difference": gap},
              quote="FEDNOVA is equivalent to FEDAVG in this case", place="Figure 2 (a)",
              ours="within 1e-12", seeds=0, identity=True),
        Claim("(a) FedProx converges more slowly than FedAvg", rounds[FEDPROX] > rounds[FEDAVG],
              {f"rounds to a distance of {near:g}": rounds}, quote="but it converges slower",
              place="Section III, Figure 2", ours="rounds to a distance of 0.001 with equal tau", seeds=0),
    ]  # fmt: skip


def _claims_with_changing_steps(runs: Runs, std: float, variants: Ends) -> list[Claim]:
    """``variants``: VRL-SGD's distances at the end by what it divides by."""
    last = int(runs[FEDNOVA][std].evaluated[-1])
    of = {name: _around(runs[name][std], last) for name in METHODS}
    equal = {name: _around(runs[name][0.0], last) for name in (FEDAVG, VRL)}
    ratios = {name: of[name] / of[FEDNOVA] for name in METHODS if name != FEDNOVA}
    middle = _around(runs[FEDAVG][std], last - SETTLED)
    closer = difference(of[FEDAVG], of[FEDPROX])
    share = float(closer.mean / of[FEDAVG].mean())
    start = runs[VRL][std]["distance"][:, 0]
    grows = {name: bool((ends > 1000 * start).all()) for name, ends in variants.items() if name != OF_MEAN}
    name = f"(b) std {std:.0f}:"
    return [
        Claim(f"{name} FedNova ends far closer to the minimum than every other method",
              all((ratio >= 10).all() for ratio in ratios.values()), {"distance at the end": _means(of),
              "over FedNova's": _means(ratios)}, quote="FEDNOVA significantly outperforms others",
              place="Figure 2 (b)", central=True, ours="at least ten times, with every seed"),
        Claim(f"{name} FedProx slightly improves on FedAvg's distance", closer.above and share < 0.5,
              {"distance at the end": _means(of), "less by": closer.words, "as a share of FedAvg's": share},
              quote="FEDPROX can slightly improve on the optimality gap of FEDAVG", place="Section III, Figure 2",
              ours="slightly: by less than half"),
        Claim(f"{name} FedAvg keeps a gap to the minimum that does not vanish",
              bool((of[FEDAVG] > 100 * equal[FEDAVG]).all() and of[FEDAVG].mean() > middle.mean() / 2),
              {"changing and equal tau": [of[FEDAVG].mean(), equal[FEDAVG].mean()],
               f"{SETTLED} rounds before the end": middle.mean()},
              quote="This non-vanishing gap also occurs when",
              place="Section III, Figure 2 (b)",
              ours="a hundred times that of equal tau, and no longer falling while the step size is kept"),
        Claim(f"{name} VRL-SGD, which converges with equal tau, ends farther away than FedAvg",
              bool((equal[VRL] < 1e-3).all() and (of[VRL] > of[FEDAVG]).all()),
              {"equal tau": equal[VRL].mean(), "changing tau": of[VRL].mean(), "FedAvg": of[FEDAVG].mean()},
              quote="drastically different convergence under different settings", place="Section III, Figure 2",
              ours="farther than FedAvg, with every seed"),
        Claim(f"{name} VRL-SGD with the clients' own tau in its correction diverges", any(grows.values()),
              {"distance at the end": {name: f"{ends.mean():.2g}" for name, ends in variants.items()},
               "at the start": start.mean(), "grows": grows},
              "the paper does not say whether tau is that of the round before or of the next; by the one that does not "
              "grow it comes to rest", quote="even diverge when clients perform random local steps",
              place="Section III, Figure 2 (b)",
              ours="a thousand times as far at the end as at the start, with every seed and one of the two tau"),
    ]  # fmt: skip


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


def _means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.mean(of)) for name, of in values.items()}
