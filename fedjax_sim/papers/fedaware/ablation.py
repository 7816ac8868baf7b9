"""Figure 4: what the moving average and the adaptive weights of FedAWARE are good for."""

from __future__ import annotations

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table, Why
from fedjax_sim.papers.fedaware import methods
from fedjax_sim.papers.fedaware.comparison import NOT_RUN, TASKS, same_heights
from fedjax_sim.papers.fedaware.methods import INTERVALS, dynamics, last_accuracy
from fedjax_sim.papers.fedaware.tasks import Problem, fedavg_alone, problems, scale, settings
from fedjax_sim.papers.measuring import difference, mean, reason
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

ALPHAS, SMOKE_ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9), (0.5, 0.9)
FULL = "FedAvg-Full"
MARGINAL = 0.02  # an accuracy that is larger by at most so much is "marginally" larger

Runs = tuple[dict[float, History], dict[float, History], History]  # FedAWARE and -NA by alpha, FedAvg-Full


def perform(bench: Bench) -> Outcome:
    """FedAWARE and FedAWARE-NA over alpha, and FedAvg with everybody."""
    tasks = problems(bench)
    found = {problem.name: _runs(bench, problem) for problem in tasks}
    rows: list[list[Panel | None]] = []
    table: list[tuple[str | float | None, ...]] = []
    for task, (adaptive, average, full) in found.items():
        named = {
            name: {f"alpha = {alpha}": run for alpha, run in of.items()}
            for name, of in (("FedAWARE", adaptive), ("FedAWARE-NA", average))
        }
        rows += [
            [Panel(of | {FULL: full}, "test_accuracy", title=f"{task}, {name}") for name, of in named.items()],
            [Panel(of, methods.DYNAMICS, label="e-LUD, mean so far") for of in named.values()],
        ]
        table += [
            (task, name, alpha, mean(last_accuracy(run)), mean(dynamics(run)))
            for name, of in (("FedAWARE", adaptive), ("FedAWARE-NA", average))
            for alpha, run in of.items()
        ]
        table.append((task, FULL, None, mean(last_accuracy(full)), mean(dynamics(full))))
    made = Table(
        "Mean test accuracy of the last tenth of the rounds, and mean e-LUD",
        ("task", "method", "alpha", "test accuracy", "e-LUD"),
        table,
        "The paper gives figures only. FedAvg-Full's e-LUD is that of all clients, the others' of the cohort.",
    )
    here = [
        *settings(bench, *tasks),
        Setting("alpha", *(", ".join(map(str, alphas)) for alphas in (ALPHAS, bench.choose(SMOKE_ALPHAS, ALPHAS)))),
        Setting("FedAWARE-NA", "uniform weights", "uniform over the clients seen; FedAvg until all were seen"),
    ]
    claims = claims_of(found, methods.why_not(bench))
    return Outcome(here, claims, {"figure4": same_heights(panels(rows))}, [made], scale=scale(bench))


def claims_of(found: dict[str, Runs], why: Why) -> list[Claim]:
    """What the paper says of Figure 4."""
    claims: list[Claim] = []
    for task in TASKS:
        note, gap, more = "" if task in found else NOT_RUN, None, {}
        if task in found:
            adaptive, average, _ = found[task]
            worst = np.min([last_accuracy(run) for run in adaptive.values()], axis=0)
            gap = difference(worst, np.max([last_accuracy(run) for run in average.values()], axis=0))
            more = {alpha: difference(dynamics(adaptive[alpha]), dynamics(average[alpha])) for alpha in adaptive}
        claims += [
            Claim(f"on {task} FedAWARE has a better test accuracy than every FedAWARE-NA",
                  gap and gap.above,
                  {f"worst of FedAWARE less best of -NA ({INTERVALS})": gap.numbers} if gap else {}, note,
                  quote="FedAWARE’s results are better than all FedAWARE-NA results", place="Section 5, Figure 4",
                  ours="every alpha of one against every alpha of the other",
                  why=reason(why, gap) if gap else why),
            Claim(f"on {task} FedAWARE's e-LUD is higher than FedAWARE-NA's at the same alpha",
                  all(of.above for of in more.values()) if more else None,
                  {f"e-LUD less that of -NA ({INTERVALS})": {a: of.numbers for a, of in more.items()}}, note,
                  quote="is also higher than FedAWARE-NA’s", place="Section 5, Figure 4", ours="at each alpha",
                  why=reason(why, *more.values())),
        ]  # fmt: skip
    best = {task: max(of[0], key=lambda alpha: mean(last_accuracy(of[0][alpha]))) for task, of in found.items()}
    several = len(found) > 1
    above = {
        task: [difference(*map(last_accuracy, (run, found[task][2]))) for run in found[task][1].values()]
        for task in TASKS[1:] if task in found
    }  # fmt: skip
    return [
        *claims,
        Claim("the best alpha is another one from task to task", len(set(best.values())) > 1 if several else None,
              {"best alpha": best}, "" if several else "one task is run at this size",
              quote="the best selection varies on different tasks", place="Section 5, Figure 4", why=why),
        Claim("on CIFAR-100 and AG News FedAWARE-NA is at most marginally better than FedAvg-Full",
              all(one.mean <= MARGINAL for of in above.values() for one in of) if above else None,
              {"best FedAWARE-NA less FedAvg-Full": {task: max(of).numbers for task, of in above.items()}},
              "" if above else NOT_RUN, ours="marginally: by at most 2 points", place="Section 5, Figure 4", why=why,
              quote="moving-averaged local updates only provide marginal improvements"),
    ]  # fmt: skip


def _runs(bench: Bench, problem: Problem) -> Runs:
    alphas = bench.choose(SMOKE_ALPHAS, ALPHAS)
    adaptive, average = (methods.fedaware(bench, problem, name, alphas) for name in ("FedAWARE", methods.AVERAGE))
    full = fedavg_alone(bench, f"{problem.name}, {FULL}", problem, cohort=fjs.cohort.full())
    return adaptive, average, methods.with_dynamics(full)
