"""Figures 3 and 11: a mu that follows the loss, started where it is worst, against mu = 0 and mu = 1."""

from __future__ import annotations

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Claim, Experiment, Outcome, Setting, Table
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.papers.fedprox.synthetics import (
    MUS,
    NAMES,
    SEEDS,
    fedprox,
    fixed_mus,
    run_setting,
    settings,
    synthetics,
)
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

IID = NAMES[0]
FEDAVG, DYNAMIC, FIXED = "FedAvg (FedProx, μ = 0)", "FedProx, dynamic μ", "FedProx, μ = 1"
STARTS = {name: 1.0 if name == IID else 0.0 for name in NAMES}  # of mu: adversarial, as the paper says
COMPETITIVE = 1.1  # within ten per cent of the better of the two fixed values


def perform_figure3(bench: Bench) -> Outcome:
    """Synthetic IID and synthetic(1, 1)."""
    return _outcome(bench, (IID, NAMES[-1]), "figure3")


def perform_figure11(bench: Bench) -> Outcome:
    """All four."""
    return _outcome(bench, NAMES, "figure11")


def runs_of(bench: Bench, names: tuple[str, ...]) -> dict[str, dict[str, History]]:
    """Histories by data set and method; the start of a dynamic mu is a real number, so it is one program for all."""
    fixed = fixed_mus(bench, names)
    found = {}
    for name, data in synthetics(bench, names).items():
        dynamic = bench.sweep(
            f"dynamic, {name}", fedprox(mu=0.0, adaptive=True), data, fjs.sweeps.grid({"mu": [STARTS[name]]}),
            **run_setting(bench),
        )  # fmt: skip
        found[name] = {FEDAVG: fixed[name][MUS[0]], DYNAMIC: dynamic.at(0), FIXED: fixed[name][MUS[1]]}
    return found


def _outcome(bench: Bench, names: tuple[str, ...], figure: str) -> Outcome:
    runs = runs_of(bench, names)
    loss = {name: measures.levels(of, "loss") for name, of in runs.items()}
    rise = {name: {method: measures.unsteadiness(history) for method, history in of.items()}
            for name, of in runs.items()}  # fmt: skip
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


EXPERIMENTS = {
    "fedprox-fig3": Experiment("Li et al. 2020 (FedProx), Figure 3", SEEDS, perform_figure3),
    "fedprox-fig11": Experiment("Li et al. 2020 (FedProx), Figure 11", SEEDS, perform_figure11),
}
