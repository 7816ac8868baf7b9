"""The four synthetic data sets of the paper, and the figures that are about them alone.

Figures 2 and 6: FedProx from alike to unlike devices; everybody does 20 epochs. Figures 3 and 11: a mu that follows the
loss, started where it is worst, against mu = 0 and mu = 1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

LEARNING_RATE = 0.01  # appendix C.2
BATCH = 10
EPOCHS = 20
DEVICES, PER_ROUND = 30, 10
ROUNDS = 200  # the axes of Figures 2, 4, 5, 6, 11 and 12
DATA_SEED = 0
VARIANCE = "gradient_variance"

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
    space, given = fjs.sweeps.grid({"mu": list(MUS)}), run_setting(bench) | {"diagnostics": [VARIANCE]}
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
    ]


def _fixed(bench: Bench, metrics: Sequence[str], figure: str) -> Outcome:
    """Figures 2 and 6."""
    runs = fixed_mus(bench)
    loss, variance, accuracy, rise = (
        {name: list(of.values()) for name, of in measures.each(runs, measure).items()}
        for measure in ("loss", VARIANCE, "test_accuracy", measures.unsteadiness)
    )
    iid, *unlike = runs
    fedavg = [loss[name][0] for name in runs]
    held = [loss[name][1] < loss[name][0] for name in unlike]
    agree = [(loss[name][1] < loss[name][0]) == (variance[name][1] < variance[name][0]) for name in runs]
    claims = [
        Claim("FedAvg converges worse (ends at a higher loss) the less alike the devices are",
              all(a < b for a, b in itertools.pairwise(fedavg)), {"loss": dict(zip(runs, fedavg, strict=True))}),
        Claim("μ = 1 ends at a lower loss than FedAvg on the three data sets of unlike devices", all(held),
              {"loss, μ = 0 and 1": {name: loss[name] for name in unlike}}),
        Claim("μ = 1 is steadier than FedAvg on the three data sets of unlike devices",
              all(rise[name][1] < rise[name][0] for name in unlike),
              {"mean rise of the loss in the second half, μ = 0 and 1": {name: rise[name] for name in unlike}}),
        Claim("on IID devices μ = 1 may slow the convergence", loss[iid][1] > loss[iid][0],
              {"loss, μ = 0 and 1": loss[iid]}),
        Claim("μ = 1 leads to a smaller dissimilarity (variance of gradients) on unlike devices",
              all(variance[name][1] < variance[name][0] for name in unlike),
              {"variance, μ = 0 and 1": {name: variance[name] for name in unlike}}),
        Claim("the dissimilarity is consistent with the loss: of the two values of μ the one with the smaller variance "
              "has the smaller loss, on all data sets", all(agree),
              {"data sets": f"{sum(agree)} of {len(agree)}", "variance, μ = 0 and 1": variance, "loss": loss}),
        Claim("the less alike the devices are, the larger FedAvg's dissimilarity",
              all(variance[a][0] < variance[b][0] for a, b in zip(runs, unlike, strict=False)),
              {"variance, μ = 0": {name: variance[name][0] for name in runs}}),
    ]  # fmt: skip
    if "test_accuracy" in metrics:
        claims.append(
            Claim("μ = 1 increases the test accuracy in most cases (of the three with unlike devices)",
                  sum(accuracy[name][1] > accuracy[name][0] for name in unlike) > len(unlike) / 2,
                  {"test accuracy, μ = 0 and 1": accuracy})
        )  # fmt: skip
    named = {name: {FEDAVG: of[0.0], FIXED: of[1.0]} for name, of in runs.items()}
    return Outcome(settings(bench), claims, {figure: by_metric(named, metrics)}, [table_of_ends(named)])


def table_of_ends(runs: Mapping[str, Mapping[str, History]]) -> Table:
    """Where every run on a data set ends."""
    return Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "test accuracy", "rise", "variance of gradients"),
        [(name, label, measures.level(run, "loss"), measures.level(run, "test_accuracy"), measures.unsteadiness(run),
          measures.level(run, VARIANCE)) for name, of in runs.items() for label, run in of.items()],
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


def _adaptive(bench: Bench, names: tuple[str, ...], figure: str) -> Outcome:
    """Figures 3 and 11."""
    runs = _dynamic_runs(bench, names)
    loss, rise = measures.each(runs, "loss"), measures.each(runs, measures.unsteadiness)
    unlike = [name for name in names if name != IID]
    ratio = {name: of[DYNAMIC] / min(of[FEDAVG], of[FIXED]) for name, of in loss.items()}
    last_mu = {name: float(of[DYNAMIC].final("mu").mean()) for name, of in runs.items()}
    claims = [
        Claim("the heuristic is competitive: its loss is at most 10 % above the better fixed μ's, on all data sets",
              all(value <= COMPETITIVE for value in ratio.values()), {"loss over that of the better fixed μ": ratio}),
        Claim("on IID data, started at μ = 1, it ends at a lower loss than μ = 1 kept",
              loss[IID][DYNAMIC] < loss[IID][FIXED], {"loss": loss[IID], "last μ": last_mu[IID]}),
        Claim("on unlike devices, started at μ = 0, it ends at a lower loss than μ = 0 kept",
              all(loss[name][DYNAMIC] < loss[name][FEDAVG] for name in unlike),
              {"loss": {name: loss[name] for name in unlike}, "last μ": {name: last_mu[name] for name in unlike}}),
        Claim("on unlike devices, started at μ = 0, it is steadier than μ = 0 kept",
              all(rise[name][DYNAMIC] < rise[name][FEDAVG] for name in unlike),
              {"mean rise of the loss in the second half": {name: rise[name] for name in unlike}}),
    ]  # fmt: skip
    table = Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "rise", "last μ"),
        [(name, method, loss[name][method], rise[name][method], last_mu[name] if method == DYNAMIC else None)
         for name in names for method in runs[name]],
        "The paper gives figures only.",
    )  # fmt: skip
    rows = [
        [Panel(of, "loss", name) for name, of in runs.items()],
        [Panel({DYNAMIC: of[DYNAMIC]}, "mu", label="μ") for of in runs.values()],
    ]
    rule = "+0.1 after a rise of the loss, -0.1 after 5 falls in a row; starts at 1 (IID) or 0"
    return Outcome([*settings(bench), Setting("μ", rule, rule)], claims, {figure: panels(rows)}, [table])


perform_fig2 = functools.partial(_fixed, metrics=("loss", VARIANCE), figure="figure2")
perform_fig6 = functools.partial(_fixed, metrics=("loss", "test_accuracy", VARIANCE), figure="figure6")
perform_fig3 = functools.partial(_adaptive, names=(IID, NAMES[-1]), figure="figure3")
perform_fig11 = functools.partial(_adaptive, names=NAMES, figure="figure11")
