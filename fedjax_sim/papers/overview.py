"""All papers at a look: a verdict each, a board of the claims, a map of them, and the papers' effects beside ours."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.papers.bench import STANDINGS, Claim, Effect
from fedjax_sim.papers.catalogue import SOURCES
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.writing import FULL, Report, cell, claims_in_words, share
from fedjax_sim.reporting.figures import plain_numbers
from fedjax_sim.reporting.plots import COLOURS
from fedjax_sim.reporting.table import half_width, number_of

# Blue held, warm colours did not, grey cannot be told: too few seeds (dark), or not testable (light).
_SHADES = dict(
    zip(
        STANDINGS,
        ("#0072B2", "#8CC1E8", "#F5D49B", "#E08E1B", "#8F8F8F", "#CDB4DB", "#A32A12", "#DEDEDE"),
        strict=True,
    )
)
_WORDS = {name: name if name in ("held", "held on few seeds", "not testable") else f"did not hold: {name}"
          for name in STANDINGS}  # fmt: skip
_WORDS["fragile"] += " in the paper"

# The word of a paper's verdict, by its central claims; docs/reproductions.md has the same table.
VERDICTS = {
    "holds": "every one held",
    "holds in part": "some held",
    "does not hold": "none held, and at least half did not for another reason than few seeds",
    "not told": "none held, and of most it is open: few seeds, or not testable at this size",
}
_PAPERS = "the paper's size"
_OPEN = ("few seeds", "not testable")


class Line(NamedTuple):
    """An experiment on the board."""

    name: str  # of the experiment
    report: Report | None  # None if it ended with an error
    error: str  # of what kind, and what it says; "" without one


def board(lines: Sequence[Line]) -> str:
    """All claims in Markdown: a verdict a paper, a table of how many held, then every one."""
    rows = [
        "| experiment | size | share of the paper's size | held | did not hold | not testable | checks | seeds "
        "| seconds of its runs |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    total = np.zeros(5, int)  # held, did not hold, cannot be told; of what is counted apart those that held, and all
    for line in lines:
        report = line.report
        if report is None:
            rows.append(f"| {line.name} | error: {cell(line.error)} | | | | | | | |")
            continue
        counts, passed = report.counts(), [claim.held for claim in report.claims if not claim.counted]
        total += [*counts, passed.count(True), len(passed)]
        own = f"{passed.count(True)} of {len(passed)}" if passed else ""
        held = f"see {report.see} | | " if report.see else " | ".join(map(str, counts))
        size = f"{report.size} | {'' if report.size == 'smoke' else cell(share(report.scales))}"
        rows.append(f"| {line.name} | {size} | {held} | {own} | {report.seeds} | {report.run_seconds:.0f} |")
    rows.append(f"| **all** | | | {' | '.join(map(str, total[:3]))} | {total[3]} of {total[4]} | | |")
    smoke = any(line.report is not None and line.report.size == "smoke" for line in lines)
    said = ["The answers mean nothing at this size: it shows that everything works."] if smoke else verdicts(lines)
    parts = ["# Claims", "", *said, "", *rows, ""]
    for line in lines:
        if line.report is not None and line.report.claims:
            claims = claims_in_words(line.report.claims)
            parts += [f"## {line.name}: {line.report.title}", "", *(f"- {claim}" for claim in claims), ""]
    return "\n".join(parts)


def verdicts(lines: Sequence[Line]) -> list[str]:
    """A line a paper: whether its central claims hold here, at which size, and why others do not; then the seeds."""
    made, seeds = [], Counter[int]()
    for paper, group in itertools.groupby(lines, key=_paper):
        reports = [line.report for line in group if line.report is not None and not line.report.see]
        claims = [claim for report in reports for claim in report.claims if claim.counted]
        if claims:
            pairs = [(claim, claim.scale or report.scale) for report in reports for claim in report.claims
                     if claim.counted and claim.central]  # fmt: skip
            central = [claim for claim, _ in pairs]
            seeds.update(claim.seeds or 0 for claim in central)
            asked = [report for report in reports if any(claim.counted for claim in report.claims)]
            judged = [report for report in asked if any(claim.quote or claim.central for claim in report.claims)]
            few = f" so far: {len(judged)} of {len(asked)} experiments were judged" * (0 < len(judged) < len(asked))
            name = SOURCES.get(paper, paper).rstrip(", ")
            of = share([scale for _, scale in pairs], short=True)
            at = f", at {_PAPERS if of == FULL else of}: {_counted(central)}" if central else ""
            number = number_of(len(central), "central claim")
            made.append(f"- **{name}: {_verdict(central)}{few}.** {number}{at}; all {len(claims)}: {_counted(claims)}.")
    if seeds:
        told = [f"{count} rest on {number} seeds" for number, count in seeds.most_common() if number]
        told += [f"in {seeds[0]} nothing is random"] if seeds[0] else []
        made += ["", f"Of the {seeds.total()} central claims {', '.join(told)}."]
    return made


def _verdict(central: Sequence[Claim]) -> str:
    """One of :data:`VERDICTS`."""
    if not central:
        return "not judged yet"
    held, found = [claim.held for claim in central], Counter(claim.standing for claim in central)
    if any(held):
        return "holds" if all(held) else "holds in part"
    few, cannot = (found[standing] for standing in _OPEN)
    if 2 * (few + cannot) <= len(central):
        return "does not hold"
    return f"not told: {'few seeds' if few >= cannot else 'not testable at this size'}"


def _paper(line: Line) -> str:
    return line.name.partition("-")[0]


def _counted(claims: Sequence[Claim]) -> str:
    found = Counter(claim.standing for claim in claims)
    return ", ".join(f"{found[standing]} {_WORDS[standing]}" for standing in STANDINGS if found[standing])


def heat_map(lines: Sequence[Line]) -> Any:
    """A square a claim: rows are experiments, the colour says what became of it, a dot that it is central."""
    from matplotlib.patches import Patch, Rectangle

    kept = [line for line in lines if line.report is not None and any(claim.counted for claim in line.report.claims)]
    most = max((sum(claim.counted for claim in line.report.claims) for line in kept if line.report), default=1)
    figure, [[ax]] = canvas(0.29 * most + 2.2, 0.27 * len(kept) + 1.5)
    previous, y, ticks = "", 0.0, []
    for line in kept:
        y += 0.45 * (previous not in ("", _paper(line)))  # a gap between papers
        previous = _paper(line)
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
    handles: list[Any] = [Patch(color=_SHADES[name], label=_WORDS[name]) for name in STANDINGS if name in known]
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


def interval(effect: Effect) -> tuple[float, float, float]:
    """Mean and ends of the 95 % interval over the seeds; of a ratio on the log scale. Ends are NaN with one seed."""
    values = np.asarray(effect.values, float)
    if effect.unit == "ratio":
        values = np.log(values)
    mean = values.mean()
    half = float(half_width(values)) if values.size > 1 else float("nan")
    ends = np.array([mean, mean - half, mean + half])
    found = np.exp(ends) if effect.unit == "ratio" else ends
    return float(found[0]), float(found[1]), float(found[2])
