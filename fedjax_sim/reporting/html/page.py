"""One HTML page of its own: tables, curves, settings; nothing in it asks for anything from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from fedjax_sim.core.version import __version__
from fedjax_sim.reporting.html import tables
from fedjax_sim.reporting.html.clients import Spread, entries_of, spreads
from fedjax_sim.reporting.html.curves import KNOWN, Curve, Record, axes, curve, most_points, records
from fedjax_sim.reporting.html.palette import MARKERS, classes, style_sheet
from fedjax_sim.reporting.html.settings import differing, environment, settings
from fedjax_sim.reporting.html.static import Drawing, figure, swatch
from fedjax_sim.reporting.recorded import AXES, Recorded, in_words, loss_of_data
from fedjax_sim.reporting.table import objectives

_SCRIPTS = ("scales.js", "chart.js", "panels.js", "page.js")
_STATIC_POINTS = 120
_WORDS = {"round": "round", "virtual_time": "second", "bytes": "bytes"}


def page(histories: Mapping[str, Recorded], *, title: str | None = None) -> str:
    """The whole page.

    Args:
      histories: the runs' records by the name to print.
      title: its heading; None says how many runs are compared.

    Raises:
      ValueError: no histories, or one without metrics.
    """
    if not histories:
        raise ValueError("report: no histories were given; it takes {name: history}")
    for name, run in histories.items():
        if not run.metrics:
            raise ValueError(f"report: {name!r} has no metrics, so there is nothing to show")
    names = list(histories)
    known, left = records(histories)
    kinds = axes(histories)
    most = most_points(histories, known, len(kinds))
    drawn = _Places()
    found = {
        record.name: {axis: [curve(run, record, axis, most) for run in histories.values()] for axis in kinds}
        for record in known
    }
    spread = spreads(histories)
    data = {
        "runs": [_run(number, name) for number, name in enumerate(names)],
        "axes": [{"id": axis, "label": AXES[axis][1], "word": _WORDS[axis]} for axis in kinds],
        "records": [
            _record(record, in_words(record.name, histories.values()), found[record.name], drawn) for record in known
        ],
        "spreads": [_spread(name, in_words(name, histories.values()), by, names, drawn) for name, by in spread.items()],
        "places": drawn.all,
    }
    title = title or (names[0] if len(names) == 1 else f"{len(names)} runs compared")
    left = [name for name in left if name not in spread]
    lost = any(one and one.lost is not None for by in found.values() for lines in by.values() for one in lines)
    sections = [
        ("final", "Final values", tables.final_table(histories) + _notes(objectives(histories))),
        ("drawn", "Curves", _curves(histories, known, kinds, left, most, lost)),
    ]
    if spread:
        sections.append(("clients", "Clients", _clients(histories, spread)))
    each = [settings(run) | {f"environment.{k}": v for k, v in environment(run).items()} for run in histories.values()]
    if len(names) > 1:
        sections.append(("differs", "What differs", _differing(names, each)))
    sections.append(("runs", "Runs", "".join(_details(*item, number) for number, item in enumerate(histories.items()))))
    return _document(title, _head(histories), sections, data)


def _document(title: str, about: str, sections: Sequence[tuple[str, str, str]], data: Mapping[str, Any]) -> str:
    style = style_sheet() + _file("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_file, _SCRIPTS)) + "})();\n"
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{place}">{heading}</a></li>' for place, heading, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{place}"><h2 id="{place}">{heading}</h2>{inner}</section>\n'
        for place, heading, inner in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fedjax_sim {escape(__version__)}">
<title>{tables.text(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">to the content</a>
<header>
<div><h1>{tables.text(title)}</h1>{about}</div>
<button type="button" id="theme" hidden>Dark colours</button>
</header>
<nav aria-label="On this page"><ul>{links}</ul></nav>
<main id="main">
<p id="trouble" class="alarm" role="alert" hidden></p>
{body}</main>
<footer><p class="note">Written by fedjax_sim {escape(__version__)}. Everything is in this file; it asks for
nothing from a network.</p></footer>
<script type="application/json" id="data">{_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _head(histories: Mapping[str, Recorded]) -> str:
    """What was compared, and where it ran."""
    algorithms = list(dict.fromkeys(settings(run).get("algorithm", "") for run in histories.values()))
    datasets = list(dict.fromkeys(settings(run).get("dataset", "") for run in histories.values()))
    what = " on ".join(filter(None, (_listed(algorithms), _listed(datasets))))
    count = f"{len(histories)} runs" if len(histories) > 1 else "1 run"
    where = list(dict.fromkeys(_place(run) for run in histories.values()))
    ran = _listed([one for one in where if one]) or "unknown versions"
    now = datetime.now(UTC)
    written = f'<time datetime="{now:%Y-%m-%dT%H:%MZ}">{now:%Y-%m-%d %H:%M} UTC</time>'
    return (
        f"<p>{tables.text(': '.join(filter(None, (count, what))))}</p>"
        f'<p class="note">Ran with {tables.text(ran)}. Report of {written}.</p>'
    )


def _listed(names: Sequence[str], most: int = 6) -> str:
    names = [name for name in names if name]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _place(run: Recorded) -> str:
    where = environment(run)
    words = {"fedjax_sim": "fedjax_sim ", "jax": "jax ", "python": "Python ", "device": "", "float": ""}
    return " / ".join(f"{word}{where[key]}" for key, word in words.items() if key in where)


def _curves(
    histories: Mapping[str, Recorded],
    known: Sequence[Record],
    kinds: Sequence[str],
    left: Sequence[str],
    most: int,
    lost: bool,
) -> str:
    """Controls (for the script), the legend, and the first curves without a script."""
    runs = list(histories.values())
    names = [record.name for record in known]
    wanted = [name for name in KNOWN if name in names and name == loss_of_data(runs, name)][:2] or names[:2]
    choices = {True: "", False: ""}
    for number, record in enumerate(known):
        checked = " checked" if record.name in wanted else ""
        box = f'<input type="checkbox" name="curve" value="{number}"{checked}>'
        choices[record.metric] += f"<label>{box}{tables.text(in_words(record.name, runs))}</label>"
    groups = "".join(
        f'<fieldset><legend>{heading}</legend><div class="row">{choices[metric]}</div></fieldset>'
        for metric, heading in ((True, "Of evaluations"), (False, "Of every round"))
        if choices[metric]
    )
    before, fold, after = groups.rpartition("<fieldset>")
    if before:  # what is recorded of every round may be much
        groups = f"{before}<details><summary>More curves</summary>{fold}{after}</details>"
    against = "".join(f'<option value="{axis}">{AXES[axis][1]}</option>' for axis in kinds)
    axis = f'<label>against <select name="axis">{against}</select></label>' if len(kinds) > 1 else ""
    several = any(len(next(iter(run.metrics.values()))) > 1 for run in histories.values())
    bands = '<label><input type="checkbox" name="bands" checked> bands</label>' if several or any(
        record.quantiles for record in known) else ""  # fmt: skip
    form = (
        f'<form id="controls" class="controls" aria-label="What is drawn" hidden><div class="row">{axis}'
        '<label>vertical axis <select name="scale"><option value="auto">automatic</option>'
        '<option value="linear">linear</option><option value="log">logarithmic</option></select></label>'
        f"{bands}</div>{groups}</form>"
    )
    keys = "".join(
        f'<li><span class="key">{swatch(number)}<span>{tables.text(name)}</span></span></li>'
        for number, name in enumerate(histories)
    )
    drawings = []
    for record in known:
        if record.name in wanted:
            lines = [curve(run, record, "round", min(most, _STATIC_POINTS)) for run in histories.values()]
            label, loss = in_words(record.name, runs), record.name.endswith("loss")
            drawings.append(Drawing(label, label, _note(record), AXES["round"][1], lines, log=None, loss=loss))
    notes = []
    if lost:
        notes.append("A cross at the upper edge: from there on a seed was NaN or infinite.")
    if several:
        notes.insert(0, "Lines are means over seeds, bands run from the lowest to the highest seed.")
    if max((len(run.evaluated) for run in histories.values()), default=0) > most or any(
        np.asarray(values).shape[1] > most
        for run in histories.values()
        for values in getattr(run, "rounds", {}).values()
    ):
        notes.append(f"Curves of more than {most} points are thinned; the lowest and highest of each stretch are kept.")
    if left:
        notes.append(f"Recorded, and not drawn here: {', '.join(left)}.")
    return (
        f'{form}<ul id="legend" class="legend" aria-label="Runs">{keys}</ul>'
        f'<div id="curves" class="panels">{"".join(map(figure, drawings))}</div>{_notes(notes)}'
    )


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{tables.text(note[:1].upper() + note[1:])}</p>' for note in notes)


def _clients(histories: Mapping[str, Recorded], spread: Mapping[str, Mapping[str, Spread]]) -> str:
    drawings, found, names = [], [], list(histories)
    for name, by in spread.items():
        lines = [_steps(by[run]) if run in by else None for run in names]
        words = in_words(name, histories.values())
        drawings.append(figure(Drawing(words, _share(name), _share_note(name), words, lines)))
        found.append(tables.spread_table(name, words, by, names))
    return f'<div id="spreads" class="panels">{"".join(drawings)}</div>' + "".join(found)


def _share(name: str) -> str:
    return f"share of the {entries_of(name)}"


def _share_note(name: str) -> str:
    return f"{_share(name)} at or below a value, at the last evaluation, all seeds together"


def _steps(spread: Spread) -> Curve | None:
    x, share = spread.steps()
    if not x.size:
        return None
    return Curve(np.concatenate([x[:1], x]), np.concatenate([[0.0], share]), None, None, None, True)


def _differing(names: Sequence[str], each: Sequence[Mapping[str, str]]) -> str:
    rows = differing(each)
    if not rows:
        return "<p>Nothing: all runs have the same settings.</p>"
    return tables.differences(names, rows)


def _details(name: str, run: Recorded, number: int) -> str:
    signs = [str(one) for one in getattr(run, "divergences", ())]
    stops = [f"seed {seed} stopped after round {stop.round}: {stop.reason}"
             for seed, stop in getattr(run, "stops", {}).items()]  # fmt: skip
    alarms = "".join(f'<p class="alarm">{tables.text(sign)}</p>' for sign in signs)
    ends = "".join(f"<p>{tables.text(stop)}</p>" for stop in stops)
    rows = settings(run) | {f"environment.{key}": value for key, value in environment(run).items()}
    table = tables.pairs(rows, "Full configuration, by the keys of `fedjax-sim run --set`") if rows else (
        "<p>This run has no description.</p>")  # fmt: skip
    short = " ".join(filter(None, (rows.get("algorithm"), rows.get("dataset") and f"on {rows['dataset']}")))
    said = f' <span class="note">{tables.text(short)}</span>' if short else ""
    summary = f"<summary>{swatch(number)} <h3>{tables.text(name)}</h3>{said}</summary>"
    return f"<details>{summary}{alarms}{ends}{table}</details>"


class _Places:
    """Lists of places that many curves share, each once."""

    def __init__(self) -> None:
        self.all: list[list[Any]] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def of(self, found: dict[str, Any]) -> dict[str, Any]:
        key = tuple(found["x"])
        if key not in self._known:
            self._known[key] = len(self.all)
            self.all.append(found["x"])
        return found | {"x": self._known[key]}


def _run(number: int, name: str) -> dict[str, str]:
    style = classes(number)
    return {
        "name": tables.clean(name),
        "style": style,
        "colour": style.split()[0],
        "marker": MARKERS[number % len(MARKERS)],
    }


def _record(
    record: Record, words: str, by_axis: Mapping[str, Sequence[Curve | None]], drawn: _Places
) -> dict[str, Any]:
    lines = {
        axis: [None if one is None else drawn.of(one.as_json()) for one in lines]
        for axis, lines in by_axis.items()
    }  # fmt: skip
    return {
        "name": record.name, "label": words, "what": words, "note": _note(record),
        "loss": record.name.endswith("loss"), "curves": lines,
    }  # fmt: skip


def _note(record: Record) -> str:
    return "median and middle half of the clients, mean over seeds" if record.quantiles else ""


def _spread(name: str, words: str, by: Mapping[str, Spread], names: Sequence[str], drawn: _Places) -> dict[str, Any]:
    lines = [_steps(by[run]) if run in by else None for run in names]
    return {
        "label": words, "what": _share(name), "note": _share_note(name),
        "curves": [None if one is None else drawn.of(one.as_json()) for one in lines],
    }  # fmt: skip


def _json(data: Mapping[str, Any]) -> str:
    """JSON within a script element: nothing in it can end the element or begin a comment."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: separators of lines are escaped too
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("fedjax_sim.reporting.html") / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
