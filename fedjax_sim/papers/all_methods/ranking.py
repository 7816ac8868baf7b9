"""Ranks of methods on problems, Friedman's test, Nemenyi's critical difference (Demsar 2006, JMLR 7:1-30); figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_sim.papers.all_methods.scores import Scores
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain

_DRAWS = 20_000
_LINE = 0.26  # inches a method
_WIDTH = 9.0
_REACH = 4.0  # times the middle half of the scores, beyond which they are drawn at the edge


def ranks(values: np.ndarray, *, less: bool) -> np.ndarray:
    """1 for the best of [k]; equal values share the mean of their ranks, and NaN are the worst, all equal."""
    bad = np.where(np.isnan(values), np.inf, values if less else -values)
    smaller = (bad[None, :] < bad[:, None]).sum(axis=1)
    equal = (bad[None, :] == bad[:, None]).sum(axis=1)
    found: np.ndarray = smaller + (equal + 1) / 2
    return found


def friedman(table: np.ndarray) -> tuple[float, float]:
    """Friedman's statistic of ranks [N problems, k methods], and the chance of one as large if all methods were alike.

    The statistic is Kendall's W = chi-square / (N (k - 1)), 0 for no agreement of the problems and 1 for one order on
    all. The chance is that of random orders within each problem, by 20,000 draws: the chi-square approximation wants
    more problems than we have.
    """
    table = np.asarray(table, float)
    blocks, count = table.shape
    rng = np.random.default_rng(0)
    drawn = sum(rng.permuted(np.broadcast_to(row, (_DRAWS, count)), axis=1) for row in table)
    sums = np.vstack([table.sum(axis=0), drawn])  # the observed ones first
    observed, *others = np.square(sums - blocks * (count + 1) / 2).sum(axis=-1)
    larger = int((np.asarray(others) >= observed - 1e-9).sum())
    most = blocks**2 * count * (count**2 - 1) / 12
    return observed / most, (larger + 1) / (_DRAWS + 1)


def critical_difference(count: int, blocks: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks of two of ``count`` methods over ``blocks`` problems that differ by more are not alike."""
    return nemenyi(count, level) * math.sqrt(count * (count + 1) / (6 * blocks))


def nemenyi(count: int, level: float = 0.05) -> float:
    """q of ``count`` methods: the upper point of the range of so many standard normal numbers, over sqrt(2)."""
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _range_below(middle, count) < 1 - level else (low, middle)
    return low / math.sqrt(2)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """The correlation of two lists' ranks; NaN where one has all equal."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    a, b = (ranks(np.asarray(values, float), less=True) for values in (first, second))
    return float(np.corrcoef(a, b)[0, 1])


def cliques(mean_ranks: np.ndarray, difference: float) -> list[tuple[float, float]]:
    """(first, last) mean rank of the longest runs of two or more methods that differ by no more than the difference."""
    ordered = np.sort(mean_ranks)
    ends = np.searchsorted(ordered, ordered + difference, side="right") - 1
    longer = np.diff(ends, prepend=-1) > 0  # than the run that begins one method earlier
    starts = np.flatnonzero(longer & (ends > np.arange(len(ends))))
    return [(float(ordered[start]), float(ordered[ends[start]])) for start in starts]


def _range_below(width: float, count: int) -> float:
    """P(range of ``count`` standard normal numbers <= width) = k int phi(z) (Phi(z) - Phi(z - width))^(k - 1) dz."""
    z = np.linspace(-8.0, 8.0 + width, 801)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    heights = count * density * (_normal(z) - _normal(z - width)) ** (count - 1)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(z)).sum())


def _normal(z: np.ndarray) -> np.ndarray:
    return np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in z])


def critical_differences(panels: Mapping[str, Mapping[str, float]], difference: float) -> Any:
    """Mean ranks by method and title of a panel, the best on the left; bars join methods that cannot be told apart."""
    lines = max((len(of) + 1) // 2 for of in panels.values())
    figure, axes = canvas(_WIDTH, len(panels) * (_LINE * lines + 1.5), len(panels))
    for ax, (title, mean_ranks) in zip(axes.flat, panels.items(), strict=True):
        _mean_ranks(ax, title, mean_ranks, difference)
    return figure


def _mean_ranks(ax: Any, title: str, mean_ranks: Mapping[str, float], difference: float) -> None:
    count = len(mean_ranks)
    ordered = sorted(mean_ranks.items(), key=lambda item: item[1])
    bars = cliques(np.array([rank for _, rank in ordered]), difference)
    half = (count + 1) // 2
    first = 1.2 + 0.7 * len(bars)  # the height of the first name, in names
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set(xlim=(1 - 0.32 * count, count + 0.32 * count), ylim=(first + half - 0.3, -2.6))
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
    """A panel for each problem: every method's mean ± standard deviation within each budget, in this order."""
    size = 2.7 * len(metrics) + 1.2, _LINE * len(order) + 1.4
    figure, [axes] = canvas(*size, 1, len(metrics), sharey=True)
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
        ax.set_title(problem, fontsize="medium")
        ax.set(xlim=(low, high), xlabel=metric)
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
