"""The eight methods of Table 2 with their hyper-parameters, raw and with the AWARE extension, and how they are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.diagnostics import running_mean
from fedjax_sim.papers.bench import Bench, Why
from fedjax_sim.papers.fedaware.tasks import Problem
from fedjax_sim.papers.measuring import mean
from fedjax_sim.run.history import History

Point = Mapping[str, float]

ALPHA = 0.5  # of FedAWARE's moving average
LAST = 0.1  # the share of the rounds at the end whose mean test accuracy is reported
DYNAMICS = "e_lud_dynamics"
INTERVALS = "mean over the seeds, half of its 95 % interval"  # the numbers of a difference

# The authors' code: vectors of length one, and FedAvg (the base method) until everybody was seen.
CODE: dict[str, Any] = {"normalised": True, "warm_up": True}
WRITTEN, AVERAGE = "FedAWARE, eq. 2 as written", "FedAWARE-NA"
VARIANTS: dict[str, dict[str, Any]] = {"FedAWARE": CODE, WRITTEN: {}, AVERAGE: {"weights": "uniform", "warm_up": True}}


class Family(NamedTuple):
    """Methods that are one program, and differ in real hyper-parameters alone."""

    make: Callable[[Any], Method]  # the algorithm, given the clients' solver
    # by the method's name the points among which the best is chosen, at the paper's size and on a CPU
    members: Mapping[str, tuple[Sequence[Point], Sequence[Point]]]
    extended: bool = True  # whether the paper extends them


def _mu_and_momentum(mu: float, momentum: float) -> Point:
    return {"mu": mu, "server_optimizer.momentum": momentum}


def _of(name: str, values: Sequence[float]) -> list[Point]:
    return [{name: value} for value in values]


def _ams(rates: Sequence[float], floors: Sequence[float]) -> list[Point]:
    return [{"server_learning_rate": rate, "eps": eps} for rate in rates for eps in floors]


# Appendix B.1: what is fixed, and the grids. FedAvg is FedProx at mu = 0, and a server momentum of 0 is none.
FAMILIES = (
    Family(lambda sgd: fjs.fedprox(client_optimizer=sgd, mu=0.1, server_optimizer=fjs.optim.sgd(1.0, momentum=0.5)), {
        "FedAvg": ([_mu_and_momentum(0.0, 0.0)],) * 2,
        "FedAvgM": ([_mu_and_momentum(0.0, beta) for beta in (0.7, 0.9, 0.97, 0.997)],
                    [_mu_and_momentum(0.0, beta) for beta in (0.7, 0.9)]),
        "FedProx": ([_mu_and_momentum(mu, 0.0) for mu in (0.01, 0.1, 1.0, 10.0)],
                    [_mu_and_momentum(mu, 0.0) for mu in (0.01, 0.1)]),
    }),
    Family(lambda sgd: fjs.fedcm(client_optimizer=sgd, alpha=0.5),
           {"FedCM": (_of("alpha", (0.1, 0.3, 0.5, 0.7, 0.9)), _of("alpha", (0.3, 0.7)))}),
    Family(lambda sgd: fjs.feddyn(client_optimizer=sgd, alpha=0.1),
           {"FedDyn": (_of("alpha", (0.1, 0.01, 0.001)), _of("alpha", (0.1, 0.01)))}, extended=False),
    Family(lambda sgd: fjs.fedyogi(client_optimizer=sgd, server_learning_rate=0.01, beta1=0.9, beta2=0.99, tau=1e-4),
           {"FedYogi": (_of("server_learning_rate", [10.0 ** (k / 2) for k in range(-6, 3)]),
                        _of("server_learning_rate", [10.0**-2.5, 10.0**-2]))}),
    Family(lambda sgd: fjs.fedams(client_optimizer=sgd, server_learning_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-4),
           {"FedAMS": (_ams((1.0, 0.1, 0.01, 1e-3, 1e-4), (1e-8, 1e-4, 1e-3, 1e-2, 1e-1)),
                       _ams((0.01,), (1e-8, 1e-4)))}),
)  # fmt: skip
NAMES = ("FedAvg", "FedAvgM", "FedCM", "FedDyn", "FedProx", "FedYogi", "FedAMS", "FedAWARE")  # as in Table 2


class Compared(NamedTuple):
    """What Table 2 and Figures 2, 3 and 6 are drawn from."""

    raw: dict[str, History]  # by method, at its best hyper-parameters
    extended: dict[str, History]  # with the AWARE extension, at the same ones; FedDyn and FedAWARE have none
    chosen: dict[str, str]  # the best hyper-parameters, in words
    written: History  # FedAWARE by eq. 2 as it is written


def compared(bench: Bench, problem: Problem) -> Compared:
    """Runs everything; what one program can do is one program."""
    raw: dict[str, History] = {}
    extended: dict[str, History] = {}
    chosen: dict[str, str] = {}
    for family in bench.choose(FAMILIES[:1], FAMILIES):  # each is two programs to compile
        members = {name: bench.choose(grids[1][:1], *reversed(grids)) for name, grids in family.members.items()}
        at = [point for points in members.values() for point in points]
        algorithm = family.make(problem.optimizer)
        result = bench.sweep(
            _label(problem, " ".join(members)), algorithm, problem.data, fjs.sweeps.points(at), **problem.run
        )
        best: dict[str, Point] = {}
        for name, points in members.items():
            histories = {number: result.at(number) for number, point in enumerate(at) if point in points}
            number = max(histories, key=lambda number: mean(last_accuracy(histories[number])))
            raw[name], best[name] = with_dynamics(histories[number]), at[number]
            chosen[name] = _in_words(name, at[number])
        if family.extended:
            points = [{f"base.{leaf}": value for leaf, value in point.items()} for point in best.values()]
            result = bench.sweep(
                _label(problem, " ".join(members) + " with AWARE"), fjs.aware(algorithm, alpha=ALPHA, **CODE),
                problem.data, fjs.sweeps.points(points), **problem.run,
            )  # fmt: skip
            extended |= {name: with_dynamics(result.at(number)) for number, name in enumerate(best)}
    raw["FedAWARE"] = fedaware(bench, problem)[ALPHA]
    chosen["FedAWARE"] = f"alpha = {ALPHA}"
    in_order = [name for name in NAMES if name in raw]
    return Compared(
        {name: raw[name] for name in in_order},
        {name: extended[name] for name in in_order if name in extended},
        chosen,
        fedaware(bench, problem, WRITTEN)[ALPHA],
    )


def fedaware(
    bench: Bench, problem: Problem, name: str = "FedAWARE", alphas: Sequence[float] = (ALPHA,)
) -> dict[float, History]:
    """FedAWARE or a variant of it by alpha; ``ALPHA`` is a sweep of its own, which Table 2 and Figure 4 share."""
    algorithm = fjs.fedaware(client_optimizer=problem.optimizer, alpha=ALPHA, **VARIANTS[name])
    found: dict[float, History] = {}
    others = [alpha for alpha in alphas if alpha != ALPHA]
    for part in [[ALPHA]] * (ALPHA in alphas) + [others] * bool(others):
        space = fjs.sweeps.points(_of("alpha", part))
        label = _label(problem, name if part != others else f"{name}, other alphas")
        result = bench.sweep(label, algorithm, problem.data, space, **problem.run)
        found |= {alpha: with_dynamics(result.at(number)) for number, alpha in enumerate(part)}
    return {alpha: found[alpha] for alpha in alphas}


def last_accuracy(history: History) -> np.ndarray:
    """Mean test accuracy of the evaluations in the last tenth of the rounds, [seeds]; 0 where a run diverged."""
    late = history.evaluated > (1 - LAST) * history.evaluated[-1]
    found: np.ndarray = history["test_accuracy"][:, late].mean(axis=1)
    return np.where(np.isfinite(history.final("loss")), found, 0.0)


def has_learned(history: History) -> bool:
    """Whether the loss at the end, mean of the seeds, is 5 % below that of the initial model."""
    start, end = history["loss"][:, 0].mean(), history["loss"][:, -1].mean()
    return bool(end < 0.95 * start)


def dynamics(history: History) -> np.ndarray:
    """The mean of the e-LUD over the rounds, [seeds]: the paper's e-LUD_D."""
    return history[DYNAMICS][:, -1]


