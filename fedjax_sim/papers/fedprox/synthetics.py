"""The four synthetic data sets of the paper, and the figures that are about them alone.

Figures 2 and 6: FedProx from alike to unlike devices; everybody does 20 epochs. Figures 3 and 11: a mu that follows the
loss, started where it is worst, against mu = 0 and mu = 1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers import measuring
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Scale, Setting, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.papers.fedprox.measures import LAST, STEADY, lower
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

LEARNING_RATE = 0.01  # appendix C.2
BATCH = 10
EPOCHS = 20
DEVICES, PER_ROUND = 30, 10
ROUNDS = 200  # the axes of Figures 2, 4, 5, 6, 11 and 12
DATA_SEED = 0
# The variance of gradients, Figures 2, 6, 8 and 12. Figures are drawn by the code, so claims rest on its weights.
VARIANCE, P_VARIANCE = "gradient_variance_uniform", "gradient_variance"
DIAGNOSTICS = (fjs.diagnostics.gradient_variance(uniform=True), fjs.diagnostics.gradient_variance())
WEIGHTS = "devices weigh 1/N, as in the authors' code; the text has p_k"
WORDS = {VARIANCE: "variance of gradients"}

MUS = (0.0, 1.0)  # FedAvg, and the best mu of synthetic(1, 1) in the paper's grid
NAMES = ("synthetic IID", "synthetic(0, 0)", "synthetic(0.5, 0.5)", "synthetic(1, 1)")  # from alike to unlike
IID = NAMES[0]
FEDAVG, DYNAMIC, FIXED = "FedAvg (FedProx, μ = 0)", "FedProx, dynamic μ", "FedProx, μ = 1"
STARTS = {name: 1.0 if name == IID else 0.0 for name in NAMES}  # of a dynamic mu: adversarial, as the paper says
COMPETITIVE = 1.1  # within ten per cent of the better of the two fixed values


def synthetics(bench: Bench, names: tuple[str, ...] = NAMES) -> dict[str, fjs.FederatedDataset]:
    """The data sets by name."""
    clients, largest = bench.choose(4, DEVICES), bench.choose(60, None)
    spreads = dict(zip(NAMES, (0.0, 0.0, 0.5, 1.0), strict=True))
    return {
        name: fjs.datasets.synthetic(
            spreads[name], spreads[name], clients, seed=DATA_SEED, iid=name == IID, max_size=largest
        )
        for name in names
    }


def run_setting(bench: Bench, epochs: int = EPOCHS) -> dict[str, Any]:
    """Keywords of a run in which every device does all its epochs."""
    return {
        "task": fjs.classification(fjs.models.LogisticRegression(10)),
        "rounds": bench.choose(2, ROUNDS),
        "cohort": fjs.cohort.uniform(bench.choose(2, PER_ROUND)),
        "work": fjs.local.epochs(bench.choose(1, epochs)),
        "batch_size": BATCH,
    }


def fixed_mus(bench: Bench, names: tuple[str, ...] = NAMES) -> dict[str, dict[float, History]]:
    """FedProx where every device does all its epochs: histories by data set and mu, 0 (FedAvg) and 1.

    Both values are one program, and the runs are those of Figures 2, 3, 4, 6, 11 and 12.
    """
    space, given = fjs.sweeps.grid({"mu": list(MUS)}), run_setting(bench) | {"diagnostics": DIAGNOSTICS}
    return {
        name: dict(zip(MUS, bench.runs(f"FedProx, {name}", fedprox(), data, space, **given), strict=True))
        for name, data in synthetics(bench, names).items()
    }


def fedprox(**options: Any) -> Method:
    """FedProx with the local solver of these experiments."""
    return fjs.fedprox(client_optimizer=fjs.optim.sgd(LEARNING_RATE), **options)


def settings(bench: Bench) -> list[Setting]:
    """The paper's setting beside ours."""
    row, spread = bench.setting, "N(0, a): a variance; the authors' code: a standard deviation"
    return [
        row("data", "synthetic, 30 devices", smoke="the same, 4 small devices"),
        row("devices a round", "10", smoke="2"),
        row("local epochs", "20", smoke="1"),
        row("batch size, learning rate", "10, 0.01"),
        row("rounds", "200", smoke="2"),
        row("seeds", "not given", len(bench.seeds)),
        row("spread of synthetic(a, b)", spread, "a standard deviation"),
        row("weights of the dissimilarity", "p_k; the authors' code: 1/N", "1/N; p_k beside it"),
    ]


def scale(bench: Bench) -> Scale:
    """How much of the paper's size this is: all of it, but at smoke."""
    return Scale(bench.choose(0.02, 1.0), bench.choose(2 / ROUNDS, 1.0))


