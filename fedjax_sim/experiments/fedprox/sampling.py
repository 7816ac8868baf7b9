"""Figure 12: devices drawn uniformly and averaged by their data, or drawn by their data and averaged plainly."""

from __future__ import annotations

import fedjax_sim as fjs
from fedjax_sim.experiments.bench import Bench
from fedjax_sim.experiments.experiment import Claim, Experiment, Outcome, Setting, Table
from fedjax_sim.experiments.fedprox import measures
from fedjax_sim.experiments.fedprox.synthetics import (
    MUS,
    PER_ROUND,
    SEEDS,
    VARIANCE,
    fedprox,
    fixed_mus,
    run_setting,
    settings,
    synthetics,
)
from fedjax_sim.history import History
from fedjax_sim.reporting import Panel, panels

UNIFORM, BY_SIZE = "uniform, weighted average", "by size, plain average"
LABELS = {(scheme, mu): f"μ = {mu:g}, {scheme}" for scheme in (UNIFORM, BY_SIZE) for mu in MUS}


def runs_of(bench: Bench) -> dict[str, dict[str, History]]:
    """Histories by data set and by scheme and mu, as labels."""
    uniform = fixed_mus(bench)
    found = {}
    for name, data in synthetics(bench).items():
        cohort = fjs.cohort.with_replacement(bench.choose(smoke=2, cpu=PER_ROUND, paper=PER_ROUND))
        result = bench.sweep(
            f"by size, {name}", fedprox(), data, fjs.sweeps.grid({"mu": list(MUS)}),
            **run_setting(bench) | {"cohort": cohort}, diagnostics=[VARIANCE],
        )  # fmt: skip
        by_size = {LABELS[BY_SIZE, mu]: result.at(place) for place, mu in enumerate(MUS)}
        found[name] = {LABELS[UNIFORM, mu]: uniform[name][mu] for mu in MUS} | by_size
    return found


def perform(bench: Bench) -> Outcome:
    """Loss, test accuracy and dissimilarity."""
    runs = runs_of(bench)
    loss, accuracy, variance = (
        {name: measures.levels(of, metric) for name, of in runs.items()}
        for metric in ("loss", "test_accuracy", VARIANCE)
    )
    rise = {name: {label: measures.unsteadiness(history) for label, history in of.items()}
            for name, of in runs.items()}  # fmt: skip
    cases = [(name, mu) for name in runs for mu in MUS]
    lower = [loss[name][LABELS[BY_SIZE, mu]] < loss[name][LABELS[UNIFORM, mu]] for name, mu in cases]
    steadier = [rise[name][LABELS[BY_SIZE, mu]] < rise[name][LABELS[UNIFORM, mu]] for name, mu in cases]
    proximal = {
        scheme: {name: [rise[name][LABELS[scheme, mu]] for mu in MUS] for name in runs} for scheme in (UNIFORM, BY_SIZE)
    }
    claims = [
        Claim("drawing by size and averaging plainly performs slightly better (lower loss; held if in most of 8 cases)",
              sum(lower) > len(lower) / 2, {"cases": f"{sum(lower)} of {len(lower)}", "loss": loss}),
        Claim("drawing by size and averaging plainly is steadier, for both values of μ (held if in most of 8 cases)",
              sum(steadier) > len(steadier) / 2, {"cases": f"{sum(steadier)} of {len(steadier)}"}),
        *(Claim(f"μ = 1 is steadier than μ = 0, or neither ever rises, on all data sets ({scheme})",
                all(one < zero or one == zero == 0 for zero, one in proximal[scheme].values()),
                {"mean rise of the loss in the second half, μ = 0 and 1": proximal[scheme]}) for scheme in proximal),
    ]  # fmt: skip
    table = Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "test accuracy", "rise", "variance of gradients"),
        [(name, label, loss[name][label], accuracy[name][label], rise[name][label], variance[name][label])
         for name, of in runs.items() for label in of],
        "The paper gives figures only.",
    )  # fmt: skip
    rows = [
        [Panel(of, metric, name if metric == "loss" else "") for name, of in runs.items()]
        for metric in ("loss", "test_accuracy", VARIANCE)
    ]
    drawn = Setting("devices drawn by size", "K with probability p_k; with or without replacement is not said",
                    "with replacement: K draws, a device drawn twice counts twice")  # fmt: skip
    return Outcome([*settings(bench), drawn], claims, {"figure12": panels(rows)}, [table])


EXPERIMENTS = {"fedprox-fig12": Experiment("Li et al. 2020 (FedProx), Figure 12", SEEDS, perform)}
