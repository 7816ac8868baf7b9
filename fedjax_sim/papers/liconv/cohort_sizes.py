"""Figure 3 (and 1b): the number of clients a round matters little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Scale, Setting, Table
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.liconv import problems
from fedjax_sim.papers.liconv.problems import ALIKE, BALANCED, CLIENTS, NAMES, SPREADS, STEPS, start
from fedjax_sim.papers.measuring import below, levels, mean, tail
from fedjax_sim.reporting.plots import curves
from fedjax_sim.run.history import History

EPOCHS = 5  # "E = 5"
SIZES = (10, 30, 50, 70, 100)  # K; the legend of the published plot
ROUNDS = 80  # of the published plot
SMOKE_STEPS = 2
ZOOM = 8  # the last rounds of the inset
LITTLE = 0.05  # of the fall of the loss: what counts as little influence

Runs = dict[int, History]  # by K


def runs_of(bench: Bench, name: str, local_steps: int = EPOCHS * STEPS) -> Runs:
    """Scheme I on a data set, by K."""
    rounds, most, few = bench.choose(2, ROUNDS), EPOCHS * STEPS, bench.size == "smoke"
    data = problems.load(bench, name)
    return {
        K: problems.run(
            bench, f"{name}, K={K}, {local_steps} steps", name, data, fjs.cohort.with_replacement(K),
            SMOKE_STEPS if few else local_steps, most=most, rounds=rounds, eval_every=problems.every(bench, name),
        )[0]
        for K in _sizes(bench, name)
    }  # fmt: skip


def claims_of(bench: Bench, name: str, runs: Runs) -> list[Claim]:
    """What the paper says of a panel."""
    told = bench.size != "smoke"
    ends, spread = _ends(runs)
    numbers = {"loss at the end by K": {str(K): end for K, end in ends.items()}}
    order = below(tail(runs[max(runs)], "loss"), tail(runs[min(runs)], "loss"))
    place = "Section 6 and Figure 1b" if name == ALIKE else "Appendix D.2 and Figure 3"
    return [
        Claim(f"{name}: K has little influence (the losses at the end differ by less than {LITTLE:.0%} of the fall)",
              spread < LITTLE if told else None, numbers | {"difference over fall": spread},
              quote="K has limited influence on the convergence" if name == ALIKE else
              "all the curves in each subfigure overlap a lot", place=place, central=True,
              ours=f"the end is the last tenth of the rounds; {LITTLE:.0%} of the fall"),
        Claim(f"{name}: the largest K ends slightly lower than the smallest", order.held if told else None,
              numbers | order.numbers, quote="the curve of a large enough K is slightly better", place=place,
              ours="the end is the last tenth of the rounds", why=order.why),
    ]  # fmt: skip


def own_settings(bench: Bench, prefix: str = "") -> list[Setting]:
    """What belongs to Figure 3."""
    several = ", ".join(map(str, _sizes(bench, ALIKE)))
    few = f"{several}; on MNIST {', '.join(map(str, _sizes(bench, BALANCED)))}"
    return [
        problems.steps_setting(bench, EPOCHS, SMOKE_STEPS, prefix),
        bench.setting(f"{prefix}clients a round K", "several; published code: 10, 30, 50, 70, 100", several, cpu=few),
        bench.setting(f"{prefix}rounds", "not given (published code: 80)", ROUNDS, smoke=2),
        bench.setting(f"{prefix}evaluated", "every round",
                      cpu=f"every round; on MNIST every {problems.every(bench, BALANCED)}"),
        bench.setting(f"{prefix}batch size", "64 on MNIST, 24 on synthetic data", "the same"),
    ]  # fmt: skip


def table(found: Mapping[str, Runs], title: str) -> Table:
    """Losses at the end, by data set and K."""
    sizes = sorted({K for runs in found.values() for K in runs})
    rows = []
    for name, runs in found.items():
        ends, spread = _ends(runs)
        rows.append((name, *(f"{ends[K]:.4f}" if K in ends else None for K in sizes), f"{spread:.1%}"))
    return Table(title, ("data", *(f"K = {K}" for K in sizes), "difference over fall"), rows,
                 "Mean over the last tenth of the rounds and the seeds. The paper gives figures only.")  # fmt: skip


def draw(ax: Any, runs: Runs) -> None:
    """The panel with its inset: the last rounds."""
    named = {f"K = {K}": history for K, history in runs.items()}
    curves(named, "loss", ax, log=False)
    ax.set_ylabel("global loss")
    inset = ax.inset_axes((0.32, 0.4, 0.34, 0.44))  # between the curves and the legend
    curves(named, "loss", inset, log=False)
    inset.get_legend().remove()
    last = next(iter(runs.values())).evaluated[-1]
    kept = [history["loss"].mean(axis=0)[history.evaluated >= last - ZOOM] for history in runs.values()]
    low, high = min(map(np.min, kept)), max(map(np.max, kept))
    inset.set(
        xlim=(last - ZOOM, last), ylim=(low - 0.1 * (high - low), high + 0.1 * (high - low)), xlabel="", ylabel=""
    )
    inset.tick_params(labelsize="x-small")


def perform(bench: Bench) -> Outcome:
    """Four panels, and the synthetic ones again with E as the text has it."""
    found = {name: runs_of(bench, name) for name in NAMES}
    literal = {name: runs_of(bench, name, EPOCHS) for name in SPREADS}
    figure, axes = canvas(9.5, 7.2, 2, 2)
    for ax, (name, runs) in zip(axes.flat, found.items(), strict=True):
        draw(ax, runs)
        ax.set_title(name, fontsize="medium")
    claims = [claim for name, runs in found.items() for claim in claims_of(bench, name, runs)]
    tables = [
        table(found, f"Loss at the end, {EPOCHS * STEPS} local steps"),
        table(literal, f"The same with the text's E: {EPOCHS} local steps"),
    ]
    return Outcome(problems.settings(bench, own_settings(bench)), claims, {"figure3": figure}, tables,
                   scale=Scale(rounds=bench.choose(2 / ROUNDS, 1.0)))  # fmt: skip


def _ends(runs: Runs) -> tuple[dict[int, float], float]:
    """Losses at the end by K, and how far they lie apart over how far the lowest has fallen."""
    ends = {K: mean(levels(history, "loss")) for K, history in runs.items()}
    least = min(ends.values())
    return ends, (max(ends.values()) - least) / (start(next(iter(runs.values()))) - least)


def _sizes(bench: Bench, name: str) -> tuple[int, ...]:
    return bench.choose(
        smoke=(2, problems.SMOKE_CLIENTS), cpu=SIZES if name in SPREADS else (SIZES[0], SIZES[1], CLIENTS), paper=SIZES
    )
