"""All papers at a look: a verdict each, a board of the claims, intervals of the effects."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.papers.bench import STANDINGS, Claim, Effect
from fedjax_sim.papers.catalogue import SOURCES
from fedjax_sim.papers.measuring import difference
from fedjax_sim.papers.writing import FULL, Report, cell, claims_in_words, share
from fedjax_sim.reporting.table import number_of

WORDS = {name: name if name in ("held", "held on few seeds", "not testable") else f"did not hold: {name}"
         for name in STANDINGS}  # fmt: skip
WORDS["fragile"] += " in the paper"

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

    @property
    def paper(self) -> str:
        """The paper's name among the sources."""
        return self.name.partition("-")[0]


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
    for paper, group in itertools.groupby(lines, key=lambda line: line.paper):
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


def _counted(claims: Sequence[Claim]) -> str:
    found = Counter(claim.standing for claim in claims)
    return ", ".join(f"{found[standing]} {WORDS[standing]}" for standing in STANDINGS if found[standing])


def interval(effect: Effect) -> tuple[float, float, float]:
    """Mean and ends of the 95 % interval over the seeds; of a ratio on the log scale. Ends are NaN with one seed."""
    values = np.asarray(effect.values, float)
    if effect.unit == "ratio":
        values = np.log(values)
    of_seeds = difference(values)
    ends = of_seeds.mean + np.array([0.0, -of_seeds.half, of_seeds.half])
    found = np.exp(ends) if effect.unit == "ratio" else ends
    return float(found[0]), float(found[1]), float(found[2])
