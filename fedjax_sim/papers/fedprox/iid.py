"""Figure 5: stragglers where all devices have data of one distribution."""

from __future__ import annotations

from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Claim, Experiment, Outcome, Setting, Table
from fedjax_sim.papers.fedprox import measures, synthetics
from fedjax_sim.papers.fedprox.problems import EPOCHS, Problem, local_epochs
from fedjax_sim.papers.fedprox.stragglers import FEDAVG, FRACTIONS, PLAIN, runs_of
from fedjax_sim.reporting import Panel, panels

ALIKE = 0.1  # "not much effect": losses within ten per cent, accuracies within three points
POINTS = 3.0


def perform(bench: Bench) -> Outcome:
    """FedAvg, which drops stragglers, and FedProx with mu = 0, which keeps their work."""
    name = synthetics.NAMES[0]
    data = synthetics.synthetics(bench, (name,))[name]
    task = synthetics.run_setting(bench)
    problem = Problem(data, task["task"].model, synthetics.LEARNING_RATE, 0.0, task["rounds"])
    runs = {fraction: {method: of[method] for method in (FEDAVG, PLAIN)}
            for fraction, of in runs_of(bench, name, problem, (0.0,)).items()}  # fmt: skip
    loss = {fraction: measures.levels(of, "loss") for fraction, of in runs.items()}
    accuracy = {fraction: measures.levels(of, "test_accuracy") for fraction, of in runs.items()}
    robust = {f"{fraction:.0%}": loss[fraction][FEDAVG] / loss[0.0][FEDAVG] - 1 for fraction in FRACTIONS[1:]}
    gain = {f"{fraction:.0%}": 1 - loss[fraction][PLAIN] / loss[fraction][FEDAVG] for fraction in FRACTIONS[1:]}
    points = {f"{fraction:.0%}": 100 * (accuracy[fraction][PLAIN] - accuracy[fraction][FEDAVG])
              for fraction in FRACTIONS[1:]}  # fmt: skip
    claims = [
        Claim("on IID data FedAvg is robust to stragglers: dropping 50 or 90 % raises its loss by less than 10 %",
              all(abs(value) < ALIKE for value in robust.values()), {"rise over no stragglers": robust}),
        Claim("on IID data keeping partial work does not improve the loss much (by less than 10 %)",
              all(value < ALIKE for value in gain.values()), {"gain of keeping over dropping": gain}),
        Claim("on IID data keeping partial work does not improve the test accuracy much (by less than 3 points)",
              all(value < POINTS for value in points.values()), {"points": points}),
    ]  # fmt: skip
    table = Table(
        "Means of the last tenth of the rounds", ("stragglers", "method", "loss", "test accuracy"),
        [(f"{fraction:.0%}", method, loss[fraction][method], accuracy[fraction][method])
         for fraction in FRACTIONS for method in (FEDAVG, PLAIN)],
        "The paper gives figures only.",
    )  # fmt: skip
    rows = [
        [Panel(of, metric, f"{fraction:.0%} stragglers" if metric == "loss" else "") for fraction, of in runs.items()]
        for metric in ("loss", "test_accuracy")
    ]
    share = Setting("stragglers", "0, 50, 90 %: U{1..20} epochs",
                    f"0, 50, 90 %: U{{1..{local_epochs(bench, EPOCHS)}}} epochs")  # fmt: skip
    return Outcome([*synthetics.settings(bench), share], claims, {"figure5": panels(rows)}, [table])


EXPERIMENTS = {"fedprox-fig5": Experiment("Li et al. 2020 (FedProx), Figure 5", synthetics.SEEDS, perform)}
