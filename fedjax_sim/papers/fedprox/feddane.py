"""Figure 4: FedDANE, whose clients correct their gradients, against FedProx; ten devices a round, and more."""

from __future__ import annotations

from typing import Any

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.experiment import Claim, Experiment, Outcome, Setting, Table
from fedjax_sim.papers.fedprox import measures
from fedjax_sim.papers.fedprox.synthetics import (
    LEARNING_RATE,
    MUS,
    NAMES,
    SEEDS,
    fixed_mus,
    run_setting,
    settings,
    synthetics,
)
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.run.history import History

IID = NAMES[0]
NUMBERS = (10, 20, 30)  # devices a round of FedDANE in the lower row
ALIKE = 1.1  # "similarly": within ten per cent


def perform(bench: Bench) -> Outcome:
    """Above, both methods with both values of mu and ten devices; below, mu = 0 and more devices."""
    numbers: tuple[int, ...] = bench.choose(smoke=(2, 4), cpu=NUMBERS, paper=NUMBERS)
    rounds: int = bench.choose(smoke=2, cpu=100, paper=200)
    prox = {name: {mu: measures.first_rounds(history, rounds) for mu, history in of.items()}
            for name, of in fixed_mus(bench).items()}  # fmt: skip
    dane = {name: {count: _dane(bench, name, data, count, rounds, MUS if count == numbers[0] else MUS[:1])
                   for count in numbers} for name, data in synthetics(bench).items()}  # fmt: skip
    above = {
        name: {f"FedProx, μ = {mu:g}": prox[name][mu] for mu in MUS}
        | {f"FedDANE, μ = {mu:g}": dane[name][numbers[0]][mu] for mu in MUS}
        for name in prox
    }
    below = {
        name: {f"FedProx, μ = 0, {numbers[0]} devices": prox[name][0.0]}
        | {f"FedDANE, μ = 0, {count} devices": dane[name][count][0.0] for count in numbers}
        for name in prox
    }
    loss_prox = {name: {mu: measures.level(prox[name][mu], "loss") for mu in MUS} for name in prox}
    loss_dane = {name: {count: {mu: measures.level(history, "loss") for mu, history in of.items()}
                        for count, of in dane[name].items()} for name in prox}  # fmt: skip
    first, last = numbers[0], numbers[-1]
    unlike = [name for name in prox if name != IID]
    alike = {f"μ = {mu:g}": loss_dane[IID][first][mu] / loss_prox[IID][mu] for mu in MUS}
    worse = {f"{name}, μ = {mu:g}": loss_dane[name][first][mu] / loss_prox[name][mu] for name in unlike for mu in MUS}
    rises = {f"{name}, μ = {mu:g}": [measures.unsteadiness(of) for of in (prox[name][mu], dane[name][first][mu])]
             for name in unlike for mu in MUS}  # fmt: skip
    more = {name: [loss_dane[name][count][0.0] for count in numbers] for name in unlike}
    still = {name: loss_dane[name][last][0.0] / loss_prox[name][0.0] for name in unlike}
    diverged = {f"{name}, {count} devices": measures.diverged(dane[name][count][0.0])
                for name in unlike for count in numbers}  # fmt: skip
    claims = [
        Claim("on IID data FedDANE performs like FedProx (its loss is at most 10 % higher)",
              all(value <= ALIKE for value in alike.values()), {"loss over FedProx's": alike}),
        Claim("on the three other data sets FedDANE converges worse than FedProx, with ten devices and either μ",
              all(value > 1 for value in worse.values()), {"loss over FedProx's": worse}),
        Claim("on the three other data sets FedDANE is less steady than FedProx, with ten devices and either μ",
              all(of[1] > of[0] for of in rises.values()),
              {"mean rise of the loss in the second half, FedProx and FedDANE": rises}),
        Claim("more devices a round help FedDANE to some extent (30 end lower than 10, on the three)",
              all(of[-1] < of[0] for of in more.values()), {f"loss with {numbers} devices": more}),
        Claim("FedDANE with more devices a round is still worse than FedProx with ten, on the three",
              all(value > 1 for value in still.values()),
              {f"loss with {last} devices over FedProx's with {first}": still}),
        Claim("FedDANE is unstable there: on each of the three some seed diverges (f_t - f_(t-10) > 1)",
              all(any(diverged[f"{name}, {count} devices"] for count in numbers) for name in unlike),
              {"seeds that diverge": diverged}),
    ]  # fmt: skip
    table = Table(
        f"Loss, mean of the last tenth of the first {rounds} rounds",
        ("data", *(f"FedProx, μ = {mu:g}" for mu in MUS), *(f"FedDANE, μ = {mu:g}" for mu in MUS),
         *(f"FedDANE, μ = 0, {count} devices" for count in numbers[1:])),
        [(name, *loss_prox[name].values(), *loss_dane[name][first].values(),
          *(loss_dane[name][count][0.0] for count in numbers[1:])) for name in prox],
        "The paper gives figures only.",
    )  # fmt: skip
    figures = {
        "figure4-top": panels([[Panel(of, "loss", name) for name, of in above.items()]]),
        "figure4-bottom": panels([[Panel(of, "loss", name) for name, of in below.items()]]),
    }
    extra = [
        Setting("rounds drawn", "200", str(rounds)),
        Setting("FedDANE's two cohorts", "drawn independently (Li et al. 2019); in the code the same", "independent"),
    ]
    return Outcome([*settings(bench), *extra], claims, figures, [table])


def _dane(
    bench: Bench, name: str, data: fjs.FederatedDataset, count: int, rounds: int, mus: tuple[float, ...]
) -> dict[float, History]:
    algorithm = fjs.feddane(client_optimizer=fjs.optim.sgd(LEARNING_RATE))
    setting: dict[str, Any] = run_setting(bench) | {"cohort": fjs.cohort.uniform(count), "rounds": rounds}
    result = bench.sweep(
        f"FedDANE, {name}, {count} devices", algorithm, data, fjs.sweeps.grid({"mu": list(mus)}), **setting
    )
    return {mu: result.at(place) for place, mu in enumerate(mus)}


EXPERIMENTS = {"fedprox-fig4": Experiment("Li et al. 2020 (FedProx), Figure 4", SEEDS, perform)}
