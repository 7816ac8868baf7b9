"""Figures of a comparison: mean ranks with their critical difference, and the scores behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.papers.all_methods.ranking import cliques
from fedjax_sim.papers.all_methods.scores import Scores
from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.plots import COLOURS, LEGEND, check_matplotlib, plain

_LINE = 0.26  # inches a method
_WIDTH = 9.0
_REACH = 4.0  # times the middle half of the scores, beyond which they are drawn at the edge


def critical_differences(panels: Mapping[str, Mapping[str, float]], difference: float) -> Any:
    """Mean ranks on an axis, the best on the left; bars join methods that cannot be told apart.

    Args:
      panels: mean ranks by the method's name, by the panel's title.
      difference: the critical difference.

    Returns:
      The matplotlib figure.
    """
    check_matplotlib()

    lines = max((len(of) + 1) // 2 for of in panels.values())
    figure = new_figure(_WIDTH, len(panels) * (_LINE * lines + 1.5))
    for ax, (title, mean_ranks) in zip(np.ravel(figure.subplots(len(panels), 1)), panels.items(), strict=True):
        _mean_ranks(ax, title, mean_ranks, difference)
    return figure


def _mean_ranks(ax: Any, title: str, mean_ranks: Mapping[str, float], difference: float) -> None:
    count = len(mean_ranks)
    ordered = sorted(mean_ranks.items(), key=lambda item: item[1])
    bars = cliques(np.array([rank for _, rank in ordered]), difference)
    half = (count + 1) // 2
    first = 1.2 + 0.7 * len(bars)  # the height of the first name, in names
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_xlim(1 - 0.32 * count, count + 0.32 * count)
    ax.set_ylim(first + half - 0.3, -2.6)
    ax.axis("off")
    ax.plot([1, count], [0, 0], color="black", linewidth=1)
    step = 1 if count <= 12 else 2
    for tick in range(1, count + 1):
        ax.plot([tick, tick], [0, -0.35 if tick % step == 1 % step else -0.18], color="black", linewidth=1)
        if tick % step == 1 % step:
            ax.text(tick, -0.5, str(tick), ha="center", va="bottom", fontsize="small")
    drawn = min(difference, count - 1.0)
    ax.plot([1, 1 + drawn], [-1.9, -1.9], color="black", linewidth=1.5, marker="|")
    ax.text(1 + drawn, -1.9, f"  critical difference {difference:.1f}", va="center", fontsize="small")
    for number, (begin, end) in enumerate(bars):
        below = 0.6 + 0.7 * number
        ax.plot([begin - 0.1, end + 0.1], [below, below], color="black", linewidth=4, solid_capstyle="butt")
    for place, (name, rank) in enumerate(ordered):
        left = place < half
        height = first + (place if left else count - 1 - place)
        edge = 0.6 if left else count + 0.4
        colour = COLOURS[1] if name == "FedAvg" else "0.35"
        ax.plot([rank, rank, edge], [0, height, height], color=colour, linewidth=1.4 if name == "FedAvg" else 0.8)
        words = f"{name}  {rank:.1f} " if left else f" {rank:.1f}  {name}"
        weight = "bold" if name == "FedAvg" else "normal"
        ax.text(edge, height, words, ha="right" if left else "left", va="center", fontsize="small", weight=weight)


def score_panels(budgets: Mapping[str, Scores], metrics: Mapping[str, str], order: Sequence[str]) -> Any:
    """A panel for each problem: every method's mean ± standard deviation, within each budget.

    Args:
      budgets: scores by the budget's name.
      metrics: in words, by problem.
      order: the methods from top to bottom.

    Returns:
      The matplotlib figure.
    """
    check_matplotlib()

    figure = new_figure(2.7 * len(metrics) + 1.2, _LINE * len(order) + 1.4)
    axes = np.ravel(figure.subplots(1, len(metrics), sharey=True))
    heights = {name: height for height, name in enumerate(order)}
    for ax, (problem, metric) in zip(axes, metrics.items(), strict=True):
        low, high = _window([score.mean for scores in budgets.values() for score in scores[problem].values()])
        for number, (budget, scores) in enumerate(budgets.items()):
            marker = {"color": COLOURS[number], "fmt": "os"[number], "markersize": 4.5, "elinewidth": 1.2}
            marker |= {"mfc": "white"} if number else {}
            shown = {name: score for name, score in scores[problem].items() if low <= score.mean <= high}
            at = [heights[name] + 0.15 * (2 * number - 1) for name in shown]
            ax.errorbar([score.mean for score in shown.values()], at, xerr=[score.std for score in shown.values()],
                        label=budget, **marker)  # fmt: skip
            for name in scores[problem].keys() - shown.keys():
                mean = scores[problem][name].mean
                left = mean < low
                words = "diverged" if np.isnan(mean) else f"← {mean:.3g}" if left else f"{mean:.3g} →"
                ax.annotate(words, (0.02 if left else 0.98, heights[name] + 0.22 * (2 * number - 1)),
                            xycoords=("axes fraction", "data"), ha="left" if left else "right", va="center",
                            fontsize="x-small", color=COLOURS[number])  # fmt: skip
        reference = next(iter(budgets.values()))[problem]["FedAvg"].mean
        if low <= reference <= high:
            ax.axvline(reference, color="0.6", linewidth=0.9, linestyle="--", zorder=0)
        ax.set_xlim(low, high)
        ax.set_title(problem, fontsize="medium")
        ax.set_xlabel(metric)
        plain(ax)
    axes[0].set_yticks(list(heights.values()), list(heights))
    axes[0].set_ylim(len(order) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  title="mean ± standard deviation over seeds; dashed: FedAvg", **LEGEND)  # fmt: skip
    return figure


def _window(means: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that leave out scores far from all others."""
    known = np.asarray(means)[np.isfinite(means)]
    if not known.size:
        return 0.0, 1.0
    quarter, middle, three = np.percentile(known, [25, 50, 75])
    reach = _REACH * max(three - quarter, 1e-3)
    inside = known[np.abs(known - middle) <= reach]
    margin = max(0.08 * float(np.ptp(inside)), 1e-3)
    return float(inside.min()) - margin, float(inside.max()) + margin
