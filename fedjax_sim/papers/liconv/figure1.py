"""Figure 1: local steps (a), clients a round (b), averaging schemes on balanced (c) and unbalanced (d) MNIST."""

from __future__ import annotations

from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Experiment, Outcome
from fedjax_sim.papers.liconv import cohort_sizes, local_steps, schemes
from fedjax_sim.papers.liconv.problems import ALIKE, BALANCED, UNBALANCED, settings
from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.plots import check_matplotlib


def perform(bench: Bench) -> Outcome:
    """Four panels."""
    check_matplotlib()

    needed = local_steps.measured(bench)
    by_size = cohort_sizes.runs_of(bench, ALIKE)
    averaged = {name: schemes.runs_of(bench, name) for name in (BALANCED, UNBALANCED)}

    figure = new_figure(10, 7.6)
    (a, b), (c, d) = figure.subplots(2, 2)
    local_steps.draw(a, needed)
    cohort_sizes.draw(b, by_size)
    schemes.draw(c, averaged[BALANCED])
    schemes.draw(d, averaged[UNBALANCED])
    for ax, title in ((a, "(a) impact of E"), (b, f"(b) impact of K, {ALIKE}"), (c, f"(c) {BALANCED}"),
                      (d, f"(d) {UNBALANCED}")):  # fmt: skip
        ax.set_title(title, fontsize="medium")
    claims = [
        *local_steps.claims(bench, needed),
        *cohort_sizes.claims_of(bench, ALIKE, by_size),
        *schemes.balanced_claims(bench, BALANCED, averaged[BALANCED]),
        *schemes.unbalanced_claims(bench, UNBALANCED, averaged[UNBALANCED]),
    ]
    rows = [
        *local_steps.settings(bench),
        *cohort_sizes.own_settings(bench, "(b) "),
        *schemes.own_settings(bench, (BALANCED, UNBALANCED), "(c, d) "),
    ]
    tables = [
        local_steps.table(needed),
        cohort_sizes.table({ALIKE: by_size}, "Figure 1b: loss at the end by K"),
        schemes.table(averaged),
    ]
    return Outcome(settings(bench, rows), claims, {"figure1": figure}, tables)


EXPERIMENTS = {
    "liconv-fig1": Experiment(
        "Li et al. 2020 (convergence of FedAvg), Figure 1", {"smoke": 1, "cpu": 2, "paper": 1}, perform
    ),
}
