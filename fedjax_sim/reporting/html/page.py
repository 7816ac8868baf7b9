"""One HTML page of its own: tables, curves, settings; nothing in it asks for anything from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import string
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from fedjax_sim.core.version import __version__
from fedjax_sim.reporting.html import curves, tables
from fedjax_sim.reporting.html.curves import KNOWN, Curve, Record, Spread, axes_of, curve, entries_of, records
from fedjax_sim.reporting.html.drawing import MARKERS, Drawing, classes, style_sheet, swatch
from fedjax_sim.reporting.html.personal import Personal, personal, told_by_tables
from fedjax_sim.reporting.html.settings import differing, environment, settings
from fedjax_sim.reporting.recorded import AXES, Recorded, check_runs, in_words, is_of_models, loss_of_data
from fedjax_sim.reporting.table import listed, remarks

_SCRIPTS = ("scales.js", "chart.js", "panels.js", "page.js")
_WORDS = {"round": "round", "virtual_time": "second", "bytes": "bytes"}


def page(histories: Mapping[str, Recorded], *, title: str | None = None) -> str:
    """The whole page, see :func:`fedjax_sim.reporting.report`."""
    check_runs("report: histories", histories)
    for name, run in histories.items():
        if not run.metrics:
            raise ValueError(f"report: {name!r} has no metrics, so there is nothing to show")
    names = list(histories)
    known, left = records(histories)
    kinds = [axis for axis in AXES if any(axis in axes_of(run) for run in histories.values())]
    most = curves.most_points(histories, known, len(kinds))
    found = {
        record.name: {axis: [curve(run, record, axis, most) for run in histories.values()] for axis in kinds}
        for record in known
    }
    spread = curves.spreads(histories)
    shares = [_shares(histories, name, by) for name, by in spread.items()]
    places: dict[tuple[Any, ...], int] = {}  # lists of places that many curves share, each once

    def packed(one: Curve | None) -> dict[str, Any] | None:
        if one is None:
            return None
        plain = one.as_json()
        return plain | {"x": places.setdefault(tuple(plain["x"]), len(places))}

    def told(drawing: Drawing) -> dict[str, Any]:
        return {"label": drawing.title, "what": drawing.what, "note": drawing.note, "loss": drawing.loss}

    data: dict[str, Any] = {
        "runs": [_line(number, name) for number, name in enumerate(names)],
        "axes": [{"id": axis, "label": AXES[axis][1], "word": _WORDS[axis]} for axis in kinds],
        "records": [
            {
                "name": record.name,
                **told(_drawing(histories, record)),
                "curves": {axis: list(map(packed, lines)) for axis, lines in found[record.name].items()},
            }
            for record in known
        ],
        "spreads": [{**told(one), "curves": list(map(packed, one.curves))} for one in shares],
    }
    own = personal(histories)
    if own is not None:
        data["personal"] = {
            "ofRuns": own.of_runs,
            "lines": [_line(number, own.lines.get(number, "")) for number in range(max(own.lines) + 1)],
            "panels": [
                told(one) | {"axis": one.x_label, "curves": list(map(packed, one.curves))} for one in own.drawings
            ],
        }
    data["places"] = list(places)
    title = title or (names[0] if len(names) == 1 else f"{len(names)} runs compared")
    left = [name for name in left if name not in spread]
    lost = any(one and one.lost is not None for by in found.values() for lines in by.values() for one in lines)
    sections = [
        (
            "final",
            "Final values",
            tables.final_table(histories, told_by_tables(histories)) + _notes(remarks(histories)),
        ),
        ("drawn", "Curves", _curves(histories, known, kinds, left, most, lost)),
    ]
    if own is not None:
        sections.append(("personal", "Personal models", _personal(own)))
    if spread:
        found_tables = [
            tables.spread_table(name, one.title, by, names)
            for one, (name, by) in zip(shares, spread.items(), strict=True)
        ]
        sections.append(("clients", "Clients", f'<div id="spreads" class="panels"></div>{"".join(found_tables)}'))
    each = [_all_settings(run) for run in histories.values()]
    if len(names) > 1:
        rows = differing(each)
        same = "<p>Nothing: all runs have the same settings.</p>"
        sections.append(("differs", "What differs", tables.differences(names, rows) if rows else same))
    sections.append(("runs", "Runs", "".join(_details(*item, number) for number, item in enumerate(histories.items()))))
    return _document(title, _head(histories), sections, data)


def _line(number: int, name: str) -> dict[str, str]:
    """How the script draws the number-th line."""
    style, marker = classes(number), MARKERS[number % len(MARKERS)]
    return {"name": tables.clean(name), "style": style, "colour": style.split()[0], "marker": marker}


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
    values = {"policy": policy, "version": escape(__version__), "title": tables.text(title), "about": about}
    template = string.Template(_file("page.html"))
    return template.substitute(values, style=style, links=links, body=body, data=_json(data), script=script)


def _head(histories: Mapping[str, Recorded]) -> str:
    """What was compared, and where it ran."""
    each = [settings(run) for run in histories.values()]
    what = " on ".join(filter(None, (_once(one.get(part) for one in each) for part in ("algorithm", "dataset"))))
    count = f"{len(histories)} runs" if len(histories) > 1 else "1 run"
    ran = _once(_place(run) for run in histories.values()) or "unknown versions"
    now = datetime.now(UTC)
    written = f'<time datetime="{now:%Y-%m-%dT%H:%MZ}">{now:%Y-%m-%d %H:%M} UTC</time>'
    return (
        f"<p>{tables.text(': '.join(filter(None, (count, what))))}</p>"
        f'<p class="note">Ran with {tables.text(ran)}. Report of {written}.</p>'
    )


def _place(run: Recorded) -> str:
    where = environment(run)
    words = {"fedjax_sim": "fedjax_sim ", "jax": "jax ", "python": "Python ", "device": "", "float": ""}
    return " / ".join(f"{word}{where[key]}" for key, word in words.items() if key in where)


def _once(names: Iterable[str | None]) -> str:
    return listed(list(dict.fromkeys(name for name in names if name)))


def _all_settings(run: Recorded) -> dict[str, str]:
    return settings(run) | {f"environment.{key}": value for key, value in environment(run).items()}


def _drawing(histories: Mapping[str, Recorded], record: Record) -> Drawing:
    words = in_words(record.name, histories.values())
    note = "median and middle half of the clients, mean over seeds" if record.quantiles else ""
    return Drawing(words, words, note, loss=record.name.endswith("loss"))


def _shares(histories: Mapping[str, Recorded], name: str, by: Mapping[str, Spread]) -> Drawing:
    words, share = in_words(name, histories.values()), f"share of the {entries_of(name)}"
    note = f"{share} at or below a value, at the last evaluation, all seeds together"
    return Drawing(words, share, note, [by[run].curve() if run in by else None for run in histories])


def _curves(
    histories: Mapping[str, Recorded],
    known: Sequence[Record],
    kinds: Sequence[str],
    left: Sequence[str],
    most: int,
    lost: bool,
) -> str:
    """Controls, which the script shows, the places of legend and curves, and notes."""
    runs = list(histories.values())
    names = [record.name for record in known]
    wanted = [name for name in KNOWN if name in names and name == loss_of_data(runs, name)][:2] or names[:2]
    choices: dict[str, list[str]] = {"Of evaluations": [], "Of models of the clients": [], "Of every round": []}
    compared = bool(told_by_tables(histories))
    for number, record in enumerate(known):
        checked = " checked" if record.name in wanted else ""
        box = f'<input type="checkbox" name="curve" value="{number}"{checked}>'
        own = compared and is_of_models(record.name)
        kind = list(choices)[0 if record.metric and not own else 1 if record.metric else 2]
        choices[kind].append(f"<label>{box}{tables.text(in_words(record.name, runs))}</label>")
    first, *more = (
        f'<fieldset><legend>{heading}</legend><div class="row">{"".join(boxes)}</div></fieldset>'
        for heading, boxes in choices.items()
        if boxes
    )
    folded = f"<details><summary>More curves</summary>{''.join(more)}</details>" if more else ""  # they may be many
    against = "".join(f'<option value="{axis}">{AXES[axis][1]}</option>' for axis in kinds)
    axis = f'<label>against <select name="axis">{against}</select></label>' if len(kinds) > 1 else ""
    several = any(len(next(iter(run.metrics.values()))) > 1 for run in histories.values())
    banded = several or any(record.quantiles for record in known)
    bands = '<label><input type="checkbox" name="bands" checked> bands</label>' if banded else ""
    form = (
        f'<form id="controls" class="controls" aria-label="What is drawn" hidden><div class="row">{axis}'
        '<label>vertical axis <select name="scale"><option value="auto">automatic</option>'
        '<option value="linear">linear</option><option value="log">logarithmic</option></select></label>'
        f"{bands}</div>{first}{folded}</form>"
    )
    notes = []
    if several:
        notes.append("Lines are means over seeds, bands run from the lowest to the highest seed.")
    if lost:
        notes.append("A cross at the upper edge: from there on a seed was NaN or infinite.")
    if max((len(run.evaluated) for run in histories.values()), default=0) > most or any(
        np.asarray(values).shape[1] > most
        for run in histories.values()
        for values in getattr(run, "rounds", {}).values()
    ):
        notes.append(f"Curves of more than {most} points are thinned; the lowest and highest of each stretch are kept.")
    if left:
        notes.append(f"Recorded, and not drawn here: {', '.join(left)}.")
    return (
        f'{form}<ul id="legend" class="legend" aria-label="Runs"></ul><div id="curves" class="panels"></div>'
        f"{_notes(notes)}"
    )


def _personal(own: Personal) -> str:
    """A legend, which not all runs have to be in, the place of the figures, and their tables."""
    keys = "".join(
        f'<li><span class="key">{swatch(number)}<span>{tables.text(name)}</span></span></li>'
        for number, name in own.lines.items()
    )
    return (
        f'<p>{tables.text(own.about)}</p><ul class="legend" aria-label="What is drawn">{keys}</ul>'
        f'<div id="own" class="panels"></div>{"".join(own.tables)}{_notes(own.notes)}'
    )


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{tables.text(note[:1].upper() + note[1:])}</p>' for note in notes)


def _details(name: str, run: Recorded, number: int) -> str:
    alarms = "".join(f'<p class="alarm">{tables.text(sign)}</p>' for sign in map(str, getattr(run, "divergences", ())))
    ends = "".join(
        f"<p>{tables.text(f'seed {seed} stopped after round {stop.round}: {stop.reason}')}</p>"
        for seed, stop in getattr(run, "stops", {}).items()
    )
    rows, table = _all_settings(run), "<p>This run has no description.</p>"
    if rows:
        table = tables.pairs(rows, "Full configuration, by the keys of `fedjax-sim run --set`")
    short = " ".join(filter(None, (rows.get("algorithm"), rows.get("dataset") and f"on {rows['dataset']}")))
    said = f' <span class="note">{tables.text(short)}</span>' if short else ""
    summary = f"<summary>{swatch(number)} <h3>{tables.text(name)}</h3>{said}</summary>"
    return f"<details>{summary}{alarms}{ends}{table}</details>"


def _json(data: Mapping[str, Any]) -> str:
    """JSON within a script element: nothing in it can end the element or begin a comment."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: separators of lines are escaped too
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("fedjax_sim.reporting.html") / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
