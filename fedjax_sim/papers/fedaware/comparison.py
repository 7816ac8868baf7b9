"""Table 2 and Figures 2, 3 and 6: eight methods as they are and with the AWARE extension, from the same runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata  # type: ignore[import-untyped]  # of scipy, which jax brings

from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedaware import methods
from fedjax_sim.papers.fedaware.methods import (
    DYNAMICS,
    Compared,
    accuracy,
    area,
    diversity,
    dynamics,
    last_accuracy,
    spikes,
)
from fedjax_sim.papers.fedaware.tasks import Problem, problems, settings
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


def perform_table2(bench: Bench) -> Outcome:
    """Test accuracy and e-LUD, the paper's beside ours."""
    tasks, runs = _runs(bench)
    tables = [table for task, of in runs.items() for table in _tables(task, of)]
    return Outcome(_settings(bench, tasks), _table_claims(runs), {}, tables)


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
    claims = []
    for task in ("CIFAR-10", "AG News"):  # of CIFAR-100 the paper says that it is slightly slower
        speed = {name: area(run) for name, run in runs[task].raw.items()} if task in runs else {}
        slower = sum(value > speed["FedAWARE"] for value in speed.values()) if speed else 0
        claims.append(
            Claim(f"on {task} FedAWARE converges faster than most baselines (mean training loss of all evaluations)",
                  slower >= 4 if speed else None, {"mean loss": speed, "slower than FedAWARE, of 7": slower},
                  "" if speed else NOT_RUN)
        )  # fmt: skip
        rivals = [name for name in ("FedYogi", "FedAMS") if name in speed]
        claims.append(
            Claim(f"on {task} FedAWARE converges faster than FedYogi and FedAMS",
                  all(speed["FedAWARE"] < speed[name] for name in rivals) if rivals else None, {"mean loss": speed},
                  "" if rivals else NOT_RUN if bench.size != "smoke" else "not run at this size")
        )  # fmt: skip
        steady = {name: spikes(run) for name, run in runs[task].raw.items()} if task in runs else {}
        claims.append(
            Claim(f"on {task} FedAvg's test accuracy has spikes that FedAWARE's has not",
                  steady["FedAWARE"] < steady["FedAvg"] if steady else None,
                  {"mean fall of the test accuracy between evaluations, second half": steady},
                  "" if steady else NOT_RUN)
        )  # fmt: skip
    claims.append(_cifar100(runs.get("CIFAR-100")))
    return Outcome(_settings(bench, tasks), claims, {"figure2": panels(rows)}, [_dynamics_table(runs)])