Values = Mapping[str, Mapping[Any, np.ndarray]]  # by data set and method or mu, [seeds]


def perform_fig2(bench: Bench) -> Outcome:
    """Loss and dissimilarity; the claims are Figure 6's, which has the same runs."""
    runs = fixed_mus(bench)
    figures = {"figure2": by_metric(_named(runs), ("loss", VARIANCE), WORDS)}
    return Outcome(settings(bench), (), figures, [table_of_ends(_named(runs))], scale=scale(bench), see="fedprox-fig6")


def perform_fig6(bench: Bench) -> Outcome:
    """Loss, test accuracy and dissimilarity."""
    runs = fixed_mus(bench)
    loss, accuracy, variance, by_share = (
        measures.each(runs, metric) for metric in ("loss", "test_accuracy", VARIANCE, P_VARIANCE)
    )
    figures = {"figure6": by_metric(_named(runs), ("loss", "test_accuracy", VARIANCE), WORDS)}
    claims = claims_of_fig6(loss, accuracy, variance, by_share)
    return Outcome(settings(bench), claims, figures, [table_of_ends(_named(runs))], scale=scale(bench))


def claims_of_fig6(loss: Values, accuracy: Values, variance: Values, by_share: Values) -> list[Claim]:
    """What the paper says of the last tenth by data set, from alike to unlike, and mu."""
    zero, one = MUS
    iid, *unlike = loss
    text = {name: [float(of.mean()) for of in group.values()] for name, group in by_share.items()}
    place, rests = "Section 5.3.3, Figures 2 and 6", f"{LAST}; {WEIGHTS}"
    return [
        lower("FedAvg converges worse (ends at a higher loss) the less alike the devices are",
              {f"{a} and {b}": (loss[a][zero], loss[b][zero]) for a, b in itertools.pairwise(loss)}, "loss of the two",
              quote="Increasing heterogeneity leads to worse convergence", place="Figure 2", ours=LAST, why="fragile"),
        lower("μ = 1 ends at a lower loss than FedAvg on the three data sets of unlike devices",
              {name: (loss[name][one], loss[name][zero]) for name in unlike}, "loss, μ = 1 and 0", central=True,
              quote="setting µ > 0 can help to combat this", place="Figure 2", ours=LAST),
        lower("on IID devices μ = 1 slows the convergence", {iid: (loss[iid][zero], loss[iid][one])},
              "loss, μ = 0 and 1", quote="it may slow convergence for IID data", place="Section 5.3.1", ours=LAST),
        lower("μ = 1 leads to a smaller dissimilarity (variance of gradients) on unlike devices",
              {name: (variance[name][one], variance[name][zero]) for name in unlike}, "variance, μ = 1 and 0",
              quote="leads to smaller dissimilarity among local functions", place=place,
              ours=f"not on IID devices, where there is none; {rests}"),
        consistent(variance, loss, text, quote="smaller dissimilarity indicates better convergence",
                   place=place, central=True, ours=rests),
        lower("the less alike the devices are, the larger FedAvg's dissimilarity",
              {f"{a} and {b}": (variance[a][zero], variance[b][zero]) for a, b in itertools.pairwise(loss)},
              "variance of the two", quote="This metric captures statistical heterogeneity", place="Figure 2",
              ours=rests, note=f"with p_k: {', '.join(f'{of[0]:.3g}' for of in text.values())}", why="fragile"),
        lower("μ = 1 increases the test accuracy in most cases (of the three with unlike devices)",
              {name: (accuracy[name][zero], accuracy[name][one]) for name in unlike}, "test accuracy, μ = 0 and 1",
              most=True, quote="also increases the accuracy in most cases", place="Section 5.3.2, Figure 6", ours=LAST),
    ]  # fmt: skip


def consistent(variance: Values, loss: Values, by_share: Mapping[str, list[float]], **about: Any) -> Claim:
    """The claim that of two values of mu the one with the smaller variance has the smaller loss, on all data sets."""
    ordered = {name: sorted(of, key=lambda mu, of=of: float(of[mu].mean())) for name, of in variance.items()}  # type: ignore[misc]
    pairs = {name: (loss[name][small], loss[name][large]) for name, (small, large) in ordered.items()}
    claim = lower(
        "the dissimilarity is consistent with the loss: of the two values of μ the one with the smaller variance has "
        "the smaller loss, on all data sets", pairs, "loss, of the μ with the smaller variance and of the other",
        **about,
    )  # fmt: skip
    means = {name: [float(of.mean()) for of in group.values()] for name, group in variance.items()}
    return claim._replace(numbers={**claim.numbers, "variance, the smaller μ and the larger": means,
                                   "the same with p_k": by_share})  # fmt: skip


