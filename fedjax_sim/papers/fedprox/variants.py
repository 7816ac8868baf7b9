"""Figure 4: FedDANE against FedProx. Figure 5: stragglers on IID data. Figure 12: two ways of drawing devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedprox import measures, synthetics
from fedjax_sim.papers.fedprox.problems import EPOCHS, Problem, local_epochs
from fedjax_sim.papers.fedprox.stragglers import FEDAVG, FRACTIONS, PLAIN, runs_of
from fedjax_sim.papers.fedprox.synthetics import IID, MUS, PER_ROUND, VARIANCE, run_setting
from fedjax_sim.run.history import History

NUMBERS = (10, 20, 30)  # devices a round of FedDANE in the lower row of Figure 4
ALIKE, POINTS = 0.1, 3.0  # "similarly", "not much": losses within ten per cent, accuracies within three points

UNIFORM = "uniform, weighted average"
# The paper says with which probability devices are drawn, not whether one may be drawn twice. The first reading is that
# of its Algorithm 2, where the plain average is right in expectation.
BY_SIZE: dict[str, Callable[[int], fjs.cohort.Participation]] = {
    "by size, plain average": fjs.cohort.with_replacement,
    "by size without replacement, plain average": fjs.cohort.weighted,
}


def perform_fig4(bench: Bench) -> Outcome:
    """Above, both methods with both values of mu and ten devices; below, mu = 0 and more devices."""
    numbers: tuple[int, ...] = bench.choose((2, 4), NUMBERS)
    rounds: int = bench.choose(smoke=2, cpu=100, paper=200)
    prox = {name: {mu: measures.first_rounds(history, rounds) for mu, history in of.items()}
            for name, of in synthetics.fixed_mus(bench).items()}  # fmt: skip
    dane = {name: {count: _dane(bench, name, data, count, rounds, MUS if count == numbers[0] else MUS[:1])
                   for count in numbers} for name, data in synthetics.synthetics(bench).items()}  # fmt: skip
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
    loss_prox = measures.each(prox, "loss")
    loss_dane = {name: measures.each(of, "loss") for name, of in dane.items()}
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
              all(value <= 1 + ALIKE for value in alike.values()), {"loss over FedProx's": alike}),
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
    figures = {"figure4-top": by_metric(above, ["loss"]), "figure4-bottom": by_metric(below, ["loss"])}
    extra = [
        Setting("rounds drawn", "200", str(rounds)),
        Setting("FedDANE's two cohorts", "drawn independently (Li et al. 2019); in the code the same", "independent"),
    ]
    return Outcome([*synthetics.settings(bench), *extra], claims, figures, [table])


def _dane(
    bench: Bench, name: str, data: fjs.FederatedDataset, count: int, rounds: int, mus: tuple[float, ...]
) -> dict[float, History]:
    algorithm = fjs.feddane(client_optimizer=fjs.optim.sgd(synthetics.LEARNING_RATE))
    setting: dict[str, Any] = run_setting(bench) | {"cohort": fjs.cohort.uniform(count), "rounds": rounds}
    space = fjs.sweeps.grid({"mu": list(mus)})
    runs = bench.runs(f"FedDANE, {name}, {count} devices", algorithm, data, space, **setting)
    return dict(zip(mus, runs, strict=True))


def perform_fig5(bench: Bench) -> Outcome:
    """FedAvg, which drops stragglers, and FedProx with mu = 0, which keeps their work."""
    data = synthetics.synthetics(bench, (IID,))[IID]
    task = run_setting(bench)
    problem = Problem(data, task["task"].model, synthetics.LEARNING_RATE, 0.0, task["rounds"])
    runs = {fraction: {method: of[method] for method in (FEDAVG, PLAIN)}
            for fraction, of in runs_of(bench, IID, problem, (0.0,)).items()}  # fmt: skip
    loss, accuracy = measures.each(runs, "loss"), measures.each(runs, "test_accuracy")
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
    named = {f"{fraction:.0%} stragglers": of for fraction, of in runs.items()}
    figure = by_metric(named, ("loss", "test_accuracy"))
    drawn = f"0, 50, 90 %: U{{1..{local_epochs(bench, EPOCHS)}}} epochs"
    share = bench.setting("stragglers", "0, 50, 90 %: U{1..20} epochs", drawn)
    return Outcome([*synthetics.settings(bench), share], claims, {"figure5": figure}, [table])


def label(scheme: str, mu: float) -> str:
    """Of a curve."""
    return f"μ = {mu:g}, {scheme}"


def _drawn_runs(bench: Bench) -> dict[str, dict[str, History]]:
    """Histories by data set and by scheme and mu, as labels."""
    uniform = synthetics.fixed_mus(bench)
    found = {}
    for name, data in synthetics.synthetics(bench).items():
        found[name] = {label(UNIFORM, mu): uniform[name][mu] for mu in MUS}
        for scheme, drawn in BY_SIZE.items():
            of = bench.runs(
                f"{scheme.removesuffix(', plain average')}, {name}", synthetics.fedprox(), data,
                fjs.sweeps.grid({"mu": list(MUS)}), diagnostics=[VARIANCE],
                **run_setting(bench) | {"cohort": drawn(bench.choose(2, PER_ROUND))},
            )  # fmt: skip
            found[name] |= {label(scheme, mu): run for mu, run in zip(MUS, of, strict=True)}
    return found


def perform_fig12(bench: Bench) -> Outcome:
    """Loss, test accuracy and dissimilarity."""
    runs = _drawn_runs(bench)
    loss, rise = measures.each(runs, "loss"), measures.each(runs, measures.unsteadiness)
    claims = [claim for scheme in BY_SIZE for claim in _against_uniform(scheme, loss, rise)]
    for scheme in (UNIFORM, *BY_SIZE):
        pairs = {name: [of[label(scheme, mu)] for mu in MUS] for name, of in rise.items()}
        claims.append(
            Claim(f"μ = 1 is steadier than μ = 0, or neither ever rises, on all data sets ({scheme})",
                  all(one < zero or one == zero == 0 for zero, one in pairs.values()),
                  {"mean rise of the loss in the second half, μ = 0 and 1": pairs})
        )  # fmt: skip
    drawn = Setting("devices drawn by size", "K with probability p_k; with or without replacement is not said",
                    "both: K draws, a device drawn twice counts twice; K different devices")  # fmt: skip
    figure = by_metric(runs, ("loss", "test_accuracy", VARIANCE))
    table = synthetics.table_of_ends(runs)
    return Outcome([*synthetics.settings(bench), drawn], claims, {"figure12": figure}, [table])


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
