"""What rows of the comparison say: differences from FedAvg over draws, and what could have been told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.core.tabular import table
from fedjax_sim.core.values import check_choice, check_count, check_real
from fedjax_sim.reporting.paired import adjusted, tested
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.reporting.table import LEVEL
from fedjax_sim.studies.benchmark.methods import BASE, METHODS
from fedjax_sim.studies.benchmark.personal import PERSONAL
from fedjax_sim.studies.benchmark.problems import PROBLEMS
from fedjax_sim.studies.benchmark.running import Row

BUDGETS = ("rounds", "bytes", "gradients", "seconds")
"""What a run may cost: columns of a :class:`Row`."""
SLACK = 1.01  # scalars beside a model are not to cost a method an evaluation
_QUANTILES = 1 << 14


class Difference(NamedTuple):
    """A method against tuned FedAvg on a problem, of n draws. Positive is better, of errors too.

    The draw is what is repeated: each tunes anew, on other data. Seeds of one draw share both, so they are averaged
    first; the interval and the test are over the draws alone.

    Attributes:
      problem: its name.
      method: its name.
      value: the method's mean over draws, of the problem's metric.
      mean: of the draws' differences d.
      half: d's mean ± half is Student's 95 % interval.
      effect: d's mean in d's standard deviations.
      better: draws in which it is the better one.
      draws: n.
      p: two-sided, of the paired t test.
      adjusted: p, corrected for the methods on this problem (Holm 1979), those of :data:`PERSONAL` by themselves; of a
        method that is not the benchmark's, the larger one of both families.

    Numbers are NaN where a run of either diverged, or one draw was made. Differences of round-off are none; such as are
    all equal and not 0, as of accuracies of few examples, have no effect and no p.
    """

    problem: str
    method: str
    value: float
    mean: float
    half: float
    effect: float
    better: int
    draws: int
    p: float
    adjusted: float


def differences(
    rows: Iterable[Row], budget: str = "rounds", share: float = 1.0, by: str = "examples", base: str = BASE
) -> list[Difference]:
    """Every other method minus ``base``, problem by problem.

    Args:
      rows: of one version of the protocol.
      budget: ``"rounds"``, ``"bytes"``, ``"gradients"`` or ``"seconds"`` of the clock.
      share: of what FedAvg's whole run costs; see :func:`within`.
      by: the mean over all ``"examples"``, or over ``"clients"``, each counting the same.
      base: the method that others are held against, FedAvg or another; problems without it are left out.
    """
    check_choice("differences(by=...)", by, ("examples", "clients"))
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in within(rows, budget, share):
        of_draws = found.setdefault((row.problem, row.method), {})
        of_draws.setdefault(row.draw, []).append(getattr(row, f"by_{by}"))
    if found:
        check_choice("differences(base=...)", base, list(dict.fromkeys(method for _, method in found)))
    made: list[Difference] = []
    for problem in [problem for problem, method in found if method == base]:
        others = [method for of, method in found if of == problem and method != base]
        of_problem = [_difference(problem, method, found[problem, method], found[problem, base]) for method in others]
        for foreign in (METHODS, PERSONAL):  # of shared models, of clients' own; a method of one's own may be of either
            p = adjusted(np.array([np.nan if of.method in foreign else of.p for of in of_problem]), "holm")
            larger = np.fmax(p, [of.adjusted for of in of_problem]).tolist()  # NaN gives way
            of_problem = [of._replace(adjusted=one) for of, one in zip(of_problem, larger, strict=True)]
        made += of_problem
    return made


def within(rows: Iterable[Row], budget: str = "rounds", share: float = 1.0) -> Iterator[Row]:
    """Of each run its last evaluation within a share of what FedAvg's whole run costs with the same draw and seed.

    A hundredth more than the share is within it.

    Args:
      rows: of runs, FedAvg's among them.
      budget: a name of :data:`BUDGETS`; seconds are those of the clock.
      share: at least 0: what was evaluated before the first round costs nothing.

    Raises:
      ValueError: rows of a draw and seed without FedAvg's; another budget or share.
    """
    check_real("within(share=...)", share, low=0.0, host=True)
    rows, last = list(rows), dict[tuple[str, str, int, int], Row]()
    limits = whole_runs(rows, budget)
    for row in rows:
        if getattr(row, budget) <= share * limits[row.problem, row.draw, row.seed] * SLACK:
            run = row.problem, row.method, row.draw, row.seed
            last[run] = row if run not in last or row.rounds > last[run].rounds else last[run]
    return iter(last.values())


def whole_runs(rows: Sequence[Row], budget: str) -> dict[tuple[str, int, int], float]:
    """What FedAvg's whole run costs, by problem, draw and seed."""
    check_choice("within(budget=...)", budget, BUDGETS)
    found = {(row.problem, row.draw, row.seed): 0.0 for row in rows if row.method == BASE}
    for row in rows:
        run = row.problem, row.draw, row.seed
        if run not in found:
            raise ValueError(f"{run[0]} has no rows of {BASE} of draw {run[1]}, seed {run[2]}: give these too")
        if row.method == BASE:
            found[run] = max(found[run], getattr(row, budget))
    return found


