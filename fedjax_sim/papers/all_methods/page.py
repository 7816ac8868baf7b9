"""All methods on four problems, tuned by one grid, within one budget of rounds and one of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.papers.all_methods.diagram import critical_differences, score_panels
from fedjax_sim.papers.all_methods.methods import LEFT_OUT, METHODS
from fedjax_sim.papers.all_methods.problems import Problem, problems
from fedjax_sim.papers.all_methods.questions import Ranking, claims
from fedjax_sim.papers.all_methods.ranking import critical_difference, friedman, ranks
from fedjax_sim.papers.all_methods.scores import ROUNDS, Score, Scores, run_all, score_bytes, score_rounds
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Experiment, Outcome, Setting, Table
from fedjax_sim.reporting.recorded import less_is_better

BY_ROUNDS, BY_BYTES = "equal rounds", "equal bytes"


def perform(bench: Bench) -> Outcome:
    """Runs everything once; both budgets are read off the same runs."""
    posed = problems(bench)
    runs = run_all(bench, posed)
    budgets: dict[str, Scores] = {
        BY_ROUNDS: {name: score_rounds(problem, runs[name]) for name, problem in posed.items()},
        BY_BYTES: {name: score_bytes(problem, runs[name]) for name, problem in posed.items()},
    }
    rankings = {budget: _ranking(posed, scores) for budget, scores in budgets.items()}
    difference = critical_difference(len(METHODS), len(posed))
    mean_ranks = {budget: ranking.means() for budget, ranking in rankings.items()}
    order = sorted(METHODS, key=mean_ranks[BY_ROUNDS].__getitem__)
    figures = {
        "critical-difference": critical_differences(
            {f"Mean rank over {len(posed)} problems, {budget}": of for budget, of in mean_ranks.items()}, difference
        ),
        "scores": score_panels(budgets, {name: _axis(problem) for name, problem in posed.items()}, order),
    }
    tables = [_table(budget, scores, rankings[budget]) for budget, scores in budgets.items()]
    tables += [_agreement(rankings, difference), _chosen(budgets[BY_ROUNDS])]
    numbers = {budget: _numbers(scores, rankings[budget]) for budget, scores in budgets.items()}
    found = claims(posed, budgets[BY_ROUNDS], budgets[BY_BYTES], rankings[BY_ROUNDS], rankings[BY_BYTES], difference)
    return Outcome(_settings(bench, posed), found, figures, tables, numbers)


def _ranking(posed: Mapping[str, Problem], scores: Scores) -> Ranking:
    """Ranks by the mean over seeds and of every seed; a method that was not run, or diverged, is last."""
    by_problem, by_seed = [], []
    for name, problem in posed.items():
        less = less_is_better(problem.metric)
        seeds = scores[name]["FedAvg"].values.size
        values = np.full((len(METHODS), seeds), np.nan)
        for place, method in enumerate(METHODS):
            if method in scores[name]:
                values[place] = scores[name][method].values
        by_problem.append(ranks(values.mean(axis=1), less=less))
        by_seed += [ranks(of_seed, less=less) for of_seed in values.T]
    return Ranking(tuple(posed), np.stack(by_problem), np.stack(by_seed))


def _settings(bench: Bench, posed: Mapping[str, Problem]) -> list[Setting]:
    """What a run at the size ``paper`` does, beside this one; there is no paper."""
    seeds, rounds = len(bench.seeds), bench.choose(**ROUNDS)
    points = {entry.space((1.0, 2.0, 3.0)).num_points for entry in METHODS.values()}
    grid = f"3 learning rates of the clients x 2 values of one other parameter: {max(points)} points for every method"
    held_out = "40 % of each client's examples: half to choose by, half to report"
    rows = [
        Setting("methods", str(len(METHODS)), str(len(METHODS))),
        Setting("left out", LEFT_OUT, LEFT_OUT),
        Setting("grid", grid, grid),
        Setting("seeds, to choose and to report", "10 at size paper", str(seeds)),
        Setting("rounds", f"{ROUNDS['paper']} at size paper", str(rounds)),
        Setting("held out", held_out, held_out),
    ]
    full = {
        "synthetic(1, 1)": "30 clients, not capped",
        "digits, Dir(0.1)": "10 clients, MLP 64-32-10",
        "MNIST, two digits": "1,000 clients, 70,000 images",
        "Parkinsons, by patient": "42 clients",
    }
    for name, problem in posed.items():
        data = problem.data
        here = (
            f"{data.num_clients} clients, {problem.per_round} a round, {data.num_examples:,} training examples; "
            f"{problem.heterogeneity}; learning rates {', '.join(f'{rate:g}' for rate in problem.rates)}"
        )
        rows.append(Setting(name, f"{full[name]}, at size paper", here))
    return rows


def _axis(problem: Problem) -> str:
    return f"test {problem.metric}" + (" (less is better)" if less_is_better(problem.metric) else "")


def _table(budget: str, scores: Scores, ranking: Ranking) -> Table:
    """Methods by their mean rank; on each problem the score and the rank."""
    means = ranking.means()
    rows: list[tuple[str | float, ...]] = []
    for method in sorted(METHODS, key=means.__getitem__):
        cells = []
        for name in ranking.problems:
            score = scores[name].get(method)
            early = score is not None and score.round < scores[name]["FedAvg"].round
            cells.append(_cell(score, ranking.of(name, method)) + (f" @{score.round}" if score and early else ""))
        rows.append((method, means[method], *cells))
    return Table(
        f"Test half at the chosen point, {budget}: mean ± std over seeds (rank)",
        ("method", "mean rank", *ranking.problems),
        rows,
        "Parkinsons: mean squared error as a share of the targets' variance, less is better; the others: accuracy."
        + (
            " @: the round at which the bytes of FedAvg's whole run are used up, where that is before the end."
            if budget == BY_BYTES
            else ""
        ),
    )


def _cell(score: Score | None, rank: float) -> str:
    if score is None:
        return "not run"
    words = "diverged" if np.isnan(score.mean) else f"{score.mean:.3f} ± {score.std:.3f}"
    return f"{words} ({rank:g})"


def _agreement(rankings: Mapping[str, Ranking], difference: float) -> Table:
    """Friedman's test; seeds of one problem share its data, so they are not 20 independent problems."""
    rows = []
    for budget, ranking in rankings.items():
        for words, table in (("problems", ranking.by_problem), ("problems x seeds", ranking.by_seed)):
            agreement, chance = friedman(table)
            blocks = len(table)
            limit = difference if words == "problems" else critical_difference(table.shape[1], blocks)
            rows.append((budget, words, blocks, agreement, chance, limit))
    return Table(
        "Do the methods differ? Friedman's test and Nemenyi's critical difference at 5 %",
        ("budget", "ranked on", "blocks", "Kendall's W", "p by permutation", "critical difference"),
        rows,
        "Seeds of a problem share its data: ranked on problems x seeds, p and the difference are too small.",
    )


def _chosen(scores: Scores) -> Table:
    """The points that the validation halves chose."""
    rows: list[tuple[str, ...]] = []
    for method, entry in METHODS.items():
        cells = []
        for of in scores.values():
            values = of[method].point.values() if method in of else ()
            cells.append(", ".join(f"{value:.3g}" for value in values))
        rows.append((method, entry.parameter.removeprefix("base."), *cells))
    return Table(
        "Chosen points, equal rounds: learning rate of the clients, then the method's other parameter",
        ("method", "other parameter", *scores),
        rows,
    )


def _numbers(scores: Scores, ranking: Ranking) -> dict[str, Any]:
    return {
        "mean ranks": ranking.means(),
        "scores": {
            name: {
                method: {"values": score.values, "round": score.round, "point": score.point}
                for method, score in of.items()
            }
            for name, of in scores.items()
        },
    }


EXPERIMENTS = {
    "all-methods": Experiment(
        "No paper: a comparison of all methods by one program", {"smoke": 1, "cpu": 5, "paper": 10}, perform
    )
}
