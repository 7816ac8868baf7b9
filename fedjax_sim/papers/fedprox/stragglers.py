"""Figures 1 and 7 to 10: stragglers, dropped by FedAvg and kept by FedProx, on five data sets."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers import measuring
from fedjax_sim.papers.bench import Bench, Claim, Effect, Outcome, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedprox import measures, problems
from fedjax_sim.papers.fedprox.measures import LAST, STEADY, Pairs, lower
from fedjax_sim.papers.fedprox.problems import EPOCHS, Problem
from fedjax_sim.papers.fedprox.synthetics import DIAGNOSTICS, P_VARIANCE, VARIANCE, WEIGHTS, WORDS, consistent
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

FRACTIONS = (0.0, 0.5, 0.9)  # of the cohort that straggles
FEDAVG, PLAIN, PROX = METHODS = ("FedAvg", "FedProx, μ = 0", "FedProx, μ > 0")
PAPERS_POINTS = 22.0  # test accuracy at 90 % stragglers, FedProx over FedAvg, on average
LEAST_POINTS = 21.5  # which is 22 when rounded
CAN = "can: by a 95 % interval"
CHUNK = 10  # runs after which a sweep is stored

Case = Any  # a data set, or a data set and a share of stragglers
Values = Mapping[Case, Mapping[str, np.ndarray]]  # a measure of each method, [seeds]
Runs = Mapping[tuple[str, float], dict[str, History]]  # by data set and share of stragglers: a history of each method


def runs_of(
    bench: Bench, name: str, problem: Problem, mus: tuple[float, ...], epochs: int = EPOCHS
) -> dict[float, dict[str, History]]:
    """Histories by share of stragglers and method, in two programs: stragglers are kept, or dropped.

    With E = 1 a straggler does a part of its only epoch: U{1..ceil(n_i / B)} steps.
    """
    optimizer = fjs.optim.sgd(problem.learning_rate)
    setting, number = problems.run_setting(bench, problem), problems.local_epochs(bench, epochs)
    draw = "steps" if epochs == 1 else "paper"
    kept = bench.sweep(
        f"{name}, E={epochs}, kept", fjs.fedprox(client_optimizer=optimizer, mu=problem.mu), problem.data,
        fjs.sweeps.grid({"work.fraction": list(FRACTIONS), "mu": list(mus)}),
        work=fjs.local.stragglers(0.5, number, draw=draw), chunk=CHUNK, **setting,
    )  # fmt: skip
    dropped = bench.sweep(
        f"{name}, E={epochs}, dropped", fjs.fedavg(client_optimizer=optimizer), problem.data,
        fjs.sweeps.grid({"work.fraction": list(FRACTIONS[1:])}),
        work=fjs.local.stragglers(0.5, number, keep=False, draw=draw), chunk=CHUNK,
        **setting,
    )  # fmt: skip
    found = {}
    for place, fraction in enumerate(FRACTIONS):
        with_mu = [kept.at(place * len(mus) + k) for k in range(len(mus))]
        # with nobody to drop, FedAvg is FedProx with mu = 0
        fedavg = dropped.at(place - 1) if place else with_mu[0]
        found[fraction] = dict(zip(METHODS, (fedavg, *with_mu), strict=False))
    return found


def perform_fig1(bench: Bench) -> Outcome:
    """The loss with E = 20."""
    found = problems.problems(bench)
    runs = _all_runs(bench, found, EPOCHS)
    loss, rises = measures.each(runs, "loss"), measures.each(runs, measuring.rises)
    table = Table(
        f"Loss (mean of the last tenth of the rounds) and unsteadiness (mean rise, second half), E = {EPOCHS}",
        ("data", "stragglers", *METHODS, *(f"rise, {method}" for method in METHODS)),
        [(name, f"{f:.0%}", *_means(loss[name, f]), *_means(rises[name, f])) for name, f in runs],
        "The paper gives figures only.",
    )  # fmt: skip
    claims = claims_of_fig1(list(found), loss, rises, measures.each(runs, measures.diverged))
    figures = {"figure1": _figure(runs, found, "loss")}
    return Outcome(problems.settings(bench, found), claims, figures, [table], scale=problems.scale(bench, found))


def claims_of_fig1(
    names: list[str], loss: Values, rises: Values, divergent: Mapping[Case, Mapping[str, float]]
) -> list[Claim]:
    """What the paper says of losses and unsteadiness [seeds], and of how many seeds diverge."""
    none, half, most = FRACTIONS
    late = [case for case in loss if case[1] > 0]
    steps = {f"{name} {more:.0%}": (loss[name, less][FEDAVG], loss[name, more][FEDAVG])
             for name in names for less, more in ((none, half), (half, most))}  # fmt: skip
    gain = {case: of[FEDAVG] - of[PLAIN] for case, of in loss.items()}
    unstable = {case: list(of.values()) for case, of in divergent.items() if of[FEDAVG] or of[PLAIN]}
    place, note, kept = "Section 5.2, Figure 1", _note(names), "leads to more stable and faster convergence"
    return [
        lower("FedAvg, which drops stragglers, ends at a higher loss the more of them there are, on all data sets",
              steps, "FedAvg's loss with fewer stragglers and with more", quote="larger heterogeneity results in worse "
              "convergence", place=place, note=note, ours=LAST, why="fragile"),
        _less("keeping partial work (FedProx, μ = 0) ends at a lower loss than dropping it, at 50 and 90 %",
              _pairs(loss, late, PLAIN, FEDAVG), f"{PLAIN}, and FedAvg", quote=kept, place=place, note=note,
              central=True, ours=LAST),
        _less("keeping partial work is steadier than dropping it, at 50 and 90 %",
              _pairs(rises, late, PLAIN, FEDAVG), f"{PLAIN}, and FedAvg", quote=kept, place=place, note=note,
              ours=STEADY),
        _less("the gain of keeping partial work grows from 50 to 90 % stragglers",
              {name: (gain[name, half], gain[name, most]) for name in names},
              "FedAvg's loss less FedProx's, 50 and 90 %", note=note, own=True),
        _less("μ > 0 can further improve on μ = 0, with and without stragglers: it ends at a lower loss in "
              "at least one case",
              _pairs(loss, loss, PROX, PLAIN), "μ > 0, and μ = 0", can=True, quote="can further improve convergence",
              place=place, note=note, ours=f"{CAN}; {LAST}"),
        _less("μ > 0 is steadier than μ = 0, with and without stragglers", _pairs(rises, rises, PROX, PLAIN),
              "μ > 0, and μ = 0", quote="leads to more stable convergence", place="Figure 1", note=note, central=True,
              ours=STEADY),
        Claim("where FedAvg or FedProx with μ = 0 diverges (f_t - f_(t-10) > 1 at some t), μ > 0 does not",
              all(of[-1] == 0 for of in unstable.values()) if unstable else None,
              {"seeds that diverge: FedAvg, μ = 0, μ > 0": {_said(case): of for case, of in unstable.items()}},
              "" if unstable else "no run diverged", quote="can force divergent methods to converge",
              place="Section 5.3.2, Figure 1", ours="any seed counts; the rule is that of Appendix C.3.2"),
    ]  # fmt: skip


def perform_fig7(bench: Bench) -> Outcome:
    """The test accuracy with E = 20, and the paper's number."""
    found = problems.problems(bench)
    runs = _all_runs(bench, found, EPOCHS)
    accuracy = measures.each(runs, measures.accuracy_by_rule)
    final = measures.each(runs, "test_accuracy")
    points, at_end = ({name: 100 * (of[name, FRACTIONS[-1]][PROX] - of[name, FRACTIONS[-1]][FEDAVG]) for name in found}
                      for of in (accuracy, final))  # fmt: skip
    gain, gain_at_end = (np.mean([*of.values()], axis=0) for of in (points, at_end))
    by_rule = Table(
        "Test accuracy by the paper's rule: where the run converged, began to diverge, or ended",
        ("data", "stragglers", *METHODS, "FedProx (μ > 0) less FedAvg, points", "where, by seed"),
        [(name, f"{f:.0%}", *_means(of), float(100 * (of[PROX] - of[FEDAVG]).mean()), _where(runs[name, f]))
         for (name, f), of in accuracy.items()],
    )  # fmt: skip
    average = Table(
        "Improvement at 90 % stragglers, points of test accuracy",
        ("", "paper", "by the paper's rule", "over the last tenth"),
        [("average over the data sets", PAPERS_POINTS, float(gain.mean()), float(gain_at_end.mean())),
         *((name, None, float(points[name].mean()), float(at_end[name].mean())) for name in found)],
        f"The paper gives the average alone, over five data sets; here over {len(found)}.",
    )  # fmt: skip
    effects = [Effect("FedProx less FedAvg, 90 % stragglers, all data", "points", PAPERS_POINTS, gain.tolist()),
               *(Effect(f"the same, {name}", "points", None, of.tolist()) for name, of in points.items())]  # fmt: skip
    claims = claims_of_fig7(list(found), accuracy, gain, gain_at_end)
    figures = {"figure7": _figure(runs, found, "test_accuracy")}
    return Outcome(problems.settings(bench, found), claims, figures, [average, by_rule], effects=effects,
                   scale=problems.scale(bench, found))  # fmt: skip


