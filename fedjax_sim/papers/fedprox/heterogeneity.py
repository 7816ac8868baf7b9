"""Figures 2 and 6: FedProx on four synthetic data sets, from alike to unlike devices; everybody does 20 epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Claim, Experiment, Outcome, Table
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.papers.fedprox.synthetics import MUS, SEEDS, VARIANCE, fixed_mus, settings
from fedjax_sim.reporting import Panel, panels

LABELS = dict(zip(MUS, ("FedAvg (FedProx, μ = 0)", "FedProx, μ = 1"), strict=True))


def perform_figure2(bench: Bench) -> Outcome:
    """Loss above dissimilarity."""
    return _outcome(bench, ("loss", VARIANCE), "figure2")


def perform_figure6(bench: Bench) -> Outcome:
    """The same with the test accuracy."""
    return _outcome(bench, ("loss", "test_accuracy", VARIANCE), "figure6")


def _outcome(bench: Bench, metrics: Sequence[str], figure: str) -> Outcome:
    runs = fixed_mus(bench)
    loss, variance, accuracy = (
        {name: [measures.level(of[mu], metric) for mu in MUS] for name, of in runs.items()}
        for metric in ("loss", VARIANCE, "test_accuracy")
    )
    rise = {name: [measures.unsteadiness(of[mu]) for mu in MUS] for name, of in runs.items()}
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
    table = Table(
        "Means of the last tenth of the rounds; rise: mean rise of the loss from a round to the next, second half",
        ("data", "method", "loss", "test accuracy", "rise", "variance of gradients"),
        [(name, LABELS[mu], loss[name][k], accuracy[name][k], rise[name][k], variance[name][k])
         for name in runs for k, mu in enumerate(MUS)],
        "The paper gives figures only.",
    )  # fmt: skip
    rows = [
        [Panel({LABELS[mu]: of[mu] for mu in MUS}, metric, name if metric == "loss" else "")
         for name, of in runs.items()]
        for metric in metrics
    ]  # fmt: skip
    return Outcome(settings(bench), claims, {figure: panels(rows)}, [table])


EXPERIMENTS = {
    "fedprox-fig2": Experiment("Li et al. 2020 (FedProx), Figure 2", SEEDS, perform_figure2),
    "fedprox-fig6": Experiment("Li et al. 2020 (FedProx), Figure 6", SEEDS, perform_figure6),
}
