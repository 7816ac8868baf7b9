"""Table 2 and Figures 2, 3 and 6: eight methods as they are and with the AWARE extension, from the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.papers.bench import Bench, Claim, Effect, Outcome, Setting, Table, Why
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedaware import methods
from fedjax_sim.papers.fedaware.methods import DYNAMICS, INTERVALS, dynamics, last_accuracy
from fedjax_sim.papers.fedaware.tasks import Problem, problems, scale, settings
from fedjax_sim.papers.measuring import Difference, areas, difference, mean, reason, spearman
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

METRICS, LABELS = ("loss", "test_accuracy", DYNAMICS), {DYNAMICS: "e-LUD, mean so far"}
TASKS = ("CIFAR-10", "CIFAR-100", "AG News")

# Table 2: by method, for each task, test accuracy (%) and e-LUD_D, then both with AWARE; None where the paper has none.
Row = tuple[float, float | None, float | None, float | None]
PAPER: Mapping[str, tuple[Row, Row, Row]] = {
    "FedAvg": ((42.78, 2.58, 49.25, 3.08), (28.69, 2.94, 32.72, 3.61), (79.27, 1.25, 80.21, 1.98)),
    "FedAvgM": ((50.07, 2.17, 59.58, 2.92), (31.04, 2.72, 40.66, 3.37), (81.85, 1.38, 83.15, 1.85)),
    "FedCM": ((47.84, 2.99, 49.13, 3.09), (30.62, 2.94, 33.09, 3.63), (80.79, 1.26, 80.24, 1.76)),
    "FedDyn": ((54.87, None, None, None), (39.04, None, None, None), (84.47, None, None, None)),
    "FedProx": ((46.33, 2.81, 49.40, 2.87), (27.20, 2.95, 32.68, 3.62), (76.81, 1.15, 80.13, 1.83)),
    "FedYogi": ((54.62, 2.47, 54.92, 2.66), (37.12, 2.61, 44.02, 3.27), (83.15, 1.43, 85.89, 2.01)),
    "FedAMS": ((57.09, 2.46, 58.45, 2.67), (38.19, 2.42, 45.20, 3.13), (83.33, 1.34, 86.08, 1.92)),
    "FedAWARE": ((59.78, 2.90, None, None), (38.77, 2.75, None, None), (87.70, 1.73, None, None)),
}
NOT_RUN = "CIFAR-100 with ResNet-18 and AG News with Pythia-70M are run at the paper's size only"
CENTRAL = "CIFAR-10"  # the task of which the claims are the central ones: it is run at every size
SLIGHTLY = 0.1  # by so much a mean training loss may grow that grows "slightly"


def perform_table2(bench: Bench) -> Outcome:
    """Test accuracy and e-LUD, the paper's beside ours."""
    tasks, runs = _runs(bench)
    tables = [table for task, of in runs.items() for table in _tables(task, of)]
    claims = table_claims(runs, methods.why_not(bench))
    return Outcome(_settings(bench, tasks), claims, {}, tables, effects=_effects(runs), scale=scale(bench))


def perform_fig2(bench: Bench) -> Outcome:
    """The raw methods."""
    tasks, runs = _runs(bench)
    rows = [
        [Panel(of.raw, metric, title=task if metric == "loss" else "", label=LABELS.get(metric))
         for task, of in runs.items()]
        for metric in METRICS
    ]  # fmt: skip
    if len(runs) == 1:  # one task: side by side
        rows = [[panel for row in rows for panel in row]]
    outcome = Outcome(_settings(bench, tasks), speed_claims(runs, methods.why_not(bench)), {"figure2": panels(rows)})
    return outcome._replace(tables=[_dynamics_table(runs)], scale=scale(bench))


