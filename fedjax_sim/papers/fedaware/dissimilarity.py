"""Figures 1 and 8: FedAvg on CIFAR-10 from nearly IID clients to very different ones, from the same runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table, Why
from fedjax_sim.papers.fedaware import methods
from fedjax_sim.papers.fedaware.methods import INTERVALS, dynamics, last_accuracy
from fedjax_sim.papers.fedaware.tasks import cifar10, dirichlet, fedavg_alone, scale, settings
from fedjax_sim.papers.measuring import Difference, areas, difference, mean, reason, spearman
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

ALPHAS = (0.1, 0.5, 1.0, 10.0)  # from unlike to alike; the last two are the appendix's "IID"
ALIKE = (1.0, 10.0)
NORM = "pseudo_gradient_norm"
WINDOW = 0.2  # the share of the rounds whose means are "early" and "late"
DRAWN = 10  # rounds whose mean is drawn where there is a number for every round
TENDS = 0.5  # a rank correlation of four settings that is "tends to"
OVER = f"\n(mean of {DRAWN} rounds)"


def perform_fig1(bench: Bench) -> Outcome:
    """Test accuracy, LUD, norm of the pseudo-gradient, training loss."""
    labels = {"test_accuracy": None, "e_lud": f"e-LUD{OVER}", NORM: f"pseudo-gradient norm{OVER}", "loss": None}
    return _performed(bench, "figure1", labels, claims_of_fig1, ("(a)", "(b)", "(c)", "(d)"))


def claims_of_fig1(runs: Mapping[float, History], why: Why) -> list[Claim]:
    """What the paper says of FedAvg's training, by the alpha of the partition."""
    grows = {alpha: _falls(run, "e_lud", sign=-1) for alpha, run in runs.items()}
    decays = {alpha: _falls(run, NORM) for alpha, run in runs.items() if alpha not in ALIKE}
    ranks = {
        "lud": _correlations(runs, dynamics),
        "speed": _correlations(runs, lambda run: -areas(run)),
        "both": _correlations(runs, dynamics, last_accuracy),
    }
    tends = {name: difference(of, TENDS) for name, of in ranks.items()}
    told = {name: {f"rank correlation ({INTERVALS})": difference(of).numbers} for name, of in ranks.items()}
    last_less_first = f"last fifth of the rounds less the first ({INTERVALS})"
    threshold = f"a rank correlation of the settings above {TENDS:g}"
    return [
        Claim("the LUD grows in the course of training at every degree of heterogeneity",
              all(of.above for of in grows.values()), {last_less_first: {a: of.numbers for a, of in grows.items()}},
              quote="the LUD values increase over the communication round in all heterogeneity settings",
              place="Section 4.3, Figure 1", ours="first against last fifth", central=True,
              why=reason(why, *grows.values())),
        Claim("the norm of the pseudo-gradient decays on clients that are not alike",
              all(of.above for of in decays.values()),
              {last_less_first: {alpha: [-of.mean, of.half] for alpha, of in decays.items()}},
              "of IID clients, Dir(1) and Dir(10), appendix B.2 says that it need not",
              quote="the norm of global pseudo-gradient decays during FL training", place="Section 4.3, Figure 1",
              ours="first against last fifth", why=reason(why, *decays.values())),
        Claim("FedAvg attains a higher LUD where the clients are more alike", tends["lud"].above,
              told["lud"] | {"mean e-LUD": _by_alpha(runs, dynamics)},
              quote="FedAvg attains higher LUD when the heterogeneity level is low", place="Section 4.3, Figure 1",
              ours=threshold, why=reason(why, tends["lud"])),
        Claim("FedAvg converges faster where the clients are more alike", tends["speed"].above,
              told["speed"] | {"mean training loss of all evaluations": _by_alpha(runs, areas)},
              quote="It obtains faster convergence curves", place="Section 4.3, Figure 1", ours=threshold,
              why=reason(why, tends["speed"])),
        Claim("where the LUD is higher the test accuracy tends to be better", tends["both"].above,
              told["both"] | {"test accuracy": _by_alpha(runs, last_accuracy)},
              quote="tends to obtain better test accuracy", place="Section 4.3, Figure 1", ours=threshold,
              why=reason(why, tends["both"])),
    ]  # fmt: skip


def perform_fig8(bench: Bench) -> Outcome:
    """The same with the coherence of the clients."""
    labels = {"coherence": f"client coherence{OVER}", "e_lud": f"e-LUD{OVER}", NORM: f"pseudo-gradient norm{OVER}"}
    return _performed(bench, "figure8", labels | {"test_accuracy": None}, claims_of_fig8)


