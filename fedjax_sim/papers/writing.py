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
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps.result import Sweep

CLAIMS, RESULTS, TABLES = "claims.json", "results.json", "tables.md"
_KINDS = ("png", "svg")
_FORMAT = 2
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
    where: str  # backend, devices, versions
    data: list[str]  # which data was used, in words
    settings: list[Setting]  # the paper's beside ours
    claims: list[Claim]  # with what they rest on
    figures: list[str]  # names of the figures' files, without their endings
    effects: list[Effect] = dataclasses.field(default_factory=list)  # numbers of the paper beside ours
    scale: Scale = Scale()  # how much of the paper's size this is
    see: str = ""  # the experiment that has the claims

    def counts(self) -> tuple[int, int, int]:
        """How many claims of the paper held, did not hold, cannot be told."""
        held = [claim.held for claim in self.claims if not claim.own]
        return held.count(True), held.count(False), held.count(None)


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
    write_atomically(folder / TABLES, _document(report, outcome.tables).encode())
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
    return [f"{words[claim.held]}  {claim.statement}{' (our own)' if claim.own else ''}" for claim in claims]


def _document(report: Report, tables: Sequence[Table]) -> str:
    """``tables.md``: where it comes from, settings, tables, claims."""
    lines = [
        f"# {report.name}: {report.title}", "",
        f"{report.source}. Size `{report.size}`, {report.seeds} seed{'s' if report.seeds != 1 else ''}; "
        f"{report.where}.", "",
    ]  # fmt: skip
    if report.data:
        lines += [f"Data: {'; '.join(report.data)}.", ""]
    lines += markdown(Table("Setting", ("", "paper", "here"), [tuple(setting) for setting in report.settings]))
    for table in tables:
        lines += markdown(table)
    if report.claims:
        lines += markdown(claims_table(report.claims))
    for figure in report.figures:
        lines += [f"![{figure}]({figure}.png)", ""]
    return "\n".join(lines)


def claims_table(claims: Sequence[Claim]) -> Table:
    """Every claim with the paper's words and their place, what became of it, and the numbers behind the answer."""
    rows = []
    for claim in claims:
        central = "**central** " * claim.central
        said = [f'*"{claim.quote}"*' if claim.quote else "", claim.place]
        source = f". {', '.join(filter(None, said))}" * any(said)
        ours = f" (ours: {claim.ours})" * bool(claim.ours)
        notes = "".join(f" ({note})" for note in (claim.note, "our own" * claim.own) if note)
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
