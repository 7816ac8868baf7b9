"""Runs every method on every problem, and reads off how good it is within a budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.all_methods.methods import METHODS, SMOKE
from fedjax_sim.papers.all_methods.problems import Problem, halves
from fedjax_sim.papers.bench import Bench
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.studies.sweeps.result import Sweep, means

ROUNDS = {"smoke": 2, "cpu": 60, "paper": 300}
BYTES_SLACK = 1.01  # scalars beside a model are not to cost a method an evaluation


class Score(NamedTuple):
    """A method on a problem within a budget, at the point that the validation half chose.

    Attributes:
      values: float[seeds], the metric on the report half.
      round: at which the method was read.
      point: the values of the hyper-parameters; empty where every point diverged, and the values are NaN.
    """

    values: np.ndarray
    round: int
    point: dict[str, float]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(self.values.mean())

    @property
    def std(self) -> float:
        """Over seeds, of a sample."""
        return float(self.values.std(ddof=min(len(self.values) - 1, 1)))


Runs = dict[str, dict[str, Sweep]]  # by problem and method
Scores = dict[str, dict[str, Score]]


def run_all(bench: Bench, problems: dict[str, Problem]) -> Runs:
    """A program for each method on each problem: all points of its grid and all seeds.

    The smoke size has all methods on the first problem only.
    """
    found: Runs = {}
    for number, problem in enumerate(problems.values()):
        names = SMOKE if bench.size == "smoke" and number else tuple(METHODS)
        found[problem.name] = {name: _run(bench, problem, name) for name in names}
    return found


def _run(bench: Bench, problem: Problem, method: str) -> Sweep:
    entry = METHODS[method]
    everybody = entry.everybody or problem.per_round == problem.data.num_clients
    return bench.sweep(
        f"{problem.name}, {method}", entry.algorithm(problem.rates[0]), problem.data, entry.space(problem.rates),
        task=problem.task, rounds=bench.choose(**ROUNDS),
        eval_every=bench.choose(smoke=1, cpu=3, paper=5), work=problem.work, batch_size=problem.batch_size,
        cohort=fjs.cohort.full() if everybody else fjs.cohort.uniform(problem.per_round),
        evaluate=halves(problem.task), diagnostics=["communication"],
    )  # fmt: skip


def score_rounds(problem: Problem, runs: dict[str, Sweep]) -> dict[str, Score]:
    """Every method after all rounds."""
    return {name: _score(problem, sweep, len(sweep.evaluated) - 1) for name, sweep in runs.items()}


def score_bytes(problem: Problem, runs: dict[str, Sweep]) -> dict[str, Score]:
    """Every method at its last evaluation by which it has sent no more than FedAvg in all rounds (and 1 %)."""
    budget = sent(runs["FedAvg"])[-1] * BYTES_SLACK
    return {
        name: _score(problem, sweep, int(np.flatnonzero(sent(sweep) <= budget)[-1])) for name, sweep in runs.items()
    }


def sent(sweep: Sweep) -> np.ndarray:
    """float[E], bytes down and up by each evaluation; of the runs of a method the one that sent most."""
    both = np.asarray(sweep["bytes_down"], float) + np.asarray(sweep["bytes_up"], float)
    by_round = both.reshape(-1, both.shape[-1]).cumsum(axis=1).max(axis=0)
    at: np.ndarray = np.concatenate([[0.0], by_round])[sweep.evaluated]
    return at


def _score(problem: Problem, sweep: Sweep, evaluation: int) -> Score:
    """The point with the best mean over seeds on the validation half, and its values on the other."""
    seeds = len(sweep.seeds)

    def by_point(part: str) -> np.ndarray:
        values: np.ndarray = sweep[f"{part}_{problem.metric}"].reshape(-1, seeds, len(sweep.evaluated))
        return values[:, :, evaluation].astype(float)

    # An accuracy is a number whatever the model: the loss tells whether it diverged.
    lost = ~np.isfinite(sweep["loss"].reshape(-1, seeds, len(sweep.evaluated))[:, :, : evaluation + 1]).all(axis=2)
    chosen_by = means(by_point("validation"), lost)
    reached = int(sweep.evaluated[evaluation])
    if np.isnan(chosen_by).all():
        return Score(np.full(seeds, np.nan), reached, {})
    best = int(np.nanargmin(chosen_by) if less_is_better(problem.metric) else np.nanargmax(chosen_by))
    return Score(by_point("report")[best], reached, sweep.space.point(best))