def claims_of_fig7(names: list[str], accuracy: Values, gain: np.ndarray, gain_at_end: np.ndarray) -> list[Claim]:
    """What the paper says of accuracies by its rule; the gain at 90 % is the data sets' mean, in points, [seeds]."""
    note, worst = _note(names), [case for case in accuracy if case[1] == FRACTIONS[-1]]
    least = np.full_like(gain, LEAST_POINTS)
    return [
        _less("at 90 % stragglers FedProx (μ > 0) is more accurate than FedAvg on all data sets",
              _pairs(accuracy, worst, FEDAVG, PROX), "FedAvg, and FedProx", note=note, ours="at 90 % stragglers",
              quote="FedProx improves the test accuracy on all datasets", place="Figures 1 and 7"),
        lower(f"at 90 % stragglers FedProx (μ > 0) gains {PAPERS_POINTS:g} points over FedAvg, on average",
              {"mean of the data sets": (least, gain)}, f"{LEAST_POINTS} and the gain",
              most=True, note=f"{note}; over the last tenth of the rounds instead {gain_at_end.mean():.3g}".strip("; "),
              central=True, quote="improves absolute testing accuracy relative to FedAvg by 22% on average",
              place="Section 5.3.2, Figure 7", ours=f"{LEAST_POINTS} or more in the mean of seeds",
              why=measuring.below(least, gain, "other data").why),
        _less("μ > 0 increases the accuracy over μ = 0 in most cases", _pairs(accuracy, accuracy, PLAIN, PROX),
              "μ = 0, and μ > 0", most=True, note=note, quote="also increases the accuracy in most cases",
              place="Section 5.3.2, Figure 7"),
    ]  # fmt: skip