def _cifar100(of: Compared | None) -> Claim:
    statement = "on CIFAR-100 FedAWARE is behind FedYogi and FedAMS early and ends with the same training loss (5 %)"
    if of is None:
        return Claim(statement, None, {}, NOT_RUN)
    rivals = ("FedYogi", "FedAMS")
    losses = {name: of.raw[name]["loss"].mean(axis=0) for name in ("FedAWARE", *rivals)}
    early = {name: float(values[: len(values) // 5].mean()) for name, values in losses.items()}
    last = {name: float(values[-1]) for name, values in losses.items()}
    held = all(early["FedAWARE"] > early[name] for name in rivals)
    held &= last["FedAWARE"] <= 1.05 * min(last[name] for name in rivals)
    return Claim(statement, held, {"mean loss of the first fifth": early, "loss at the end": last})


def perform_fig3(bench: Bench) -> Outcome:
    """Raw beside extended; Figure 6 of the appendix is the same drawing for the other two tasks."""
    tasks, runs = _runs(bench)
    figures = {}
    for task, of in runs.items():
        raw = {name: run for name, run in of.raw.items() if name in of.extended}
        name = "figure3" if task == "CIFAR-100" else f"figure6-{task.lower().replace(' ', '-')}"
        figures[name] = same_heights(by_metric({"raw": raw, "with AWARE": of.extended}, METRICS, LABELS))
    claims = []
    for task in TASKS:
        slower_expected = task != "AG News"  # section 5 and appendix B.2
        words = "slows the convergence slightly" if slower_expected else "speeds the convergence up"
        pairs = _pairs(runs[task]) if task in runs else {}
        losses = {name: (area(a), area(b)) for name, (a, b) in pairs.items()}
        as_said = [(b > a) == slower_expected for a, b in losses.values()]
        falls = {name: (spikes(a), spikes(b)) for name, (a, b) in pairs.items()}
        note = "" if pairs else NOT_RUN
        claims += [
            Claim(f"on {task} the extension {words} (mean training loss of all evaluations, most methods)",
                  sum(as_said) > len(as_said) / 2 if pairs else None, {"mean loss, raw and extended": losses}, note),
            Claim(f"on {task} the extension makes the test accuracy steadier (most methods)",
                  sum(b < a for a, b in falls.values()) > len(falls) / 2 if pairs else None,
                  {"mean fall of the test accuracy between evaluations, raw and extended": falls}, note),
        ]  # fmt: skip
    return Outcome(_settings(bench, tasks), claims, figures, [_dynamics_table(runs)])


def _runs(bench: Bench) -> tuple[list[Problem], dict[str, Compared]]:
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


def _tables(task: str, of: Compared) -> list[Table]:
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


def _table_claims(runs: Mapping[str, Compared]) -> list[Claim]:
    claims = []
    for place, task in enumerate(TASKS):
        winner = max(PAPER, key=lambda name: PAPER[name][place][0])
        of = runs.get(task)
        found = {name: accuracy(run) for name, run in of.raw.items()} if of else {}
        note = "" if of else NOT_RUN
        claims.append(Claim(f"on {task} {winner} has the best test accuracy of the raw methods",
                            max(found, key=lambda name: found[name]) == winner if found else None,
                            {"test accuracy": found}, note))  # fmt: skip
        rise = {name: b - a for name, (a, b) in _measured(of, accuracy).items()}
        falling = {"FedCM"} if task == "AG News" else set()
        words = "every test accuracy but FedCM's" if falling else "the test accuracy of every method"
        claims.append(Claim(f"on {task} the extension raises {words}",
                            all((value > 0) != (name in falling) for name, value in rise.items()) if of else None,
                            {"rise": rise}, note))  # fmt: skip
        rise = {name: b - a for name, (a, b) in _measured(of, diversity).items()}
        held = all(value > 0 for value in rise.values()) if of else None
        claims.append(Claim(f"on {task} the extension raises the e-LUD of every method", held, {"rise": rise}, note))
    of = runs.get("CIFAR-100")
    beaten = accuracy(of.extended["FedAMS"]) > max(map(accuracy, of.raw.values())) if of else None
    claims.append(Claim("on CIFAR-100 FedAMS with the extension is better than every raw method", beaten, {},
                        "" if of else NOT_RUN))  # fmt: skip
    everyone = {f"{name}, {kind}": (accuracy(run), diversity(run))
                for kind, family in (("raw", runs["CIFAR-10"].raw), ("xAWARE", runs["CIFAR-10"].extended))
                for name, run in family.items()}  # fmt: skip
    best = max(everyone, key=lambda name: everyone[name][0])
    most = max(everyone, key=lambda name: everyone[name][1])
    ranks = [rankdata(values) for values in np.array(list(everyone.values())).T]
    correlation = float(np.corrcoef(*ranks)[0, 1]) if all(map(np.ptp, ranks)) else float("nan")
    claims.append(Claim("on CIFAR-10 the most accurate is not the one with the largest e-LUD (section 5, limitations)",
                        best != most, {"most accurate": best, "largest e-LUD": most,
                                       "rank correlation of accuracy and e-LUD": correlation}))  # fmt: skip
    return claims


def _pairs(of: Compared) -> dict[str, tuple[History, History]]:
    return {name: (of.raw[name], run) for name, run in of.extended.items()}


def _measured(of: Compared | None, measure: Any) -> dict[str, tuple[float, float]]:
    pairs = _pairs(of) if of else {}
    return {name: (measure(a), measure(b)) for name, (a, b) in pairs.items()}


def _dynamics_table(runs: Mapping[str, Compared]) -> Table:
    return Table(
        "What the curves say",
        ("task", "method", "mean loss", "loss at the end", "mean fall of the test accuracy", "e-LUD"),
        [
            (task, name + kind, area(run), float(run.final("loss").mean()), spikes(run), diversity(run))
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