def speed_claims(runs: Mapping[str, methods.Compared], why: Why) -> list[Claim]:
    """How fast FedAWARE is among the raw methods, by task."""
    claims = []
    for task in ("CIFAR-10", "AG News"):  # of CIFAR-100 the paper says that it is slightly slower
        raw = runs[task].raw if task in runs else {}
        ahead = _ahead(raw, areas, sign=-1)
        still = [name for name in ahead if not methods.has_learned(raw[name])]
        note = ""
        if not ahead:
            note = NOT_RUN
        elif len(still) > len(ahead) / 2:
            note = f"{', '.join(still)} end within 5 % of the loss of the initial model: their speed is nobody's"
        told = bool(ahead) and not note
        numbers = {f"mean loss less FedAWARE's ({INTERVALS})": {name: of.numbers for name, of in ahead.items()},
                   "no better than the initial model": still}  # fmt: skip
        learned = [name for name in ahead if name not in still]
        faster = [name for name in learned if ahead[name].above]
        claims.append(
            Claim(f"on {task} FedAWARE converges faster than most baselines",
                  len(faster) > len(learned) / 2 if told else None, numbers, note,
                  quote="FedAWARE converges faster than most baselines", place="Section 5, Figure 2",
                  ours="more than half of those that learned, by the mean training loss of all evaluations",
                  why=reason(why, *map(ahead.__getitem__, learned), needed=len(learned) // 2 + 1),
                  central=task == CENTRAL)
        )  # fmt: skip
        rivals = [name for name in ("FedYogi", "FedAMS") if name in learned]
        note = note or ("" if rivals else "neither learned anything, or was run, at this size")
        claims.append(
            Claim(f"on {task} FedAWARE converges faster than FedYogi and FedAMS",
                  None if note else set(rivals) <= set(faster), numbers if ahead else {}, note,
                  quote="even outperforms adaptive federated optimization methods (FedYogi and FedAMS)",
                  place="Section 5, Figure 2", ours="by the mean training loss of all evaluations",
                  why=reason(why, *map(ahead.__getitem__, rivals)))
        )  # fmt: skip
    claims.append(_cifar100(runs.get("CIFAR-100"), why))
    return claims


def _cifar100(of: methods.Compared | None, why: Why) -> Claim:
    rivals = ("FedYogi", "FedAMS")
    held, numbers = None, {}
    if of is not None:
        losses = {name: of.raw[name]["loss"] for name in ("FedAWARE", *rivals)}
        early = {name: values[:, : values.shape[1] // 5].mean(axis=1) for name, values in losses.items()}
        last = {name: values[:, -1] for name, values in losses.items()}
        behind = {name: difference(early["FedAWARE"], early[name]) for name in rivals}
        above = {name: difference(1.05 * last[name], last["FedAWARE"]) for name in rivals}
        differences = [*behind.values(), *above.values()]
        held, why = all(of.above for of in differences), reason(why, *differences)
        numbers = {f"mean loss of the first fifth, less the other's ({INTERVALS})":
                   {name: of.numbers for name, of in behind.items()},
                   "loss at the end": {name: float(values.mean()) for name, values in last.items()}}  # fmt: skip
    return Claim(
        "on CIFAR-100 FedAWARE is behind FedYogi and FedAMS early and ends with the same training loss",
        held, numbers, NOT_RUN if of is None else "", place="Section 5, Figure 2", why=why,
        quote="it still reaches a good solution with identical train loss", ours="early: a fifth; identical: to 5 %",
    )  # fmt: skip


def perform_fig3(bench: Bench) -> Outcome:
    """Raw beside extended; Figure 6 of the appendix is the same drawing for the other two tasks."""
    tasks, runs = _runs(bench)
    figures = {}
    for task, of in runs.items():
        raw = {name: run for name, run in of.raw.items() if name in of.extended}
        name = "figure3" if task == "CIFAR-100" else f"figure6-{task.lower().replace(' ', '-')}"
        figures[name] = same_heights(by_metric({"raw": raw, "with AWARE": of.extended}, METRICS, LABELS))
    outcome = Outcome(_settings(bench, tasks), extension_claims(runs, methods.why_not(bench)), figures)
    return outcome._replace(tables=[_dynamics_table(runs)], scale=scale(bench))


def extension_claims(runs: Mapping[str, methods.Compared], why: Why) -> list[Claim]:
    """What the extension does to speed and steadiness, by task."""
    claims = []
    for task in TASKS:
        pairs, note = (_pairs(runs[task]), "") if task in runs else ({}, NOT_RUN)
        most, losses = len(pairs) // 2 + 1, {name: (areas(a), areas(b)) for name, (a, b) in pairs.items()}
        if task == "AG News":
            words, quote, ours = "speeds the convergence up", "the convergence of AGNews tasks is improved", ""
            gains = {name: difference(a, b) for name, (a, b) in losses.items()}
        else:
            words, quote = "slows the convergence at most slightly", "may reduce convergence slightly on CIFAR-10"
            ours = f"slightly: a mean loss at most {100 * SLIGHTLY:.0f} % larger; "
            gains = {name: difference((1 + SLIGHTLY) * a, b) for name, (a, b) in losses.items()}
        claims.append(
            Claim(f"on {task} the extension {words}, of most methods",
                  sum(of.above for of in gains.values()) >= most if pairs else None,
                  {"mean loss, raw and extended": {name: [*map(mean, of)] for name, of in losses.items()}}, note,
                  quote=quote, place="Appendix B.2, Figures 3 and 6", why=reason(why, *gains.values(), needed=most),
                  ours=f"{ours}by the mean training loss of all evaluations")
        )  # fmt: skip
        if task == "CIFAR-100":  # of it the paper says that accuracies are higher, which is Table 2
            continue
        steadier = {name: difference(*map(methods.falls, pair)) for name, pair in pairs.items()}
        claims.append(
            Claim(f"on {task} the extension makes the test accuracy of most methods steadier",
                  sum(of.above for of in steadier.values()) >= most if pairs else None,
                  {f"mean fall of the test accuracy, raw less extended ({INTERVALS})":
                   {name: of.numbers for name, of in steadier.items()}}, note,
                  quote="mitigates the test accuracy spikes problem", place="Section 5, Figure 6",
                  ours="falls between two evaluations of the second half; most methods",
                  why=reason(why, *steadier.values(), needed=most))
        )  # fmt: skip
    return claims


def _ahead(runs: Mapping[str, History], measure: Any, sign: int = 1) -> dict[str, Difference]:
    """By how much FedAWARE's measure is above each other method's, or below with the sign -1."""
    values = {name: sign * measure(run) for name, run in runs.items()}
    return {name: difference(values["FedAWARE"], of) for name, of in values.items() if name != "FedAWARE"}


def _runs(bench: Bench) -> tuple[list[Problem], dict[str, methods.Compared]]:
    tasks = problems(bench)
    return tasks, {problem.name: methods.compared(bench, problem) for problem in tasks}


def _settings(bench: Bench, tasks: list[Problem]) -> list[Setting]:
    small = bench.size != "paper"
    return [
        *settings(bench, *tasks),
        Setting("hyper-parameters", "grids of appendix B.1", "two points of these grids" if small else "the same"),
        Setting("hyper-parameters with AWARE", "not given", "the best ones of the raw method"),
        Setting("FedAWARE, AWARE", "eq. 2; the authors' code: on m_i/|m_i|, FedAvg until all were seen", "the code's"),
        Setting("other tasks", "CIFAR-100, AG News", "none" if small else "CIFAR-100, AG News"),
    ]  # fmt: skip


def _tables(task: str, of: methods.Compared) -> list[Table]:
    paper = {name: rows[TASKS.index(task)] for name, rows in PAPER.items()}
    accurate, diverse = [], []
    for name in of.raw:
        a, d, a2, d2 = paper[name]
        raw, extended = of.raw[name], of.extended.get(name)
        accurate.append(
            (name, of.chosen[name], *_beside(a, raw, last_accuracy, 100), *_beside(a2, extended, last_accuracy, 100))
        )
        diverse.append((name, *_beside(d, raw, dynamics), *_beside(d2, extended, dynamics)))
    a, d, _, _ = paper["FedAWARE"]
    accurate.append((methods.WRITTEN, "alpha = 0.5", *_beside(a, of.written, last_accuracy, 100), *4 * (None,)))
    diverse.append((methods.WRITTEN, *_beside(d, of.written, dynamics), *4 * (None,)))
    heads = ("paper", "here", "sd", "difference", "xAWARE: paper", "here", "sd", "difference")
    note = "sd: over the seeds. FedDyn has no extension; FedAWARE is one."
    return [
        Table(f"{task}: mean test accuracy of the last tenth of the rounds, %", ("method", "chosen", *heads), accurate,
              note),
        Table(f"{task}: e-LUD, mean over the rounds", ("method", *heads), diverse, note),
    ]  # fmt: skip


def _beside(paper: float | None, run: History | None, measure: Any, factor: float = 1) -> tuple[Any, Any, Any, Any]:
    """The paper's number, ours, its spread over seeds, the difference."""
    if run is None:
        return paper, None, None, None
    values = factor * measure(run)
    here = float(values.mean())
    return paper, here, float(values.std(ddof=1)) if len(values) > 1 else None, None if paper is None else here - paper


def table_claims(runs: Mapping[str, methods.Compared], why: Why) -> list[Claim]:
    """Accuracies and e-LUD: FedAWARE among the others, and what the extension adds."""
    claims = []
    for task in TASKS:
        of, note = runs.get(task), "" if task in runs else NOT_RUN
        ahead = _ahead(of.raw, last_accuracy) if of else {}
        better = sum(gap.above for gap in ahead.values())
        claims.append(Claim(
            f"on {task} FedAWARE has a better test accuracy than most of the other methods",
            better >= 4 if of else None,
            {f"test accuracy less the other's ({INTERVALS})": {name: gap.numbers for name, gap in ahead.items()},
             "below FedAWARE, of 7": better},
            note, quote="faster convergence and better generalization than most baselines", place="Section 1, Table 2",
            central=task == CENTRAL, ours="at least 4 of 7", why=reason(why, *ahead.values(), needed=4),
        ))  # fmt: skip
        rise = _rises(of, last_accuracy)
        most = len(rise) // 2 + 1
        claims.append(Claim(
            f"on {task} the extension raises the test accuracy of most methods",
            sum(gain.above for gain in rise.values()) >= most if of else None,
            {f"rise ({INTERVALS})": {name: gain.numbers for name, gain in rise.items()}}, note,
            quote="the test accuracy of most algorithms is significantly improved", place="Section 5, Table 2",
            central=task == CENTRAL, ours="more than half of six", why=reason(why, *rise.values(), needed=most),
        ))  # fmt: skip
        rise = _rises(of, dynamics)
        claims.append(Claim(
            f"on {task} the extension raises the e-LUD of every method",
            all(gain.above for gain in rise.values()) if of else None,
            {f"rise ({INTERVALS})": {name: gain.numbers for name, gain in rise.items()}}, note,
            quote="the FedAWARE module enlarges the e-LUDD of ALL algorithms", place="Section 5, Table 2",
            central=task == CENTRAL, why=reason(why, *rise.values()),
        ))  # fmt: skip
        everyone = [*of.raw.values(), *of.extended.values()] if of else []
        pairs = np.transpose([(last_accuracy(run), dynamics(run)) for run in everyone])  # [seeds, 2, runs]
        ranks = difference(np.array([spearman(*of_seed) for of_seed in pairs])) if of else None
        claims.append(Claim(
            f"on {task} what has the larger e-LUD is the more accurate, over all methods raw and extended",
            ranks and ranks.above,
            {f"rank correlation ({INTERVALS})": ranks and ranks.numbers,
             "rank correlation in the paper's table": _correlation_of_the_paper(task)},
            note, quote="larger overall LUD dynamics consistently associated with improved generalization",
            place="Section 4.3, Table 2", ours="a rank correlation above 0",
            why=reason("fragile", ranks) if ranks else why,
        ))  # fmt: skip
    of = runs.get("CIFAR-100")
    best = [difference(*map(last_accuracy, (of.extended["FedAMS"], run))) for run in of.raw.values()] if of else []
    claims.append(Claim(
        "on CIFAR-100 FedAMS with the extension is better than every raw method",
        all(gap.above for gap in best) if of else None, {}, "" if of else NOT_RUN,
        quote="implements superior accuracy than all raw algorithms", place="Section 5, Table 2",
        why=reason(why, *best),
    ))  # fmt: skip
    return claims


def _correlation_of_the_paper(task: str) -> float:
    rows = [rows[TASKS.index(task)] for rows in PAPER.values()]
    known = [pair for row in rows for pair in (row[:2], row[2:]) if None not in pair]
    return spearman(*np.array(known, float).T)


def _effects(runs: Mapping[str, methods.Compared]) -> list[Effect]:
    """The paper's numbers on CIFAR-10, which every size runs, beside ours."""
    if "CIFAR-10" not in runs:
        return []
    of, effects = runs["CIFAR-10"], []
    for other in ("FedAvg", "FedYogi"):
        if other in of.raw:
            paper = PAPER["FedAWARE"][0][0] - PAPER[other][0][0]
            ours = 100 * (last_accuracy(of.raw["FedAWARE"]) - last_accuracy(of.raw[other]))
            effects.append(Effect(f"FedAWARE less {other}, accuracy", "points", paper, ours.tolist()))
    for name, (raw, extended) in _pairs(of).items():
        a, d, a2, d2 = PAPER[name][0]
        if d is not None and a2 is not None and d2 is not None:
            rise = 100 * (last_accuracy(extended) - last_accuracy(raw))
            effects.append(Effect(f"{name} with AWARE less raw, accuracy", "points", a2 - a, rise.tolist()))
            ratio = dynamics(extended) / dynamics(raw)
            effects.append(Effect(f"{name} with AWARE over raw, e-LUD", "ratio", d2 / d, ratio.tolist()))
    return effects


def _pairs(of: methods.Compared) -> dict[str, tuple[History, History]]:
    return {name: (of.raw[name], run) for name, run in of.extended.items()}


def _rises(of: methods.Compared | None, measure: Any) -> dict[str, Difference]:
    """What the extension adds to a measure, by method."""
    return {name: difference(measure(b), measure(a)) for name, (a, b) in (_pairs(of) if of else {}).items()}


def _dynamics_table(runs: Mapping[str, methods.Compared]) -> Table:
    return Table(
        "What the curves say",
        ("task", "method", "mean loss", "loss at the end", "mean fall of the test accuracy", "e-LUD"),
        [
            (task, name + kind, *map(mean, (areas(run), run.final("loss"), methods.falls(run), dynamics(run))))
            for task, of in runs.items()
            for kind, family in (("", of.raw), (", xAWARE", of.extended))
            for name, run in family.items()
        ],
        "Fall: between two evaluations of the second half, 0 where it rises. The paper gives figures only.",
    )


def same_heights(figure: Any) -> Any:
    """The two panels of each row on one vertical scale."""
    for pair in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        lows, highs = zip(*(ax.get_ylim() for ax in pair), strict=True)
        for ax in pair:
            ax.set_ylim(min(lows), max(highs))
    return figure