def _named(runs: Mapping[str, Mapping[float, History]]) -> dict[str, dict[str, History]]:
    return {name: {FEDAVG: of[0.0], FIXED: of[1.0]} for name, of in runs.items()}


def table_of_ends(runs: Mapping[str, Mapping[str, History]]) -> Table:
    """Where every run on a data set ends."""
    found = [measures.each(runs, of) for of in ("loss", "test_accuracy", measuring.rises, VARIANCE, P_VARIANCE)]
    return Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "test accuracy", "rise", "variance of gradients, 1/N", "variance, p_k"),
        [(name, label, *(float(of[name][label].mean()) for of in found)) for name, of in runs.items() for label in of],
        "The paper gives figures only.",
    )  # fmt: skip


def _dynamic_runs(bench: Bench, names: tuple[str, ...]) -> dict[str, dict[str, History]]:
    """Histories by data set and method; the start of a dynamic mu is a real number, so it is one program for all."""
    fixed = fixed_mus(bench, names)
    found = {}
    for name, data in synthetics(bench, names).items():
        adaptive = fedprox(mu=STARTS[name], adaptive=True)
        [dynamic] = bench.runs(f"dynamic, {name}", adaptive, data, **run_setting(bench))
        found[name] = {FEDAVG: fixed[name][0.0], DYNAMIC: dynamic, FIXED: fixed[name][1.0]}
    return found


def _adaptive(bench: Bench, names: tuple[str, ...], figure: str, see: str = "") -> Outcome:
    """Figures 3 and 11; the runs of the first are among those of the second, which has the claims."""
    runs = _dynamic_runs(bench, names)
    loss, rise = measures.each(runs, "loss"), measures.each(runs, measuring.rises)
    last_mu = {name: float(of[DYNAMIC].final("mu").mean()) for name, of in runs.items()}
    table = Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "rise", "last μ"),
        [(name, method, *(float(of[name][method].mean()) for of in (loss, rise)),
          last_mu[name] if method == DYNAMIC else None) for name in names for method in runs[name]],
        "The paper gives figures only.",
    )  # fmt: skip
    rows = [
        [Panel(of, "loss", name) for name, of in runs.items()],
        [Panel({DYNAMIC: of[DYNAMIC]}, "mu", label="μ") for of in runs.values()],
    ]
    rule = "+0.1 after a rise of the loss, -0.1 after 5 falls in a row; starts at 1 (IID) or 0"
    claims = () if see else claims_of_fig11(loss, rise)
    return Outcome([*settings(bench), Setting("μ", rule, rule)], claims, {figure: panels(rows)}, [table],
                   scale=scale(bench), see=see)  # fmt: skip


def claims_of_fig11(loss: Values, rise: Values) -> list[Claim]:
    """What the paper says of an adaptive mu."""
    unlike, place = [name for name in loss if name != IID], "Appendix C.3.3, Figure 11"
    ratio = {name: of[DYNAMIC] / np.minimum(of[FEDAVG], of[FIXED]) for name, of in loss.items()}
    pairs, steady = ({name: (of[name][DYNAMIC], of[name][FEDAVG]) for name in unlike} for of in (loss, rise))
    return [
        lower("the heuristic is competitive: its loss is at most 10 % above the better fixed μ's, on all data sets",
              {name: (of, np.full_like(of, COMPETITIVE)) for name, of in ratio.items()},
              f"loss over that of the better fixed μ, and {COMPETITIVE}",
              quote="This heuristic allows for competitive performance", place=place, ours=f"at most 10 %; {LAST}"),
        lower("on IID data, started at μ = 1, it ends at a lower loss than μ = 1 kept",
              {IID: (loss[IID][DYNAMIC], loss[IID][FIXED])}, "loss, dynamic μ and μ = 1",
              quote="alleviate the potential issue that µ > 0 might slow down convergence", place=place, ours=LAST),
        lower("on unlike devices, started at μ = 0, it ends at a lower loss than μ = 0 kept", pairs,
              "loss, dynamic μ and μ = 0", quote="this simple heuristic works well in practice", place="Figure 11",
              ours=LAST),
        lower("on unlike devices, started at μ = 0, it is steadier than μ = 0 kept", steady,
              "mean rise, dynamic μ and μ = 0", own=True, ours=STEADY),
    ]  # fmt: skip


perform_fig3 = functools.partial(_adaptive, names=(IID, NAMES[-1]), figure="figure3", see="fedprox-fig11")
perform_fig11 = functools.partial(_adaptive, names=NAMES, figure="figure11")
