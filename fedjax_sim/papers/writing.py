"""What an experiment leaves behind: figures, tables in Markdown, raw results and claims in JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.core.files import read_json, write_atomically
from fedjax_sim.papers.bench import Claim, Effect, Outcome, Scale, Setting, Table
from fedjax_sim.reporting.plots import save_figure
from fedjax_sim.reporting.table import number_of
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps.result import Sweep

CLAIMS, RESULTS, TABLES = "claims.json", "results.json", "tables.md"
_KINDS = ("png", "svg")
_FORMAT = 2
FULL = "all"  # the share of an experiment that is of the paper's size
_LONGEST = 2000  # characters of an array in a description


@dataclasses.dataclass(frozen=True)
class Report:
    """What is known of a finished experiment: the head of its ``claims.json``."""

    name: str  # of the experiment
    title: str  # what it shows
    source: str  # paper and number
    size: str  # ``"smoke"``, ``"cpu"`` or ``"paper"``
    seeds: int  # how many
    version: str  # of this package
    seconds: float  # wall time of this call, in which stored runs are read and not run
    # wall time of all runs it is drawn from, whenever they were run; runs that experiments share count in each of them
    run_seconds: float
    where: str  # versions, and where its runs were computed: backend, devices
    data: list[str]  # which data was used, in words
    settings: list[Setting]  # the paper's beside ours
    claims: list[Claim]  # with what they rest on
    figures: list[str]  # names of the figures' files, without their endings
    effects: list[Effect] = dataclasses.field(default_factory=list)  # numbers of the paper beside ours
    scale: Scale = Scale()  # how much of the paper's size this is
    see: str = ""  # the experiment that has the claims

    def counts(self) -> tuple[int, int, int]:
        """How many claims of the paper held, did not hold, cannot be told."""
        held = [claim.held for claim in self.claims if claim.counted]
        return held.count(True), held.count(False), held.count(None)

    @property
    def scales(self) -> list[Scale]:
        """What was run of the paper's size: of each claim, or of the experiment."""
        return list(dict.fromkeys(claim.scale or self.scale for claim in self.claims)) or [self.scale]


def write(folder: Path, report: Report, outcome: Outcome, recorded: Mapping[str, History | Sweep]) -> None:
    """Writes everything of an experiment, ``claims.json`` last: where it is, the rest is complete."""
    (folder / CLAIMS).unlink(missing_ok=True)
    for drawn in (*folder.glob("*.png"), *folder.glob("*.svg")):
        drawn.unlink()  # also those that have another name now
    for name, figure in outcome.figures.items():
        for kind in _KINDS:
            save_figure(figure, folder / f"{name}.{kind}")
    raw = {"runs": {label: _record(run) for label, run in recorded.items()}, "numbers": outcome.numbers}
    write_atomically(folder / RESULTS, _json(raw))
    write_atomically(folder / TABLES, _document(report, [*map(markdown, outcome.tables)]).encode())
    write_atomically(folder / CLAIMS, _json({"format": _FORMAT, **_fields(report)}, indent=1))


def _fields(report: Report) -> dict[str, Any]:
    """As JSON data, with claims and effects by the names of their parts."""
    known = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    claims = [claim._asdict() | {"scale": claim.scale and claim.scale._asdict()} for claim in report.claims]
    effects = [effect._asdict() for effect in report.effects]
    return known | {"claims": claims, "effects": effects, "scale": report.scale._asdict()}


