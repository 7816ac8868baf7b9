"""Figure 4: FedDANE against FedProx. Figure 5: stragglers on IID data. Figure 12: two ways of drawing devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers import measuring
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import by_metric
from fedjax_sim.papers.fedprox import measures, synthetics
from fedjax_sim.papers.fedprox.measures import LAST, STEADY, lower
from fedjax_sim.papers.fedprox.problems import EPOCHS, Problem, local_epochs
from fedjax_sim.papers.fedprox.stragglers import FEDAVG, FRACTIONS, PLAIN, runs_of
from fedjax_sim.papers.fedprox.synthetics import DIAGNOSTICS, IID, MUS, PER_ROUND, VARIANCE, WORDS, run_setting
from fedjax_sim.run.history import History

NUMBERS = (10, 20, 30)  # devices a round of FedDANE in the lower row of Figure 4
ALIKE, POINTS = 0.1, 3.0  # "similarly", "not much": losses within ten per cent, accuracies within three points

UNIFORM = "uniform, weighted average"
# The text has "a subset of K devices". The published code has no drawing by size; that of q-FFL, by two of the authors,
# draws by size without replacement and averages plainly. With replacement the average would be right in expectation.
AS_PAPER, AGAIN = "by size, plain average", "by size with replacement, plain average"
BY_SIZE: dict[str, Callable[[int], fjs.cohort.Participation]] = {
    AS_PAPER: fjs.cohort.weighted,
    AGAIN: fjs.cohort.with_replacement,
}


def perform_fig4(bench: Bench) -> Outcome:
    """Above, both methods with both values of mu and ten devices; below, mu = 0 and more devices."""
    numbers: tuple[int, ...] = bench.choose((2, 4), NUMBERS)
    prox = synthetics.fixed_mus(bench)
    dane = {(name, count): _dane(bench, name, data, count, MUS if count == numbers[0] else MUS[:1])
            for name, data in synthetics.synthetics(bench).items() for count in numbers}  # fmt: skip
    above = {
        name: {f"FedProx, μ = {mu:g}": prox[name][mu] for mu in MUS}
        | {f"FedDANE, μ = {mu:g}": dane[name, numbers[0]][mu] for mu in MUS}
        for name in prox
    }
    below = {
        name: {f"FedProx, μ = 0, {numbers[0]} devices": prox[name][0.0]}
        | {f"FedDANE, μ = 0, {count} devices": dane[name, count][0.0] for count in numbers}
        for name in prox
    }
    loss_prox, rises_prox = (measures.each(prox, of) for of in ("loss", measuring.rises))
    loss_dane, rises_dane = (measures.each(dane, of) for of in ("loss", measuring.rises))
    diverged = {case: measures.diverged(of[0.0]) for case, of in dane.items()}
    claims = claims_of_fig4(numbers, loss_prox, loss_dane, rises_prox, rises_dane, diverged, len(bench.seeds))
    table = Table(
        "Loss, mean of the last tenth of the rounds",
        ("data", *(f"FedProx, μ = {mu:g}" for mu in MUS), *(f"FedDANE, μ = {mu:g}" for mu in MUS),
         *(f"FedDANE, μ = 0, {count} devices" for count in numbers[1:])),
        [(name, *(float(of.mean()) for of in (*loss_prox[name].values(), *loss_dane[name, numbers[0]].values())),
          *(float(loss_dane[name, count][0.0].mean()) for count in numbers[1:])) for name in prox],
        "The paper gives figures only.",
    )  # fmt: skip
    figures = {"figure4-top": by_metric(above, ["loss"]), "figure4-bottom": by_metric(below, ["loss"])}
    cohorts = Setting(
        "FedDANE's two cohorts", "drawn independently (Li et al. 2019); in the code the same", "independent"
    )
    return Outcome([*synthetics.settings(bench), cohorts], claims, figures, [table], scale=synthetics.scale(bench))


def claims_of_fig4(
    numbers: tuple[int, ...],
    loss_prox: Mapping[Any, Any],
    loss_dane: Mapping[Any, Any],
    rises_prox: Mapping[Any, Any],
    rises_dane: Mapping[Any, Any],
    diverged: Mapping[tuple[str, int], int],
    seeds: int,
) -> list[Claim]:
    """What the paper says of FedDANE: losses and rises [seeds] by data set (and devices) and mu; how many diverge."""
    first, last = numbers[0], numbers[-1]
    iid, *unlike = loss_prox
    alike = {f"μ = {mu:g}": loss_dane[iid, first][mu] / loss_prox[iid][mu] for mu in MUS}
    wide = {f"{name}, {count} devices": (rises_prox[name][0.0], rises_dane[name, count][0.0])
            for name in unlike for count in numbers}  # fmt: skip
    unstable, place = "FedDane is still unstable and tends to diverge", "Figure 4"
    return [
        lower("on IID data FedDANE performs like FedProx (its loss is at most 10 % higher)",
              {mu: (of, np.full_like(of, 1 + ALIKE)) for mu, of in alike.items()},
              f"FedDANE's loss over FedProx's, and {1 + ALIKE:g}",
              quote="FedDane performs similarly as FedProx on the IID data", place=place, ours=f"10 %; {LAST}"),
        lower("on the three other data sets FedDANE converges worse than FedProx, with ten devices and either μ",
              {f"{name}, μ = {mu:g}": (loss_prox[name][mu], loss_dane[name, first][mu]) for name in unlike
               for mu in MUS}, "loss, FedProx and FedDANE",
              quote="it suffers from poor convergence on the non-IID datasets", place=place, ours=LAST),
        lower("more devices a round help FedDANE to some extent (30 end lower than 10, on the three)",
              {name: (loss_dane[name, last][0.0], loss_dane[name, first][0.0]) for name in unlike},
              f"loss with {last} and {first} devices", place=place, ours=LAST,
              quote="sampling more devices per round might help to some extent"),
        lower("with any number of devices FedDANE is less steady than FedProx with ten, on the three", wide,
              "mean rise, FedProx and FedDANE", quote=unstable, place=place, ours=STEADY),
        Claim("FedDANE tends to diverge, with most devices too: more than half of the seeds do on each of the three",
              all(2 * diverged[name, last] > seeds for name in unlike),
              {"seeds that diverge": {f"{name}, {count} devices": diverged[name, count] for name in unlike
                                      for count in numbers}, "of": seeds},
              quote=unstable, place=place, ours="more than half; the rule f_t - f_(t-10) > 1 of Appendix C.3.2"),
    ]  # fmt: skip


def _dane(
    bench: Bench, name: str, data: fjs.FederatedDataset, count: int, mus: tuple[float, ...]
) -> dict[float, History]:
    algorithm = fjs.feddane(client_optimizer=fjs.optim.sgd(synthetics.LEARNING_RATE))
    setting: dict[str, Any] = run_setting(bench) | {"cohort": fjs.cohort.uniform(count)}
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
    table = Table(
        "Means of the last tenth of the rounds", ("stragglers", "method", "loss", "test accuracy"),
        [(f"{fraction:.0%}", method, float(loss[fraction][method].mean()), float(accuracy[fraction][method].mean()))
         for fraction in FRACTIONS for method in (FEDAVG, PLAIN)],
        "The paper gives figures only.",
    )  # fmt: skip
    named = {f"{fraction:.0%} stragglers": of for fraction, of in runs.items()}
    figure = by_metric(named, ("loss", "test_accuracy"))
    drawn = f"0, 50, 90 %: U{{1..{local_epochs(bench, EPOCHS)}}} epochs"
    share = bench.setting("stragglers", "0, 50, 90 %: U{1..20} epochs", drawn)
    return Outcome([*synthetics.settings(bench), share], claims_of_fig5(loss, accuracy), {"figure5": figure}, [table],
                   scale=synthetics.scale(bench))  # fmt: skip


def claims_of_fig5(loss: Mapping[float, Any], accuracy: Mapping[float, Any]) -> list[Claim]:
    """What the paper says of stragglers on IID data; measures are [seeds], by share of stragglers and method."""
    none, *late = FRACTIONS
    lost = {f"{f:.0%}": loss[f][FEDAVG] / loss[none][FEDAVG] - 1 for f in late}
    gain = {f"{f:.0%}": 1 - loss[f][PLAIN] / loss[f][FEDAVG] for f in late}
    points = {f"{f:.0%}": 100 * (accuracy[f][PLAIN] - accuracy[f][FEDAVG]) for f in late}
    robust, little = "FedAvg is robust to device failure with IID data", "would not have much effect on convergence"
    return [
        lower("on IID data FedAvg is robust to stragglers: dropping 50 or 90 % raises its loss by less than 10 %",
              {f: (of, np.full_like(of, ALIKE)) for f, of in lost.items()}, f"rise over no stragglers, and {ALIKE}",
              quote=robust, place="Figure 5", ours=f"10 %; {LAST}", why="fragile"),
        lower("on IID data keeping partial work does not improve the loss much (by less than 10 %)",
              {f: (of, np.full_like(of, ALIKE)) for f, of in gain.items()}, f"gain over dropping, and {ALIKE}",
              quote=little, place="Figure 5", ours=f"10 %; {LAST}"),
        lower("on IID data keeping partial work does not improve the test accuracy much (by less than 3 points)",
              {f: (of, np.full_like(of, POINTS)) for f, of in points.items()}, f"points, and {POINTS:g}",
              quote=little, place="Figure 5", ours=f"{POINTS:g} points; {LAST}"),
    ]  # fmt: skip


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
                fjs.sweeps.grid({"mu": list(MUS)}), diagnostics=DIAGNOSTICS,
                **run_setting(bench) | {"cohort": drawn(bench.choose(2, PER_ROUND))},
            )  # fmt: skip
            found[name] |= {label(scheme, mu): run for mu, run in zip(MUS, of, strict=True)}
    return found


def perform_fig12(bench: Bench) -> Outcome:
    """Loss, test accuracy and dissimilarity."""
    runs = _drawn_runs(bench)
    claims = claims_of_fig12(measures.each(runs, "loss"), measures.each(runs, measuring.rises))
    drawn = Setting("devices drawn by size", "a subset of K, with probability p_k",
                    "K different devices; beside it K draws, where one drawn twice counts twice")  # fmt: skip
    figure = by_metric(runs, ("loss", "test_accuracy", VARIANCE), WORDS)
    return Outcome([*synthetics.settings(bench), drawn], claims, {"figure12": figure}, [synthetics.table_of_ends(runs)],
                   scale=synthetics.scale(bench))  # fmt: skip


def claims_of_fig12(loss: synthetics.Values, rise: synthetics.Values) -> list[Claim]:
    """What the paper says of its scheme, and the same of the other reading of it as our question."""
    moving = {name: of for name, of in rise.items() if any(values.any() for values in of.values())}  # IID losses fall
    claims, place = [], "Appendix C.3.4, Figure 12"
    for scheme in BY_SIZE:
        lost, unsteady = (
            {f"{name}, μ = {mu:g}": (of[label(scheme, mu)], of[label(UNIFORM, mu)])
             for name, of in values.items() for mu in MUS} for values in (loss, moving)
        )  # fmt: skip
        steady = {f"{name}, {by}": (of[label(by, 1.0)], of[label(by, 0.0)])
                  for name, of in moving.items() for by in ((UNIFORM, AS_PAPER) if scheme == AS_PAPER else (scheme,))
                  }  # fmt: skip
        own, order = scheme != AS_PAPER, f"{scheme}, and uniform"
        claims += [
            lower(f"drawing {scheme}, performs slightly better than uniformly (lower loss in most cases)", lost,
                  f"loss, {order}", most=True, quote="performs slightly better than uniformly sampling devices",
                  place=place, ours=f"most cases; {LAST}", own=own),
            lower(f"drawing {scheme}, is steadier than uniformly (in most cases)", unsteady, f"mean rise, {order}",
                  most=True, quote="results in more stable performance for both methods", place=place,
                  ours=f"most cases; {STEADY}", own=own),
            lower(f"μ = 1 is steadier than μ = 0, where the loss ever rises ({scheme}{'; uniform' if not own else ''})",
                  steady, "mean rise, μ = 1 and 0", quote="demonstrate more stable performance", place=place,
                  ours=STEADY, own=own),
        ]  # fmt: skip
    return claims
