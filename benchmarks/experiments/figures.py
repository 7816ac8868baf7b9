"""The figures of all papers: a map of their claims, and their effects beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.papers.bench import STANDINGS, Effect
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.overview import WORDS, Line, interval
from fedjax_sim.reporting.figures import plain_numbers
from fedjax_sim.reporting.plots import COLOURS

# Blue held, warm colours did not, grey cannot be told: too few seeds (dark), or not testable (light).
_SHADES = dict(
    zip(
        STANDINGS,
        ("#0072B2", "#8CC1E8", "#F5D49B", "#E08E1B", "#8F8F8F", "#CDB4DB", "#A32A12", "#DEDEDE"),
        strict=True,
    )
)


def heat_map(lines: Sequence[Line]) -> Any:
    """A square a claim: rows are experiments, the colour says what became of it, a dot that it is central."""
    from matplotlib.patches import Patch, Rectangle

    kept = [line for line in lines if line.report is not None and any(claim.counted for claim in line.report.claims)]
    most = max((sum(claim.counted for claim in line.report.claims) for line in kept if line.report), default=1)
    figure, [[ax]] = canvas(0.29 * most + 2.2, 0.27 * len(kept) + 1.5)
    previous, y, ticks = "", 0.0, []
    for line in kept:
        y += 0.45 * (previous not in ("", line.paper))  # a gap between papers
        previous = line.paper
        ticks.append(y)
        assert line.report is not None
        claims = sorted((claim for claim in line.report.claims if claim.counted),
                        key=lambda claim: (not claim.central, STANDINGS.index(claim.standing)))  # fmt: skip
        for x, claim in enumerate(claims):
            ax.add_patch(Rectangle((x, y), 0.92, 0.9, color=_SHADES[claim.standing], linewidth=0))
            if claim.central:
                dark = claim.standing in ("held", "few seeds", "unexplained")
                ax.plot(x + 0.46, y + 0.45, "o", color="white" if dark else "black", markersize=3.5)
        y += 1
    ax.set(xlim=(0, most), ylim=(y, -0.1), xticks=[])
    ax.set_yticks([tick + 0.45 for tick in ticks], [line.name for line in kept], fontsize="small")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    known = {claim.standing for line in kept if line.report for claim in line.report.claims if claim.counted}
    handles: list[Any] = [Patch(color=_SHADES[name], label=WORDS[name]) for name in STANDINGS if name in known]
    handles.append(ax.plot([], [], "o", color="black", markersize=3.5, label="a central claim")[0])
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def forest(lines: Sequence[Line]) -> Any:
    """The papers' effects (rings) beside ours (dots, with Student's 95 % interval over the seeds)."""
    named = [(line.name, effect) for line in lines if line.report is not None for effect in line.report.effects]
    groups = {unit: [pair for pair in named if pair[1].unit == unit] for unit in ("points", "ratio")}
    groups = {unit: pairs for unit, pairs in groups.items() if pairs}
    heights = [len(pairs) + len({name for name, _ in pairs}) + 1.5 for pairs in groups.values()]
    figure, axes = canvas(
        8.5, 0.21 * sum(heights) + 1.0, max(len(groups), 1), 1, gridspec_kw={"height_ratios": heights or [1]}
    )
    for ax, (unit, pairs) in zip(axes[:, 0], groups.items(), strict=False):
        _panel(ax, unit, pairs)
    return figure


def _panel(ax: Any, unit: str, pairs: Sequence[tuple[str, Effect]]) -> None:
    places, labels, y, previous = [], [], 0.0, ""
    for name, effect in pairs:
        if name != previous:
            places.append(y)
            labels.append(name)
            y, previous = y + 1, name
        middle, low, high = interval(effect)
        if np.isfinite(low):
            ax.plot([low, high], [y, y], color=COLOURS[0], linewidth=1.6)
        ax.plot(middle, y, "o", color=COLOURS[0], markersize=4.5)
        if effect.paper is not None:
            ax.plot(effect.paper, y, "o", color=COLOURS[1], markersize=6, markerfacecolor="none", markeredgewidth=1.4)
        places.append(y)
        labels.append(f"   {effect.what} ({len(effect.values)})")
        y += 1
    ax.axvline(1.0 if unit == "ratio" else 0.0, color="0.6", linewidth=0.8, zorder=0)
    if unit == "ratio":
        ax.set_xscale("log")
        plain_numbers(ax.xaxis, (1.0, 2.0, 5.0))
    ax.set_yticks(places, labels, fontsize="small")
    for text in ax.get_yticklabels():
        text.set_fontweight("normal" if text.get_text().startswith(" ") else "bold")
    ax.set(ylim=(y, -1), xlabel="ratio" if unit == "ratio" else "percentage points")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.plot([], [], "o", color=COLOURS[0], markersize=4.5, label="ours, 95 % interval (seeds)")
    ax.plot([], [], "o", color=COLOURS[1], markersize=6, markerfacecolor="none", label="the paper's")
    ax.legend(frameon=False, fontsize="small", loc="best")
