"""What is asked of the comparison, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedjax_sim.papers.all_methods.methods import ADAPTIVE_SERVERS, CONTROL_VARIATES, METHODS
from fedjax_sim.papers.all_methods.problems import DIGITS, FULL_PARTICIPATION, SYNTHETIC, UNEQUAL_STEPS, Problem
from fedjax_sim.papers.all_methods.ranking import friedman, spearman
from fedjax_sim.papers.all_methods.scores import Score, Scores
from fedjax_sim.papers.experiment import Claim
from fedjax_sim.reporting.recorded import less_is_better

LEVEL = 0.05
ERRORS = 2.0  # standard errors of a paired difference that count as a difference
ALIKE = 0.9  # a rank correlation that counts as the same order


class Ranking(NamedTuple):
    """Ranks of all methods, in the order of ``METHODS``.

    Attributes:
      problems: their names.
      by_problem: [problems, methods], by the mean over seeds.
      by_seed: [problems x seeds, methods].
    """

    problems: tuple[str, ...]
    by_problem: np.ndarray
    by_seed: np.ndarray

    def means(self) -> dict[str, float]:
        """Mean rank over the problems, by method."""
        return dict(zip(METHODS, self.by_problem.mean(axis=0).tolist(), strict=True))

    def of(self, problem: str, method: str) -> float:
        """The rank of a method on a problem."""
        return float(self.by_problem[self.problems.index(problem), list(METHODS).index(method)])


def gain(problem: Problem, score: Score, reference: Score) -> tuple[float, float]:
    """How much better a score is than another, and the standard error of that, by the seeds' differences."""
    differences = score.values - reference.values
    better = -differences if less_is_better(problem.metric) else differences
    seeds = better.size
    error = float(better.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else float("nan")
    return float(better.mean()), error


def claims(
    posed: Mapping[str, Problem],
    by_rounds: Scores,
    by_bytes: Scores,
    rounds: Ranking,
    data: Ranking,
    difference: float,
) -> list[Claim]:
    """The questions as statements that can be true or false.

    Args:
      posed: the problems.
      by_rounds: scores within equal rounds.
      by_bytes: scores within equal bytes.
      rounds: ranks of the first.
      data: ranks of the second.
      difference: Nemenyi's, between mean ranks.
    """
    means, means_bytes = rounds.means(), data.means()
    agreement, chance = friedman(rounds.by_problem)
    agreement_bytes, chance_bytes = friedman(data.by_problem)
    best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    leads = {
        budget: means_of["FedAvg"] - min(means_of.values())
        for budget, means_of in (("rounds", means), ("bytes", means_bytes))
    }
    winners = {name: list(METHODS)[int(np.argmin(of))] for name, of in zip(posed, rounds.by_problem, strict=True)}
    alike = {name: _close_to_best(posed[name], by_rounds[name]) for name in posed}
    full, sampled = _control_ranks(rounds)
    costly = [name for name, score in by_bytes[SYNTHETIC].items() if score.round < by_bytes[SYNTHETIC]["FedAvg"].round]
    shifts = {name: means_bytes[name] - means[name] for name in costly}
    nova = {name: _nova_gain(posed[name], by_rounds[name]) for name in UNEQUAL_STEPS}
    servers = {name: means[name] for name in ADAPTIVE_SERVERS}
    same_order = spearman(np.array(list(means.values())), np.array(list(means_bytes.values())))
    asked = [
        Claim("equal rounds: the methods differ (Friedman's test over the problems, 5 %)", chance <= LEVEL,
              {"Kendall's W": agreement, "p by permutation": chance}),
        Claim("equal bytes: the methods differ (Friedman's test over the problems, 5 %)", chance_bytes <= LEVEL,
              {"Kendall's W": agreement_bytes, "p by permutation": chance_bytes}),
        Claim("equal rounds: the best and the worst mean rank differ by more than Nemenyi's critical difference (5 %)",
              means[worst] - means[best] > difference,
              {"best": best, "its mean rank": means[best], "worst": worst, "its rank": means[worst],
               "critical difference": difference}),
        Claim("within one of the budgets, a method is better than FedAvg by more than the critical difference",
              max(leads.values()) > difference,
              {"FedAvg's mean rank less the best": leads, "critical difference": difference}),
        Claim("equal rounds: one method is first on every problem", len(set(winners.values())) == 1,
              {"first": winners, "methods within two standard errors of the first": alike}),
        Claim("control variates (SCAFFOLD, VRL-SGD, FedNova with VR) rank better where everybody takes part than where "
              "clients are sampled (mean rank over them, equal rounds)", full < sampled,
              {"mean rank, full participation": full, "mean rank, sampled": sampled}),
        Claim("methods that send more than FedAvg lose ranks on average when bytes are equal and not rounds",
              bool(shifts) and float(np.mean(list(shifts.values()))) > 0, {"change of the mean rank": shifts}),
        Claim("FedNova is better than FedAvg where clients' numbers of steps differ (synthetic and MNIST; the paired "
              "difference over seeds is beyond two standard errors on both)",
              all(better > ERRORS * error for better, error in nova.values()),
              {"gain of accuracy and its standard error": {name: list(pair) for name, pair in nova.items()},
               "on digits": list(_nova_gain(posed[DIGITS], by_rounds[DIGITS]))},
              "with sizes capped, MNIST's clients turned out to do almost equally many steps; on digits they differ"),
        Claim("each adaptive server (FedAdagrad, FedAdam, FedYogi, FedAMS) has a better mean rank than FedAvg "
              "(equal rounds)", max(servers.values()) < means["FedAvg"], {"FedAvg": means["FedAvg"], **servers}),
        Claim("the order by bytes is that by rounds (Spearman's correlation of mean ranks at least 0.9)",
              same_order >= ALIKE, {"Spearman": same_order}),
    ]  # fmt: skip
    return [question._replace(own=True) for question in asked]


def _close_to_best(problem: Problem, scores: Mapping[str, Score]) -> int:
    """How many methods, the first included, are not told from the first by the seeds."""
    known = {name: score for name, score in scores.items() if not np.isnan(score.mean)}
    sign = -1 if less_is_better(problem.metric) else 1
    first = max(known.values(), key=lambda score: sign * score.mean)
    gains = [gain(problem, first, score) for score in known.values()]
    return sum(not better > ERRORS * error for better, error in gains)


def _control_ranks(ranking: Ranking) -> tuple[float, float]:
    """Mean rank of the methods with control variates where everybody takes part, and elsewhere."""
    columns = [list(METHODS).index(name) for name in CONTROL_VARIATES]
    full = np.array([name in FULL_PARTICIPATION for name in ranking.problems])
    table = ranking.by_problem[:, columns]
    return float(table[full].mean()), float(table[~full].mean())


def _nova_gain(problem: Problem, scores: Mapping[str, Score]) -> tuple[float, float]:
    """How much better FedNova is than FedAvg; NaN where it was not run, as on most problems of the smoke size."""
    if "FedNova" not in scores:
        return float("nan"), float("nan")
    return gain(problem, scores["FedNova"], scores["FedAvg"])