def with_dynamics(history: History) -> History:
    """The history with the running mean of the e-LUD beside it."""
    return dataclasses.replace(history, rounds=history.rounds | {DYNAMICS: running_mean(history["e_lud"])})


def falls(history: History) -> np.ndarray:
    """The mean of max(0, a_k - a_{k+1}) over the evaluations of the second half, [seeds]: 0 without any fall.

    inf where a run diverged, whose accuracy is the same for ever.
    """
    late = history.evaluated >= history.evaluated[-1] / 2
    found: np.ndarray = np.maximum(-np.diff(history["test_accuracy"][:, late], axis=1), 0.0).mean(axis=1)
    return np.where(np.isfinite(history.final("loss")), found, np.inf)


def why_not(bench: Bench) -> Why:
    """Why a claim may fail: at the paper's size there is nothing left to blame."""
    return bench.choose("too small", "too small", "unexplained")


def _label(problem: Problem, name: str) -> str:
    return f"{problem.name}, {name}"


def _in_words(name: str, point: Point) -> str:
    shown = {leaf.rpartition(".")[2]: value for leaf, value in point.items() if value or name == "FedAvg"}
    words = {"server_learning_rate": "eta_g"}
    return "" if name == "FedAvg" else ", ".join(f"{words.get(leaf, leaf)} = {v:.3g}" for leaf, v in shown.items())