def perform_fig8(bench: Bench) -> Outcome:
    """The variance of gradients where nobody straggles."""
    found = problems.problems(bench)
    runs = {}
    for name, problem in found.items():
        algorithm = fjs.fedprox(client_optimizer=fjs.optim.sgd(problem.learning_rate), mu=problem.mu)
        of = bench.runs(
            f"{name}, dissimilarity", algorithm, problem.data, fjs.sweeps.grid({"mu": [0.0, problem.mu]}),
            work=fjs.local.epochs(problems.local_epochs(bench, EPOCHS)), diagnostics=DIAGNOSTICS, chunk=CHUNK,
            **problems.run_setting(bench, problem),
        )  # fmt: skip
        runs[name] = dict(zip((PLAIN, PROX), of, strict=True))
    variance, by_share, loss = (
        measures.each(runs, functools.partial(measures.whole, metric=metric))
        for metric in (VARIANCE, P_VARIANCE, "loss")
    )
    order, whole = "μ > 0, and μ = 0", "means over all rounds"
    text = {name: _means(of) for name, of in by_share.items()}
    claims = [
        _less("μ > 0 leads to a smaller dissimilarity", _pairs(variance, variance, PROX, PLAIN), order,
              quote="leads to smaller dissimilarity among local functions", place="Section 5.3.3, of Figure 2",
              note=_note(list(found)), ours=f"{whole}; {WEIGHTS}"),
        consistent(variance, loss, text, place="Appendix C.3.2, Figure 8",
                   quote="consistent with the real performance (the loss)", ours=f"{whole}; {WEIGHTS}"),
    ]  # fmt: skip
    table = Table(
        "Variance of gradients and loss, means over all rounds",
        ("data", "μ", "variance, 1/N", "variance, p_k", "loss"),
        [(name, f"{0.0 if method == PLAIN else found[name].mu:g}",
          *(float(of[name][method].mean()) for of in (variance, by_share, loss)))
         for name, of in runs.items() for method in of],
        "The paper gives figures only.",
    )  # fmt: skip
    figures = {"figure8": by_metric(runs, [VARIANCE], WORDS)}
    return Outcome(problems.settings(bench, found), claims, figures, [table], scale=problems.scale(bench, found))


