"""Which methods are compared and by which grids, their runs on every problem, and how good they are in a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.all_methods.problems import Problem, halves
from fedjax_sim.papers.bench import Bench
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.studies.sweeps.result import Sweep, means
from fedjax_sim.studies.sweeps.space import Space

RATE = "client_optimizer.learning_rate"
SERVER = "server_learning_rate"
LARGE_BATCH_FACTOR = 10.0  # one step a round in the place of several: about so many

PLAIN = (1.0, 2.0)  # server rates of methods without a parameter of their own
ADAPTIVE = (0.02, 0.1)  # server rates of methods that divide by the size of past changes
HEAVY = (0.5, 0.9)  # momenta, decays

LEFT_OUT = (
    "local_sgd is FedAvg with everybody; dane solves local problems; last_k is like ema; reweighted needs an outer "
    "gradient; privacy, compression, robust rules and attacks change the question, not the optimiser"
)


class Entry(NamedTuple):
    """A method of the comparison."""

    make: Callable[[fjs.optim.Optimizer], Method]  # the algorithm, given any learning rate of the clients
    parameter: str = SERVER  # the second axis of its grid, a path to a real leaf of the algorithm
    values: tuple[float, ...] = PLAIN  # along it, equally many for all methods
    prefix: str = ""  # of the paths of the method inside a wrapper
    everybody: bool = False  # whether it needs all clients in every round, whatever the problem says
    factor: float = 1.0  # of the clients' learning rates

    def algorithm(self, rate: float) -> Method:
        """The algorithm, at one rate."""
        return self.make(fjs.optim.sgd(self.factor * rate))

    def space(self, rates: tuple[float, ...]) -> Space:
        """The grid of a problem's rates by the method's own values."""
        tried = [self.factor * rate for rate in rates]
        return fjs.sweeps.grid({self.prefix + RATE: tried, self.parameter: list(self.values)})


# fmt: off
METHODS: dict[str, Entry] = {
    "FedAvg": Entry(lambda sgd: fjs.fedavg(client_optimizer=sgd)),
    "large-batch SGD": Entry(lambda sgd: fjs.large_batch_sgd(client_optimizer=sgd), factor=LARGE_BATCH_FACTOR),
    "FedProx": Entry(lambda sgd: fjs.fedprox(client_optimizer=sgd), "mu", (0.1, 1.0)),
    "FedProx, adaptive": Entry(lambda sgd: fjs.fedprox(client_optimizer=sgd, adaptive=True), "mu", (0.0, 1.0)),
    "FedNova": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd)),
    "FedNova, momentum": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd.replace(momentum=0.5)),
                               "client_optimizer.momentum", HEAVY),
    "FedNova, VR": Entry(lambda sgd: fjs.fednova(client_optimizer=sgd, variance_reduction=True)),
    "SCAFFOLD I": Entry(lambda sgd: fjs.scaffold(client_optimizer=sgd, option="I")),
    "SCAFFOLD II": Entry(lambda sgd: fjs.scaffold(client_optimizer=sgd, option="II")),
    "VRL-SGD": Entry(lambda sgd: fjs.vrl_sgd(client_optimizer=sgd), everybody=True),
    "FedDANE": Entry(lambda sgd: fjs.feddane(client_optimizer=sgd), "mu", (0.1, 1.0)),
    "FedDyn": Entry(lambda sgd: fjs.feddyn(client_optimizer=sgd), "alpha", (0.01, 0.1)),
    "FedCM": Entry(lambda sgd: fjs.fedcm(client_optimizer=sgd), "alpha", (0.1, 0.5)),
    "FedAvgM": Entry(lambda sgd: fjs.fedavgm(client_optimizer=sgd), "momentum", HEAVY),
    "FedAdagrad": Entry(lambda sgd: fjs.fedadagrad(client_optimizer=sgd), values=ADAPTIVE),
    "FedAdam": Entry(lambda sgd: fjs.fedadam(client_optimizer=sgd), values=ADAPTIVE),
    "FedYogi": Entry(lambda sgd: fjs.fedyogi(client_optimizer=sgd), values=ADAPTIVE),
    "FedAMS": Entry(lambda sgd: fjs.fedams(client_optimizer=sgd), values=ADAPTIVE),
    "FedAvg, EMA": Entry(lambda sgd: fjs.ema(fjs.fedavg(client_optimizer=sgd)), "decay", HEAVY, "base."),
    "FedAWARE": Entry(lambda sgd: fjs.fedaware(client_optimizer=sgd)),
    "FedAvgM, AWARE": Entry(lambda sgd: fjs.aware(fjs.fedavgm(client_optimizer=sgd)), "base.momentum", HEAVY, "base."),
    "q-FedAvg": Entry(lambda sgd: fjs.qfedavg(client_optimizer=sgd), "q", (0.1, 1.0)),
    "AFL": Entry(lambda sgd: fjs.afl(client_optimizer=sgd), "weight_learning_rate", (0.01, 0.1)),
}
# fmt: on

CONTROL_VARIATES = ("FedNova, VR", "SCAFFOLD I", "SCAFFOLD II", "VRL-SGD")
ADAPTIVE_SERVERS = ("FedAdagrad", "FedAdam", "FedYogi", "FedAMS")
SMOKE = ("FedAvg",)  # at the smoke size, on all problems but the first

ROUNDS = {"smoke": 2, "cpu": 60, "paper": 300}
BYTES_SLACK = 1.01  # scalars beside a model are not to cost a method an evaluation


class Score(NamedTuple):
    """A method on a problem within a budget, at the point that the validation half chose."""

    values: np.ndarray  # float[seeds], the metric on the report half
    round: int  # at which the method was read
    # the values of the hyper-parameters; empty where every point diverged, and the values are NaN
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