def read(folder: Path) -> Report | None:
    """The report of a finished experiment; None where there is none, or one that cannot be read."""
    try:
        content = read_json(folder / CLAIMS)
        if content.pop("format") != _FORMAT:
            return None
        content["settings"] = [Setting(*setting) for setting in content["settings"]]
        content["claims"] = [_claim(claim) for claim in content["claims"]]
        content["effects"] = [Effect(**effect) for effect in content["effects"]]
        content["scale"] = Scale(**content["scale"])
        return Report(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _claim(content: Any) -> Claim:
    scale = content.pop("scale")
    return Claim(**content, scale=scale and Scale(**scale))


def claims_in_words(claims: Sequence[Claim]) -> list[str]:
    """A line for each claim: "held", "did NOT hold" or "not testable", and what it says."""
    words = {True: "held        ", False: "did NOT hold", None: "not testable"}
    return [f"{words[claim.held]}  {claim.statement}{_apart(claim)}" for claim in claims]


def _apart(claim: Claim) -> str:
    return " (our own)" if claim.own else " (an identity)" if claim.identity else ""


def in_short(report: Report) -> str:
    """Size, share of the paper's size and seeds: "Size `cpu` (examples 5 %, rounds 100 %), 5 seeds"."""
    of = share(report.scales)
    said = "" if report.size != "cpu" else ", which is the paper's" if of == FULL else f" ({of})"
    return f"Size `{report.size}`{said}, {number_of(report.seeds, 'seed')}"


def share(scales: Sequence[Scale], *, short: bool = False) -> str:
    """How much of the paper's size was run: "examples 20 %, rounds 100 %; the model"; ``short`` names no model."""
    if all(scale == Scale() for scale in scales):
        return FULL
    parts = [f"{name} {_span([getattr(scale, name) for scale in scales])}" for name in ("examples", "rounds")]
    models = [*dict.fromkeys(scale.model for scale in scales)]
    if not any(models):
        return ", ".join(parts)
    if short:
        return ", ".join([*parts, f"{'' if all(models) else 'partly '}a smaller model"])
    return f"{', '.join(parts)}; {' or '.join(model or 'its model' for model in models)}"


def _span(shares: Sequence[float]) -> str:
    """The least and the largest, in per cent."""
    ends = [f"{100 * end:.{0 if end >= 0.1 else 1}f}".removesuffix(".0") for end in (min(shares), max(shares))]
    return f"{' to '.join(dict.fromkeys(ends))} %"


def redraw(folder: Path) -> None:
    """Writes ``tables.md`` anew, its head and claims from ``claims.json``, its tables as they are."""
    report = read(folder)
    assert report is not None, f"{folder} has no complete results"
    parts = (folder / TABLES).read_text(encoding="utf-8").split("\n## ")[1:]
    kept = [f"## {part}".rstrip().splitlines() for part in parts if not part.startswith(("Setting\n", "Claims\n"))]
    kept = ["\n".join(line for line in part if not line.startswith("![")).rstrip().splitlines() for part in kept]
    write_atomically(folder / TABLES, _document(report, [[*lines, ""] for lines in kept]).encode())


def _document(report: Report, tables: Sequence[Sequence[str]]) -> str:
    """``tables.md``: where it comes from, settings, tables, claims."""
    lines = [f"# {report.name}: {report.title}", "", f"{report.source}. {in_short(report)}; {report.where}.", ""]
    if report.data:
        lines += [f"Data: {'; '.join(report.data)}.", ""]
    lines += markdown(Table("Setting", ("", "paper", "here"), [tuple(setting) for setting in report.settings]))
    for table in tables:
        lines += table
    if report.claims:
        lines += markdown(claims_table(report))
    for figure in report.figures:
        lines += [f"![{figure}]({figure}.png)", ""]
    return "\n".join(lines)


def claims_table(report: Report) -> Table:
    """Every claim with the paper's words and their place, what became of it, and the numbers behind the answer."""
    rows = []
    for claim in report.claims:
        central = "**central** " * claim.central
        said = [f'*"{claim.quote}"*' if claim.quote else "", claim.place]
        source = f". {', '.join(filter(None, said))}" * any(said)
        ours = f" (ours: {claim.ours})" * bool(claim.ours)
        own = f"examples {_span([claim.scale.examples])}" if claim.scale and len(report.scales) > 1 else ""
        notes = "".join(f" ({note})" for note in (claim.note, own) if note) + _apart(claim)
        answer = claim.standing if claim.held is not False else f"**did not hold**: {claim.why}"
        numbers = "; ".join(f"{name} {_of_json(plain(value))}" for name, value in claim.numbers.items())
        rows.append((f"{central}{claim.statement}{source}{ours}{notes}", answer, numbers))
    return Table("Claims", ("claim", "", "numbers"), rows)


def markdown(table: Table) -> list[str]:
    """A table below its title."""
    rows = [[cell(value) for value in row] for row in table.rows]
    places = range(len(table.columns))
    numeric = [i > 0 and all(row[i] is None or isinstance(row[i], (int, float)) for row in table.rows) for i in places]
    marks = ["---:" if number else "---" for number in numeric]
    printed = [f"| {' | '.join(row)} |" for row in ([cell(name) for name in table.columns], marks, *rows)]
    lines = [f"## {table.title}", "", *printed, ""]
    return [*lines, table.note, ""] if table.note else lines


def cell(value: Any) -> str:
    """A value in a Markdown table; numbers with three digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("|", "\\|").replace("\n", " ")
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 100 or math.isinf(value) or math.isnan(value) else f"{value:,.0f}"


def _of_json(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_of_json, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_of_json(item)}" for name, item in value.items())
    return cell(value) or "none"


def _record(run: History | Sweep) -> dict[str, Any]:
    """A run as JSON: what was recorded at the evaluations, and of every round where it is one number."""
    numbers = run.runs.rounds if isinstance(run, Sweep) else run.rounds
    known = run.rounds if isinstance(run, Sweep) else numbers
    return {
        "evaluated": run.evaluated,
        "metrics": run.metrics,
        "rounds": {name: value for name, value in known.items() if numbers[name].ndim == 2},
        "axes": list(run.dims) if isinstance(run, Sweep) else ["seed"],
        "coordinates": run.coordinates if isinstance(run, Sweep) else {"seed": run.seeds},
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
        "description": _shortened(run.description),
    }


def _shortened(value: Any) -> Any:
    """A description without long arrays, which would be most of the file."""
    if isinstance(value, Mapping):
        array = value.get("array")
        if isinstance(array, list) and len(str(array)) > _LONGEST:
            return {"array": f"left out: {np.shape(array)}", **{name: value[name] for name in value if name != "array"}}
        return {name: _shortened(item) for name, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value


def _json(value: Any, indent: int | None = None) -> bytes:
    return (json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()


def plain(value: Any) -> Any:
    """A value as JSON data. JSON has neither NaN nor infinities: they are strings here; numbers get seven digits."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value
