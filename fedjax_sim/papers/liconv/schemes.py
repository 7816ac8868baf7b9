"""Figure 4 (and 1c, 1d): four schemes of drawing clients and averaging what they send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Scale, Setting, Table, Why
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.liconv import problems
from fedjax_sim.papers.liconv.problems import ALIKE, BALANCED, SPREADS, STEPS, UNBALANCED, UNLIKE, run, start
from fedjax_sim.papers.measuring import areas, below, levels, mean, rises
from fedjax_sim.reporting.plots import LEGEND, curves
from fedjax_sim.run.history import History

EPOCHS = {BALANCED: 20, UNBALANCED: 20, ALIKE: 10, UNLIKE: 10}  # E of appendix D.2
PER_ROUND = 10
ROUNDS, CPU_ROUNDS = 200, 50  # the axis of Figure 4, of MNIST on two cores
SMOKE_STEPS = 3
TUNED = (0.1, 0.5, 0.9, 1.1)  # eta0 of the original scheme; the others take 0.1

ORIGINAL, I, II, TRANSFORMED = "original", "scheme I", "scheme II", "transformed scheme II"


class Schemes(NamedTuple):
    """The runs of a data set."""

    runs: dict[str, History]  # by scheme
    eta0: float  # the best one of the original scheme

    def labelled(self) -> dict[str, History]:
        """By the name to print."""
        return {f"original, eta0 = {self.eta0:g}" if name == ORIGINAL else name: of for name, of in self.runs.items()}


def runs_of(bench: Bench, name: str) -> Schemes:
    """All four on a data set; the initial step size of the original scheme is the one with the least final loss."""
    K = bench.choose(2, PER_ROUND)
    setting: dict[str, Any] = {
        "rounds": bench.choose(smoke=3, cpu=ROUNDS if name in SPREADS else CPU_ROUNDS, paper=ROUNDS),
        "eval_every": problems.every(bench, name),
        "most": EPOCHS[name] * STEPS,
    }
    steps = bench.choose(SMOKE_STEPS, EPOCHS[name] * STEPS)
    others = {I: fjs.cohort.with_replacement(K), II: fjs.cohort.scheme_ii(K), TRANSFORMED: fjs.cohort.transformed(K)}
    data = problems.load(bench, name)
    tuned = run(bench, f"{name}, {ORIGINAL}", name, data, fjs.cohort.original(K), steps, eta0=TUNED, **setting)
    ends = [mean(levels(history, "loss")) for history in tuned]
    best = int(np.argmin(ends))
    runs = {ORIGINAL: tuned[best]}
    for scheme, cohort in others.items():
        runs[scheme] = run(bench, f"{name}, {scheme}", name, data, cohort, steps, **setting)[0]
    return Schemes(runs, TUNED[best])


def balanced_claims(bench: Bench, name: str, found: Schemes) -> list[Claim]:
    """Figure 1c."""
    told = bench.size != "smoke"
    ends = {scheme: mean(_end(found, scheme)) for scheme in found.runs}
    fall = start(found.runs[I]) - ends[I]
    gap = float(np.abs(found.runs[II]["loss"] - found.runs[TRANSFORMED]["loss"]).max())
    both = [below(_end(found, scheme), _end(found, ORIGINAL)) for scheme in (I, II)]
    slightly = below(_end(found, I), _end(found, II))
    return [
        Claim(f"{name}: schemes I and II are nearly the same (at the end within 5 % of the fall)",
              abs(ends[I] - ends[II]) < 0.05 * fall if told else None, ends,
              quote="Schemes I and II achieve nearly the same performance", place="Section 6 and Figure 1c",
              central=True, ours="5 % of the fall of the loss"),
        Claim(f"{name}: both end below the original scheme", all(order.held for order in both) if told else None,
              ends | {"eta0 of the original scheme": found.eta0}
              | {f"{scheme}: {key}": value for scheme, order in zip((I, II), both, strict=True)
                 for key, value in order.numbers.items()},
              quote="both better than the original scheme", place="Section 6 and Figure 1c", central=True,
              why=both[0].why if not both[0].held else both[1].why),
        Claim(f"{name}: scheme I ends slightly below scheme II", slightly.held if told else None,
              ends | slightly.numbers, quote="Scheme I slightly outperforms Scheme II", place="Figure 1",
              why=slightly.why),
        Claim(f"{name}: transformed scheme II is scheme II where clients have equally many examples",
              gap < 1e-3 if told else None, {"largest difference of the losses": gap},
              quote="transformed Scheme II coincides with Scheme II due to the balanced data", place="Figure 1",
              seeds=0, identity=True),
    ]  # fmt: skip


def unbalanced_claims(bench: Bench, name: str, found: Schemes) -> list[Claim]:
    """Figures 1d and 4; a rate of convergence is judged by the mean loss of the whole run, not by its end."""
    told, four = bench.size != "smoke", name in SPREADS
    place = "Figure 4" if four else "Section 6 and Figure 1d"
    ends = {scheme: mean(_end(found, scheme)) for scheme in found.runs}
    steps = {scheme: mean(rises(history)) for scheme, history in found.runs.items()}
    # Scheme I and transformed scheme II end alike on synthetic(0, 0), in an order that the draw of the data decides.
    why: Why = "other data" if four else "unexplained"
    # Logarithms: scheme II's losses leap, and a single seed's leap would widen the interval of the differences.
    lowest = [below(np.log(_end(found, I)), np.log(_end(found, scheme)), why) for scheme in found.runs if scheme != I]
    lost = [order for order in lowest if not order.held]
    speed = {scheme: areas(found.runs[scheme]) for scheme in (I, TRANSFORMED, ORIGINAL)}
    slower = below(speed[I], speed[TRANSFORMED], why)
    original = below(speed[I], speed[ORIGINAL], why)
    claims = [
        Claim(f"{name}: scheme I ends lowest", not lost if told else None,
              ends | {scheme: order.numbers for scheme, order in
                      zip([scheme for scheme in found.runs if scheme != I], lowest, strict=True)},
              quote="The Scheme I performs stably and the best" if four else "Scheme I performs the best", place=place,
              central=True, ours="by the logarithm of the loss at the end, the last tenth of the rounds",
              why=lost[0].why if lost else why),
        Claim(f"{name}: scheme II is unstable (from an evaluation to the next its loss rises at least five times as "
              "much as scheme I's)", steps[II] > 5 * steps[I] if told and math.isfinite(steps[I]) else None,
              {"mean rise": steps},
              quote="fluctuates and has no sign of convergence" if four else "Scheme II suffers from some instability",
              place=place, central=True, ours="the mean rise in the second half of the run, five times"),
        Claim(f"{name}: transformed scheme II is stable (its loss rises less than a fifth of scheme II's)",
              steps[TRANSFORMED] < steps[II] / 5 if told else None, {"mean rise": steps},
              quote="transformed Scheme II performs stably at the price of a lower convergence rate",
              place="Section 6", ours="a fifth of the mean rise"),
        Claim(f"{name}: transformed scheme II converges more slowly than scheme I (its loss is higher, mean of the "
              "whole run)", slower.held if told else None, _means(speed) | slower.numbers,
              quote="Transformed Scheme II has a lower convergence rate than Scheme I" if four else
              "transformed Scheme II has a lower convergence rate", place="Figure 4" if four else "Figure 1",
              ours="the mean loss of the run", why=slower.why),
        Claim(f"{name}: the original scheme converges more slowly than scheme I, even with the best eta0",
              original.held if told else None, _means(speed) | original.numbers
              | {"eta0 of the original scheme": found.eta0},
              quote="converges at a slower speed even if its learning rate is fine tuned", place="Section 6",
              central=True, ours="the mean loss of the run", why=original.why),
    ]  # fmt: skip
    if four:
        second = sum(end <= ends[ORIGINAL] for end in ends.values()) == 2
        claims.append(
            Claim(f"{name}: the original scheme is second, even with the best eta0", second if told else None,
                  ends | {"eta0 of the original scheme": found.eta0},
                  "behind transformed scheme II on every draw of the data that was tried",
                  quote="The original performs the second", place="Figure 4", why="unexplained")
        )  # fmt: skip
    return claims


def _end(found: Schemes, scheme: str) -> np.ndarray:
    """The loss at the end by seed; infinite for one that is not finite any more."""
    return levels(found.runs[scheme], "loss")


def _means(speed: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {f"mean loss, {scheme}": float(values.mean()) for scheme, values in speed.items()}


def own_settings(bench: Bench, names: tuple[str, ...], prefix: str = "") -> list[Setting]:
    """What belongs to the schemes."""
    first, row = names[0], bench.setting
    epochs, batch, every = EPOCHS[first], problems.batch_size(first), problems.every(bench, first)
    rounds = bench.choose(smoke=3, cpu=ROUNDS if first in SPREADS else CPU_ROUNDS, paper=ROUNDS)
    return [
        problems.steps_setting(bench, epochs, SMOKE_STEPS, prefix),
        row(f"{prefix}clients a round, batch size", f"10, {batch}", f"{bench.choose(2, PER_ROUND)}, {batch}"),
        row(
            f"{prefix}eta0 of the original scheme", "the best of 0.1, 0.5, 0.9, 1.1", "the same, by the loss at the end"
        ),
        row(f"{prefix}rounds", "200 in Figure 4, not given for 1", rounds),
        row(f"{prefix}evaluated", "every round", f"every {every} rounds" if every > 1 else None),
    ]


def table(found: Mapping[str, Schemes]) -> Table:
    """Loss at the end and how much it rises from round to round."""
    return Table(
        "Averaging schemes",
        ("data", "scheme", "loss at the end", "mean rise", "worst loss of the second half"),
        [
            (name, label, mean(levels(history, "loss")), mean(rises(history)),
             float(history["loss"][:, history["loss"].shape[1] // 2 :].max()))
            for name, schemes in found.items() for label, history in schemes.labelled().items()
        ],
        "The paper gives figures only.",
    )  # fmt: skip


def draw(ax: Any, found: Schemes) -> None:
    """The panel; losses above twice the start are cut off."""
    curves(found.runs, "loss", ax, log=False)
    losses = np.concatenate([history["loss"].ravel() for history in found.runs.values()])
    losses = losses[np.isfinite(losses)]
    ax.set_ylim(losses.min() - 0.1, min(losses.max(), 2 * start(found.runs[I])) + 0.1)
    ax.set_ylabel("global loss")


def legend(axes: Sequence[Any], prefix: str = "") -> None:
    """One of all panels, below the figure: scheme II may be anywhere in the axes."""
    of_panels = [ax.get_legend() for ax in axes]
    handles, words = axes[0].get_legend_handles_labels(), prefix + of_panels[0].get_title().get_text()
    axes[0].figure.legend(*handles, title=words, **LEGEND, ncols=4, loc="outside lower center")
    for of_panel in of_panels:
        of_panel.remove()


def perform(bench: Bench) -> Outcome:
    """The two synthetic data sets."""
    found = {name: runs_of(bench, name) for name in (ALIKE, UNLIKE)}
    figure, [axes] = canvas(9.5, 3.8, 1, 2)
    for ax, (name, schemes) in zip(axes, found.items(), strict=True):
        draw(ax, schemes)
        ax.set_title(name, fontsize="medium")
    legend(axes)
    claims = [claim for name, schemes in found.items() for claim in unbalanced_claims(bench, name, schemes)]
    rows = own_settings(bench, (ALIKE, UNLIKE))
    return Outcome(problems.settings(bench, rows), claims, {"figure4": figure}, [table(found)],
                   scale=Scale(rounds=bench.choose(3 / ROUNDS, 1.0)))  # fmt: skip