def perform_fig9(bench: Bench) -> Outcome:
    """The loss with E = 1."""
    found = problems.problems(bench)
    runs = _all_runs(bench, found, 1)
    loss = measures.each(runs, "loss")
    number = [measures.diverged(history) for of in runs.values() for history in of.values()]
    claims = [
        _less("with E = 1 keeping partial work (FedProx, μ = 0) can still improve convergence: it ends at a lower loss "
              "than dropping it in at least one case",
              _pairs(loss, [case for case in runs if case[1] > 0], PLAIN, FEDAVG),
              f"{PLAIN}, and FedAvg", can=True, place="Section 5.2, Figure 9", note=_note(list(found)),
              quote="allowing for partial work can improve convergence compared with FedAvg", ours=f"{CAN}; {LAST}"),
        Claim("with E = 1 local models do not go far from the global one: no run diverges", not any(number),
              {"seeds that diverge": sum(number), "runs": len(number) * len(bench.seeds)},
              quote="local updates will not deviate too much from the global model", place="Figure 9",
              ours="by the rule of Appendix C.3.2"),
    ]  # fmt: skip
    return _of_one_epoch(bench, found, runs, claims, "loss", loss, "figure9")


def perform_fig10(bench: Bench) -> Outcome:
    """The test accuracy with E = 1."""
    found = problems.problems(bench)
    runs = _all_runs(bench, found, 1)
    accuracy = measures.each(runs, "test_accuracy")
    claims = [
        _less("with E = 1 keeping partial work can still improve the test accuracy over dropping it: it does in "
              "at least one case", _pairs(accuracy, [case for case in runs if case[1] > 0], FEDAVG, PLAIN),
              f"FedAvg, and {PLAIN}", can=True,
              quote="allowing for partial work can improve convergence compared with FedAvg",
              place="Section 5.2, Figure 10", note=_note(list(found)), ours=f"{CAN}; {LAST}"),
    ]  # fmt: skip
    return _of_one_epoch(bench, found, runs, claims, "test_accuracy", accuracy, "figure10")


def _all_runs(bench: Bench, found: Mapping[str, Problem], epochs: int) -> Runs:
    return {
        (name, fraction): of
        for name, problem in found.items()
        # with E = 1 the paper has no mu > 0
        for fraction, of in runs_of(bench, name, problem, (0.0, problem.mu)[: min(epochs, 2)], epochs).items()
    }


def _of_one_epoch(
    bench: Bench, found: dict[str, Problem], runs: Runs, claims: list[Claim], metric: str, values: Any, name: str
) -> Outcome:
    table = Table(
        f"{metric.replace('_', ' ').capitalize()}, mean of the last tenth of the rounds, E = 1",
        ("data", "stragglers", *METHODS[:2]),
        [(data, f"{f:.0%}", *_means(values[data, f])) for data, f in runs], "The paper gives figures only.",
    )  # fmt: skip
    figures = {name: _figure(runs, found, metric)}
    return Outcome(problems.settings(bench, found, 1), claims, figures, [table], scale=problems.scale(bench, found))


def _figure(runs: Runs, found: Mapping[str, Problem], metric: str) -> Any:
    words = metric.replace("_", " ")
    return panels([
        [Panel(runs[name, fraction], metric, name if fraction == FRACTIONS[0] else "",
               label=f"{fraction:.0%} stragglers:\n{words}") for name in found]
        for fraction in FRACTIONS
    ])  # fmt: skip


def _less(statement: str, pairs: Pairs, order: str, **about: Any) -> Claim:
    """:func:`lower`; where none but Shakespeare goes the other way, that it is smaller here is the likeliest reason."""
    wrong = [case for case, (first, second) in pairs.items() if not first.mean() < second.mean()]
    small = bool(wrong) and all(case.startswith("Shakespeare") for case in wrong)
    return lower(statement, pairs, order, why="too small" if small else "unexplained", **about)


def _pairs(values: Values, cases: Iterable[Case], less: str, more: str) -> Pairs:
    return {_said(case): (values[case][less], values[case][more]) for case in cases}


def _said(case: Case) -> str:
    return case if isinstance(case, str) else f"{case[0]} {case[1]:.0%}"


def _means(values: Mapping[str, np.ndarray]) -> list[float]:
    return [float(of.mean()) for of in values.values()]


def _where(of: Mapping[str, History]) -> str:
    return "; ".join(
        f"{method}: " + ", ".join(f"{found.how} ({history.evaluated[found.place]})" for found in measures.ends(history))
        for method, history in of.items() if method != PLAIN
    )  # fmt: skip


def _note(names: list[str]) -> str:
    return "" if "Sent140" in names else problems.MISSING
