"""Figures 1 and 8: FedAvg on CIFAR-10 from nearly IID clients to very different ones, from the same runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import numpy as np

from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.fedaware.methods import accuracy, area, diversity, with_dynamics
from fedjax_sim.papers.fedaware.tasks import cifar10, dirichlet, fedavg_alone, settings
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

ALPHAS = (0.1, 0.5, 1.0, 10.0)  # from unlike to alike; the last two are the appendix's "IID"
ALIKE = (1.0, 10.0)
NORM = "pseudo_gradient_norm"
WINDOW = 0.2  # the share of the rounds whose means are "early" and "late"
DRAWN = 10  # rounds whose mean is drawn where there is a number for every round
OVER = f"\n(mean of {DRAWN} rounds)"


def perform_fig1(bench: Bench) -> Outcome:
    """Test accuracy, LUD, norm of the pseudo-gradient, training loss."""
    runs = _runs(bench)
    named = _named(runs)
    rows = [
        [Panel(named, "test_accuracy", title="(a)"), Panel(named, "e_lud", title="(b)", label=f"e-LUD{OVER}")],
        [Panel(named, NORM, title="(c)", label=f"pseudo-gradient norm{OVER}"), Panel(named, "loss", title="(d)")],
    ]
    lud, best, loss = (_by_alpha(runs, of) for of in (diversity, accuracy, area))
    ends = {alpha: _ends(run, "e_lud") for alpha, run in runs.items()}
    norms = {alpha: _ends(run, NORM) for alpha, run in runs.items()}
    claims = [
        Claim("the LUD grows in the course of training at every degree of heterogeneity",
              all(late > early for early, late in ends.values()), {"mean of the first and the last fifth": ends}),
        Claim("the norm of the pseudo-gradient decays at every degree of heterogeneity (but on IID clients, of which "
              "appendix B.2 says otherwise)",
              all(late < early for alpha, (early, late) in norms.items() if alpha not in ALIKE),
              {"mean of the first and the last fifth": norms}),
        Claim("FedAvg attains a higher LUD where the clients are more alike", _rising(lud), {"mean e-LUD": lud}),
        Claim("FedAvg converges faster where the clients are more alike", _rising({a: -v for a, v in loss.items()}),
              {"mean training loss of all evaluations": loss}),
        Claim("a higher LUD goes with a better test accuracy (the same order of the four settings)",
              sorted(lud, key=lambda a: lud[a]) == sorted(best, key=lambda a: best[a]),
              {"mean e-LUD": lud, "test accuracy": best}),
    ]  # fmt: skip
    return Outcome(_settings(bench), claims, {"figure1": panels(rows)}, [_table(runs)])


def perform_fig8(bench: Bench) -> Outcome:
    """The same with the coherence of the clients."""
    runs = _runs(bench)
    named = _named(runs)
    rows = [
        [Panel(named, "coherence", label=f"client coherence{OVER}"), Panel(named, "e_lud", label=f"e-LUD{OVER}")],
        [Panel(named, NORM, label=f"pseudo-gradient norm{OVER}"), Panel(named, "test_accuracy")],
    ]
    norm = _by_alpha(runs, lambda run: float(run[NORM].mean()))
    late_lud = _by_alpha(runs, lambda run: _ends(run, "e_lud")[1])
    consensus, best = _by_alpha(runs, lambda run: float(run["consensus"].sum())), _by_alpha(runs, accuracy)
    norms = {alpha: _ends(run, NORM) for alpha, run in runs.items()}
    coherence = {alpha: _ends(run, "coherence") for alpha, run in runs.items()}
    claims = [
        Claim("the norm of the pseudo-gradient is lower on IID clients, Dir(1) and Dir(10), than on the others",
              _alike_above(norm, below=True), {"mean norm": norm}),
        Claim("on IID clients the norm of the pseudo-gradient need not decay: at Dir(1) or Dir(10) it does not",
              any(late >= early for alpha, (early, late) in norms.items() if alpha in ALIKE),
              {"mean norm of the first and the last fifth": norms}),
        Claim("the LUD is higher on IID clients", _alike_above(late_lud), {"mean e-LUD of the last fifth": late_lud}),
        Claim("the cumulative client consensus is lower on IID clients", _alike_above(consensus, below=True),
              {"sum of the consensus": consensus}),
        Claim("the test accuracy is higher on IID clients", _alike_above(best), {"test accuracy": best}),
        Claim("client coherence falls in the course of training at every degree of heterogeneity",
              all(late < early for early, late in coherence.values()),
              {"mean of the first and the last fifth": coherence}),
    ]  # fmt: skip
    return Outcome(_settings(bench), claims, {"figure8": panels(rows)}, [_table(runs)])


def _runs(bench: Bench) -> dict[float, History]:
    found = {}
    for alpha in bench.choose((0.1, 10.0), ALPHAS):
        problem = cifar10(bench, dirichlet(bench, alpha), alone=True)
        run = with_dynamics(fedavg_alone(bench, f"{problem.name}, FedAvg, Dir({alpha:g})", problem))
        found[alpha] = dataclasses.replace(run, rounds=run.rounds | {NORM: np.sqrt(run["consensus"])})
    return found


def _named(runs: Mapping[float, History]) -> dict[str, History]:
    """For drawing: what is recorded in every round as its mean over the last rounds."""
    drawn = ("e_lud", "coherence", NORM)
    return {
        f"Dir({alpha:g})": dataclasses.replace(run, rounds={name: smoothed(run[name]) for name in drawn})
        for alpha, run in runs.items()
    }


def smoothed(values: np.ndarray) -> np.ndarray:
    """Means over the last ``DRAWN`` rounds, or as many as there were, [seeds, rounds]."""
    sums = np.cumsum(np.pad(values, ((0, 0), (DRAWN, 0))), axis=1)
    means: np.ndarray = (sums[:, DRAWN:] - sums[:, :-DRAWN]) / np.minimum(np.arange(1, values.shape[1] + 1), DRAWN)
    return means


def _by_alpha(runs: Mapping[float, History], measure: Callable[[History], float]) -> dict[float, float]:
    return {alpha: measure(run) for alpha, run in runs.items()}


def _ends(run: History, name: str) -> tuple[float, float]:
    """Means over the seeds and over the first and the last fifth of the rounds (one round where there are fewer)."""
    values = run[name].mean(axis=0)
    parts = np.array_split(values, min(round(1 / WINDOW), len(values)))
    return float(parts[0].mean()), float(parts[-1].mean())


def _rising(values: Mapping[float, float]) -> bool:
    """Whether they rise with alpha."""
    in_order = [values[alpha] for alpha in sorted(values)]
    return all(a < b for a, b in itertools.pairwise(in_order))


def _alike_above(values: Mapping[float, float], below: bool = False) -> bool:
    """Whether all IID settings are above (below) all others."""
    sign = -1 if below else 1
    alike = [sign * value for alpha, value in values.items() if alpha in ALIKE]
    return min(alike) > max(sign * value for alpha, value in values.items() if alpha not in ALIKE)


def _table(runs: Mapping[float, History]) -> Table:
    return Table(
        "FedAvg by the Dirichlet concentration",
        ("alpha", "test accuracy", "mean loss", "mean e-LUD", "norm of the pseudo-gradient: mean", "coherence: mean"),
        [(alpha, accuracy(run), area(run), diversity(run), float(run[NORM].mean()), float(run["coherence"].mean()))
         for alpha, run in runs.items()],
        "The paper gives figures only.",
    )  # fmt: skip


def _settings(bench: Bench) -> list[Setting]:
    here = bench.choose("0.1, 10", "0.1, 0.5, 1, 10")
    own = Setting("Dirichlet alpha", "Figure 8: 0.1, 0.5, 1, 10; Figure 1: 0.1 and others", here)
    return [*settings(bench, cifar10(bench, alone=True), alone=True), own]
