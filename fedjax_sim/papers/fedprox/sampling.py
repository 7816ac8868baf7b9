"""Figure 12: devices drawn uniformly and averaged by their data, or drawn by their data and averaged plainly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Claim, Experiment, Outcome, Setting, Table
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.papers.fedprox.synthetics import (
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
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

UNIFORM = "uniform, weighted average"
# The paper says with which probability devices are drawn, not whether one may be drawn twice. The first reading is that
# of its Algorithm 2, where the plain average is right in expectation.
BY_SIZE: dict[str, Callable[[int], fjs.cohort.Participation]] = {
    "by size, plain average": fjs.cohort.with_replacement,
    "by size without replacement, plain average": fjs.cohort.weighted,
}


def label(scheme: str, mu: float) -> str:
    """Of a curve."""
    return f"μ = {mu:g}, {scheme}"


def runs_of(bench: Bench) -> dict[str, dict[str, History]]:
    """Histories by data set and by scheme and mu, as labels."""
    uniform = fixed_mus(bench)
    found = {}
    for name, data in synthetics(bench).items():
        found[name] = {label(UNIFORM, mu): uniform[name][mu] for mu in MUS}
        for scheme, drawn in BY_SIZE.items():
            result = bench.sweep(
                f"{scheme.removesuffix(', plain average')}, {name}", fedprox(), data,
                fjs.sweeps.grid({"mu": list(MUS)}), diagnostics=[VARIANCE],
                **run_setting(bench) | {"cohort": drawn(bench.choose(smoke=2, cpu=PER_ROUND, paper=PER_ROUND))},
            )  # fmt: skip
            found[name] |= {label(scheme, mu): result.at(place) for place, mu in enumerate(MUS)}
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
    claims = [claim for scheme in BY_SIZE for claim in _against_uniform(scheme, loss, rise)]
    for scheme in (UNIFORM, *BY_SIZE):
        pairs = {name: [of[label(scheme, mu)] for mu in MUS] for name, of in rise.items()}
        claims.append(
            Claim(f"μ = 1 is steadier than μ = 0, or neither ever rises, on all data sets ({scheme})",
                  all(one < zero or one == zero == 0 for zero, one in pairs.values()),
                  {"mean rise of the loss in the second half, μ = 0 and 1": pairs})
        )  # fmt: skip
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
                    "both: K draws, a device drawn twice counts twice; K different devices")  # fmt: skip
    return Outcome([*settings(bench), drawn], claims, {"figure12": panels(rows)}, [table])


def _against_uniform(
    scheme: str, loss: Mapping[str, Mapping[str, float]], rise: Mapping[str, Mapping[str, float]]
) -> list[Claim]:
    """Whether a way to draw by size is better and steadier than drawing uniformly, in most cases."""
    reading = scheme.removesuffix(", plain average").removeprefix("by size").strip() or "with replacement"
    lower, steadier = (
        [of[label(scheme, mu)] < of[label(UNIFORM, mu)] for of in values.values() for mu in MUS]
        for values in (loss, rise)
    )
    ours = {
        name: {at: value for at, value in of.items() if at.endswith((scheme, UNIFORM))} for name, of in loss.items()
    }
    return [
        Claim(f"drawing by size ({reading}) and averaging plainly performs slightly better (lower loss; held if "
              f"in most of {len(lower)} cases)",
              sum(lower) > len(lower) / 2, {"cases": f"{sum(lower)} of {len(lower)}", "loss": ours}),
        Claim(f"drawing by size ({reading}) and averaging plainly is steadier, for both values of μ (held if in "
              f"most of {len(steadier)} cases)",
              sum(steadier) > len(steadier) / 2, {"cases": f"{sum(steadier)} of {len(steadier)}"}),
    ]  # fmt: skip


EXPERIMENTS = {"fedprox-fig12": Experiment("Li et al. 2020 (FedProx), Figure 12", SEEDS, perform)}