def _difference(problem: str, method: str, own: dict[int, list[float]], base: dict[int, list[float]]) -> Difference:
    draws = sorted(own.keys() & base.keys())
    values, beside = (np.array([np.mean(of[draw]) for draw in draws]) for of in (own, base))
    given = (beside, values) if less_is_better(PROBLEMS[problem].metric) else (values, beside)
    d, nan = given[0] - given[1], float("nan")
    half, effect, p = nan, nan, nan
    if len(draws) > 1 and np.isfinite(d).all():
        d, half, p = tested(*given, "float32")
        effect = float(d.mean() / d.std(ddof=1)) if half else nan
    mean = float(d.mean()) if draws else nan
    return Difference(problem, method, float(values.mean()) if draws else nan, mean, half, effect,
                      int((d > 0).sum()), len(draws), p, p)  # fmt: skip


def smallest_effect(draws: int, methods: int = 1, power: float = 0.8) -> float:
    """The least difference, in standard deviations of the draws' differences, that is told with this chance.

    Two-sided paired t test over n ``draws`` at 5 % over the number of ``methods``, which is Holm's first and hardest
    step: the delta with P(|T| > t) = power, T noncentral t of n - 1 degrees and delta sqrt(n).

    >>> round(smallest_effect(10), 2), round(smallest_effect(10, methods=7), 2), round(smallest_effect(3, 7), 1)
    (1.0, 1.41, 8.7)
    """
    from scipy.special import gammaincinv, ndtr, stdtrit  # type: ignore[import-untyped]  # of scipy, which jax brings

    check_count("smallest_effect(draws=...)", draws, low=2)
    check_count("smallest_effect(methods=...)", methods)
    bound, half = stdtrit(draws - 1, 1 - LEVEL / methods / 2), (draws - 1) / 2
    # T = (Z + shift) / s is averaged over quantiles of the deviation s: scipy's distribution of T is NaN in its tails.
    s = np.sqrt(gammaincinv(half, (np.arange(_QUANTILES) + 0.5) / _QUANTILES) / half)
    low, high = 0.0, (10 * bound + 10) / np.sqrt(draws)
    for _ in range(60):
        middle = (low + high) / 2
        shift = middle * np.sqrt(draws)
        told = np.mean(ndtr(shift - bound * s) + ndtr(-shift - bound * s))
        low, high = (middle, high) if told < power else (low, middle)
    return float(high)


def as_table(found: Sequence[Difference], form: str = "text", notes: Sequence[str] = (), base: str = BASE) -> str:
    """A line for each problem and method; where Holm's p is below 5 % the interval has a star. ``notes`` go below."""
    columns = [
        ("problem", [of.problem for of in found]),
        ("method", [of.method for of in found]),
        ("value", [f"{of.value:.4f}" if np.isfinite(of.value) else "diverged" for of in found]),
        (f"better than {base} by", [_interval(of) for of in found]),
        ("effect", [f"{of.effect:+.2f}" if np.isfinite(of.effect) else "" for of in found]),
        ("draws", [f"{of.better} of {of.draws}" for of in found]),
        ("p (Holm)", [f"{of.adjusted:.3f}" if np.isfinite(of.adjusted) else "" for of in found]),
    ]
    said = "by: mean over draws ± half of its 95 % t-interval, * where p (Holm, over the methods of a problem) < 0.05"
    value = "value: on the part that is reported, mean over draws: the accuracy, of Parkinsons the squared error"
    return table(columns, form, notes=[*notes, value, said, "effect: that mean in standard deviations over draws"])


def _interval(of: Difference) -> str:
    if not np.isfinite(of.mean):
        return ""
    star = "*" if of.adjusted < LEVEL else ""
    return f"{of.mean:+.4f}" + (f" ± {of.half:.4f}{star}" if np.isfinite(of.half) else "")
