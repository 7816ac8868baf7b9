"""Figure 7: client coherence, cosines and LUD among 20 clients of whom half hold balanced labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Table, Why
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.fedaware.methods import INTERVALS, why_not
from fedjax_sim.papers.fedaware.tasks import ALPHA, DATA_SEED, FEWEST, Deal, cifar10, fedavg_alone, scale, settings
from fedjax_sim.papers.measuring import difference, reason
from fedjax_sim.reporting.plots import COLOURS, plain

BALANCED, UNBALANCED = 10, 10
MOMENTS = (3, 60, 150)  # the paper's rounds
TOGETHER = 0.5
MEASURES = ("coherence", "consensus", "lud")


def perform(bench: Bench) -> Outcome:
    """Measures against rounds, and the cosines of all pairs at three of them."""
    problem = cifar10(bench, half_balanced(bench), alone=True)
    rounds = bench.choose(3, MOMENTS[-1])
    moments = bench.choose((1, 2, 3), MOMENTS)
    run = {
        "rounds": rounds, "cohort": fjs.cohort.full(), "diagnostics": [*problem.run["diagnostics"], "cosine_matrix"],
        "eval_every": bench.choose(smoke=1, cpu=15, paper=5),
    }  # fmt: skip
    history = fedavg_alone(bench, "FedAvg, half balanced", problem, **run)
    balanced = problem.data.num_clients // 2
    by_seed = {moment: history["cosine_matrix"][:, moment - 1] for moment in moments}
    matrices = {moment: of.mean(axis=0) for moment, of in by_seed.items()}
    among = {moment: _among(matrix, balanced) for moment, matrix in matrices.items()}
    curves = {name: history[name].mean(axis=0) for name in MEASURES}
    together = np.array([np.corrcoef(*pair)[0, 1] for pair in zip(history["lud"], history["coherence"], strict=True)])
    claims = claims_of(by_seed, together, balanced, why_not(bench))
    table = Table(
        "Mean cosine of pairs of clients", ("round", "all", "both balanced", "both unbalanced", "one of each"),
        [(moment, of["all"], of["balanced"], of["unbalanced"], of["mixed"]) for moment, of in among.items()],
        "The paper gives a figure only.",
    )  # fmt: skip
    number, row = problem.data.num_clients, bench.setting
    own = [
        row("clients", "20, ten of them with balanced labels", f"{number}, half of them balanced"),
        row("how unbalanced", "not given", f"Dir({ALPHA})"),
        row("clients a round", "not given", "all"),
        row("rounds", "150 or more", rounds),
    ]
    known = {setting.what for setting in own} | {"clients, a round"}
    kept = [setting for setting in settings(bench, problem, alone=True) if setting.what not in known]
    drawn = {"figure7": _figure(curves, matrices)}
    return Outcome([*kept, *own], claims, drawn, [table], {"cosines": matrices}, scale=scale(bench, alone=True))


def claims_of(by_seed: Mapping[int, np.ndarray], together: np.ndarray, balanced: int, why: Why) -> list[Claim]:
    """From the cosines [seeds, clients, clients] by round, and the correlation of LUD and coherence, [seeds]."""
    kinds = {round_: [_among(matrix, balanced) for matrix in of] for round_, of in by_seed.items()}
    means = np.array([[of_seed["all"] for of_seed in of] for of in kinds.values()])
    falls = difference(-np.diff(means, axis=0).max(axis=0))  # the least of a seed's falls
    apart = np.array([[of_seed["balanced"] - of_seed["unbalanced"] for of_seed in of] for of in kinds.values()])
    by_round = {moment: difference(gap) for moment, gap in zip(kinds, apart, strict=True)}
    one_story = difference(-together, TOGETHER)
    return [
        Claim("the clients' changes become less alike: the mean cosine falls from moment to moment", falls.above,
              {"mean cosine by round": dict(zip(kinds, means.mean(axis=1).tolist(), strict=True)),
               f"least fall ({INTERVALS})": falls.numbers},
              quote="local updates become less similar in later training rounds", place="Appendix B.2, Figure 7",
              ours="the mean of all pairs, at the figure's three moments", why=reason(why, falls)),
        Claim("the measures tell one story: the LUD rises when the coherence falls", one_story.above,
              {f"correlation of LUD and coherence ({INTERVALS})": difference(together).numbers},
              quote="consistent trends across three different measures", place="Appendix B.2, Figure 7",
              ours=f"a correlation over the rounds below -{TOGETHER:g}", why=reason(why, one_story)),
        Claim("clients with balanced labels are more alike than the others, at all three moments",
              difference(apart.min(axis=0)).above,
              {"cosine of balanced less unbalanced": {moment: gap.numbers for moment, gap in by_round.items()}},
              "the paper shows it, after FedLAW's figure, without words", own=True,
              why=reason(why, *by_round.values())),
    ]  # fmt: skip


def half_balanced(bench: Bench) -> Deal:
    """Half of the rows IID over the first clients, the other half by Dir(0.1) over as many others."""
    first, second = bench.choose((4, 4), (BALANCED, UNBALANCED))
    least = bench.choose(2, FEWEST)

    def deal(labels: np.ndarray) -> Sequence[np.ndarray]:
        alike, unlike = (np.asarray(of) for of in partitions.iid(len(labels), 2, DATA_SEED))
        iid = partitions.iid(len(alike), first, DATA_SEED)
        skewed = partitions.dirichlet(labels[unlike], second, ALPHA, DATA_SEED, least, balanced=True)
        return [alike[of] for of in iid] + [unlike[of] for of in skewed]

    return deal


def _among(matrix: np.ndarray, balanced: int) -> dict[str, float]:
    """Mean cosines of pairs i < j: of all, within the first ``balanced`` clients, within the others, across."""
    i, j = np.triu_indices(len(matrix), 1)
    pairs = matrix[i, j]
    both, none = (i < balanced) & (j < balanced), (i >= balanced) & (j >= balanced)
    kinds = {"all": both | ~both, "balanced": both, "unbalanced": none, "mixed": ~both & ~none}
    return {name: float(pairs[where].mean()) for name, where in kinds.items()}


def _figure(curves: Mapping[str, np.ndarray], matrices: Mapping[int, np.ndarray]) -> Any:
    figure, axes = canvas(10.5, 6.2, 2, 3)
    labels = {"coherence": "client coherence", "consensus": "norm of the\npseudo-gradient", "lud": "LUD"}
    for ax, (name, values) in zip(axes[0], curves.items(), strict=True):
        shown = np.sqrt(values) if name == "consensus" else values
        ax.plot(np.arange(1, len(values) + 1), shown, color=COLOURS[0], linewidth=1.8)
        ax.set(xlabel="rounds", ylabel=labels[name])
        plain(ax)
    for ax, (moment, matrix) in zip(axes[1], matrices.items(), strict=True):
        image = ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        ax.set_title(f"round {moment}", fontsize="medium")
        ticks = range(0, len(matrix), 5)
        ax.set(xticks=ticks, yticks=ticks, xlabel="client")
    axes[1][0].set_ylabel("client")
    figure.colorbar(image, ax=list(axes[1]), label="cosine", shrink=0.9)
    return figure