def claims_of_fig8(runs: Mapping[float, History], why: Why) -> list[Claim]:
    """What the paper says of IID clients, Dir(1) and Dir(10), against the others."""
    falls = {alpha: _falls(run, "coherence") for alpha, run in runs.items()}
    measures: dict[str, Callable[[History], np.ndarray]] = {
        "norm": lambda run: -run[NORM].mean(axis=1), "LUD": lambda run: _end(run, "e_lud"),
        "consensus": lambda run: -run["consensus"].sum(axis=1), "accuracy": last_accuracy,
    }  # fmt: skip
    said = {  # statement, the paper's words
        "norm": ("the norm of the pseudo-gradient is lower on IID clients",
                 "the global gradient norm remains lower than in Non-IID settings"),
        "LUD": ("the LUD is higher on IID clients", "the LUD curve is higher in IID settings"),
        "consensus": ("the cumulative client consensus is lower on IID clients",
                      "the cumulative client consensus remains lower in IID settings"),
        "accuracy": ("the test accuracy is higher on IID clients",
                     "learning with IID data outperforms non-IID data in terms of generalization"),
    }  # fmt: skip
    gaps = {name: difference(*_nearest(runs, measure)) for name, measure in measures.items()}
    claims = [
        Claim(statement, gaps[name].above, {f"gap between the nearest two ({INTERVALS})": gaps[name].numbers},
              quote=quote, place="Appendix B.2, Figure 8", why=reason(why, gaps[name]),
              ours="both IID settings against both others" + ("; over the last fifth" if name == "LUD" else ""))
        for name, (statement, quote) in said.items()
    ]  # fmt: skip
    claims.append(
        Claim("client coherence falls in the course of training at every degree of heterogeneity",
              all(of.above for of in falls.values()),
              {f"first fifth of the rounds less the last ({INTERVALS})": {a: of.numbers for a, of in falls.items()}},
              quote="cosine values generally decrease over time", place="Appendix B.2, Figure 8",
              ours="first against last fifth", why=reason(why, *falls.values()))
    )  # fmt: skip
    return claims


def _performed(
    bench: Bench, figure: str, labels: Mapping[str, str | None], claims_of: Any, titles: Sequence[str] = ("",) * 4
) -> Outcome:
    """Four panels of the same runs, and what the paper says of them."""
    runs = _runs(bench)
    named = _named(runs)
    drawn = [Panel(named, of, title, label=labels[of]) for of, title in zip(labels, titles, strict=True)]
    claims, figures = claims_of(runs, methods.why_not(bench)), {figure: panels([drawn[:2], drawn[2:]])}
    return Outcome(_settings(bench), claims, figures, [_table(runs)], scale=scale(bench, alone=True))


def _runs(bench: Bench) -> dict[float, History]:
    found = {}
    for alpha in bench.choose((0.1, 10.0), ALPHAS):
        problem = cifar10(bench, dirichlet(bench, alpha), alone=True)
        run = methods.with_dynamics(fedavg_alone(bench, f"{problem.name}, FedAvg, Dir({alpha:g})", problem))
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
    return np.asarray((sums[:, DRAWN:] - sums[:, :-DRAWN]) / np.minimum(np.arange(1, values.shape[1] + 1), DRAWN))


def _by_alpha(runs: Mapping[float, History], measure: Callable[[History], np.ndarray]) -> dict[float, float]:
    return {alpha: mean(measure(run)) for alpha, run in runs.items()}


def _correlations(runs: Mapping[float, History], *measures: Callable[[History], np.ndarray]) -> np.ndarray:
    """The rank correlation over the settings of two measures, or of alpha and one, [seeds]."""
    *_, first, second = [np.array([[alpha] * len(measures[0](run)) for alpha, run in runs.items()])] + [
        np.array([measure(run) for run in runs.values()]) for measure in measures
    ]
    return np.array([spearman(a, b) for a, b in zip(first.T, second.T, strict=True)])


def _nearest(runs: Mapping[float, History], measure: Callable[[History], np.ndarray]) -> list[np.ndarray]:
    """The lowest of the IID settings and the highest of the others, [seeds] each."""
    alike = [measure(run) for alpha, run in runs.items() if alpha in ALIKE]
    others = [measure(run) for alpha, run in runs.items() if alpha not in ALIKE]
    return [np.min(alike, axis=0), np.max(others, axis=0)]


def _end(run: History, name: str, first: bool = False) -> np.ndarray:
    """Means over the last fifth of the rounds, or the first, [seeds] (one round where there are fewer)."""
    parts = np.array_split(run[name], min(round(1 / WINDOW), run[name].shape[1]), axis=1)
    return np.asarray(parts[0 if first else -1].mean(axis=1))


def _falls(run: History, name: str, sign: int = 1) -> Difference:
    """By how much the last fifth of the rounds is below the first, or above it with the sign -1."""
    return difference(sign * _end(run, name, first=True), sign * _end(run, name))


def _table(runs: Mapping[float, History]) -> Table:
    return Table(
        "FedAvg by the Dirichlet concentration",
        ("alpha", "test accuracy", "mean loss", "mean e-LUD", "norm of the pseudo-gradient: mean", "coherence: mean"),
        [(alpha, *map(mean, (last_accuracy(run), areas(run), dynamics(run), run[NORM], run["coherence"])))
         for alpha, run in runs.items()],
        "The paper gives figures only.",
    )  # fmt: skip


def _settings(bench: Bench) -> list[Setting]:
    here = bench.choose("0.1, 10", "0.1, 0.5, 1, 10")
    own = Setting("Dirichlet alpha", "Figure 8: 0.1, 0.5, 1, 10; Figure 1: 0.1 and others", here)
    return [*settings(bench, cifar10(bench, alone=True), alone=True), own]
